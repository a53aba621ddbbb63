package api

import "time"

// Status answers RouteStatus: this host at a glance.
type Status struct {
	Host       string       `json:"host"`
	BootID     string       `json:"boot_id"`
	Version    Version      `json:"version"`
	Started    time.Time    `json:"started"`     // when the daemon started
	Ready      bool         `json:"ready"`       // the first full look is done
	BreakGlass bool         `json:"break_glass"` // guests start unprotected
	Database   string       `json:"database"`    // "ok", or what is wrong with it
	Lockd      string       `json:"lockd"`       // "ok", or what is wrong with lvmlockd or sanlock
	VGs        []VG         `json:"vgs"`
	Guests     int          `json:"guests"`  // running here
	Holds      HoldCounts   `json:"holds"`   // holds on this host by mode
	Pending    []Unwanted   `json:"pending"` // volumes not in their wanted mode
	Problems   []string     `json:"problems"`
	Events     []Incident   `json:"events,omitempty"` // the latest, newest first; since the daemon started
	Spool      SpoolSummary `json:"spool"`
	// Commands that go on by themselves.
	Commands CommandSummary `json:"commands"`
}

// SpoolSummary counts hook events waiting on disk.
type SpoolSummary struct {
	Waiting int `json:"waiting"` // not yet taken
	Broken  int `json:"broken"`  // set aside because they could not be read
}

// HoldCounts counts holds by the lock mode they want.
type HoldCounts struct {
	Exclusive int `json:"exclusive"`
	Shared    int `json:"shared"`
	Ending    int `json:"ending"`
	Retained  int `json:"retained,omitempty"` // of the exclusive ones: used by nobody
}

// Unwanted is a volume whose actual state is not the wanted one.
type Unwanted struct {
	Volume string    `json:"volume"` // "vg/lv"
	Guest  string    `json:"guest,omitempty"`
	Wanted string    `json:"wanted"` // "off", "sh", "ex"
	Actual string    `json:"actual"` // "off", "sh", "ex", "dm without lock", "lock without dm", "unknown"
	Since  time.Time `json:"since"`
	// Next is what is tried next, such as "lvchange -aey"; empty: nothing, while the start of
	// its guest is being decided.
	Next string `json:"next,omitempty"`
	// NextTry is when, at the latest; zero: now. It is tried earlier when something is seen
	// to happen.
	NextTry time.Time `json:"next_try,omitzero"`
	Failed  time.Time `json:"failed,omitzero"` // when Reason was found, the last time
	Reason  string    `json:"reason"`          // why it is not as wanted
}

// VG is a volume group as this host sees it.
type VG struct {
	Name      string `json:"name"`
	UUID      string `json:"uuid"`
	LockType  string `json:"lock_type"`       // "sanlock", "dlm", "none"
	InScope   bool   `json:"in_scope"`        // managed by virtlvm
	Lockspace string `json:"lockspace"`       // "started", "stopped", "unknown"
	Stuck     string `json:"stuck,omitempty"` // what has not answered, and since when
	Volumes   int    `json:"volumes"`
	Held      int    `json:"held"` // volumes with a hold on this host
}

// Volume is one logical volume as this host sees it. Who holds it elsewhere comes from
// the lease on disk.
type Volume struct {
	Name    string   `json:"name"` // "vg/lv"
	UUID    string   `json:"uuid"` // LV uuid
	Type    string   `json:"type"` // LVM segment type, such as "linear"
	Size    int64    `json:"size"` // bytes
	Wanted  string   `json:"wanted"`
	Actual  string   `json:"actual"` // see Unwanted.Actual
	Open    bool     `json:"open"`   // open on this host
	Holders []Holder `json:"holders"`
	Known   string   `json:"known"` // how holders are known: "lease", "unknown"
	Guests  []string `json:"guests"`
	Note    string   `json:"note,omitempty"` // something an administrator should know

	Tags   []string `json:"tags,omitempty"`   // LVM's
	Format string   `json:"format,omitempty"` // as it is tagged: "qcow2"; else empty
	// Backing is the volume below the image on it, "vg/lv", or its uuid where that is in no
	// volume group that was looked at; Children are those that have this one below them.
	Backing  string   `json:"backing,omitempty"`
	Children []string `json:"children,omitempty"`
}

// Holder is a host that holds a volume's lock.
type Holder struct {
	Host   string `json:"host"` // name, or "host_id N" where no name is known
	HostID int    `json:"host_id"`
	Mode   string `json:"mode"`  // "sh", "ex"
	State  string `json:"state"` // "live", "fail", "dead", "unknown"
	// FreeIn is the time until sanlock frees a silent host's lease, in seconds;
	// 0 when the host is live or it is not known.
	FreeIn int `json:"free_in,omitempty"`
}

// Guest is a guest that runs here or has holds here.
type Guest struct {
	Name    string      `json:"name"`
	UUID    string      `json:"uuid"`
	State   string      `json:"state"` // libvirt's state, "gone", or "unknown"
	PID     int         `json:"pid"`
	Job     string      `json:"job,omitempty"` // libvirt's async job, such as "migration out"
	Volumes []GuestDisk `json:"volumes"`
	// CanMigrate: nothing that this host knows of is in the way of a live migration now.
	CanMigrate bool `json:"can_migrate"`
	// CannotMigrate says what is, each on one line.
	CannotMigrate []string `json:"cannot_migrate,omitempty"`
	Note          string   `json:"note,omitempty"`
}

// GuestDisk is a volume that a guest uses.
type GuestDisk struct {
	Volume string `json:"volume"` // "vg/lv"
	Role   string `json:"role"`   // "writable", "shareable", "readonly", "backing", "mirror"
	Phase  string `json:"phase"`  // hold phase: "held", "ending"
	Wanted string `json:"wanted"`
	Actual string `json:"actual"`
}

// HookRecord is one hook call as the daemon saw it.
type HookRecord struct {
	ID       int64         `json:"id"`
	Guest    string        `json:"guest"`
	UUID     string        `json:"uuid"`
	Op       string        `json:"op"`
	SubOp    string        `json:"sub_op"`
	Extra    string        `json:"extra"`
	Received time.Time     `json:"received"`
	Duration time.Duration `json:"duration"` // nanoseconds; 0 while it runs
	Verdict  string        `json:"verdict"`  // "running", "allowed", "refused", "noted", "bypassed", "gone", "interrupted"
	Message  string        `json:"message,omitempty"`
	Spooled  bool          `json:"spooled"`
}
