package cluster

import (
	"context"
	"strings"
	"time"

	"virtlvm/test/fakevirt"
)

// settleAll repairs everything, lets everything go on and has operators clean up what only
// they can; then all must settle by itself.
func (s *sim) settleAll() {
	s.say("from here on nothing breaks")
	s.mu.Lock()
	s.cut = map[string]bool{}
	s.mu.Unlock()
	if s.o.claims {
		s.Members("vg_old")
	}
	_ = s.SAN.ClearFaults(s.faults...)
	idle := func() bool { return s.busy() == 0 }
	s.up()
	s.run(5*time.Minute, idle)
	s.up() // hosts that something still worked on
	s.run(5*time.Minute, idle)
	if s.busy() > 0 {
		s.fail("does not end: %s", s.unfinished())
	}
	for range 3 {
		s.run(2*time.Minute, func() bool { return false })
		if !s.cleanUp() {
			break
		}
		s.run(5*time.Minute, idle)
	}
	s.settle()
	s.useAgain()
}

func (s *sim) settle() {
	ctx := withTask(context.Background(), &task{name: "test", free: true})
	s.run(10*time.Minute, func() bool { return len(s.Unsettled(ctx)) == 0 })
	if bad := s.Unsettled(ctx); len(bad) > 0 {
		s.fail("does not settle: %s", strings.Join(bad, "; "))
	}
	if s.o.claims && s.bad == "" {
		s.contend()
	}
}

// contend starts the guest of the VG without lvmlockd on all hosts at once, where it runs
// nowhere: with all of them reachable one must win, and only one.
func (s *sim) contend() {
	old := s.all[3]
	s.o.net = false // no request is lost
	for _, q := range s.alive() {
		if q.guest.Name == old.Name {
			s.destroy(q.host, old.Name)
		}
	}
	idle := func() bool { return s.busy() == 0 }
	s.run(2*time.Minute, idle)
	for range 3 {
		var all []*op
		for _, name := range s.hosts {
			all = append(all, s.start(s.Hosts[name], old.Name))
		}
		for range 60 {
			if s.bad != "" || s.busy() == 0 {
				break
			}
			s.come()
			if len(s.parked)+len(s.mail) > 0 {
				s.letOne()
				s.goOn()
			}
		}
		s.run(2*time.Minute, idle)
		var won []string
		for _, o := range all {
			if o.done && o.err == nil {
				won = append(won, o.name)
			}
		}
		if len(won) != 1 {
			s.fail("%d win of those that start at once: %v", len(won), won)
			return
		}
		for _, q := range s.alive() {
			if q.guest.Name == old.Name {
				s.destroy(q.host, old.Name)
			}
		}
		s.run(2*time.Minute, idle)
	}
}

// useAgain: where nothing is wrong any more a guest can be stopped, started and migrated,
// however slowly. To refuse is safe, but not all there is to do.
func (s *sim) useAgain() {
	must := func(o *op) {
		s.run(5*time.Minute, func() bool { return o.done })
		if !o.done || o.err != nil {
			s.fail("nothing is wrong any more, but %s (ended %v): %v", o.name, o.done, o.err)
		}
	}
	for _, q := range s.alive() {
		must(s.destroy(q.host, q.guest.Name))
	}
	for _, key := range sortedKeys(s.hand) {
		must(s.giveUp(key)) // what a guest used until now as well
	}
	src, dst := s.Hosts[s.hosts[0]], s.Hosts[s.hosts[len(s.hosts)-1]]
	must(s.start(src, "vm1"))
	must(s.begin("virsh migrate vm1 at last", []*Host{src, dst}, func(ctx context.Context) error {
		return fakevirt.Migrate(ctx, src.Virt, dst.Virt, "vm1", fakevirt.MigrateOptions{Persistent: true, Step: func(fakevirt.Step) error {
			for _, h := range []*Host{src, dst} {
				if d := h.Daemon(); d != nil {
					d.engine.Kick()
				}
			}
			time.Sleep(300 * time.Millisecond) // they look at it
			return nil
		}})
	}))
	s.settle()
}

func (s *sim) unfinished() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, o := range s.ops {
		if !o.done {
			names = append(names, o.name)
		}
	}
	return strings.Join(names, ", ")
}

// up starts what is down.
func (s *sim) up() {
	for _, name := range s.hosts {
		h := s.Hosts[name]
		switch {
		case s.down(h) && s.quiet(h):
			s.boot(h)
		case !s.down(h) && h.Daemon() == nil:
			h.Launch()
			s.come()
		}
	}
}

// wantReported: of a guest that has two QEMUs, no migration between them, the status of one
// of its hosts must say so.
func (s *sim) wantReported(guest string, qs []qemu) {
	for _, q := range qs {
		if q.Async != "" {
			return
		}
	}
	ctx := withTask(context.Background(), &task{name: "test", free: true})
	for _, q := range qs {
		status := q.host.Engine().Status(ctx)
		for _, p := range status.Problems {
			if strings.Contains(p, guest) {
				return
			}
		}
		for _, p := range status.Pending {
			if strings.Contains(p.Guest, guest) {
				return
			}
		}
	}
	s.fail("%s has %d QEMUs, and nothing is reported", guest, len(qs))
}

// writes: it has a volume for itself.
func writes(g Guest) bool {
	for _, mode := range g.Needs {
		if mode == "ex" {
			return true
		}
	}
	return false
}

// cleanUp is what operators do at last: of a guest with two QEMUs one is destroyed, the
// paused one if there is one; what they have activated by hand is deactivated. It reports
// whether there was anything to do.
func (s *sim) cleanUp() (any bool) {
	byGuest := map[string][]qemu{}
	for _, q := range s.alive() {
		byGuest[q.guest.Name] = append(byGuest[q.guest.Name], q)
	}
	for _, name := range sortedKeys(byGuest) {
		qs := byGuest[name]
		if len(qs) < 2 {
			continue
		}
		any = true
		if writes(qs[0].guest) { // else it may be started on two hosts: nothing forbids it
			s.wantReported(name, qs)
		}
		stay := 0
		for i, q := range qs {
			if q.State == "running" {
				stay = i
			}
		}
		for i, q := range qs {
			if i != stay || q.Async != "" { // post-copy has failed: half of it is here, half there
				s.destroy(q.host, name)
			}
		}
	}
	// Also what is off: an operator's hold waits for it, and would for ever.
	for _, key := range sortedKeys(s.hand) {
		if s.hand[key] {
			s.hand[key], any = false, true
			s.giveUp(key)
		}
	}
	return any
}

// giveUp deactivates what an operator has activated, unless a guest uses it.
func (s *sim) giveUp(key string) *op {
	name, volume, _ := strings.Cut(key, " ")
	h := s.Hosts[name]
	return s.begin("clean up "+volume+" on "+name, []*Host{h}, func(ctx context.Context) error { return h.giveUp(ctx, volume) })
}
