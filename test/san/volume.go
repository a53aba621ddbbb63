package san

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Lock types of a VG.
const (
	LockSanlock = "sanlock"
	LockNone    = "none" // no lvmlockd: -aey excludes nobody
	LockDLM     = "dlm"  // reported; its lockspace cannot be started here
)

// VGSpec describes a new volume group.
type VGSpec struct {
	Name     string
	LockType string // "" means LockSanlock
	Size     int64  // bytes; 0 means 64 GiB
}

// LVSpec describes a new logical volume, made as if lvcreate -an had been run.
type LVSpec struct {
	Name   string
	Size   int64  // bytes, rounded up to extents of 4 MiB; 0 means 32 MiB
	Type   string // linear (default), striped, thin-pool, thin, snapshot, raid1, mirror, cache, writecache
	Origin string // of a snapshot
	Pool   string // of a thin volume
	Tags   []string
	Host   string // lv_host; "" means the first host
}

// Volume is a logical volume as the metadata has it.
type Volume struct {
	VG, Name       string
	VGUUID, LVUUID string
	DMName, DMUUID string
	Size           int64 // bytes
	LeaseOffset    int64 // 0: it has no lease of its own
	Data           string
}

// AddVG makes a volume group; every host that is up starts its lockspace.
func (s *SAN) AddVG(spec VGSpec) error {
	err := s.update(func(st *state) error {
		if spec.Name == "" || filepath.Base(spec.Name) != spec.Name {
			return errors.New("not a plain name")
		}
		if st.VGs[spec.Name] != nil {
			return errors.New("it is there already")
		}
		vg := &vgState{
			Name: spec.Name, UUID: newUUID(), LockType: spec.LockType, Size: spec.Size,
			Leases: map[int64]*lease{}, Deltas: map[int]*deltaSlot{},
		}
		switch vg.LockType {
		case "":
			vg.LockType = LockSanlock
		case LockSanlock, LockNone, LockDLM:
		default:
			return fmt.Errorf("no lock type %q", vg.LockType)
		}
		if vg.Size == 0 {
			vg.Size = 64 << 30
		}
		if err := os.MkdirAll(filepath.Join(s.dir, "luns", vg.Name), 0o755); err != nil {
			return err
		}
		if vg.leased() {
			creator := ""
			if hs := st.hostsByID(); len(hs) > 0 {
				creator = hs[0].Name
			}
			vg.LockLV = &lvState{
				Name: lockLVName, UUID: newUUID(), Seg: "linear", Size: lockLVSize, Used: lockLVSize,
				Host: creator, Attr: "--",
			}
			if err := s.makeData(vg, vg.LockLV); err != nil {
				return err
			}
		}
		st.VGs[vg.Name] = vg
		for _, h := range st.hostsByID() {
			if err := s.startLockspace(h, vg, s.now(st).Add(-longAgo)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot add volume group %q: %w", spec.Name, err)
	}
	return nil
}

// AddLV makes a logical volume, inactive everywhere.
func (s *SAN) AddLV(vg string, spec LVSpec) (Volume, error) {
	var v Volume
	err := s.update(func(st *state) error {
		g := st.VGs[vg]
		if g == nil {
			return errors.New("no such volume group")
		}
		if spec.Host == "" {
			if hs := st.hostsByID(); len(hs) > 0 {
				spec.Host = hs[0].Name
			}
		}
		lv, err := s.makeLV(g, spec)
		if err == nil {
			v = s.volume(g, lv)
		}
		return err
	})
	if err != nil {
		return Volume{}, fmt.Errorf("cannot add logical volume %s/%s: %w", vg, spec.Name, err)
	}
	return v, nil
}

// Volume looks a logical volume up.
func (s *SAN) Volume(vg, lv string) (Volume, error) {
	var v Volume
	err := s.view(func(st *state) error {
		g := st.VGs[vg]
		if g == nil || g.find(lv) == nil {
			return fmt.Errorf("no volume %s/%s", vg, lv)
		}
		v = s.volume(g, g.find(lv))
		return nil
	})
	return v, err
}

func (s *SAN) volume(vg *vgState, lv *lvState) Volume {
	return Volume{
		VG: vg.Name, Name: lv.Name, VGUUID: vg.UUID, LVUUID: lv.UUID, DMName: dmName(vg.Name, lv.Name),
		DMUUID: dmUUID(vg, lv), Size: lv.Size, LeaseOffset: lv.Offset, Data: s.dataPath(vg, lv),
	}
}
