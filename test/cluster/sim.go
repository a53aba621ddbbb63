package cluster

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// sim runs a cluster under a schedule that rapid draws: which of the goroutines goes on and
// how far, when time passes, what operators do and what breaks. It lives in a bubble of
// testing/synctest, so that time is not real, and lets one goroutine run at a time, so that
// the same draws make the same run.
//
// Everything that the engines do passes points (Point); there a goroutine waits, unless its
// task has a budget of points left, until the schedule lets it go on. Only the goroutine of
// the test draws.
type sim struct {
	*Cluster
	t     TB
	hosts []string
	all   []Guest
	o     swarm
	dice  dice
	tally *tally

	mu     sync.Mutex
	seq    int
	events int // what has happened so far
	parked []*waiter
	timers []*timer
	locks  map[string]*lock
	mail   []*letter
	ops    []*op
	cut    map[string]bool // links that are down, "a b" in the order of names
	dirty  bool            // locks, devices or QEMUs have changed since they were looked at
	shared map[string]int  // since which event a host has a volume shared, by "host vg/lv"
	twice  map[int]bool    // pids of QEMUs that libvirt or an operator lets run beside another
	faults []int
	hand   map[string]bool // "host vg/lv" that an operator has activated, false: and given up
	// granted are the newest domains with a grant, by "host guest".
	granted    map[string][]byte
	over       bool   // nothing waits any more
	migrations int    // that operators have begun
	bad        string // the first thing that must not be
	trace      []event
}

// event is a line of the trace; who is empty where the schedule has decided it.
type event struct {
	at        time.Time
	who, what string
}

// waiter is a goroutine at a point.
type waiter struct {
	seq  int
	task *task
	d    *Daemon // nil: a program or an operator
	what string
	// point is where it is, if it is a daemon's; changes: it has just changed something.
	point   Point
	changes bool
	seen    bool // noted in the trace
	wake    chan struct{}
	// step is set where a migration asks how to go on; fault is the answer.
	step  *migrating
	fault error
}

// timer is an engine's time.After.
type timer struct {
	at   time.Time
	seq  int
	d    *Daemon
	fire chan time.Time
}

// swarm is what may go wrong in a schedule: not everything in each.
type swarm struct {
	crash, hostDeath, net, hand, tools, hints, postCopy bool
	// claims: a guest has its disk in a VG without lvmlockd.
	claims bool
}

// tally counts what has happened in many schedules.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *sim) count(what string, err error) {
	if err != nil {
		what += " (failed)"
	}
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	s.tally.n[what]++
}

// op is something that an operator, or libvirt, does.
type op struct {
	name  string
	hosts []string // that it works on
	done  bool
	err   error
}

// newSim makes a cluster with its guests defined everywhere and the first one running.
func newSim(t TB, hosts []string, o swarm, dice dice, tally *tally, docs *fakevirt.Documents) *sim {
	s := &sim{
		t: t, hosts: hosts, o: o, dice: dice, tally: tally, locks: map[string]*lock{}, cut: map[string]bool{}, shared: map[string]int{},
		twice: map[int]bool{}, hand: map[string]bool{}, granted: map[string][]byte{},
	}
	s.Cluster = NewWith(t, Options{
		Hosts: hosts, VGs: []san.VGSpec{{Name: "vg_san"}, {Name: "vg_two"}, {Name: "vg_old", LockType: san.LockNone}}, Memory: true,
		Timeout: 20 * time.Second, Patience: time.Minute, Lock: s.lock, After: s.after, Changed: s.onChange,
		Documents: docs,
	})
	s.SAN.Wait = s.program
	s.At = s.at
	s.Pause = s.pause
	s.Granted = func(host, guest string, xml []byte) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.granted[host+" "+guest] = xml
	}
	s.Net = s
	s.define()
	return s
}

// Stop a goroutine at a point.

func (s *sim) at(ctx context.Context, d *Daemon, p Point) {
	t := taskOf(ctx)
	if t == nil {
		t = &task{name: d.Host.Name + " aside"}
	}
	if t.free {
		return
	}
	if p.Kind == "look" && p.After {
		if strings.HasPrefix(p.What, "sanlock direct dump") {
			s.mu.Lock()
			t.looked = s.events
			s.mu.Unlock()
		}
		return
	}
	s.wait(&waiter{task: t, d: d, what: p.String(), point: p})
}

