package check

import (
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// Got is something that was found out, or why not.
type Got[T any] struct {
	Value T
	Err   error
}

// Facts is what there is on a host. Checks only read it.
type Facts struct {
	Alone   bool   // virtlvmd does not run: nobody knows of holds
	Host    string // this host's name among its peers
	Now     time.Time
	BootAt  time.Time // when the host booted, by the clock of today
	Scope   []string  // VGs that virtlvm.toml names
	Missing []string  // programs that are not installed

	LVMVersion Got[string]
	LVMConfig  Got[map[string]string]
	KillFound  bool // the program of lvmlockctl_kill_command can be run
	VGs        Got[[]activation.Condition]
	// Known has every volume of the managed VGs, internal ones too; Unlocked are VGs that
	// were read without a lock for it.
	Known        Got[map[model.VolumeID]bool]
	Unlocked     []string
	PVs          Got[[]lvm.PV]
	Devices      Got[map[string]lvm.Device] // by dm uuid
	Open         Got[map[string]int]        // by dm uuid
	Activators   []Activator
	LeaseVolumes map[string]int64 // bytes, by VG; only of active ones

	// Claims is what the other members of VGs with unsafe_claims say, by VG and host; nil:
	// it is there, and means the same members.
	Claims map[string]map[string]error
	// Members are those of the configuration, by VG.
	Members map[string][]string

	Local       Got[lease.Local]
	Lockspaces  Got[[]lease.Lockspace]
	LockdDown   bool
	Sanlock     Got[lease.Daemon]
	SanlockConf map[string]string
	Renewals    map[string]Got[[]lease.Renewal]    // by VG, of started lockspaces
	HostTables  map[string]Got[map[int]lease.Host] // by VG, of started lockspaces
	DiskHosts   map[string]Got[map[int]string]     // by VG, of others whose lease volume is active
	Watchdog    Got[Watchdog]

	Units     Got[map[string]Unit]
	Libvirt   Got[[]Process] // libvirtd and virtqemud
	Hook      Hook
	HookCalls map[int]Got[time.Time] // the last call, by pid of Libvirt
	AppArmor  AppArmor
	SELinux   SELinux
	Pools     Got[[]Pool]

	Guests     []Guest
	Unreadable []string // definitions and status files that are not understood, and why
	Running    Got[guests.Snapshot]
	Keep       time.Duration // how long the journal keeps what is in it
	Jobs       []BlockJob
	// Ours are the left-over devices (see leftovers) whose volume a hold of ours activated.
	Ours map[model.VolumeID]bool

	Peers Got[[]Peer]

	Status     api.Status
	Sockets    []Socket
	BreakGlass string // the file that switches virtlvm off, "" while there is none
	Config     error  // why virtlvm.toml is refused
	Damage     Got[string]
	NoData     bool // there is no database
	Spaces     []Space
	Spool      api.SpoolSummary
}

// Unit is a unit of systemd.
type Unit struct {
	Name    string
	Loaded  bool   // it exists
	Active  string // "active", "inactive", "failed", ...
	Enabled string // "enabled", "disabled", "static", ...; "" if not known
	After   []string
	// Reloaded is when it was last told to reload; the zero time: never, or not known.
	Reloaded time.Time
}

// Process is a running program.
type Process struct {
	Name  string
	PID   int
	Start uint64    // clock ticks since boot
	Began time.Time // the same by the clock of today
}

// Watchdog is what resets a host whose leases are lost.
type Watchdog struct {
	Daemon  int      // pid of wdmd, 0: it does not run
	Open    []string // devices it has open, such as "watchdog0": they are armed
	Devices []WatchdogDevice
}

// WatchdogDevice is a watchdog that the kernel has.
type WatchdogDevice struct {
	Name     string // "watchdog0"
	Identity string // "Software Watchdog"; "" if not known
}

// Socket is a socket of virtlvmd.
type Socket struct {
	Path string
	Mode string // as it should be, such as "0660"
	Bad  string // what is wrong with it, "" if nothing
}

// Space is the room in a folder's file system.
type Space struct {
	Path  string
	Free  uint64 // bytes for root
	Files uint64 // more files that it can have; all ones where it has no limit
	Err   error
}

// Peer is another host.
type Peer struct {
	Name, URL string
	Asked     bool // else nothing of the following is known
	Version   api.Version
	Err       error // it cannot be reached, or is not understood
}
