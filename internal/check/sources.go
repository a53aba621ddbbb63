package check

import (
	"context"
	"io/fs"
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/peer"
	"virtlvm/internal/run"
)

// LVM is what is asked of LVM and device-mapper.
type LVM interface {
	Version(context.Context) (string, error)
	Config(ctx context.Context, names ...string) (map[string]string, error)
	PVs(context.Context) ([]lvm.PV, error)
	Known(ctx context.Context, vgs ...string) (all map[model.VolumeID]bool, unlocked []string, err error)
	Devices() (map[string]lvm.Device, error)
	OpenCounts(context.Context) (map[string]int, error)
}

// Leases is what is asked of lvmlockd and sanlock.
type Leases interface {
	Local(context.Context) (lease.Local, error)
	Lockspaces(context.Context) (all []lease.Lockspace, down bool, err error)
	Daemon(context.Context) (lease.Daemon, error)
	Renewals(ctx context.Context, vg string) ([]lease.Renewal, error)
	Hosts(ctx context.Context, vg string) (map[int]lease.Host, error)
	DiskHosts(ctx context.Context, vg string) (map[int]string, error)
}

// Engine is what is asked of the engine.
type Engine interface {
	Conditions(context.Context) ([]activation.Condition, error)
	Status(context.Context) api.Status
	AskMembers(ctx context.Context, vg string) map[string]error
	Repair(ctx context.Context, r activation.Repair, by string, verify func(context.Context) error) (api.Command, error)
}

// Guests observes what runs here.
type Guests interface {
	Observe() (guests.Snapshot, error)
}

// Resolver tells which disks are logical volumes.
type Resolver interface {
	Resolve(domain.Source) (domain.Ref, bool, error)
}

// Peers are the other hosts.
type Peers interface {
	List(context.Context) ([]api.Peer, error)
	Probe(ctx context.Context, name string) (peer.Report, error)
	Each(ctx context.Context, names []string, fn func(ctx context.Context, name string) error) map[string]error
}

// Journal is the database, read beside whoever writes it.
type Journal interface {
	Damage(context.Context) (string, error)
	LastHook(ctx context.Context, bootID string, pid int, start uint64) (time.Time, error)
	Activated(ctx context.Context, id model.VolumeID) (bool, error)
	Close() error
}

// Sources are all that a Checker looks at.
type Sources struct {
	LVM      LVM
	Leases   Leases
	Engine   Engine
	Guests   Guests
	Resolver Resolver
	Peers    Peers
	Runner   run.Runner
	// Journal opens the database; fs.ErrNotExist: there is none.
	Journal func() (Journal, error)

	Root, Proc, Sys fs.FS // the file system, /proc and /sys
	// Have reports whether a program is installed.
	Have func(program string) bool
	// Stat looks at a socket.
	Stat func(path string) (fs.FileInfo, error)
	// Version asks virtlvmd on a socket, as another host where it is the peer socket.
	Version func(ctx context.Context, socket string) error
	// Space is the room in a folder's file system.
	Space func(path string) Space
	// Label is the SELinux context of a file, given without the leading slash.
	Label func(path string) (string, error)

	Alone    bool // virtlvmd does not run
	Host     string
	BootID   string
	Now      func() time.Time
	Pause    func() // between two looks at what may be about to change; nil: one look
	Uptime   func() time.Duration
	Scope    func() []string            // VGs that the configuration names
	Members  func() map[string][]string // of VGs with unsafe_claims; nil: there are none
	Keep     func() time.Duration       // of the journal
	Config   func() error               // why the configuration on disk is refused
	RunDir   string
	StateDir string
	// BreakGlass is the file that switches virtlvm off, "" while there is none.
	BreakGlass func() string
	Spool      func() api.SpoolSummary
}