// wait waits for the schedule.
func (s *sim) wait(w *waiter) {
	s.mu.Lock()
	if s.over || w.d != nil && w.d.gone() {
		s.mu.Unlock()
		return
	}
	s.park(w)
	s.mu.Unlock()
	<-w.wake
}

// park must be called with s.mu held.
func (s *sim) park(w *waiter) {
	s.seq++
	w.seq, w.wake = s.seq, make(chan struct{})
	s.parked = append(s.parked, w)
}

// program is where an LVM command that changes something waits; it belongs to no daemon.
func (s *sim) program(ctx context.Context, host string, command []string, _ time.Duration) {
	if command[0] != "lvchange" {
		return
	}
	t := taskOf(ctx)
	if t == nil {
		t = &task{name: host + " program"}
	}
	s.wait(&waiter{task: t, what: strings.Join(command, " ") + " runs on " + host, changes: true})
}

// pause is where an operation waits that several may be waked from at the same time.
func (s *sim) pause(ctx context.Context, what string) {
	if t := taskOf(ctx); t != nil {
		s.wait(&waiter{task: t, what: what})
	}
}

func (s *sim) onChange(host string, change fakevirt.Change) {
	s.mu.Lock()
	s.dirty = true
	s.note(host, "status of "+change.Guest+": "+change.State+" "+change.Async)
	s.mu.Unlock()
	if d := s.Hosts[host].Daemon(); d != nil && s.o.hints {
		d.engine.Kick()
	}
}

// lock is one of libvirt's.
type lock struct {
	held  bool
	queue []*waiter
}

func (s *sim) lock(host, name string) (func(), error) {
	s.mu.Lock()
	l := s.locks[host+" "+name]
	if l == nil {
		l = &lock{}
		s.locks[host+" "+name] = l
	}
	if !l.held {
		l.held = true
		s.mu.Unlock()
		return func() { s.unlock(l) }, nil
	}
	w := &waiter{task: &task{name: host + " libvirt"}, what: "lock of " + name, wake: make(chan struct{})}
	l.queue = append(l.queue, w)
	s.mu.Unlock()
	<-w.wake
	return func() { s.unlock(l) }, nil
}

// unlock hands the lock on; who gets it goes on when the schedule says so.
func (s *sim) unlock(l *lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.queue) == 0 {
		l.held = false
		return
	}
	w := l.queue[0]
	l.queue = l.queue[1:]
	if s.over {
		close(w.wake)
		return
	}
	s.seq++
	w.seq = s.seq
	s.parked = append(s.parked, w)
}

func (s *sim) after(d *Daemon, pause time.Duration) <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return time.After(pause)
	}
	s.seq++
	t := &timer{at: time.Now().Add(pause), seq: s.seq, d: d, fire: make(chan time.Time, 1)}
	s.timers = append(s.timers, t)
	return t.fire
}

// Let goroutines go on.

// come waits until every goroutine has come to a point, and looks what has happened.
func (s *sim) come() {
	synctest.Wait()
	s.mu.Lock()
	sort.SliceStable(s.parked, func(i, j int) bool {
		a, b := s.parked[i], s.parked[j]
		if a.task.name != b.task.name {
			return a.task.name < b.task.name
		}
		return a.seq < b.seq
	})
	sort.SliceStable(s.mail, func(i, j int) bool {
		a, b := s.mail[i], s.mail[j]
		if a.name != b.name {
			return a.name < b.name
		}
		return a.seq < b.seq
	})
	var convert []*waiter
	for _, w := range s.parked {
		if w.seen {
			continue
		}
		w.seen = true
		s.note(w.task.name, w.what)
		s.dirty = s.dirty || w.changes || w.point.Kind == "change"
		if !w.point.After && strings.HasPrefix(w.point.What, "lvchange -aey ") {
			convert = append(convert, w)
		}
	}
	s.mu.Unlock()
	s.verify()
	for _, w := range convert {
		s.mayConvert(w.task, w.d.Host, strings.Fields(w.point.What)[2:])
	}
}

