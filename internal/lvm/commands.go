package lvm

import (
	"fmt"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
)

// ActivateCmd is the lvchange that activates volumes, each "vg/lv", in mode EX or SH.
// It has no -y: LVM asks before it activates a snapshot, because that takes the origin's
// lock too, and with no terminal the answer is no. Names that LVM could not have given
// and modes that make no sense give a command whose Err is set.
func ActivateCmd(mode model.LockMode, names ...string) run.Cmd {
	switch mode {
	case model.ModeEX:
		return onVolumes("-aey", names)
	case model.ModeSH:
		return onVolumes("-asy", names)
	}
	cmd := onVolumes("-aey", names)
	cmd.Err = api.NewError(api.KindBadRequest, fmt.Sprintf("cannot activate a volume in mode %q: it is neither ex nor sh", mode))
	return cmd
}

// ActivateLocalCmd is the lvchange that activates volumes of a VG without lvmlockd: no
// lock is taken.
func ActivateLocalCmd(names ...string) run.Cmd { return onVolumes("-ay", names) }

// RefreshCmd is the lvchange that reloads the devices of active volumes from the metadata,
// which another host may have changed.
func RefreshCmd(names ...string) run.Cmd { return onVolumes("--refresh", names) }

// DeactivateCmd is the lvchange that deactivates volumes and drops their locks.
func DeactivateCmd(names ...string) run.Cmd { return onVolumes("-an", names) }

// LockStartCmd is the vgchange that starts the lockspace of a VG on this host.
func LockStartCmd(vg string) run.Cmd {
	return run.Cmd{Name: "vgchange", Args: []string{"--lockstart", vg}, Err: CheckVG(vg)}
}

// LockStopCmd is the vgchange that stops the lockspace of a VG on this host; LVM refuses
// while volumes of the VG are active.
func LockStopCmd(vg string) run.Cmd {
	return run.Cmd{Name: "vgchange", Args: []string{"--lockstop", vg}, Err: CheckVG(vg)}
}

// onVolumes names every volume as "vg/lv": a bare VG would mean all of its volumes, and
// a selection reads every VG under the global lock.
func onVolumes(action string, names []string) run.Cmd {
	cmd := run.Cmd{Name: "lvchange", Args: append([]string{action}, names...)}
	if len(names) == 0 {
		cmd.Err = api.NewError(api.KindBadRequest, "no volume is named")
	}
	for _, name := range names {
		if err := CheckName(name); err != nil {
			cmd.Err = err
			break
		}
	}
	return cmd
}

// reportCmd is a reporting command with JSON on stdout and sizes in bytes.
func reportCmd(name, fields string, vgs ...string) run.Cmd {
	cmd := run.Cmd{
		Name: name,
		Args: append([]string{"--reportformat", "json", "--units", "b", "--nosuffix", "-o", fields}, vgs...),
	}
	for _, vg := range vgs {
		if err := CheckVG(vg); err != nil {
			cmd.Err = err
			break
		}
	}
	return cmd
}
