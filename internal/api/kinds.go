package api

// Kinds of long-running commands, for CommandRequest.Kind, each with its arguments.
const (
	KindGuestMigrate = "guest.migrate" // MigrateArgs
	KindVolumeCopy   = "volume.copy"   // CopyArgs
	KindVolumeMove   = "volume.move"   // MoveArgs
)

// MigrateArgs are those of guest.migrate: a guest of the executor goes to another host,
// live.
type MigrateArgs struct {
	Guest string `json:"guest"` // name
	To    string `json:"to"`    // host
	// URI is libvirt's address of the destination; empty: qemu+ssh://HOST/system.
	URI            string `json:"uri,omitempty"`
	Persistent     bool   `json:"persistent,omitempty"`      // define it there as well
	UndefineSource bool   `json:"undefine_source,omitempty"` // and no longer here
	AutoConverge   bool   `json:"auto_converge,omitempty"`   // slow the guest down where it outruns the copy
	Bandwidth      int64  `json:"bandwidth,omitempty"`       // MiB/s; 0: no limit
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

// MoveArgs are those of volume.move: a disk of a running guest of the executor goes to
// another volume group.
type MoveArgs struct {
	Volume    string `json:"volume"`              // "vg/lv"
	ToVG      string `json:"to_vg"`               // name
	Name      string `json:"name,omitempty"`      // of the new volume; empty: that of the old one
	Bandwidth int64  `json:"bandwidth,omitempty"` // MiB/s; 0: no limit
}
