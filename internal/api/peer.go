package api

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
}

// GuestQuery asks what a guest is doing on that host.
type GuestQuery struct {
	UUID string `json:"uuid"`
}

// GuestAnswer answers GuestQuery.
type GuestAnswer struct {
	Runs    bool   `json:"runs"`    // its CPUs run there
	Present bool   `json:"present"` // it has a QEMU there, or that cannot be told
	State   string `json:"state"`   // libvirt's state, "gone" or "unknown"
}
