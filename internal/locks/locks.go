// Package locks is the cluster lock manager: who holds a volume on whatever host, moving
// its lock from one host to another, where an operation on it should run, and which hosts
// there are. The truth is the lease on the shared storage, which one look shows whatever
// the number of hosts; other hosts are asked for what no lease tells, and where it cannot
// be read. A host that does not answer makes a result unknown, never free. In a VG without
// lvmlockd there are no leases, and its members are asked.
//
// What happens on one host - which volumes may be given up there, how one is taken - is
// decided by that host's engine. No lock here is held for longer than one volume's
// transfer, and nothing is ever forced.
package locks

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// Engine is this host.
type Engine interface {
	ManagedVGs(ctx context.Context, only string) ([]string, error)
	KnownVGs() []string // of the last full look
	Inventory(ctx context.Context, vg string) ([]model.Volume, error)
	// Members of a VG without lvmlockd, where volumes are claimed; nil: it has leases.
	Members(vg string) []string
	FencedHosts() []model.Fenced
	VolumeNamed(ctx context.Context, name string) (model.Volume, error)
	LocksHere(context.Context, api.LocksQuery) (api.LocksAnswer, error)
	GiveUp(context.Context, api.ReleaseRequest) (api.ReleaseAnswer, error)
	Keep(context.Context, api.RetainRequest) error
	Record(ctx context.Context, by, kind string, argv []string, vols []model.Volume, do func(context.Context) (string, error)) (api.Command, error)
	Event(kind, subject, text string)
}

// Leases reads the leases on the shared storage; see package lease.
type Leases interface {
	Hosts(ctx context.Context, vg string) (map[int]lease.Host, error)
	Holders(ctx context.Context, vg string, offset int64, lvUUID string) ([]model.Holder, error)
	HoldersAll(ctx context.Context, vg string, offsets map[string]int64) (map[string][]model.Holder, error)
}

// Peers reaches the daemons of other hosts. A failed call is an *api.Error.
type Peers interface {
	Call(ctx context.Context, host, path string, in, out any) error
	// Names lists the other hosts; with an error, those that are known all the same.
	Names(context.Context) ([]string, error)
	// Each calls fn for all names at once, bounded, each with a deadline of its own.
	Each(ctx context.Context, names []string, fn func(ctx context.Context, name string) error) map[string]error
}

// Hints keeps where volumes were.
type Hints interface {
	LockHints(ctx context.Context, vgUUID string) ([]model.LockHint, error)
	ChangeLockHints(ctx context.Context, put []model.LockHint, gone []model.VolumeID) error
}

// Options are what Locks are given.
type Options struct {
	Engine Engine
	Leases Leases
	Peers  Peers // nil: this host has none
	Hints  Hints
	// Attr reads LVM's lv_attr of a volume, for show alone.
	Attr    func(ctx context.Context, volume string) (string, error)
	Log     *slog.Logger
	Host    string // this host's name among its peers
	Version string // of this daemon
	Now     func() time.Time
	// Monotonic is CLOCK_MONOTONIC, the clock in which sanlock counts.
	Monotonic func() time.Duration
	After     func(time.Duration) <-chan time.Time // default time.After
}

// Locks is the lock manager as one host has it. Safe for concurrent use.
type Locks struct {
	Options

	mu    sync.Mutex
	turns map[model.VolumeID]chan struct{} // one transfer of a volume at a time
}

// New makes a lock manager.
func New(o Options) *Locks {
	if o.After == nil {
		o.After = time.After
	}
	return &Locks{Options: o, turns: map[model.VolumeID]chan struct{}{}}
}

// pause waits, or returns ctx's error.
func (l *Locks) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-l.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func refused(kind api.Kind, format string, args ...any) *api.Error {
	return api.NewError(kind, fmt.Sprintf(format, args...))
}
