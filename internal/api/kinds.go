package api

// Kinds of long-running commands, for CommandRequest.Kind, each with its arguments.
const (
	KindGuestMigrate = "guest.migrate" // MigrateArgs
	KindVolumeCopy   = "volume.copy"   // CopyArgs
	KindVolumeMove   = "volume.move"   // MoveArgs
	KindGuestMove    = "guest.move"    // GuestMoveArgs
)

// MigrateArgs are those of guest.migrate: a guest of the executor goes to another host,
// live, or with Offline one that is off, by its definition.
type MigrateArgs struct {
	Guest string `json:"guest"` // name
	To    string `json:"to"`    // host
	// URI is libvirt's address of the destination; empty: qemu+ssh://HOST/system.
	URI            string `json:"uri,omitempty"`
	Persistent     bool   `json:"persistent,omitempty"`      // define it there as well
	UndefineSource bool   `json:"undefine_source,omitempty"` // and no longer here
	Offline        bool   `json:"offline,omitempty"`
	AutoConverge   bool   `json:"auto_converge,omitempty"` // slow the guest down where it outruns the copy
	Bandwidth      int64  `json:"bandwidth,omitempty"`     // MiB/s; 0: no limit
}

// CopyArgs are those of volume.copy: the content of one volume goes to another, while no
// guest uses either.
type CopyArgs struct {
	Source      string `json:"source"`              // "vg/lv"
	Destination string `json:"destination"`         // "vg/lv"
	Format      string `json:"format,omitempty"`    // of the source: "raw" (default), "qcow2"
	ToFormat    string `json:"to_format,omitempty"` // of the copy; empty: that of the source
	// Overwrite writes over a destination that exists; else it is made.
	Overwrite bool `json:"overwrite,omitempty"`
	// Shared reads a source that other hosts read as well, such as a template.
	Shared    bool  `json:"shared,omitempty"`
	Bandwidth int64 `json:"bandwidth,omitempty"` // MiB/s; 0: no limit
}

// MoveArgs are those of volume.move: a volume goes to another volume group, with the guest
// of the executor that has it as a disk, running or off; or its lock goes to another host;
// or its guest's definition names it by another storage pool.
type MoveArgs struct {
	Volume string `json:"volume"`            // "vg/lv"
	ToVG   string `json:"to_vg,omitempty"`   // name
	ToHost string `json:"to_host,omitempty"` // name
	ToPool string `json:"to_pool,omitempty"` // of libvirt on the executor
	Name   string `json:"name,omitempty"`    // of the new volume; empty: that of the old one
	// Format of the new volume, "raw" or "qcow2"; empty: as it is.
	Format string `json:"format,omitempty"`
	// FromFormat is what is on the volume, for one that no guest has; empty: "raw".
	FromFormat string `json:"from_format,omitempty"`
	Bandwidth  int64  `json:"bandwidth,omitempty"` // MiB/s; 0: no limit
}

// GuestMoveArgs are those of guest.move: the disks of a guest of the executor go to another
// volume group, or the guest goes to another host.
type GuestMoveArgs struct {
	Guest     string   `json:"guest"`               // name
	ToVG      string   `json:"to_vg,omitempty"`     // name
	ToHost    string   `json:"to_host,omitempty"`   // name
	Disks     []string `json:"disks,omitempty"`     // "vda", or "vg/lv"; none: all that are elsewhere
	Format    string   `json:"format,omitempty"`    // of the new volumes; empty: as they are
	Bandwidth int64    `json:"bandwidth,omitempty"` // MiB/s for each disk; 0: no limit
}

// Tiers of a move, from the cheapest.
const (
	TierStays       = "stays"       // nothing is done
	TierTransfer    = "transfer"    // same volume, other host: only its lock moves
	TierLightweight = "lightweight" // same volume by the name of another storage pool: records and lock
	TierFull        = "full"        // other volume group: its data is copied
)

// CommandPlan is what a command would do; it answers RouteCommandPlan.
type CommandPlan struct {
	Kind    string          `json:"kind"`
	Host    string          `json:"host"` // that would run it
	Targets []string        `json:"targets"`
	Volumes []PlannedVolume `json:"volumes"` // empty for a kind that does not say
}

// PlannedVolume is what a command would do with one volume.
type PlannedVolume struct {
	Volume string `json:"volume"` // "vg/lv"
	Guest  string `json:"guest,omitempty"`
	Disk   string `json:"disk,omitempty"` // of the guest, "vda"
	Tier   string `json:"tier"`           // see TierFull
	To     string `json:"to"`             // volume, host or pool
	Bytes  int64  `json:"bytes"`          // to be copied
	Reason string `json:"reason"`         // why that tier, on one line
}
