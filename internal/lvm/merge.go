package lvm

import (
	"slices"
	"strings"
)

// add keeps a failure, once for each volume or VG. waits: a line that names the volume
// of the command may follow.
func (r *reader) add(f Failure, waits bool) {
	if f.VG == "" && f.Volume != "" {
		f.VG, _, _ = strings.Cut(f.Volume, "/")
	}
	r.pending = waits
	for i, old := range r.failures {
		if old.Volume == f.Volume && old.VG == f.VG && old.Kind == f.Kind {
			if f.HostID != 0 {
				r.failures[i].HostID = f.HostID
			}
			r.failures[i].Stderr += "\n" + f.Stderr
			r.last = i
			return
		}
	}
	r.last = len(r.failures)
	r.failures = append(r.failures, f)
}

// belongs ends the failure before it: kind says what did not work in the end, and volume
// is the one that the command named. Only a failed unlock is worse than its cause: the
// lock is still there.
func (r *reader) belongs(kind FailureKind, volume, line string) {
	if !r.pending {
		r.add(Failure{Kind: kind, Volume: volume, Stderr: line}, false)
		return
	}
	r.pending = false
	f := &r.failures[r.last]
	if f.Volume != volume {
		f.LockVolume, f.Volume = f.Volume, volume
		f.VG, _, _ = strings.Cut(volume, "/")
	}
	if kind == UnlockFailed {
		if f.Reason == "" {
			f.Reason = f.text()
		}
		f.Kind = UnlockFailed
	}
	f.Stderr += "\n" + line
}

// explain adds what only the whole of stderr tells.
func (r *reader) explain() {
	for i := range r.failures {
		f := &r.failures[i]
		switch {
		case r.down && f.Kind == VGLockFailed:
			f.Kind = LockdDown
		case r.down && f.Kind == UnlockFailed && f.Reason == "":
			f.Reason = "lvmlockd does not run on this host"
		case f.Kind == VGLockFailed && f.Reason == "":
			f.Reason = r.reasons[f.VG]
		}
	}
}

func (r *reader) has(kinds ...FailureKind) bool {
	return slices.ContainsFunc(r.failures, func(f Failure) bool { return slices.Contains(kinds, f.Kind) })
}

func (r *reader) hasVG(vg string) bool {
	return slices.ContainsFunc(r.failures, func(f Failure) bool { return f.VG == vg })
}

func (r *reader) hasVolume(volume string) bool {
	return slices.ContainsFunc(r.failures, func(f Failure) bool { return f.Volume == volume })
}
