package san

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

var (
	errExists  = errors.New("it is there already")
	errNoSpace = errors.New("not enough free extents")
)

// makeLV adds an LV with the hidden parts its type has, and its lease.
func (s *SAN) makeLV(vg *vgState, spec LVSpec) (*lvState, error) {
	if spec.Name == "" || filepath.Base(spec.Name) != spec.Name || spec.Name == lockLVName {
		return nil, fmt.Errorf("bad name %q", spec.Name)
	}
	if vg.find(spec.Name) != nil {
		return nil, errExists
	}
	lv := &lvState{
		Name: spec.Name, UUID: newUUID(), Seg: spec.Type, Size: roundUp(spec.Size), Origin: spec.Origin,
		Pool: spec.Pool, Tags: sortedTags(spec.Tags), Host: spec.Host,
	}
	if lv.Size == 0 {
		lv.Size = 32 << 20
	}
	lv.Used = lv.Size
	switch lv.Seg {
	case "":
		lv.Seg = "linear"
	case "linear", "striped", "writecache", "cache", "thin-pool":
	case "raid1", "mirror":
		lv.Used = 2 * lv.Size
	case "snapshot":
		if o := vg.find(lv.Origin); o == nil || o.Parent != "" {
			return nil, fmt.Errorf("no origin %q", lv.Origin)
		}
		lv.Seg = "linear"
	case "thin":
		if p := vg.find(lv.Pool); p == nil || p.Seg != "thin-pool" {
			return nil, fmt.Errorf("no thin pool %q", lv.Pool)
		}
		lv.Used = 0
	default:
		return nil, fmt.Errorf("no type %q", lv.Seg)
	}
	if lv.Used > vg.free() {
		return nil, errNoSpace
	}
	if vg.leased() && lv.Seg != "thin" && !lv.isSnapshot() {
		lv.Offset = vg.takeLease(lv.UUID)
	}
	if err := s.makeData(vg, lv); err != nil {
		return nil, err
	}
	vg.LVs = append(vg.LVs, lv)
	for _, p := range hiddenParts(lv) {
		p.UUID, p.Host, p.Parent = newUUID(), lv.Host, lv.Name
		if err := s.makeData(vg, p); err != nil {
			return nil, err
		}
		vg.LVs = append(vg.LVs, p)
	}
	return lv, nil
}

// hiddenParts are the LVs below one of that type, with the letters of their lv_attr.
func hiddenParts(lv *lvState) []*lvState {
	part := func(suffix, attr string) *lvState {
		return &lvState{Name: lv.Name + suffix, Seg: "linear", Size: lv.Size, Attr: attr}
	}
	switch lv.Seg {
	case "thin-pool":
		return []*lvState{part("_tdata", "T-"), part("_tmeta", "e-")}
	case "raid1":
		return []*lvState{part("_rimage_0", "ir"), part("_rimage_1", "ir"), part("_rmeta_0", "er"), part("_rmeta_1", "er")}
	case "mirror":
		return []*lvState{part("_mimage_0", "im"), part("_mimage_1", "im")}
	case "cache":
		return []*lvState{part("_corig", "oC"), part("_fast_cvol", "CC")}
	case "writecache":
		return []*lvState{part("_wcorig", "oC"), part("_fast_cvol", "CC")}
	}
	return nil
}

// takeLease gives out the first unused lease of the VG.
func (vg *vgState) takeLease(uuid string) int64 {
	for off := int64(firstLease); ; off += leaseSize {
		if l := vg.Leases[off]; l == nil || l.Resource == "" {
			vg.Leases[off] = &lease{Resource: uuid}
			return off
		}
	}
}

// removeLV takes an LV and its hidden parts out of the metadata.
func (s *SAN) removeLV(vg *vgState, lv *lvState) error {
	gone := append(vg.parts(lv), lv)
	for _, g := range gone {
		if err := os.Remove(s.dataPath(vg, g)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		delete(vg.Leases, g.Offset)
	}
	vg.LVs = slices.DeleteFunc(vg.LVs, func(o *lvState) bool { return slices.Contains(gone, o) })
	return nil
}

func (s *SAN) dataPath(vg *vgState, lv *lvState) string {
	return filepath.Join(s.dir, "luns", vg.Name, lv.UUID)
}

// makeData makes or resizes the sparse file behind an LV.
func (s *SAN) makeData(vg *vgState, lv *lvState) error {
	f, err := os.OpenFile(s.dataPath(vg, lv), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if err := f.Truncate(lv.Size); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

func roundUp(size int64) int64 { return (size + extentSize - 1) / extentSize * extentSize }

func sortedTags(tags []string) []string {
	tags = slices.Clone(tags)
	slices.Sort(tags)
	return slices.Compact(tags)
}

// newUUID makes an id in LVM's form: 32 letters and digits as 6-4-4-4-4-4-6.
func newUUID() string {
	const chars = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	for i, b := range raw {
		raw[i] = chars[int(b)%len(chars)]
	}
	var parts []string
	at := 0
	for _, n := range []int{6, 4, 4, 4, 4, 4, 6} {
		parts = append(parts, string(raw[at:at+n]))
		at += n
	}
	return strings.Join(parts, "-")
}
