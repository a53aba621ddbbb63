// Package guests tells what runs on this host: from libvirt's status files and the
// processes they name, never by calling libvirt, which may be waiting for our hook.
//
// libvirt keeps one file NAME.xml in /run/libvirt/qemu for every guest that has a QEMU:
//
//	<domstatus state='running' reason='booted' pid='3600'>
//	  <job type='none' async='migration out' phase='perform3' flags='0x101' .../>
//	  <blockjobs active='no'/>
//	  <domain type='kvm' id='5'> <name>vm1</name> <uuid>...</uuid> ...
//
// It writes the file after the hook's `start` and before `started`, replaces it by
// rename whenever something changes, and removes it after `stopped` and before `release`
// (libvirt's qemu_process.c: qemuProcessLaunch, qemuProcessStop).
//
// What is not understood is unknown, and unknown is never gone: somebody's disks may
// depend on it.
package guests

import (
	"maps"
	"sync"
	"time"
)

// Liveness says whether a guest's QEMU exists.
type Liveness int

// Liveness values. Only Gone allows to take anything away from a guest.
const (
	Unknown Liveness = iota // cannot be told; treat it as running
	Alive                   // its QEMU exists, even if it is ending
	Gone                    // no process has its disks open
)

// String is the word for messages.
func (l Liveness) String() string {
	switch l {
	case Alive:
		return "alive"
	case Gone:
		return "gone"
	}
	return "unknown"
}

// Guest is a guest with a status file, or one whose file has gone while its QEMU has not.
type Guest struct {
	Name, UUID string // the uuid in lower case with dashes
	// State and Reason are libvirt's words, such as "paused" and "starting up".
	State, Reason string
	PID           int // of its QEMU; 0 where libvirt names none
	// Start is the start time of that process in clock ticks since boot, 0 where it was
	// never confirmed to be this guest's.
	Start uint64
	Alive Liveness
	Job   Job
	// XML is the whole status document. It can hold secrets: never log it.
	XML []byte
	// DropsCache: libvirt lets a guest move whose disks use the host's page cache, because its
	// QEMU forgets what is cached of them (libvirt's capability migration-file-drop-cache).
	DropsCache bool
	// BlockJobs is set while libvirt runs a block job on one of its disks.
	BlockJobs bool
	// Note says in a few words why Alive is not what the status file suggests.
	Note string

	// seen is the start time of the process PID when it was looked at and could be this
	// guest's, confirmed or not.
	seen uint64
}

// Job is what libvirt is doing with a guest (its virDomainJobObj). Words are libvirt's;
// "none" where there is no such job.
type Job struct {
	Type  string // short job: "none", "destroy", "modify", ...
	Async string // long one: "none", "start", "migration out", "migration in", ...
	Phase string // of the long one: "", "begin3", "perform3", "prepare", ...
	// Flags are those of the API call, such as VIR_MIGRATE_LIVE (1).
	Flags uint64
}

// UnknownFile is a status file that is not understood.
type UnknownFile struct {
	Path   string
	Name   string // the guest's, from the name of the file
	UUID   string // where at least that could be read
	Reason string // one line for the administrator
}

// Snapshot is one look at all guests.
type Snapshot struct {
	ByUUID  map[string]Guest
	Unknown []UnknownFile
	// NoDir is set where the directory of status files is missing: it appears with the
	// first guest after boot.
	NoDir bool
}

// Liveness tells whether the guest of that uuid and name runs here; either may be empty.
// A status file that is not understood makes the guest of its name or uuid unknown.
func (s Snapshot) Liveness(uuid, name string) Liveness {
	for _, u := range s.Unknown {
		if (uuid != "" && u.UUID == uuid) || (name != "" && u.Name == name) {
			return Unknown
		}
	}
	if g, ok := s.ByUUID[uuid]; ok {
		return g.Alive
	}
	if uuid == "" {
		for _, g := range s.ByUUID {
			if g.Name == name {
				return g.Alive
			}
		}
	}
	return Gone
}

// Observer looks at the guests of this host. Its methods may be called at the same time.
type Observer struct {
	dir, proc string
	// fallback is the time between hints of Watch when nothing is seen to happen.
	fallback time.Duration

	mu sync.Mutex
	// last holds the guests of the latest look that are not known to be gone: a process
	// can outlive its file, and a listing can miss a file that is being replaced.
	last map[string]Guest
	// said is what the status file of each guest said when it was last read, by the guest's name.
	said map[string]said
	// watchers are told when last has changed.
	watchers map[chan struct{}]struct{}
}

// New makes an observer of the status files in runDir ("/run/libvirt/qemu") and the
// processes in procRoot ("/proc").
func New(runDir, procRoot string) *Observer {
	return &Observer{
		dir: runDir, proc: procRoot, fallback: 10 * time.Second,
		last: map[string]Guest{}, said: map[string]said{}, watchers: map[chan struct{}]struct{}{},
	}
}

// known are the guests of the latest look that were not gone.
func (o *Observer) known() map[string]Guest {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.last)
}

// remember keeps what a look has found for the next one and for Watch.
func (o *Observer) remember(s Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = map[string]Guest{}
	for uuid, g := range s.ByUUID {
		if g.Alive != Gone {
			g.XML = nil
			o.last[uuid] = g
		}
	}
	for w := range o.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}
