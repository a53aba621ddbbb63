package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// define makes the volumes and guests of every schedule, and starts the first guest:
//
//	vm1     writes d1 and, in another VG, d2
//	vm2     writes top, above base, and shares quorum
//	reader  reads d1
//	old     writes d3, and shares c3, in a VG without lvmlockd (swarm.claims)
func (s *sim) define() {
	for vg, names := range map[string][]string{"vg_san": {"d1", "top", "base", "quorum"}, "vg_two": {"d2"}} {
		for _, name := range names {
			_, err := s.SAN.AddLV(vg, san.LVSpec{Name: name})
			require.NoError(s.t, err)
		}
	}
	require.NoError(s.t, writeQcow2(s.SAN, "top", "/dev/vg_san/base", "qcow2"))
	require.NoError(s.t, writeQcow2(s.SAN, "base", "", ""))
	s.all = []Guest{
		{
			Name: "vm1", UUID: UUID(1), XML: XML("vm1", UUID(1), Disk{Path: "d1"}, Disk{Path: "/dev/vg_two/d2"}),
			Needs: map[string]string{"vg_san/d1": "ex", "vg_two/d2": "ex"},
		},
		{
			Name: "vm2", UUID: UUID(2), XML: XML("vm2", UUID(2), Disk{Path: "top", Format: "qcow2"}, Disk{Path: "quorum", Extra: "<shareable/>"}),
			Needs: map[string]string{"vg_san/top": "ex", "vg_san/base": "sh", "vg_san/quorum": "sh"},
		},
		{
			Name: "reader", UUID: UUID(3), XML: XML("reader", UUID(3), Disk{Path: "d1", Extra: "<readonly/>"}),
			Needs: map[string]string{"vg_san/d1": "sh"},
		},
	}
	if s.o.claims {
		s.Members("vg_old")
		for _, name := range []string{"d3", "c3"} {
			_, err := s.SAN.AddLV("vg_old", san.LVSpec{Name: name})
			require.NoError(s.t, err)
		}
		s.all = append(s.all, Guest{
			Name: "old", UUID: UUID(4), XML: XML("old", UUID(4), Disk{Path: "/dev/vg_old/d3"}, Disk{Path: "/dev/vg_old/c3", Extra: "<shareable/>"}),
			Needs: map[string]string{"vg_old/d3": "ex", "vg_old/c3": "sh"},
		})
	}
	s.Watch(s.all...)
	for _, host := range s.hosts {
		for _, g := range s.all {
			_, err := s.Hosts[host].Virt.Define(context.Background(), g.XML)
			require.NoError(s.t, err)
		}
		s.Hosts[host].Launch()
		s.come()
	}
	s.run(5*time.Second, func() bool { return false })
	o := s.start(s.Hosts[s.hosts[0]], "vm1")
	s.run(time.Minute, func() bool { return o.done })
	require.NoError(s.t, o.err)
}

// toTheEnd is more points than there are.
const toTheEnd = 1 << 30

// run lets everything go on, in turn and without chance, until done says so, nothing is on
// its way and no timer is near, or patience is over.
func (s *sim) run(patience time.Duration, done func() bool) {
	for end := time.Now().Add(patience); s.bad == ""; {
		s.come()
		switch {
		case len(s.parked) > 0:
			s.parked[0].task.budget = toTheEnd
			s.goOn()
			continue
		case len(s.mail) > 0:
			s.mail[0].task.budget = toTheEnd
			s.goOn()
			continue
		case done() || !time.Now().Before(end):
			return
		}
		step := time.Second
		if t := s.nextTimer(); t != nil {
			step = min(max(time.Until(t.at), 0), 10*time.Second)
		}
		s.advance(min(step, time.Until(end)))
	}
}

// choice is something that can happen next.
type choice struct {
	weight int
	do     func()
}

// choose draws one of them; the first is the simplest.
func (s *sim) choose(all ...choice) {
	sum := 0
	for _, c := range all {
		sum += c.weight
	}
	n := s.draw(sum, "what")
	for _, c := range all {
		if n < c.weight {
			c.do()
			return
		}
		n -= c.weight
	}
}

func (s *sim) draw(n int, what string) int {
	if n <= 1 {
		return 0
	}
	return s.dice(n, what)
}

// dice draws from 0 to n-1.
type dice func(n int, what string) int

