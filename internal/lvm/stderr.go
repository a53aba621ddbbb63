package lvm

import (
	"strconv"
	"strings"

	"virtlvm/internal/run"
)

// reader collects the failures that LVM's stderr tells, line by line. LVM works on one
// volume after the other and says the cause first: a line such as "Failed to lock logical
// volume vg/lv." belongs to the line before it.
type reader struct {
	failures []Failure
	down     bool              // lvmlockd does not run
	reasons  map[string]string // why the lock of a VG failed, by VG
	pending  bool              // the failure at last waits for the volume it was for
	last     int               // index of the failure that was told last
}

// parseStderr reads LVM's messages. The texts are in lib/locking/lvmlockd.c,
// lib/metadata/lv.c, lib/metadata/metadata.c, lib/activate/activate.c and tools/ of LVM.
func parseStderr(cmd run.Cmd, stderr string) []Failure {
	r := &reader{reasons: map[string]string{}}
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if !r.lock(line) && !r.volume(cmd, line) && !r.group(line) {
			r.unknown(cmd, line)
		}
	}
	r.explain()
	return r.failures
}

// lock reads messages about the lock of a volume.
func (r *reader) lock(line string) bool {
	if rest, ok := strings.CutPrefix(line, "LV locked by other host: "); ok {
		volume, id := hostID(rest)
		r.add(Failure{Kind: HeldElsewhere, Volume: volume, HostID: id, Stderr: line}, true)
		return true
	}
	if rest, ok := strings.CutPrefix(line, "Shared activation not compatible with LV type "); ok {
		kind, volume, _ := strings.Cut(rest, " of ")
		r.add(Failure{Kind: SharedNotPossible, Volume: volume, Type: kind, Stderr: line}, true)
		return true
	}
	if volume, ok := between(line, "LV is already locked with incompatible mode: ", ""); ok {
		r.add(Failure{Kind: LockMismatch, Volume: volume, Stderr: line}, true)
		return true
	}
	if rest, ok := strings.CutPrefix(line, "LV "); ok {
		if volume, reason, ok := strings.Cut(rest, " lock failed: "); ok {
			r.add(Failure{Kind: lockKind(reason), Volume: volume, Reason: strings.TrimSuffix(reason, "."), Stderr: line}, true)
			return true
		}
	}
	if volume, ok := between(line, "Locking failed for LV ", ""); ok {
		r.add(Failure{Kind: LockdDown, Volume: volume, Stderr: line}, true)
		return true
	}
	if volume, ok := between(line, "Failed to lock logical volume ", "."); ok {
		r.belongs(LockFailed, volume, line)
		return true
	}
	if volume, ok := between(line, "Failed to unlock logical volume ", "."); ok {
		r.belongs(UnlockFailed, volume, line)
		return true
	}
	return false
}

// volume reads messages about a volume itself.
func (r *reader) volume(cmd run.Cmd, line string) bool {
	for _, end := range []string{" in use.", " contains a filesystem in use.", " is used by another device."} {
		if volume, ok := between(line, "Logical volume ", end); ok && !strings.Contains(volume, " ") {
			r.add(Failure{Kind: InUse, Volume: volume, Stderr: line}, false)
			return true
		}
	}
	if volume, ok := between(line, `Failed to find logical volume "`, `"`); ok {
		r.add(Failure{Kind: NoSuchVolume, Volume: volume, Stderr: line}, false)
		return true
	}
	if rest, ok := strings.CutPrefix(line, "Change of snapshot "); ok {
		volume, _, _ := strings.Cut(rest, " ")
		f := Failure{Kind: SnapshotRefused, Volume: volume, Stderr: line}
		if len(cmd.Args) > 0 && cmd.Args[0] == "-asy" {
			// It would be refused after a yes, too.
			f.Kind, f.Type = SharedNotPossible, "snapshot"
		}
		r.add(f, false)
		return true
	}
	_, isEcho := between(line, "Logical volume ", " not changed.")
	return isEcho && r.has(SnapshotRefused, SharedNotPossible)
}

