package api

// Kinds of commands at the end of a volume's life, for CommandRequest.Kind.
const (
	KindVolumeErase  = "volume.erase"  // EraseArgs
	KindVolumeDelete = "volume.delete" // DeleteArgs
)

// EraseArgs are those of volume.erase: a volume that nobody uses is filled with zeros.
type EraseArgs struct {
	Volume   string `json:"volume"`             // "vg/lv"
	Throttle int64  `json:"throttle,omitempty"` // MiB/s; 0: no limit
	// Discard tells the storage afterwards that the blocks are not needed any more.
	Discard bool `json:"discard,omitempty"`
}

// DeleteArgs are those of volume.delete: a volume that nobody uses is removed.
type DeleteArgs struct {
	Volume string `json:"volume"` // "vg/lv"
	// Zero fills it with zeros first, as the executor's zero_on_delete does for whole volume
	// groups. Throttle and Discard go with it.
	Zero     bool  `json:"zero,omitempty"`
	Throttle int64 `json:"throttle,omitempty"` // MiB/s; 0: no limit
	Discard  bool  `json:"discard,omitempty"`
}
