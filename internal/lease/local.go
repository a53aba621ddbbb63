package lease

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"virtlvm/internal/model"
	"virtlvm/internal/run"
)

// Local is what this host's lvmlockd holds, and what a lvmlockd that is gone has left.
type Local struct {
	LockdRunning bool
	VGs          map[string]LocalVG // by VG name
	// Orphans are leases that nobody here can drop any more, and that go on protecting.
	// They are asked for only where there may be some: lvmlockd is down, or a VG whose
	// lease volume is active is not started in it.
	Orphans []Orphan
	// SanlockDown is set when sanlock was asked for orphans and did not answer: there may
	// be some.
	SanlockDown bool
}

// LocalVG is a VG as lvmlockd knows it.
type LocalVG struct {
	Name, UUID, LockType string
	Started              bool                      // "LS sanlock lvm_VG" is there
	Locks                map[string]model.LockMode // by LV uuid; off: known and not held
}

// Orphan is the lease of a volume held for a lvmlockd that no longer runs.
type Orphan struct {
	VG   string // name
	LV   string // uuid
	Mode model.LockMode
}

// Local reads this host's locks with one lvmlockctl, and with a sanlock client status
// where there may be orphans. That lvmlockd does not run, or is not installed, is an
// answer; that it cannot be asked or understood is an error of kind locking.
//
// With sanlock killed and lvmlockd alive the locks are still listed here, although no
// other host respects them for long: Hosts fails then.
func (r *Reader) Local(ctx context.Context) (Local, error) {
	local, err := r.info(ctx)
	if err != nil {
		return Local{}, about(err, "cannot read this host's locks")
	}
	if !r.mayHaveOrphans(local) {
		return local, nil
	}
	out, err := r.sanlock(ctx, "client", "status")
	if err != nil {
		var missing *run.NotFoundError
		var exit *run.ExitError
		switch {
		case errors.As(err, &missing): // never installed: nothing was ever left
		case errors.As(err, &exit):
			local.SanlockDown = true
		default:
			return Local{}, about(err, "cannot read this host's orphaned locks")
		}
		return local, nil
	}
	if local.Orphans, err = parseOrphans(out); err != nil {
		return Local{}, about(err, "cannot read this host's orphaned locks")
	}
	return local, nil
}

func (r *Reader) info(ctx context.Context) (Local, error) {
	out, down, err := r.lvmlockctl(ctx, "--info")
	switch {
	case err != nil:
		return Local{}, err
	case down:
		return Local{VGs: map[string]LocalVG{}}, nil
	}
	return parseInfo(out)
}