// eager is who has points left: a goroutine or a request.
func (s *sim) eager() (w *waiter, l *letter) {
	for _, w := range s.parked {
		if w.task.budget > 0 {
			return w, nil
		}
	}
	for _, l := range s.mail {
		if l.task.budget > 0 {
			return nil, l
		}
	}
	return nil, nil
}

// goOn lets all those go on that have points left, one at a time.
func (s *sim) goOn() {
	for s.come(); s.bad == ""; s.come() {
		switch w, l := s.eager(); {
		case w != nil:
			w.task.budget--
			s.release(w)
		case l != nil:
			s.take(l)
			s.deliver(l, false)
		default:
			return
		}
	}
}

func (s *sim) release(w *waiter) {
	s.mu.Lock()
	s.parked = slices.DeleteFunc(s.parked, func(o *waiter) bool { return o == w })
	s.mu.Unlock()
	close(w.wake)
}

// advance lets time pass.
func (s *sim) advance(d time.Duration) {
	end := time.Now().Add(d)
	for s.bad == "" {
		t := s.nextTimer()
		if t == nil || t.at.After(end) {
			time.Sleep(time.Until(end))
			s.come()
			return
		}
		time.Sleep(time.Until(t.at))
		s.come()
		s.mu.Lock()
		s.timers = slices.DeleteFunc(s.timers, func(o *timer) bool { return o == t })
		s.mu.Unlock()
		t.fire <- time.Now()
		s.come()
	}
}

func (s *sim) nextTimer() *timer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next *timer
	for _, t := range s.timers {
		if next == nil || t.before(next) {
			next = t
		}
	}
	return next
}

func (t *timer) before(o *timer) bool {
	switch {
	case !t.at.Equal(o.at):
		return t.at.Before(o.at)
	case t.d.Host != o.d.Host:
		return t.d.Host.Name < o.d.Host.Name
	}
	return t.seq < o.seq
}

// kill is kill -9 of a host's daemon.
func (s *sim) kill(h *Host) {
	d := h.Daemon()
	if d == nil {
		return
	}
	d.Kill()
	s.mu.Lock()
	var woken []*waiter
	for _, w := range s.parked {
		if w.d == d {
			woken = append(woken, w)
		}
	}
	s.parked = slices.DeleteFunc(s.parked, func(w *waiter) bool { return w.d == d })
	for _, t := range s.timers {
		if t.d == d {
			t.fire <- time.Now()
		}
	}
	s.timers = slices.DeleteFunc(s.timers, func(t *timer) bool { return t.d == d })
	s.mu.Unlock()
	for _, w := range woken {
		close(w.wake) // to its end
	}
	s.come()
}

// end lets everything run to its end, so that the bubble can be left.
func (s *sim) end() {
	s.mu.Lock()
	s.over = true
	parked := s.parked
	s.parked = nil
	s.mu.Unlock()
	for _, h := range s.Hosts {
		if d := h.Daemon(); d != nil {
			d.Kill()
		}
	}
	for _, t := range s.timers {
		t.fire <- time.Now()
	}
	for _, w := range parked {
		close(w.wake)
	}
	for _, l := range s.mail {
		l.answer(nil, unreachable(l.to))
	}
	time.Sleep(time.Hour)
}

// note must be called with s.mu held.
func (s *sim) note(who, what string) {
	s.events++
	s.trace = append(s.trace, event{at: time.Now(), who: who, what: what})
}

func (s *sim) say(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("", fmt.Sprintf(format, a...))
}

// story is the trace as text.
func (s *sim) story() string {
	var b strings.Builder
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of each bubble
	for _, e := range s.trace {
		fmt.Fprintf(&b, "%8.3f ", e.at.Sub(begin).Seconds())
		if e.who == "" {
			fmt.Fprintf(&b, "== %s\n", e.what)
			continue
		}
		fmt.Fprintf(&b, "   %s: %s\n", e.who, e.what)
	}
	// The fake SAN draws its uuids by itself.
	return regexp.MustCompile(`LVM-[0-9A-Za-z]{64}`).ReplaceAllString(b.String(), "LVM-...")
}

