package check

import (
	"cmp"
	"context"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
)

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
		s.gatherClaims, func(ctx context.Context, f *Facts) { s.gatherPeers(ctx, f, ask) },
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

// gatherClaims asks the members of VGs without lvmlockd.
func (s *Sources) gatherClaims(ctx context.Context, f *Facts) {
	if s.Members == nil {
		return
	}
	f.Members, f.Claims = s.Members(), map[string]map[string]error{}
	for vg, members := range f.Members {
		if slices.Contains(members, s.Host) {
			f.Claims[vg] = s.Engine.AskMembers(ctx, vg)
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
