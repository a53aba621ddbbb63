package lvm

import (
	"fmt"
	"strings"

	"virtlvm/internal/api"
)

// FailureKind is why LVM did not do something to a volume or a VG.
type FailureKind string

// Failure kinds, each with LVM's words for it.
const (
	HeldElsewhere     FailureKind = "held_elsewhere"      // LV locked by other host
	InUse             FailureKind = "in_use"              // open on this host
	LockMismatch      FailureKind = "lock_mismatch"       // already locked here with incompatible mode
	SharedNotPossible FailureKind = "shared_not_possible" // Shared activation not compatible with LV type
	SnapshotRefused   FailureKind = "snapshot_refused"    // Change of snapshot will also change its origin
	NoSuchVolume      FailureKind = "no_such_volume"      // Failed to find logical volume
	NoSuchVG          FailureKind = "no_such_vg"          // Volume group not found
	VGLockFailed      FailureKind = "vg_lock_failed"      // Cannot access VG due to failed lock
	LockFailed        FailureKind = "lock_failed"         // LV lock failed, for another reason than those below
	LockspaceInactive FailureKind = "lockspace_inactive"  // LV lock failed: lockspace is inactive
	LockdDown         FailureKind = "lockd_down"          // lvmlockd process is not running
	UnlockFailed      FailureKind = "unlock_failed"       // Failed to unlock logical volume: still locked, exit code 0 or not
	StartFailed       FailureKind = "start_failed"        // VG start failed
	GlobalLockHeld    FailureKind = "global_lock_held"    // Global lock failed: held by other host
	GlobalLockFailed  FailureKind = "global_lock_failed"  // Global lock failed, for another reason
	Other             FailureKind = "other"               // anything else, in LVM's own words
)

// Kind is the api kind of a failure.
func (k FailureKind) Kind() api.Kind {
	switch k {
	case HeldElsewhere:
		return api.KindHeld
	case InUse, LockMismatch:
		return api.KindInUse
	case SharedNotPossible, SnapshotRefused:
		return api.KindUnsupported
	case NoSuchVolume, NoSuchVG:
		return api.KindNotFound
	case VGLockFailed, LockFailed, LockspaceInactive, LockdDown, UnlockFailed, StartFailed, GlobalLockHeld, GlobalLockFailed:
		return api.KindLocking
	case Other:
	}
	return api.KindInternal
}

// Failure is one thing that LVM did not do.
type Failure struct {
	Kind FailureKind
	// Volume is the "vg/lv" that was named in the command; "" when the failure is not of
	// one volume, and then it concerns every volume of the VG, or all.
	Volume string
	VG     string // "" where LVM names none
	// LockVolume is the volume whose lock it is about, where that is not Volume: the pool
	// of a thin volume.
	LockVolume string
	HostID     int    // of the holder, from LVM 2.03.33 on; else 0
	Type       string // LVM's type of the volume, with SharedNotPossible
	Reason     string // LVM's reason, where it gives one
	Stderr     string // LVM's lines about it
}

func (f Failure) text() string {
	switch f.Kind {
	case HeldElsewhere:
		return f.holder() + " holds " + f.lock()
	case InUse:
		return "it is open on this host"
	case LockMismatch:
		return "it is already locked on this host in another mode"
	case SharedNotPossible:
		return fmt.Sprintf("LVM does not share a volume of type %s between hosts", f.Type)
	case SnapshotRefused:
		return "it is a snapshot, and LVM would change its origin too: activate it by hand"
	case NoSuchVolume:
		return "there is no such logical volume"
	case NoSuchVG:
		return "there is no such volume group on this host"
	case LockspaceInactive:
		return "its lockspace is not active on this host: run 'vgchange --lockstart " + f.VG + "'"
	case LockdDown:
		return "lvmlockd does not run on this host"
	case VGLockFailed:
		return "the lock of its metadata failed" + f.because() + ": is its lockspace started? 'vgchange --lockstart " + f.VG + "' starts it"
	case LockFailed:
		return "its lock failed" + f.because()
	case UnlockFailed:
		return "its lock could not be dropped and is still held" + f.because()
	case StartFailed:
		return "its lockspace did not start" + f.because()
	case GlobalLockHeld:
		return f.holder() + " holds LVM's global lock: try again"
	case GlobalLockFailed:
		return "LVM's global lock failed" + f.because()
	case Other:
	}
	return f.Reason
}