// drawn are rapid's dice.
func drawn(rt *rapid.T) dice {
	return func(n int, what string) int { return evenly(n).Draw(rt, what) }
}

// evenly draws from 0 to n-1, each about as often; rapid's own ranges prefer what is small.
func evenly(n int) *rapid.Generator[int] {
	return rapid.Custom(func(t *rapid.T) int {
		x := 0
		for range bits.Len(uint(n)) + 3 {
			x *= 2
			if rapid.Bool().Draw(t, "bit") {
				x++
			}
		}
		return x % n
	})
}

// when is a weight that counts only under a condition.
func when(ok bool, weight int) int {
	if !ok {
		return 0
	}
	return weight
}

// step is one thing that happens.
func (s *sim) step() {
	s.come()
	s.choose(
		choice{when(len(s.parked)+len(s.mail) > 0, 70), s.letOne},
		choice{12, s.pass},
		choice{when(s.busy() < 3, 14), s.operate},
		choice{8, s.breakSomething},
	)
	s.goOn()
}

// letOne lets one of those that wait go on, for some points.
func (s *sim) letOne() {
	budget := []int{300, 60, 20, 8, 3, 1, 0}[s.draw(7, "how far")]
	n := s.draw(len(s.parked)+len(s.mail), "who")
	if n >= len(s.parked) {
		s.carry(s.mail[n-len(s.parked)], budget)
		return
	}
	w := s.parked[n]
	if w.step != nil {
		w.fault = s.stepFault(w.step)
	}
	s.say("%s goes on from %s, %d points, fault %v", w.task.name, w.what, budget, w.fault)
	w.task.budget = budget
	s.release(w)
}

// carry decides what becomes of a request.
func (s *sim) carry(l *letter, budget int) {
	how := 0
	if s.o.net {
		how = s.draw(10, "mail")
	}
	l.task.budget = budget
	if how != 6 {
		s.take(l)
	}
	switch how {
	case 6:
		s.say("twice: %s", l.name)
		s.deliver(l, true)
	case 7:
		s.say("answer lost: %s", l.name)
		s.deliver(l, true)
		l.answer(nil, brokenOff(l.to))
	case 8:
		s.say("not sent: %s", l.name)
		l.answer(nil, unreachable(l.to))
	case 9:
		s.say("lost: %s", l.name)
		l.task.budget = 0
	default:
		s.say("arrives: %s, %d points", l.name, budget)
		s.deliver(l, false)
	}
}

// pass lets time pass.
func (s *sim) pass() {
	pauses := []time.Duration{
		20 * time.Millisecond, 300 * time.Millisecond, time.Second, 5 * time.Second, 16 * time.Second, 31 * time.Second, 65 * time.Second,
	}
	if s.busy() > 0 && s.draw(12, "patience") != 11 {
		pauses = pauses[:4] // hooks give up after a minute, and most migrations should not end so
	}
	d := pauses[s.draw(len(pauses), "how long")]
	s.say("%s pass", d)
	s.advance(min(d, restartPause))
	if d > restartPause {
		if s.draw(4, "stays down") != 3 {
			s.relaunch()
		}
		s.advance(d - restartPause)
	}
}

// restartPause is RestartSec of the unit: so soon a killed daemon is there again, mostly.
const restartPause = time.Second

func (s *sim) relaunch() {
	for _, name := range s.hosts {
		if h := s.Hosts[name]; h.Daemon() == nil && !s.down(h) {
			s.say("virtlvmd starts on %s", name)
			h.Launch()
			s.come()
		}
	}
}

func (s *sim) busy() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.ops {
		if !o.done {
			n++
		}
	}
	return n
}

func (s *sim) host() *Host { return s.Hosts[s.hosts[s.draw(len(s.hosts), "host")]] }

func (s *sim) guest() Guest {
	if s.o.claims && s.draw(5, "claims") < 3 {
		return s.all[3]
	}
	// Mostly vm1.
	return s.all[[]int{0, 0, 0, 1, 2}[s.draw(5, "guest")]]
}

// place is a host, mostly one where the guest runs.
func (s *sim) place(g Guest) *Host {
	var here []*Host
	for _, q := range s.alive() {
		if q.guest.Name == g.Name {
			here = append(here, q.host)
		}
	}
	if len(here) > 0 && s.draw(16, "where") < 15 {
		return here[s.draw(len(here), "where")]
	}
	return s.host()
}