// lvmlockctl asks lvmlockd; down: it does not run, or is not installed. An lvmlockctl of
// somebody else at the same moment makes ours fail ("socket error -98"): it is tried again.
func (r *Reader) lvmlockctl(ctx context.Context, args ...string) (out string, down bool, err error) {
	if err := ctx.Err(); err != nil {
		return "", false, err
	}
	select {
	case r.infoTurn <- struct{}{}:
	case <-ctx.Done():
		return "", false, ctx.Err()
	}
	defer func() { <-r.infoTurn }()
	const tries, pause = 5, 100 * time.Millisecond
	for try := 1; ; try++ {
		res, err := r.runner.Run(ctx, run.Cmd{Name: "lvmlockctl", Args: args})
		if err == nil {
			return string(res.Stdout), false, nil
		}
		var missing *run.NotFoundError
		if errors.As(err, &missing) || strings.Contains(string(res.Stdout)+string(res.Stderr), "Cannot connect to lvmlockd") {
			return "", true, nil
		}
		if try == tries || !strings.Contains(string(res.Stdout), "socket error") {
			return "", false, asked("lvmlockctl", res, err)
		}
		select {
		case <-ctx.Done():
			return "", false, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// noVG stands in the place of the VG's name for dlm's global lockspace.
const noVG = "."

// parseInfo reads `lvmlockctl --info`. A line that is not understood is an error: a lock
// that is overlooked would be taken for free.
func parseInfo(out string) (Local, error) {
	local := Local{LockdRunning: true, VGs: map[string]LocalVG{}}
	current := ""
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "VG" && len(f) == 4 && strings.HasPrefix(f[2], "lock_type="):
			current = f[1]
			if _, known := local.VGs[current]; known {
				return Local{}, unclear("lvmlockctl --info names VG %s twice", current)
			}
			if current == noVG {
				continue
			}
			local.VGs[current] = LocalVG{
				Name: current, UUID: f[3], LockType: strings.TrimPrefix(f[2], "lock_type="),
				Locks: map[string]model.LockMode{},
			}
		case f[0] == "LS" && len(f) == 3 && current == noVG:
		case f[0] == "LS" && len(f) == 3 && f[2] == lockspacePrefix+current:
			vg := local.VGs[current]
			vg.Started = true
			local.VGs[current] = vg
		case f[0] == "LK" && len(f) == 4 && f[1] == "LV" && current != "" && current != noVG:
			mode, ok := lockMode(f[2])
			if !ok {
				return Local{}, unclear("lvmlockctl --info has a lock in an unknown mode: %s", quoted(line))
			}
			locks := local.VGs[current].Locks
			locks[f[3]] = mode.Max(locks[f[3]])
		case f[0] == "LK" && len(f) > 2 && (f[1] == "VG" || f[1] == "GL"):
		case f[0] == "LW", f[0] == "OP", f[0] == "PR", f[0] == "UN", strings.HasPrefix(f[0], "info="):
			// Waiting requests, operations, fencing, and the raw form (--dump).
		default:
			return Local{}, unclear("cannot understand the answer of lvmlockctl --info: %s", quoted(line))
		}
	}
	return local, nil
}

func lockMode(s string) (model.LockMode, bool) {
	switch s {
	case "ex":
		return model.ModeEX, true
	case "sh":
		return model.ModeSH, true
	case "un":
		return model.ModeOff, true
	}
	return "", false
}

// mayHaveOrphans: orphans live in a lockspace that sanlock keeps open and lvmlockd does
// not know, so the device of its lease volume is there.
func (r *Reader) mayHaveOrphans(local Local) bool {
	if !local.LockdRunning || len(local.VGs) == 0 {
		return true
	}
	names, err := r.Mapper()
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	for _, name := range names {
		name, ok := strings.CutSuffix(name, lockSuffix)
		if !ok || strings.HasSuffix(name, "-") {
			continue
		}
		if !local.VGs[strings.ReplaceAll(name, "--", "-")].Started {
			return true
		}
	}
	return false
}

// parseOrphans finds the orphaned LV locks in `sanlock client status`:
//
//	r lvm_VG:LV-UUID:PATH:OFFSET:VERSION p PID ORPHAN
//
// where VERSION is SH for a shared one.
func parseOrphans(out string) ([]Orphan, error) {
	if !strings.HasPrefix(out, "daemon ") {
		return nil, unclear("cannot understand the answer of sanlock client status: %s", quoted(firstLine(out)))
	}
	var orphans []Orphan
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "r" || f[len(f)-1] != "ORPHAN" {
			continue
		}
		parts := strings.Split(f[1], ":")
		vg, ours := strings.CutPrefix(parts[0], lockspacePrefix)
		if !ours {
			continue // of another user of sanlock
		}
		if len(parts) < 5 {
			return nil, unclear("cannot understand an orphaned lock of sanlock: %s", quoted(line))
		}
		if parts[1] == "VGLK" || parts[1] == "GLLK" {
			continue // locks of metadata, not of volumes
		}
		mode := model.ModeEX
		if parts[len(parts)-1] == "SH" {
			mode = model.ModeSH
		}
		orphans = append(orphans, Orphan{VG: vg, LV: parts[1], Mode: mode})
	}
	return orphans, nil
}
