package api

// RouteVolume is GET ?volume=VG/LV -> Volume, with its children in all volume groups.
const RouteVolume = "/v1/volumes/show"

// Kinds of commands about the life of a volume, for CommandRequest.Kind, each with its
// arguments.
const (
	KindVolumeCreate = "volume.create" // CreateArgs
	KindVolumeResize = "volume.resize" // ResizeArgs
	KindGuestAttach  = "guest.attach"  // AttachArgs
	KindGuestDetach  = "guest.detach"  // DetachArgs
)

// CreateArgs are those of volume.create: a new volume, exclusive on the executor.
type CreateArgs struct {
	Volume string `json:"volume"` // "vg/lv"
	// Size in bytes of what a guest sees; of a raw volume rounded up to whole extents. 0:
	// that of Backing.
	Size   int64  `json:"size,omitempty"`
	Format string `json:"format,omitempty"` // "raw" (default), "qcow2" (default with Backing)
	// Backing is a template, "vg/lv", below a qcow2 image.
	Backing       string `json:"backing,omitempty"`
	BackingFormat string `json:"backing_format,omitempty"` // "raw", "qcow2"; empty: as it is tagged, else qcow2
}

// ResizeArgs are those of volume.resize.
type ResizeArgs struct {
	Volume string `json:"volume"` // "vg/lv"
	// Size in bytes of what a guest sees, or how much is added to it.
	Size int64 `json:"size"`
	Add  bool  `json:"add,omitempty"`
	// Shrink allows a smaller size: what is beyond it is lost.
	Shrink bool   `json:"shrink,omitempty"`
	Format string `json:"format,omitempty"` // of what is on it; empty: as its guest or its tag says, else "raw"
}

// AttachArgs are those of guest.attach: a guest of the executor gets a disk.
type AttachArgs struct {
	Guest  string `json:"guest"`            // name
	Volume string `json:"volume"`           // "vg/lv"
	Target string `json:"target,omitempty"` // "vdb"; empty: the first that is free
	// Live is the running guest, Config its definition; neither: the guest where it runs,
	// else its definition.
	Live     bool   `json:"live,omitempty"`
	Config   bool   `json:"config,omitempty"`
	Format   string `json:"format,omitempty"` // empty: as the volume is tagged, else "raw"
	ReadOnly bool   `json:"read_only,omitempty"`
}

// DetachArgs are those of guest.detach.
type DetachArgs struct {
	Guest  string `json:"guest"` // name
	Disk   string `json:"disk"`  // "vg/lv", or the disk's target
	Live   bool   `json:"live,omitempty"`
	Config bool   `json:"config,omitempty"`
}