// fail keeps the first thing that must not be.
func (s *sim) fail(format string, a ...any) {
	if s.bad == "" {
		s.bad = fmt.Sprintf(format, a...)
	}
}

// verify looks at what must hold at every moment, if anything has changed.
func (s *sim) verify() {
	s.mu.Lock()
	dirty := s.dirty
	s.dirty = false
	s.mu.Unlock()
	if !dirty {
		return
	}
	table, err := s.table()
	bad := ""
	if err != nil {
		bad = err.Error()
	} else {
		bad = s.unsafe(table, s.allowed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bad != "" {
		s.fail("%s", bad)
	}
	now := map[string]int{}
	for host, helds := range table {
		for _, held := range helds {
			if held.Lock == "sh" {
				key := host + " " + held.Volume
				now[key] = s.events
				if since, ok := s.shared[key]; ok {
					now[key] = since
				}
			}
		}
	}
	s.shared = now
}

// allowed is the limit of docs/handoff.md: of two QEMUs of one guest libvirt, or an operator,
// has let one run beside the other.
func (s *sim) allowed(a, b qemu) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.guest.Name == b.guest.Name && (s.twice[a.PID] || s.twice[b.PID])
}

// mayConvert is rule 6: shared becomes exclusive only where the lease shows no other live
// shared holder.
func (s *sim) mayConvert(t *task, h *Host, volumes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range volumes {
		if _, mine := s.shared[h.Name+" "+v]; !mine {
			continue
		}
		for _, other := range s.hosts {
			if since, too := s.shared[other+" "+v]; too && other != h.Name && since < t.looked {
				s.fail("%s converts %s to exclusive although its lease shows %s", h.Name, v, other)
			}
		}
	}
}

// Network: sim is the Net.

// letter is a request on its way.
type letter struct {
	task                 *task
	seq                  int
	from, to, path, name string
	body                 []byte
	ctx                  context.Context
	mu                   sync.Mutex
	answered             bool
	reply                chan reply
}

type reply struct {
	data []byte
	err  error
}

func (l *letter) answer(data []byte, err error) { l.answerWith(0, data, err) }

// answerWith gives the sender the points back as well.
func (l *letter) answerWith(budget int, data []byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.answered {
		l.answered = true
		l.task.budget = budget
		l.reply <- reply{data, err}
	}
}

// forget: nobody waits for the answer any more.
func (l *letter) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered = true
}

// callTimeout is the default of [peers] call_timeout.
const callTimeout = 15 * time.Second

// Call implements Net.
func (s *sim) Call(ctx context.Context, from, to, path string, body []byte) ([]byte, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	t := taskOf(ctx)
	if t == nil {
		t = &task{name: from + " aside"}
	}
	l := &letter{task: t, from: from, to: to, path: path, body: body, ctx: ctx, reply: make(chan reply, 1)}
	l.name = t.name + " > " + path + " on " + to
	s.mu.Lock()
	if s.over || s.Hosts[to] == nil || s.cut[link(from, to)] {
		s.mu.Unlock()
		return nil, unreachable(to)
	}
	s.seq++
	l.seq = s.seq
	s.mail = append(s.mail, l)
	s.mu.Unlock()
	select {
	case r := <-l.reply:
		return r.data, r.err
	case <-ctx.Done():
	}
	l.forget()
	return nil, brokenOff(to)
}

func link(a, b string) string {
	if b < a {
		a, b = b, a
	}
	return a + " " + b
}

func (s *sim) take(l *letter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mail = slices.DeleteFunc(s.mail, func(o *letter) bool { return o == l })
}

// deliver brings a request to its host, with what points its sender has left, and what that
// answers back unless lost.
func (s *sim) deliver(l *letter, lost bool) {
	work := &task{name: l.name, budget: l.task.budget, looked: l.task.looked}
	l.task.budget = 0
	ctx := l.ctx
	if lost {
		ctx = context.WithoutCancel(ctx) // its host does not know
	}
	go func() {
		data, err := s.Hosts[l.to].serve(withTask(ctx, work), l.from, l.path, l.body)
		switch {
		case lost:
		case ctx.Err() != nil: // who works on it may go on, with the points it has
			l.answer(data, err)
		default:
			l.answerWith(work.budget, data, err)
		}
	}()
}
