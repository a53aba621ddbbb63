package api

import "time"

// Routes that only another host's daemon may call, on the peer socket. The caller's name
// is that of its key, never one it gives itself.
const (
	RoutePeerLend    = "/v1/peer/lend"    // POST LendRequest -> LendAnswer
	RoutePeerGrant   = "/v1/peer/grant"   // POST GrantQuery -> GrantAnswer
	RoutePeerNotice  = "/v1/peer/notice"  // POST PeerNotice -> {}
	RoutePeerWriters = "/v1/peer/writers" // POST WritersQuery -> WritersAnswer
	RoutePeerGuest   = "/v1/peer/guest"   // POST GuestQuery -> GuestAnswer
	RoutePeerNamed   = "/v1/peer/named"   // POST WritersQuery -> WritersAnswer: who has it in its definition
)

// LendRequest asks the source of a live migration to share a guest's volumes with the
// caller until the migration ends.
type LendRequest struct {
	UUID  string `json:"uuid"`
	Guest string `json:"guest"` // for messages
	// Attempt names this try of the migration for those who ask how it went.
	Attempt string `json:"attempt,omitempty"`
}

// LendAnswer is the source's answer; a refusal is an Error.
type LendAnswer struct {
	// Migrating is false where no live migration of the guest is under way at the source:
	// then only a definition is being copied, and nothing is lent.
	Migrating bool `json:"migrating"`
	// Grant names this one migration.
	Grant string `json:"grant,omitempty"`
	// Volumes are all that the guest has there, chains and hot-plugged disks included.
	Volumes []LentVolume `json:"volumes,omitempty"`
}

// LentVolume is one volume of a guest, by the uuids of its VG and LV.
type LentVolume struct {
	VGUUID string `json:"vg_uuid"`
	LVUUID string `json:"lv_uuid"`
	Name   string `json:"name"` // "vg/lv" at the source
	Role   string `json:"role"` // see model.Role
}

// GrantQuery asks the source whether a grant is still good: the migration it was given
// for is under way.
type GrantQuery struct {
	UUID  string `json:"uuid"`
	Grant string `json:"grant"`
	// Prepare: the migration's own `prepare` is waiting for the answer.
	Prepare bool `json:"prepare,omitempty"`
}

// GrantAnswer answers GrantQuery.
type GrantAnswer struct {
	Good   bool   `json:"good"`
	Reason string `json:"reason,omitempty"` // why not
}

// PeerNotice says that something has changed for a guest: look. It is only ever a hint.
type PeerNotice struct {
	UUID string `json:"uuid"`
}

// WritersQuery asks whether a hold of that host writes one of these volumes exclusively,
// outside or inside a migration.
type WritersQuery struct {
	Volumes []LentVolume `json:"volumes"`
}

// WritersAnswer names the first such volume and its guest; both empty: none.
type WritersAnswer struct {
	Volume string `json:"volume,omitempty"` // "vg/lv"
	Guest  string `json:"guest,omitempty"`
	// Saved: that guest has a managed-save image; of RoutePeerNamed alone, which names such a
	// guest before others.
	Saved bool `json:"saved,omitempty"`
}

// GuestQuery asks what a guest is doing on that host.
type GuestQuery struct {
	UUID string `json:"uuid,omitempty"`
	Name string `json:"name,omitempty"` // where the uuid is not known
}

// GuestAnswer answers GuestQuery.
type GuestAnswer struct {
	Runs    bool   `json:"runs"`    // its CPUs run there
	Present bool   `json:"present"` // it has a QEMU there, or that cannot be told
	State   string `json:"state"`   // libvirt's state, "gone" or "unknown"
	Defined bool   `json:"defined"` // it is defined there, as far as that can be told
}