// other is another host, or rarely the same.
func (s *sim) other(h *Host) *Host {
	if s.draw(16, "same host") == 15 {
		return h
	}
	i := slices.Index(s.hosts, h.Name) + 1 + s.draw(len(s.hosts)-1, "other host")
	return s.Hosts[s.hosts[i%len(s.hosts)]]
}

// begin starts an operation in a goroutine of its own, up to its first point.
func (s *sim) begin(name string, hosts []*Host, do func(context.Context) error) *op {
	kind := strings.Join(strings.Fields(name)[:2], " ")
	s.mu.Lock()
	o := &op{name: fmt.Sprintf("%d %s", len(s.ops)+1, name)}
	for _, h := range hosts {
		o.hosts = append(o.hosts, h.Name)
	}
	s.ops = append(s.ops, o)
	s.mu.Unlock()
	s.say("%s", o.name)
	ctx := s.named(context.Background(), o.name)
	go func() {
		err := do(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.note(o.name, fmt.Sprintf("ends: %v", err))
		s.count(kind, err)
		o.err, o.done = err, true
	}()
	s.come()
	return o
}

func (s *sim) start(h *Host, guest string) *op {
	return s.begin("virsh start "+guest+" on "+h.Name, []*Host{h}, func(ctx context.Context) error { return h.Virt.Start(ctx, guest) })
}

func (s *sim) destroy(h *Host, guest string) *op {
	return s.begin("virsh destroy "+guest+" on "+h.Name, []*Host{h}, func(ctx context.Context) error { return h.Virt.Destroy(ctx, guest) })
}

// moves: somebody migrates the guest.
func (s *sim) moves(g Guest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.ops, func(o *op) bool { return !o.done && strings.Contains(o.name, " migrate "+g.Name+" ") })
}

// isRunning reports whether the guest has a QEMU somewhere.
func (s *sim) isRunning(g Guest) bool {
	return slices.ContainsFunc(s.alive(), func(q qemu) bool { return q.guest.Name == g.Name })
}

// operate is what operators do.
func (s *sim) operate() {
	g := s.guest()
	running := s.isRunning(g)
	virsh := func(what string, h *Host, do func(context.Context, string) error) {
		s.begin("virsh "+what+" "+g.Name+" on "+h.Name, []*Host{h}, func(ctx context.Context) error { return do(ctx, g.Name) })
	}
	s.choose(
		choice{when(running && !s.moves(g), 60) + 1, func() {
			src := s.place(g)
			s.migrate(g, src, s.other(src))
		}},
		choice{when(!running, 40) + 4, func() { s.start(s.host(), g.Name) }},
		choice{when(running, 4), func() { s.destroy(s.place(g), g.Name) }},
		choice{when(running, 2), func() { h := s.place(g); virsh("shutdown", h, h.Virt.Shutdown) }},
		choice{when(running, 3), func() { h := s.place(g); virsh("suspend", h, h.Virt.Suspend) }},
		choice{when(running, 4), func() {
			h := s.place(g)
			virsh("resume", h, func(ctx context.Context, name string) error { return s.resume(ctx, h, name) })
		}},
		choice{when(running, 1), func() { h := s.place(g); virsh("crash", h, h.Virt.Crash) }},
		choice{4, func() {
			h := s.host()
			s.begin("libvirtd restarts on "+h.Name, []*Host{h}, h.RestartLibvirtd)
		}},
		choice{when(running && !s.moves(g), 8), func() { s.askToLend(g, s.place(g)) }},
		choice{when(s.o.hand, 8), s.byHand},
		choice{when(s.o.hand, 4), s.activate},
	)
}

// askToLend is a host that asks for the volumes of a guest that nobody migrates: it must not
// get them.
func (s *sim) askToLend(g Guest, holder *Host) {
	from := s.other(holder)
	quiet := func() bool {
		return !s.moves(g) && !slices.ContainsFunc(s.alive(), func(q qemu) bool { return q.guest.Name == g.Name && q.Async != "" })
	}
	if from == holder || !quiet() {
		return
	}
	began := s.migrations
	s.begin("asks for "+g.Name+" of "+holder.Name+" on "+from.Name, []*Host{from, holder}, func(ctx context.Context) error {
		body, err := json.Marshal(api.LendRequest{UUID: g.UUID, Guest: g.Name})
		if err != nil {
			return err
		}
		data, err := s.Call(ctx, from.Name, holder.Name, api.RoutePeerLend, body)
		if err != nil {
			return err
		}
		var answer api.LendAnswer
		if err := json.Unmarshal(data, &answer); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if answer.Migrating && s.migrations == began {
			s.fail("%s lends %s to %s, which nobody migrates", holder.Name, g.Name, from.Name)
		}
		return nil
	})
}

