package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
)

// VG is a volume group as its metadata describes it.
type VG struct {
	Name string
	UUID string
	// LockType is "sanlock", "dlm" or "none" for a VG without lvmlockd; others are kept
	// as LVM names them.
	LockType string
	// LockArgs is lvmlockd's own note, for sanlock "1.0.0:lvmlock".
	LockArgs       string
	Autoactivation bool  // hosts grab its volumes at boot
	ExtentSize     int64 // bytes
	Free           int64 // bytes
	Attr           string
	SystemID       string
	Tags           []string
	Volumes        int // visible volumes
}

// Fields of the two reports, see vgs(8) and lvs(8).
const (
	vgFields = "vg_name,vg_uuid,vg_lock_type,vg_lock_args,vg_autoactivation,vg_extent_size,vg_free,vg_attr,vg_systemid,vg_tags,lv_count"
	lvFields = "vg_name,vg_uuid,vg_lock_type,lv_name,lv_uuid,lv_lockargs,segtype,lv_tags,origin,pool_lv,lv_size"
)

// VGs lists the volume groups that this host sees, or the named ones of them, with one
// vgs. Only without names does LVM take its global lock.
func (l *LVM) VGs(ctx context.Context, names ...string) ([]VG, error) {
	cmd := reportCmd("vgs", vgFields, names...)
	res, err := l.runner.Run(ctx, cmd)
	res = withLog(res)
	missing, err := absent(Classify(cmd, res, err))
	if err != nil || len(names) > 0 && len(missing) == len(distinct(names)) {
		return nil, err
	}
	rep, err := parseReport("vgs", res.Stdout)
	if err != nil {
		return nil, err
	}
	var vgs []VG
	for _, part := range rep.Report {
		for _, r := range part.VG {
			vg, err := parseVG(r)
			if err != nil {
				return nil, badRow("vgs", err)
			}
			vgs = append(vgs, vg)
		}
	}
	return vgs, nil
}

// Inventory reads the named VGs with one lvs. VGs that do not exist come back in
// missing, not as an error; unlocked are VGs that LVM read "without a lock", because
// their lockspace is not started here or lvmlockd does not run: what it says of them may
// be out of date. Without names it reads nothing.
func (l *LVM) Inventory(ctx context.Context, vgs ...string) (vols []model.Volume, missing, unlocked []string, err error) {
	if len(vgs) == 0 {
		return nil, nil, nil, nil
	}
	cmd := reportCmd("lvs", lvFields, vgs...)
	res, runErr := l.runner.Run(ctx, cmd)
	res = withLog(res)
	missing, err = absent(Classify(cmd, res, runErr))
	if err != nil {
		return nil, nil, nil, err
	}
	if len(missing) < len(distinct(vgs)) {
		if vols, err = parseVolumes(res); err != nil {
			return nil, nil, nil, err
		}
	}
	return vols, missing, readUnlocked(string(res.Stderr)), nil
}

func parseVolumes(res run.Result) ([]model.Volume, error) {
	rep, err := parseReport("lvs", res.Stdout)
	if err != nil {
		return nil, err
	}
	var vols []model.Volume
	seen := map[model.VolumeID]bool{}
	for _, part := range rep.Report {
		for _, r := range part.LV {
			if hidden(r.text("lv_name")) {
				continue
			}
			vol, err := parseVolume(r)
			if err != nil {
				return nil, badRow("lvs", err)
			}
			// The segment type makes LVM print a row for each segment of a volume.
			if !seen[vol.ID] {
				seen[vol.ID] = true
				vols = append(vols, vol)
			}
		}
	}
	lockedByPool(vols)
	return vols, nil
}

// lockedByPool names the pool's lock for volumes that have none of their own.
func lockedByPool(vols []model.Volume) {
	uuids := map[string]string{}
	for _, v := range vols {
		uuids[v.Name()] = v.ID.LV
	}
	for i, v := range vols {
		if pool := uuids[v.VG+"/"+v.Pool]; v.Pool != "" && v.LeaseOffset < 0 && pool != "" {
			vols[i].LockLV = pool
		}
	}
}

// absent turns an error that says nothing but "no such VG" into the names of those VGs.
func absent(err error) ([]string, error) {
	var e *Error
	if !errors.As(err, &e) {
		return nil, err
	}
	var missing []string
	for _, f := range e.Failures {
		if f.Kind != NoSuchVG {
			return nil, err
		}
		missing = append(missing, f.VG)
	}
	return missing, nil
}

// readUnlocked finds the VGs that were read without a lock.
func readUnlocked(stderr string) []string {
	var vgs []string
	for line := range strings.Lines(stderr) {
		vg, ok := between(strings.TrimSpace(line), "Reading VG ", " without a lock.")
		if ok && !slices.Contains(vgs, vg) {
			vgs = append(vgs, vg)
		}
	}
	return vgs
}

func distinct(names []string) []string {
	sorted := slices.Sorted(slices.Values(names))
	return slices.Compact(sorted)
}

func badRow(program string, err error) error {
	return api.WrapError(api.KindInternal, fmt.Sprintf("cannot understand the answer of %s: %v", program, err), err)
}

func parseVG(r row) (VG, error) {
	vg := VG{
		LockType: lockType(r),
		LockArgs: r.text("vg_lock_args"),
		// "enabled" or empty; a number with report/binary_values_as_numeric in lvm.conf.
		Autoactivation: r.text("vg_autoactivation") == "enabled" || r.text("vg_autoactivation") == "1",
		Attr:           r.text("vg_attr"),
		SystemID:       r.text("vg_systemid"),
		Tags:           r.list("vg_tags"),
	}
	var errs [4]error
	vg.Name, errs[0] = r.need("vg_name")
	vg.UUID, errs[1] = r.need("vg_uuid")
	vg.ExtentSize, errs[2] = r.bytes("vg_extent_size")
	vg.Free, errs[3] = r.bytes("vg_free")
	vg.Volumes, _ = strconv.Atoi(r.text("lv_count")) // for show alone: nothing is decided by it
	return vg, errors.Join(errs[:]...)
}

func parseVolume(r row) (model.Volume, error) {
	v := model.Volume{
		LockType:    lockType(r),
		LeaseOffset: leaseOffset(r.text("lv_lockargs")),
		Tags:        r.list("lv_tags"),
		Origin:      bare(r.text("origin")),
		Pool:        bare(r.text("pool_lv")),
	}
	var errs [6]error
	v.VG, errs[0] = r.need("vg_name")
	v.ID.VG, errs[1] = r.need("vg_uuid")
	v.LV, errs[2] = r.need("lv_name")
	v.ID.LV, errs[3] = r.need("lv_uuid")
	v.SegType, errs[4] = r.need("segtype")
	v.Size, errs[5] = r.bytes("lv_size")
	v.LockLV = v.ID.LV
	return v, errors.Join(errs[:]...)
}

func lockType(r row) string {
	if t := r.text("vg_lock_type"); t != "" {
		return t
	}
	return "none"
}

// leaseOffset reads lv_lockargs, "1.0.0:OFFSET": the byte offset of the lease in the
// VG's lvmlock volume. Anything else, also a later format, is -1: not known.
func leaseOffset(args string) int64 {
	version, offset, _ := strings.Cut(args, ":")
	if !strings.HasPrefix(version, "1.") {
		return -1
	}
	n, err := strconv.ParseInt(offset, 10, 64)
	if err != nil || n <= 0 {
		return -1
	}
	return n
}
