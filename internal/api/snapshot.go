package api

// KindVolumeSnapshot is the kind of a command that makes a full copy of a volume as it is at
// one moment, while a guest of the executor writes it or while nobody does: SnapshotArgs.
const KindVolumeSnapshot = "volume.snapshot"

// SnapshotArgs are those of volume.snapshot.
type SnapshotArgs struct {
	Volume string `json:"volume"` // "vg/lv"
	// To is a volume "vg/lv" or, beginning with a slash, a file on the executor; neither is
	// there yet.
	To string `json:"to"`
	// Format of the volume: "raw", "qcow2"; empty: as its guest or its tag says, else "raw".
	Format    string `json:"format,omitempty"`
	ToFormat  string `json:"to_format,omitempty"` // of the snapshot; empty: that of the volume
	Bandwidth int64  `json:"bandwidth,omitempty"` // MiB/s, of a volume that no guest uses; 0: no limit
}