// resume is `virsh resume`, for which libvirt calls no hook: also of a guest that a
// migration has left behind.
func (s *sim) resume(ctx context.Context, h *Host, guest string) error {
	var here, others []qemu
	for _, q := range s.alive() {
		switch {
		case q.guest.Name != guest:
		case q.host == h:
			here = append(here, q)
		default:
			others = append(others, q)
		}
	}
	if len(others) > 0 {
		s.mu.Lock()
		for _, q := range here {
			s.twice[q.PID] = true
		}
		s.mu.Unlock()
	}
	return h.Virt.Resume(ctx, guest)
}

// byHand is an lvchange typed by an operator.
func (s *sim) byHand() {
	h := s.host()
	volumes := []string{"vg_san/d1", "vg_two/d2", "vg_san/top", "vg_san/base"}
	volume := volumes[s.draw(len(volumes), "volume")]
	mode := []string{"-asy", "-aey", "-an"}[s.draw(3, "mode")]
	if mode != "-an" {
		s.hand[h.Name+" "+volume] = true
	}
	s.begin("lvchange "+mode+" "+volume+" on "+h.Name, []*Host{h}, func(ctx context.Context) error {
		_, err := h.RunContext(ctx, "lvchange", mode, volume)
		return err
	})
}

// activate is `virtlvm activate` or deactivate.
func (s *sim) activate() {
	h := s.host()
	req := api.VolumeRequest{Volume: "vg_san/d1", Mode: []string{"ex", "sh"}[s.draw(2, "mode")]}
	if s.o.claims && s.draw(2, "claims") == 1 {
		req.Volume = "vg_old/d3"
	}
	on := s.draw(2, "on") == 0
	s.hand[h.Name+" "+req.Volume] = true
	s.begin(fmt.Sprintf("virtlvm activate %v %s %s on %s", on, req.Volume, req.Mode, h.Name), []*Host{h}, func(ctx context.Context) error {
		return h.operate(ctx, req, on)
	})
}

// operate makes an operator's request of the daemon.
func (h *Host) operate(ctx context.Context, req api.VolumeRequest, on bool) error {
	return h.request(ctx, func(ctx context.Context, m *activation.Manager) error {
		do := m.Deactivate
		if on {
			do = m.Activate
		}
		_, err := do(ctx, req, "operator")
		return err
	})
}

// request asks the daemon for something.
func (h *Host) request(ctx context.Context, do func(context.Context, *activation.Manager) error) error {
	d := h.Daemon()
	if d == nil {
		return errors.New("virtlvmd is down")
	}
	ctx, end := context.WithCancel(ctx)
	defer end() // as in serve
	work, back := h.c.child(ctx, "request")
	answer := make(chan error, 1)
	go func() { answer <- do(work, d.engine) }()
	select {
	case err := <-answer:
		back()
		return err
	case <-d.dead:
		return errors.New("the connection broke off")
	}
}

// migrating is a migration that asks how to go on after a step.
type migrating struct {
	src, dst *Host
	guest    Guest
	step     fakevirt.Step
	o        fakevirt.MigrateOptions
}