// Routes of the lock manager between hosts. All but the first two change a lock, and only
// of volumes that virtlvm itself has activated and nobody uses, or that nobody holds.
const (
	RoutePeerHello   = "/v1/peer/hello"   // POST {} -> Hello
	RoutePeerLocks   = "/v1/peer/locks"   // POST LocksQuery -> LocksAnswer
	RoutePeerRelease = "/v1/peer/release" // POST ReleaseRequest -> ReleaseAnswer
	RoutePeerRetain  = "/v1/peer/retain"  // POST RetainRequest -> {}
)

// Hello is what a daemon says of itself.
type Hello struct {
	Version Version   `json:"version"`
	Now     time.Time `json:"now"`
	BootID  string    `json:"boot_id,omitempty"` // of the host; "" where it is not told
}

// LocksQuery asks what that host has of the volumes of a VG.
type LocksQuery struct {
	VG string `json:"vg"`
}

// LocksAnswer lists the volumes that are locked, active or held there. One that is not
// listed is off there.
type LocksAnswer struct {
	// HostID is the host's in the VG's lockspace, 0 where that cannot be read; in a VG
	// without lvmlockd its place among the members, from 1.
	HostID  int         `json:"host_id"`
	Started bool        `json:"started"` // the lockspace is started there
	Volumes []LocalLock `json:"volumes"`
}

// LocalLock is a volume as one host has it.
type LocalLock struct {
	UUID   string   `json:"uuid"` // LV uuid
	Mode   string   `json:"mode"` // of its own lock: "off", "sh", "ex"
	Orphan bool     `json:"orphan,omitempty"`
	Active bool     `json:"active"`
	Open   bool     `json:"open"`
	Use    string   `json:"use,omitempty"` // see UseGuest
	Guests []string `json:"guests,omitempty"`
}

// ReleaseRequest asks a host to let go of a volume that nobody uses there.
type ReleaseRequest struct {
	Volume string `json:"volume"` // "vg/lv"
	VGUUID string `json:"vg_uuid"`
	LVUUID string `json:"lv_uuid"`
	// Transfer: an operator has asked for it, so that what another operator has activated
	// goes as well.
	Transfer bool `json:"transfer,omitempty"`
}

// ReleaseAnswer says what was let go; a refusal is an Error.
type ReleaseAnswer struct {
	Mode  string `json:"mode"`            // "off": it was not held
	Use   string `json:"use,omitempty"`   // see UseGuest
	Guest string `json:"guest,omitempty"` // that used it last
}

// RetainRequest asks a host to take a volume that nobody holds, and to keep it for nobody.
type RetainRequest struct {
	Volume string `json:"volume"`
	VGUUID string `json:"vg_uuid"`
	LVUUID string `json:"lv_uuid"`
	// Of a volume that is taken back: what ReleaseAnswer said. Empty: exclusively, retained.
	Mode  string `json:"mode,omitempty"`
	Use   string `json:"use,omitempty"`
	Guest string `json:"guest,omitempty"`
}

// RoutePeerClaims asks a member of a VG without lvmlockd what it has of volumes there.
const RoutePeerClaims = "/v1/peer/claims" // POST ClaimsQuery -> ClaimsAnswer

// ClaimsQuery asks about volumes of a VG without lvmlockd. It is refused where the host
// that is asked has other members in its configuration than the one that asks.
type ClaimsQuery struct {
	VG      string   `json:"vg"`
	Members []string `json:"members"` // as the caller has them, sorted
	BootID  string   `json:"boot_id"` // of the caller
	LVs     []string `json:"lvs"`     // uuids
}

// ClaimsAnswer lists those of the volumes that the host has anything of.
type ClaimsAnswer struct {
	BootID string  `json:"boot_id"`
	Claims []Claim `json:"claims"`
}

// Claim is what one host has of a volume of a VG without lvmlockd. Wanted without Claimed and
// Active is an intent: that host is asking the others, too.
type Claim struct {
	LV      string `json:"lv"`      // uuid
	Wanted  string `json:"wanted"`  // "off", "sh", "ex": what its guests need there
	Claimed string `json:"claimed"` // what the others have granted
	Active  bool   `json:"active"`
	By      string `json:"by"` // whom it is for, for messages; "": nobody virtlvm knows of
}
