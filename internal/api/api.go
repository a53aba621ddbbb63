// Package api is the wire between the hook, the CLI, other hosts and the daemon:
// routes, request and answer structs, error kinds and their exit codes.
// The wire is HTTP/1.1 with JSON bodies on a unix socket. Standard library only:
// the hook is linked with nothing else.
package api

// Protocol version. A peer or client one minor version apart still works; another
// major version does not.
const (
	ProtocolMajor = 1
	ProtocolMinor = 0
)

// Default places. Each can be changed for tests in the daemon's configuration.
const (
	// SocketPath is the socket for root and the group virtlvm.
	SocketPath = "/run/virtlvm/virtlvm.sock"
	// ReadOnlySocketPath answers GET requests only, for everybody.
	ReadOnlySocketPath = "/run/virtlvm/virtlvm-ro.sock"
	// SpoolDir keeps hook events that the daemon could not take, until it can.
	SpoolDir = "/var/lib/virtlvm/spool"
	// HookSettingsPath is written by the daemon for the hook: see HookSettings.
	HookSettingsPath = "/run/virtlvm/hook.json"
	// BreakGlassPath switches virtlvm off for starts while the file exists: the
	// hook then allows every operation and only tells the daemon about it.
	BreakGlassPath = "/etc/virtlvm/break-glass"
)

// Routes. {id} is a command id, a positive integer.
const (
	RouteVersion    = "/v1/version"            // GET -> Version
	RouteHook       = "/v1/hook"               // POST HookCall -> HookVerdict; root only
	RouteStatus     = "/v1/status"             // GET -> Status
	RouteVolumes    = "/v1/volumes"            // GET ?vg=NAME -> []Volume
	RouteGuests     = "/v1/guests"             // GET -> []Guest
	RouteCommands   = "/v1/commands"           // GET ?limit=N&before=ID&state=STATE&since=TIME -> []Command, newest first; POST: see command.go
	RouteCommand    = "/v1/commands/{id}"      // GET ?fresh=1 -> Command; fresh: the executor is asked first
	RouteHooks      = "/v1/hooks"              // GET ?limit=N&guest=NAME -> []HookRecord, newest first
	RouteActivate   = "/v1/volumes/activate"   // POST VolumeRequest -> Command
	RouteDeactivate = "/v1/volumes/deactivate" // POST VolumeRequest -> Command
)

// Version answers RouteVersion.
type Version struct {
	Version       string `json:"version"`        // release, such as "0.1.0"
	Commit        string `json:"commit"`         // git commit it was built from, or "unknown"
	Schema        int    `json:"schema"`         // database schema number
	ProtocolMajor int    `json:"protocol_major"` // see ProtocolMajor
	ProtocolMinor int    `json:"protocol_minor"`
	// Host is the name of the daemon's host among its peers; empty from a client.
	Host string `json:"host,omitempty"`
	// Peer is the name under which the caller is known, on the peer socket only.
	Peer string `json:"peer,omitempty"`
}

// HookSettings is what the hook must know without the daemon.
type HookSettings struct {
	// DeadlineSeconds bounds one hook call from its start to its exit; 0 means
	// DefaultHookDeadlineSeconds.
	DeadlineSeconds int `json:"deadline_seconds"`
}

// DefaultHookDeadlineSeconds applies where HookSettings are missing or zero.
const DefaultHookDeadlineSeconds = 60

// Stamp tells when an event happened and under which libvirtd, so that a stale or
// replayed event is never taken for a fresh one.
type Stamp struct {
	// BootID is /proc/sys/kernel/random/boot_id, trimmed.
	BootID string `json:"boot_id"`
	// UptimeMillis is the first field of /proc/uptime in milliseconds (its
	// resolution is 10 ms) when the event happened.
	UptimeMillis int64 `json:"uptime_millis"`
	// LibvirtdPID is the process that ran the hook (its parent).
	LibvirtdPID int `json:"libvirtd_pid"`
	// LibvirtdStart is that process's start time in clock ticks since boot
	// (field 22 of /proc/PID/stat), 0 when it could not be read.
	LibvirtdStart uint64 `json:"libvirtd_start"`
}

// HookCall is one call of the libvirt hook, as `hooks/qemu GUEST OP SUBOP EXTRA`
// with the domain XML on stdin (libvirt's hooks page).
type HookCall struct {
	Guest string `json:"guest"`
	Op    string `json:"op"`
	SubOp string `json:"sub_op"`
	Extra string `json:"extra"`
	// UUID of the guest where the XML could be read, else empty. Spooled events
	// carry it instead of the XML, so that no secret reaches the disk.
	UUID string `json:"uuid,omitempty"`
	// XML is the domain XML as it came on stdin; empty in spooled events.
	XML []byte `json:"xml,omitempty"`
	// Stamp is taken when the hook process starts.
	Stamp Stamp `json:"stamp"`
	// Bypassed is set when break-glass is on: the verdict is ignored by the hook.
	Bypassed bool `json:"bypassed,omitempty"`
	// Spooled is set on events read back from the spool.
	Spooled bool `json:"spooled,omitempty"`
}

// Verdicting reports whether libvirt waits for our verdict on op and honours it.
// All other operations (reconnect, stopped, release, unknown ones) must never fail.
func Verdicting(op string) bool {
	switch op {
	case "prepare", "start", "started", "migrate", "restore", "attach":
		return true
	}
	return false
}

// HookVerdict answers RouteHook.
type HookVerdict struct {
	Allow bool `json:"allow"`
	// Message is one line for the administrator, present when Allow is false.
	Message string `json:"message,omitempty"`
	// XML replaces the domain XML on stdout (operations `migrate` and `restore`
	// only); empty: print nothing.
	XML []byte `json:"xml,omitempty"`
}

// VolumeRequest asks to activate or deactivate one volume on this host for an
// operator.
type VolumeRequest struct {
	Volume string `json:"volume"`         // "vg/lv"
	Mode   string `json:"mode,omitempty"` // "ex" (default) or "sh"; activate only
}