func (f Failure) holder() string {
	if f.HostID > 0 {
		return fmt.Sprintf("another host (host_id %d)", f.HostID)
	}
	return "another host"
}

func (f Failure) lock() string {
	if f.LockVolume != "" {
		return "the lock of " + f.LockVolume + ", which protects it"
	}
	return "its lock"
}

func (f Failure) because() string {
	if f.Reason == "" {
		return ""
	}
	return " (" + f.Reason + ")"
}

// Error is an LVM command that did not do all it was told. What it named and is not in
// Failures may have been done: read the state back. It matches *api.Error with errors.As.
type Error struct {
	Argv     []string
	ExitCode int       // 0 where LVM reported a failure and success
	Failures []Failure // at least one, in the order LVM met them
	Stderr   string    // all of it
	cause    error     // *run.ExitError, nil with exit code 0
}

// Kind is that of the first failure.
func (e *Error) Kind() api.Kind { return e.Failures[0].Kind.Kind() }

// Error is one line that names every volume and what is wrong with it.
func (e *Error) Error() string {
	all := targets(e.Argv)
	parts := make([]string, 0, len(e.Failures))
	for _, f := range e.Failures {
		switch {
		case f.Volume != "":
			parts = append(parts, f.Volume+": "+f.text())
		case f.VG != "" && f.VG != all:
			parts = append(parts, all+": volume group "+f.VG+": "+f.text())
		default:
			parts = append(parts, all+": "+f.text())
		}
	}
	return "cannot " + purpose(e.Argv) + " " + strings.Join(parts, "; ")
}

// Unwrap gives the error for the wire, and the runner's.
func (e *Error) Unwrap() []error {
	wire := api.NewError(e.Kind(), e.Error())
	if e.cause == nil {
		return []error{wire}
	}
	return []error{wire, e.cause}
}

// Of is the failure that concerns a volume "vg/lv": its own, or one of its VG or of all.
func (e *Error) Of(volume string) (Failure, bool) {
	vg, _, _ := strings.Cut(volume, "/")
	for _, f := range e.Failures {
		if f.Volume == volume {
			return f, true
		}
	}
	for _, f := range e.Failures {
		if f.Volume == "" && (f.VG == "" || f.VG == vg) {
			return f, true
		}
	}
	return Failure{}, false
}

// purpose is what a command line was for, to be followed by what it was about.
func purpose(argv []string) string {
	if len(argv) > 1 {
		switch argv[1] {
		case "-aey":
			return "activate"
		case "-asy":
			return "activate shared"
		case "-an":
			return "deactivate"
		case "--lockstart":
			return "start the locks of"
		}
	}
	switch argv[0] {
	case "lvs", "vgs":
		return "read"
	case "lvcreate":
		return "create a volume in"
	case "lvremove":
		return "remove"
	case "lvextend", "lvreduce":
		return "resize"
	}
	return "run " + argv[0] + " on"
}

// targets is what a command line names: volumes, or VGs.
func targets(argv []string) string {
	const most = 4
	var names []string
	for i := 1; i < len(argv); i++ {
		switch argv[i] {
		case "-o", "--reportformat", "--units", "--separator", "-L", "-n", "--addtag", "--deltag", "--setautoactivation":
			i++
		default:
			if !strings.HasPrefix(argv[i], "-") {
				names = append(names, argv[i])
			}
		}
	}
	switch {
	case len(names) == 0:
		return "this host"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
