package lvm

import (
	"context"
	"strings"

	"virtlvm/internal/model"
	"virtlvm/internal/run"
)

// Config reads settings such as "global/use_lvmlockd" with one lvmconfig: what lvm.conf
// and lvmlocal.conf say, or LVM's default. The answer is by the last part of the name, each
// value as it would stand in lvm.conf but without quotes. A setting that this LVM does not
// know, or that has no default and is not set, is not in it.
func (l *LVM) Config(ctx context.Context, names ...string) (map[string]string, error) {
	cmd := run.Cmd{Name: "lvmconfig", Args: append([]string{"--typeconfig", "full"}, names...)}
	res, err := l.runner.Run(ctx, cmd)
	if err := Classify(cmd, res, err); err != nil {
		return nil, err
	}
	values := map[string]string{}
	for line := range strings.Lines(string(res.Stdout)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = strings.Trim(value, `"`)
		}
	}
	return values, nil
}

// PV is a physical volume that this host sees.
type PV struct {
	Name string // path of its device
	VG   string // "" when it is in none
}

// PVs lists the physical volumes that this host sees, with one pvs.
func (l *LVM) PVs(ctx context.Context) ([]PV, error) {
	cmd := reportCmd("pvs", "pv_name,vg_name")
	res, err := l.runner.Run(ctx, cmd)
	res = withLog(res)
	if err := Classify(cmd, res, err); err != nil {
		return nil, err
	}
	rep, err := parseReport("pvs", res.Stdout)
	if err != nil {
		return nil, err
	}
	var pvs []PV
	for _, part := range rep.Report {
		for _, r := range part.PV {
			name, err := r.need("pv_name")
			if err != nil {
				return nil, badRow("pvs", err)
			}
			pvs = append(pvs, PV{Name: name, VG: r.text("vg_name")})
		}
	}
	return pvs, nil
}

// Known is every volume that the metadata of some VGs names, LVM's own internal ones too,
// with one lvs. unlocked is as in Inventory: a volume that is not in the answer may exist.
func (l *LVM) Known(ctx context.Context, vgs ...string) (all map[model.VolumeID]bool, unlocked []string, err error) {
	all = map[model.VolumeID]bool{}
	if len(vgs) == 0 {
		return all, nil, nil
	}
	cmd := reportCmd("lvs", "vg_uuid,lv_uuid", vgs...)
	cmd.Args = append(cmd.Args, "-a")
	res, err := l.runner.Run(ctx, cmd)
	res = withLog(res)
	if err := Classify(cmd, res, err); err != nil {
		return nil, nil, err
	}
	rep, err := parseReport("lvs", res.Stdout)
	if err != nil {
		return nil, nil, err
	}
	for _, part := range rep.Report {
		for _, r := range part.LV {
			vg, err := r.need("vg_uuid")
			if err != nil {
				return nil, nil, badRow("lvs", err)
			}
			lv, err := r.need("lv_uuid")
			if err != nil {
				return nil, nil, badRow("lvs", err)
			}
			all[model.VolumeID{VG: vg, LV: lv}] = true
		}
	}
	return all, readUnlocked(string(res.Stderr)), nil
}

// NoAutoactivationCmd is the vgchange that keeps hosts from grabbing the volumes of a VG
// when they boot.
func NoAutoactivationCmd(vg string) run.Cmd {
	return run.Cmd{Name: "vgchange", Args: []string{"--setautoactivation", "n", vg}, Err: CheckVG(vg)}
}

// RemoveDeviceCmd is the dmsetup that removes one device, named by its dm uuid so that it
// can be no other. The kernel refuses where it is open.
func RemoveDeviceCmd(uuid string) run.Cmd {
	return run.Cmd{Name: "dmsetup", Args: []string{"remove", "--uuid", uuid}}
}
