// Package model names the things virtlvm deals in: volumes, lock modes, roles, holds,
// guests and commands, with their states and legal transitions. No I/O.
package model

import (
	"fmt"
	"strings"
	"time"
)

// LockMode is the mode of an LV lock (lvmlockd) on one host.
type LockMode string

// Lock modes, weakest first.
const (
	ModeOff LockMode = "off" // no lock
	ModeSH  LockMode = "sh"  // shared with other hosts
	ModeEX  LockMode = "ex"  // this host alone
)

// Covers reports whether a lock held in mode m is enough for want.
func (m LockMode) Covers(want LockMode) bool { return m.rank() >= want.rank() }

// Max returns the stronger of two modes.
func (m LockMode) Max(o LockMode) LockMode {
	if o.rank() > m.rank() {
		return o
	}
	return m
}

func (m LockMode) rank() int {
	switch m {
	case ModeEX:
		return 2
	case ModeSH:
		return 1
	}
	return 0
}

// VolumeID identifies a logical volume for as long as it exists: the uuids LVM gave the
// volume group and the volume, in LVM's own form with dashes. Names can change, ids not.
type VolumeID struct{ VG, LV string }

// DMUUID is the device-mapper uuid of the volume's device: "LVM-" and both uuids
// without dashes.
func (id VolumeID) DMUUID() string {
	return "LVM-" + strings.ReplaceAll(id.VG, "-", "") + strings.ReplaceAll(id.LV, "-", "")
}

// Volume is a logical volume as LVM's metadata describes it.
type Volume struct {
	ID       VolumeID
	VG, LV   string // names
	LockType string // of the VG: "sanlock", "dlm", "none"
	SegType  string // of the first segment: "linear", "striped", "thin", "raid1", ...
	// LeaseOffset is the byte offset of the volume's lease in the VG's lvmlock volume,
	// -1 where it has none (a thin volume's lock is its pool's).
	LeaseOffset int64
	Tags        []string
	Origin      string // LV name of a snapshot's origin, else ""
	Pool        string // LV name of a thin volume's pool, else ""
	Size        int64  // bytes
	// LockLV is the uuid of the LV whose lock protects this one: its own, or its thin
	// pool's.
	LockLV string
}

// Name is "vg/lv", the form every LVM command takes.
func (v Volume) Name() string { return v.VG + "/" + v.LV }

// HasTag reports whether the volume carries an LVM tag.
func (v Volume) HasTag(tag string) bool {
	for _, t := range v.Tags {
		if t == tag {
			return true
		}
	}
	return false
}

// TagShared marks a volume (template, cluster disk) that several hosts may hold shared;
// it is never held exclusively for a guest.
const TagShared = "virtlvm.shared"

// Role is what a guest does with a volume; it decides the lock mode.
type Role string

// Roles.
const (
	RoleWritable  Role = "writable"  // an ordinary disk
	RoleShareable Role = "shareable" // <shareable/>: the guests coordinate writes themselves
	RoleReadOnly  Role = "readonly"  // <readonly/>
	RoleBacking   Role = "backing"   // below a qcow2 overlay
	RoleMirror    Role = "mirror"    // target of a running block job
)

// Mode is the lock mode a role needs.
func (r Role) Mode() LockMode {
	switch r {
	case RoleWritable, RoleMirror:
		return ModeEX
	}
	return ModeSH
}

// Need is one volume that a guest needs on the host where it runs.
type Need struct {
	Volume Volume
	Role   Role
	Disk   string // target name of the disk, such as "vda"
}

// Phase is where a hold stands (docs/design: holds).
type Phase string

// Phases. "lent" and "incoming" belong to a live migration.
const (
	PhaseHeld     Phase = "held"     // wanted as the role says
	PhaseLent     Phase = "lent"     // wanted SH: this host is the source of a migration
	PhaseIncoming Phase = "incoming" // wanted SH: this host is the destination
	PhaseEnding   Phase = "ending"   // wanted off
)

// OwnerOperator is the owner of a hold that was taken for an operator's `virtlvm activate`, in place of a
// guest's uuid.
const OwnerOperator = "operator"

// Hold says: Owner needs Volume on this host.
type Hold struct {
	Owner  string // guest uuid, OwnerOperator, OwnerRetained, or see CommandOwner
	Guest  string // guest name, for messages; of a retained volume the last guest, or empty
	Volume VolumeID
	LockLV string // uuid of the LV whose lock protects the volume: see Volume.LockLV
	Name   string // "vg/lv" when last seen
	Role   Role
	Mode   LockMode // mode while held, from the role
	Phase  Phase
	// Claim is the mode that the other hosts have granted, in a VG without lvmlockd alone
	// (docs/locks.md): a hold whose Claim is not its wanted mode is only an intent. "" and
	// off: none.
	Claim  LockMode
	BootID string
	// Attempt ties a hold to the start that made it.
	Attempt Attempt
	Grant   Grant // of the live migration the hold takes part in
	// Prepared: the `prepare` of an incoming migration has come. Not kept in the database:
	// after a restart of the daemon the guest's QEMU, or its absence, tells.
	Prepared bool
	Since    int64 // unix milliseconds of the last change of phase
}

