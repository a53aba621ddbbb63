package check

import (
	"cmp"
	"context"
	"io/fs"
	"maps"
	"slices"
	"sync"
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
	Scope    func() []string      // VGs that the configuration names
	Keep     func() time.Duration // of the journal
	Config   func() error         // why the configuration on disk is refused
	RunDir   string
	StateDir string
	// BreakGlass is the file that switches virtlvm off, "" while there is none.
	BreakGlass func() string
	Spool      func() api.SpoolSummary
}

// peersAsked says which other hosts are probed.
type peersAsked struct {
	all  bool
	only string // this one, where not all are
}

// gather finds out everything. It takes as long as the slowest program; what could not be
// found out has an error in its place.
func (s *Sources) gather(ctx context.Context, ask peersAsked) *Facts {
	now := s.Now()
	f := &Facts{Alone: s.Alone, Host: s.Host, Now: now, BootAt: now.Add(-s.Uptime()), Scope: s.Scope(), Keep: s.Keep()}
	for _, p := range programs() {
		if !s.Have(p.name) {
			f.Missing = append(f.Missing, p.name)
		}
	}
	// Each writes facts of its own.
	var all sync.WaitGroup
	for _, part := range []func(context.Context, *Facts){
		s.gatherVGs, s.gatherLVM, s.gatherLeases, s.gatherActivators, s.gatherSystemd, s.gatherLibvirt, s.gatherWatchdog, s.gatherSelf,
		func(ctx context.Context, f *Facts) { s.gatherPeers(ctx, f, ask) },
	} {
		all.Go(func() { part(ctx, f) })
	}
	all.Wait()
	// These need some of the above.
	s.leaseVolumes(f)
	s.gatherDefinitions(f)
	s.gatherJobs(f)
	s.gatherJournal(ctx, f)
	s.gatherHosts(ctx, f)
	return f
}

func got[T any](value T, err error) Got[T] { return Got[T]{value, err} }

func sortedKeys[K cmp.Ordered, V any](in map[K]V) []K {
	return slices.Sorted(maps.Keys(in))
}

func (s *Sources) gatherVGs(ctx context.Context, f *Facts) {
	f.VGs = got(s.Engine.Conditions(ctx))
	if s.Pause != nil && odd(f.VGs.Value) {
		// A volume may be on its way: only what is odd twice is.
		s.Pause()
		again, err := s.Engine.Conditions(ctx)
		f.VGs = got(settled(f.VGs.Value, again), err)
	}
	// Devices before volumes: one that is made meanwhile is not taken for left over.
	f.Devices = got(s.LVM.Devices())
	f.Open = got(s.LVM.OpenCounts(ctx))
	var names []string
	for _, c := range f.managed() {
		if c.Err == nil {
			names = append(names, c.VG.Name)
		}
	}
	f.Known.Value, f.Unlocked, f.Known.Err = s.LVM.Known(ctx, names...)
	if !s.Alone { // it asks for the database, which is the daemon's alone to make
		f.Status = s.Engine.Status(ctx)
	}
}

func (s *Sources) gatherLVM(ctx context.Context, f *Facts) {
	f.LVMVersion = got(s.LVM.Version(ctx))
	f.LVMConfig = got(s.LVM.Config(ctx, "global/use_lvmlockd", "global/lvmlockctl_kill_command", "global/sanlock_lv_extend", "local/host_id", "devices/scan_lvs"))
	f.KillFound = s.killFound(f.LVMConfig.Value["lvmlockctl_kill_command"])
	f.PVs = got(s.LVM.PVs(ctx))
}

// leaseVolumes finds how large the active lease volumes are.
func (s *Sources) leaseVolumes(f *Facts) {
	f.LeaseVolumes = map[string]int64{}
	for _, d := range f.Devices.Value {
		vg, lv, ok := lvm.SplitMapperName(d.Name)
		if !ok || lv != "lvmlock" {
			continue
		}
		// In sectors of 512 bytes, whatever the device's are.
		if n := number(s.Sys, "block/"+d.Kernel+"/size"); n > 0 {
			f.LeaseVolumes[vg] = n * 512
		}
	}
}

func (s *Sources) killFound(command string) bool {
	var path string
	for word := range fields(command) {
		path = word
		break
	}
	if len(path) < 2 || path[0] != '/' {
		return false
	}
	info, err := fs.Stat(s.Root, path[1:])
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

func (s *Sources) gatherLeases(ctx context.Context, f *Facts) {
	f.Local = got(s.Leases.Local(ctx))
	spaces, down, err := s.Leases.Lockspaces(ctx)
	f.Lockspaces, f.LockdDown = got(spaces, err), down
	f.Sanlock = got(s.Leases.Daemon(ctx))
	f.Renewals = map[string]Got[[]lease.Renewal]{}
	for vg := range f.Sanlock.Value.Spaces {
		f.Renewals[vg] = got(s.Leases.Renewals(ctx, vg))
	}
	f.SanlockConf = settings(s.Root, "etc/sanlock/sanlock.conf")
}

// gatherHosts reads who is in the lockspaces: from sanlock where they are started, from the
// disk where at least the lease volume is there.
func (s *Sources) gatherHosts(ctx context.Context, f *Facts) {
	f.HostTables, f.DiskHosts = map[string]Got[map[int]lease.Host]{}, map[string]Got[map[int]string]{}
	for _, c := range f.managed() {
		name := c.VG.Name
		if _, started := f.Sanlock.Value.Spaces[name]; started {
			f.HostTables[name] = got(s.Leases.Hosts(ctx, name))
		} else if f.LeaseVolumes[name] > 0 {
			f.DiskHosts[name] = got(s.Leases.DiskHosts(ctx, name))
		}
	}
}

func (s *Sources) gatherPeers(ctx context.Context, f *Facts, ask peersAsked) {
	list, err := s.Peers.List(ctx)
	f.Peers.Err = err
	var names []string
	at := map[string]int{}
	for i, p := range list {
		asked := ask.all || ask.only == p.Name
		f.Peers.Value = append(f.Peers.Value, Peer{Name: p.Name, URL: p.URL, Asked: asked})
		if at[p.Name] = i; asked {
			names = append(names, p.Name)
		}
	}
	var mu sync.Mutex
	failed := s.Peers.Each(ctx, names, func(ctx context.Context, name string) error {
		report, err := s.Peers.Probe(ctx, name)
		mu.Lock()
		defer mu.Unlock()
		f.Peers.Value[at[name]].Version = report.Version
		return err
	})
	for name, err := range failed {
		f.Peers.Value[at[name]].Err = err
	}
}
