package api

import "time"

// Routes of the lock manager.
const (
	RouteLocks    = "/v1/locks"          // GET ?vg=NAME&cluster=true -> []Lock
	RouteLock     = "/v1/locks/show"     // GET ?volume=VG/LV -> Lock
	RouteStale    = "/v1/locks/stale"    // GET ?vg=NAME -> []StaleHint
	RouteWhere    = "/v1/locks/where"    // GET ?volume=VG/LV&op=OP&on=HOST -> Endpoint
	RouteTransfer = "/v1/locks/transfer" // POST TransferRequest -> TransferResult
	RouteHosts    = "/v1/hosts"          // GET -> []Host
)

// How it is known who holds a volume.
const (
	KnownLease   = "lease"   // read from its lease on the shared storage
	KnownHint    = "hint"    // the lease cannot be read; the recorded host was asked and holds it
	KnownPeers   = "peers"   // the lease cannot be read; every host was asked
	KnownUnknown = "unknown" // the lease cannot be read, and not every host has answered
)

// Yes, no, or a host that was not asked or has not answered.
const (
	Yes     = "yes"
	No      = "no"
	Unknown = "unknown"
)

// What a volume is held for on a host.
const (
	UseGuest    = "guest"
	UseOperator = "operator" // `virtlvm activate`
	UseRetained = "retained" // by nobody: kept for a quick restart, or transferred there
	UseCommand  = "command"  // a long-running one copies or moves it
	UseEnding   = "ending"   // its guest has ended, it is about to be released
)

// Lock tells who holds a volume in the whole cluster.
type Lock struct {
	Volume string `json:"volume"` // "vg/lv"
	UUID   string `json:"uuid"`   // LV uuid
	Known  string `json:"known"`  // see KnownLease
	// Hosts are those that hold the lock, and those that were asked and have the volume
	// active without it. None, and Known is not "unknown": it is free.
	Hosts []LockHost `json:"hosts"`
	// Converting: a host is changing its mode at this moment, look again.
	Converting bool   `json:"converting,omitempty"`
	Attr       string `json:"lv_attr,omitempty"` // LVM's lv_attr on this host; of one volume only
	// Recorded is where an earlier look found it, where Known is "unknown".
	Recorded *RecordedHost `json:"recorded,omitempty"`
	Silent   []string      `json:"silent,omitempty"` // hosts that were asked and have not answered
	Problem  string        `json:"problem,omitempty"`
}

// LockHost is a host that holds a volume, or has it active.
type LockHost struct {
	Holder           // Mode is "off" where it is only active
	Self   bool      `json:"self,omitempty"`   // the host that answers
	Since  time.Time `json:"since,omitzero"`   // when the host that answers first found it there
	Active string    `json:"active"`           // Yes, No or Unknown
	Open   string    `json:"open"`             // Yes, No or Unknown
	Use    string    `json:"use,omitempty"`    // see UseGuest; empty: not virtlvm's, or not known
	Orphan bool      `json:"orphan,omitempty"` // its lvmlockd has died; the lock protects still
	Guests []string  `json:"guests"`           // that use it there, or of a retained one did so last
}

// RecordedHost is a hint.
type RecordedHost struct {
	Host string    `json:"host"` // empty: nobody, or several
	Mode string    `json:"mode"`
	At   time.Time `json:"at"` // since when
}

// StaleHint is a recorded holder that a look has found wrong.
type StaleHint struct {
	Volume string    `json:"volume"`
	Was    string    `json:"was"`  // recorded: "kvm-a(ex)", "nobody"
	Host   string    `json:"host"` // found: name, empty for nobody or several
	Mode   string    `json:"mode"`
	At     time.Time `json:"at"`
}

// Operations that Endpoint knows. All but OpRead need the volume exclusively.
const (
	OpRead     = "read"
	OpWrite    = "write"
	OpResize   = "resize"
	OpSnapshot = "snapshot"
	OpDelete   = "delete"
)

// Why an Endpoint is the one.
const (
	ReasonExplicit = "explicit" // the caller named it
	ReasonHolder   = "holder"   // it holds the volume
	ReasonGuest    = "guest"    // a guest there uses the volume
	ReasonUp       = "up"       // nobody has it; the first host that is up in the volume group
)

// Endpoint is the host on which an operation on a volume should run.
type Endpoint struct {
	Volume string `json:"volume"`
	Op     string `json:"op"`
	Host   string `json:"host"`
	HostID int    `json:"host_id"`
	Self   bool   `json:"self"`   // the host that answers
	Reason string `json:"reason"` // see ReasonExplicit
	Text   string `json:"text"`   // the reason for people, on one line
}

// TransferRequest moves the locks of volumes to a host.
type TransferRequest struct {
	Volumes []string `json:"volumes,omitempty"` // "vg/lv"
	Guest   string   `json:"guest,omitempty"`   // or: all that is held for a guest
	To      string   `json:"to"`
	// Wait for the leases of silent holders to free themselves.
	Wait bool `json:"wait,omitempty"`
}

// TransferResult answers TransferRequest, also where some have failed.
type TransferResult struct {
	To      string     `json:"to"`
	Command int64      `json:"command"` // its row of the journal
	Volumes []Transfer `json:"volumes"`
}

// Transfer is what became of one volume.
type Transfer struct {
	Volume string `json:"volume"`
	From   string `json:"from,omitempty"` // who held it; empty: nobody
	Moved  bool   `json:"moved"`          // false without an error: it was there already
	Error  *Error `json:"error,omitempty"`
}

// Host is a host of a lockspace, or a peer of the configuration.
type Host struct {
	Name   string   `json:"name"` // "host_id N" where it has none
	HostID int      `json:"host_id"`
	VGs    []string `json:"vgs"` // whose lockspaces it has been in
	Self   bool     `json:"self,omitempty"`
	// State is sanlock's, the worst where lockspaces differ: "live", "fail", "dead" (also
	// one that has left), "unknown"; "" of a host in no lockspace of ours.
	State  string `json:"state"`
	Age    int    `json:"age"`               // seconds since its lease was last seen renewed; -1: not known
	FreeIn int    `json:"free_in,omitempty"` // see Holder.FreeIn
	// Exclusive and Shared count the volumes it holds; -1: the leases cannot be read.
	Exclusive int `json:"exclusive"`
	Shared    int `json:"shared"`
	// Of its daemon, as it has answered; nil: it was not asked or has not answered.
	Daemon  *HostDaemon `json:"daemon,omitempty"`
	Problem string      `json:"problem,omitempty"`
}

// HostDaemon is what a host's daemon answers of itself. Durations are in nanoseconds.
type HostDaemon struct {
	Version string        `json:"version"`
	Latency time.Duration `json:"latency"`          // of one question; 0 of this host
	Clock   time.Duration `json:"clock_difference"` // how far its clock is ahead, give or take half the latency
}

// Incident is something that this host's daemon has noticed and not done.
type Incident struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`    // see EventActivated
	Subject string    `json:"subject"` // "vg/lv", a volume group, or a host
	Text    string    `json:"text"`
}

// Kinds of incidents.
const (
	EventActivated   = "activated"   // a volume, by somebody else
	EventDeactivated = "deactivated" // a volume, by somebody else
	EventMode        = "mode"        // of a lock, changed by somebody else
	EventHost        = "host"        // a host has become silent, died, left or come
	EventUnopened    = "unopened"    // a volume, by libvirt: it was not active
)