// Fenced says that an operator has declared a host to be off: that it does not answer
// keeps nobody from using the volumes of a VG without lvmlockd. It ends when that host
// is heard of again, and when the host on which it was made has been down itself.
type Fenced struct {
	Host   string
	BootID string // of the boot that was declared off, as far as it was known
	Here   string // boot id of the host on which it was made
	By     string
	At     int64 // unix milliseconds
}

// Grant is the consent of the source of a live migration that the destination shares
// the guest's volumes until that migration ends.
type Grant struct {
	ID   string // "" outside of a migration
	Peer string // the host at the other end
}

// Attempt is the start of a guest that made a hold: it ends the hold when it never
// becomes a QEMU.
type Attempt struct {
	LibvirtdPID    int    // who asked
	LibvirtdStart  uint64 // start time in clock ticks since boot
	AnsweredMillis int64  // uptime when the last call of this start was answered; 0 while it runs
	Seen           bool   // its QEMU has been seen
}

// Wanted is the lock mode the hold wants now.
func (h Hold) Wanted() LockMode {
	switch h.Phase {
	case PhaseEnding:
		return ModeOff
	case PhaseLent, PhaseIncoming:
		return ModeSH
	}
	return h.Mode
}

// Subject names the hold's owner in messages: "guest vm1", "an operator" or "command KEY".
func (h Hold) Subject() string {
	switch h.Owner {
	case OwnerOperator:
		return "an operator"
	case OwnerRetained:
		return "nobody"
	}
	if key, _, ok := CommandOf(h.Owner); ok {
		return "command " + key
	}
	return "guest " + h.Guest
}

// Actual is what this host really has of a volume: the lock lvmlockd holds and whether
// the device-mapper device is there.
type Actual struct {
	Lock LockMode
	// Orphan is set when the lease is held by a lvmlockd that no longer runs.
	Orphan bool
	Active bool // device-mapper device present
	Open   bool // and open
}

// String is the one state an administrator sees.
func (a Actual) String() string {
	switch {
	case a.Orphan && a.Active:
		return "orphaned lock, active"
	case a.Orphan:
		return "orphaned lock"
	case a.Active && a.Lock == ModeOff:
		return "dm without lock"
	case !a.Active && a.Lock != ModeOff:
		return "lock without dm"
	}
	return string(a.Lock)
}

// Is reports whether the volume is exactly as a wanted mode requires: lock in that mode
// and active, or neither.
func (a Actual) Is(want LockMode) bool {
	return !a.Orphan && a.Lock == want && a.Active == (want != ModeOff)
}

// Holder is a host that holds a volume's lease.
type Holder struct {
	HostID int
	Host   string // sanlock's our_host_name, or "" where none was set
	Twin   bool   // another host of the lockspace has the same name
	Mode   LockMode
	Gen    int64     // sanlock generation under which the lease was taken
	State  HostState // of that host now
	FreeIn int       // seconds until sanlock frees a silent host's lease; 0 if live or not known
	Self   bool      // this host
	// Converting: the lease names this host as owner and as shared holder, so that it is
	// taking the lock exclusively at this moment, or failing to.
	Converting bool
}

// Label is the holder's name in messages. That of a twin is nobody's: a host could not be
// called by it.
func (h Holder) Label() string {
	switch {
	case h.Host == "":
		return fmt.Sprintf("host_id %d", h.HostID)
	case h.Twin:
		return fmt.Sprintf("%s (host_id %d)", h.Host, h.HostID)
	}
	return h.Host
}

// Text says how, by whom and until when a volume is held, as in "exclusively by kvm-a".
func (h Holder) Text(now time.Time) string {
	mode := "exclusively"
	if h.Mode == ModeSH {
		mode = "shared"
	}
	text := fmt.Sprintf("%s by %s", mode, h.Label())
	switch h.State {
	case HostLive:
		return text
	case HostUnknown:
		return text + ", a host that sanlock here has not watched for long enough to know whether it lives: try again in a minute"
	case HostFail, HostDead:
	}
	text += fmt.Sprintf(", a host that is not renewing its leases (sanlock: %s)", h.State)
	if h.FreeIn > 0 {
		in := time.Duration(h.FreeIn) * time.Second
		text += fmt.Sprintf("; sanlock frees it in about %s, at %s: try again then", in, now.Add(in).Format("15:04:05"))
	}
	return text
}

// HostState is sanlock's view of another host.
type HostState string

// Host states, from `sanlock client gets -h 1`.
const (
	HostLive    HostState = "live"
	HostFail    HostState = "fail" // its lease was not renewed in time
	HostDead    HostState = "dead"
	HostUnknown HostState = "unknown" // not seen long enough to tell
)