// migrate is `virsh migrate` with some options.
func (s *sim) migrate(g Guest, src, dst *Host) {
	o := fakevirt.MigrateOptions{Persistent: true}
	refused, anyway := false, false
	switch s.draw(27, "options") {
	case 17:
		o.P2P = true
	case 18:
		o.P2P, o.Tunnelled = true, true
	case 19, 20:
		o.Suspend = true
	case 21:
		o.CopyStorageAll = true
	case 22:
		o.Offline = true
	case 23:
		o.PostCopy = s.o.postCopy
	case 24:
		refused = true // by libvirt there, when the hook has said yes
	case 25, 26:
		refused, anyway = true, true
	}
	name := fmt.Sprintf("virsh migrate %s from %s to %s", g.Name, src.Name, dst.Name)
	for _, option := range []struct {
		word string
		set  bool
	}{
		{"--p2p", o.P2P},
		{"--tunnelled", o.Tunnelled},
		{"--suspend", o.Suspend},
		{"--copy-storage-all", o.CopyStorageAll},
		{"--offline", o.Offline},
		{"--postcopy", o.PostCopy},
	} {
		if option.set {
			name += " " + option.word
		}
	}
	s.mu.Lock()
	s.migrations++
	s.mu.Unlock()
	s.begin(name, []*Host{src, dst}, func(ctx context.Context) error {
		o.Step = func(step fakevirt.Step) error {
			if refused && step == fakevirt.StepMigrateHook {
				return errors.New("libvirt refuses")
			}
			w := &waiter{task: taskOf(ctx), what: "step " + string(step), step: &migrating{src, dst, g, step, o}}
			s.wait(w)
			return w.fault
		}
		err := fakevirt.Migrate(ctx, src.Virt, dst.Virt, g.Name, o)
		if errors.Is(err, fakevirt.ErrHostGone) {
			// The destination's libvirtd notices by its keepalive.
			s.pause(ctx, "connection lost")
			err = errors.Join(err, dst.Virt.ConnectionLost(ctx, g.Name))
		}
		if anyway {
			err = errors.Join(err, s.startGranted(ctx, dst, g))
		}
		return err
	})
}

// startGranted is a script that starts a guest, whose migration has been refused, from the
// domain that it was to have: with the grant of a migration that is over.
func (s *sim) startGranted(ctx context.Context, h *Host, g Guest) error {
	s.mu.Lock()
	xml := s.granted[h.Name+" "+g.Name]
	s.mu.Unlock()
	if xml == nil {
		return nil
	}
	if _, err := h.Virt.Define(ctx, xml); err != nil {
		return err
	}
	err := h.Virt.Start(ctx, g.Name)
	s.count("start with an old grant", err)
	return err
}

// stepFault draws what goes wrong at a step of a migration; mostly nothing.
func (s *sim) stepFault(m *migrating) error {
	switch s.draw(250, "step") {
	case 245:
		return fakevirt.ErrAborted
	case 246:
		return fakevirt.ErrClientGone
	case 247, 248:
		if m.step == fakevirt.StepSwitched {
			s.letTwice(m)
			return fakevirt.ErrReplyLost
		}
		return errors.New("libvirt refuses")
	case 249:
		s.say("QEMU of %s killed on %s", m.guest.Name, m.dst.Name)
		_ = m.dst.qemus.End(s.pid(m.dst.Name, m.guest.Name), m.guest.UUID, true)
	}
	return nil
}

// letTwice is the limit of libvirt: from now on both QEMUs of this migration may run.
func (s *sim) letTwice(m *migrating) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, host := range []*Host{m.src, m.dst} {
		s.twice[s.pid(host.Name, m.guest.Name)] = true
	}
}

func (s *sim) pid(host, guest string) int {
	s.watch.Lock()
	defer s.watch.Unlock()
	return s.runs[host][guest].PID
}

// breakSomething is what goes wrong by itself, and its repair.
func (s *sim) breakSomething() {
	h := s.host()
	d := h.Daemon()
	dead := s.down(h)
	s.choose(
		choice{30, func() {}},
		choice{when(s.o.crash && d != nil, 12), func() {
			s.say("kill -9 virtlvmd on %s", h.Name)
			s.count("kill -9", nil)
			s.kill(h)
		}},
		choice{when(d == nil && !dead, 200), func() {
			s.say("virtlvmd starts on %s", h.Name)
			h.Launch()
			s.come()
		}},
		choice{when(s.o.hostDeath && !dead, 8), func() { s.powerCut(h) }},
		choice{when(dead && s.quiet(h), 40), func() { s.boot(h) }},
		choice{when(s.o.net && len(s.cut) == 0, 8), func() { s.cutLink(h, s.other(h)) }},
		choice{when(len(s.cut) > 0, 60), s.mend},
		choice{when(s.o.tools, 15), s.tool},
		choice{when(s.o.claims && dead, 80), func() { s.declareFenced(s.other(h), h) }},
		choice{when(s.o.claims && len(s.hosts) > 2 && s.busy() < 3, 6), func() { s.unequal(h) }},
	)
}