// group reads messages about a VG or about all of LVM.
func (r *reader) group(line string) bool {
	if rest, ok := strings.CutPrefix(line, `Volume group "`); ok {
		if vg, end, ok := strings.Cut(rest, `"`); ok && strings.HasPrefix(end, " not found") {
			r.add(Failure{Kind: NoSuchVG, VG: vg, Stderr: line}, false)
			return true
		}
	}
	if vg, ok := between(line, "Cannot process volume group ", ""); ok {
		return r.hasVG(vg)
	}
	if vg, ok := between(line, "Cannot access VG ", " due to failed lock."); ok {
		r.add(Failure{Kind: VGLockFailed, VG: vg, Stderr: line}, false)
		return true
	}
	if rest, ok := strings.CutPrefix(line, "Cannot access VG "); ok && strings.HasSuffix(rest, " that requires lvmlockd.") {
		vg, _, _ := strings.Cut(rest, " ")
		r.add(Failure{Kind: LockdDown, VG: vg, Stderr: line}, false)
		return true
	}
	if rest, ok := strings.CutPrefix(line, "VG "); ok {
		return r.vg(rest, line)
	}
	if reason, ok := between(line, "Global lock failed: ", ""); ok {
		reason = strings.TrimSuffix(reason, ".")
		f := Failure{Kind: GlobalLockFailed, Reason: reason, Stderr: line}
		if strings.HasPrefix(reason, "held by other host") {
			_, f.HostID = hostID(reason)
			f.Kind = GlobalLockHeld
		}
		r.add(f, false)
		return true
	}
	if strings.HasPrefix(line, "WARNING: lvmlockd process is not running") || strings.HasPrefix(line, "WARNING: lvmlockd connect failed") {
		r.down = true
		return true
	}
	return chatter(line)
}

// vg reads messages that begin with "VG NAME".
func (r *reader) vg(rest, line string) bool {
	if vg, reason, ok := strings.Cut(rest, " lock skipped: "); ok {
		r.reasons[vg] = strings.TrimSuffix(reason, ".")
		return true
	}
	if vg, reason, ok := strings.Cut(rest, " lock failed: "); ok {
		r.reasons[vg] = strings.TrimSuffix(reason, ".")
		_, id := hostID(reason)
		r.add(Failure{Kind: VGLockFailed, VG: vg, HostID: id, Stderr: line}, false)
		return true
	}
	if vg, reason, ok := strings.Cut(rest, " start failed: "); ok {
		kind := StartFailed
		if strings.HasPrefix(reason, "lvmlockd ") {
			kind = LockdDown
		}
		r.add(Failure{Kind: kind, VG: vg, Reason: reason, Stderr: line}, false)
		return true
	}
	return false
}

// unknown keeps a line that nothing above understands, where it names a volume of the
// command or of the VG's: it must not be lost beside failures that are understood.
func (r *reader) unknown(cmd run.Cmd, line string) {
	r.pending = false
	for _, word := range strings.Fields(line) {
		word = strings.Trim(word, `".,:;()'`)
		for _, name := range cmd.Args {
			if strings.Contains(name, "/") && word == name && !r.hasVolume(name) {
				r.add(Failure{Kind: Other, Volume: name, Reason: line, Stderr: line}, false)
				return
			}
		}
	}
}

// lockKind is the kind of "LV vg/lv lock failed: REASON".
func lockKind(reason string) FailureKind {
	switch {
	case strings.HasPrefix(reason, "lockspace is inactive"):
		return LockspaceInactive
	case strings.HasPrefix(reason, "lvmlockd "):
		return LockdDown
	}
	return LockFailed
}

// hostID takes " (host_id N)" off the end; 0 when it is not there.
func hostID(s string) (string, int) {
	rest, id, ok := strings.Cut(s, " (host_id ")
	if !ok {
		return s, 0
	}
	n, err := strconv.Atoi(strings.TrimRight(id, ")."))
	if err != nil || n < 0 {
		return rest, 0
	}
	return rest, n
}

// between is what stands between a prefix and a suffix that must both be there.
func between(s, prefix, suffix string) (string, bool) {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, suffix)
}