// declareFenced is `virtlvm host fenced`, typed by an operator who knows that it is off.
func (s *sim) declareFenced(on, dead *Host) {
	if s.down(on) || on == dead {
		return
	}
	s.begin("host fenced "+dead.Name+" on "+on.Name, []*Host{on, dead}, func(ctx context.Context) error {
		return on.request(ctx, func(ctx context.Context, m *activation.Manager) error {
			_, err := m.DeclareFenced(ctx, api.FencedRequest{Host: dead.Name}, "operator")
			return err
		})
	})
}

// unequal takes a member out of one host's configuration, mostly the one where the guest
// runs, and starts the guest there; or it puts all back. Hosts that agree on a list without
// another cannot know of it: that is for an operator to see to.
func (s *sim) unequal(h *Host) {
	members, without := slices.Clone(s.hosts), true
	for _, name := range s.hosts {
		if len(s.Hosts[name].claims()["vg_old"]) < len(s.hosts) {
			h, without = s.Hosts[name], false
		}
	}
	if without {
		out := s.place(s.all[3])
		members = slices.DeleteFunc(members, func(name string) bool { return name == out.Name })
	}
	if len(members) == 1 {
		members = slices.Clone(s.hosts) // who lists itself alone asks nobody, and nobody could know
	}
	h.setMembers("vg_old", members...)
	s.say("members of vg_old on %s: %v", h.Name, members)
	if without && !s.down(h) {
		s.start(h, s.all[3].Name)
	}
}

func (s *sim) cutLink(a, b *Host) {
	if a == b {
		return
	}
	s.mu.Lock()
	s.cut[link(a.Name, b.Name)] = true
	s.mu.Unlock()
	s.say("link of %s and %s is cut", a.Name, b.Name)
}

// mend brings all links up.
func (s *sim) mend() {
	s.mu.Lock()
	s.cut = map[string]bool{}
	s.mu.Unlock()
	s.say("all links are up")
}

// tool lets the next lvchange go wrong.
func (s *sim) tool() {
	f := san.Fault{Kind: san.FaultActivate, Tool: "lvchange", Times: 1, Host: s.host().Name}
	switch s.draw(3, "fault") {
	case 0:
		f.Kind, f.Stderr = san.FaultExit, "  device-mapper: reload ioctl failed\n"
	case 1:
		f.Kind, f.Match = san.FaultUnlock, "-an"
	}
	id, err := s.SAN.AddFault(f)
	require.NoError(s.t, err)
	s.faults = append(s.faults, id)
	s.say("the next lvchange on %s meets: %s", f.Host, f.Kind)
}

// down: the host has no power.
func (s *sim) down(h *Host) bool {
	_, err := os.Stat(h.Virt.RunDir())
	return errors.Is(err, os.ErrNotExist)
}

func (s *sim) powerCut(h *Host) {
	s.say("POWER CUT of %s", h.Name)
	s.count("power cut", nil)
	s.kill(h)
	h.PowerCut()
	s.mu.Lock()
	s.dirty = true
	s.mu.Unlock()
	s.come()
}

// quiet: nothing that began before a power cut works on the host any more.
func (s *sim) quiet(h *Host) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.ops {
		if !o.done && slices.Contains(o.hosts, h.Name) {
			return false
		}
	}
	return true
}

func (s *sim) boot(h *Host) {
	s.say("%s boots", h.Name)
	h.PowerOn()
	for key := range s.hand {
		if strings.HasPrefix(key, h.Name+" ") {
			delete(s.hand, key) // nothing of it is left, and nothing may come again
		}
	}
	s.mu.Lock()
	s.dirty = true
	s.mu.Unlock()
	h.Launch()
	s.come()
}

// giveUp deactivates a volume, as an operator does who has activated it.
func (h *Host) giveUp(ctx context.Context, volume string) error {
	if err := h.operate(ctx, api.VolumeRequest{Volume: volume}, false); err == nil {
		return nil
	}
	for _, q := range h.c.alive() {
		if q.host == h && q.guest.Needs[volume] != "" {
			return nil // a guest's
		}
	}
	_, err := h.RunContext(ctx, "lvchange", "-an", volume)
	return err
}
