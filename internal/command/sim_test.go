package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

var ctx = context.Background()

// sim is some hosts with their daemons and databases, in a bubble of its own time.
type sim struct {
	t     tb
	dir   string
	hosts map[string]*host
	w     *world

	mu   sync.Mutex
	cut  map[[2]string]bool                       // calls from one host to another that are lost
	lose func(from, to, route string) (late bool) // whether the answer of a call is lost
	dead map[string]bool
	// Without lockspaces no host has a generation; those that an operator has declared off.
	lockless bool
	fenced   map[string]bool
	calls    map[string]int // by route
}

// tb is what the simulation needs of a test.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	FailNow()
	Failed() bool
}

// host is one of them.
type host struct {
	s    *sim
	name string
	log  *lockedBuffer
	full bool // the disk, when the next daemon starts

	mu  sync.Mutex
	gen int
	d   *daemon // the last one
}

// daemon is one life of a host's daemon.
type daemon struct {
	h     *host
	m     *Manager
	db    *store.Store
	crash *crash
	full  atomic.Bool // the disk of its journal
	alive atomic.Bool
	stop  context.CancelFunc
	done  chan struct{}
}

// simulate runs a test on some hosts, or on a, b and c. Time goes on by itself whenever everything waits.
func simulate(t *testing.T, run func(s *sim), hosts ...string) {
	t.Helper()
	if len(hosts) == 0 {
		hosts = []string{"a", "b", "c"}
	}
	dir, err := os.MkdirTemp("/dev/shm", "virtlvm-command-")
	if err != nil {
		dir = t.TempDir()
	}
	defer func() { _ = os.RemoveAll(dir) }()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, dir, hosts)
		defer s.end()
		run(s)
	})
}

func newSim(t tb, dir string, names []string) *sim {
	s := &sim{t: t, dir: dir, hosts: map[string]*host{}, w: newWorld(), cut: map[[2]string]bool{}, dead: map[string]bool{}, calls: map[string]int{}}
	for _, name := range names {
		s.hosts[name] = &host{s: s, name: name, gen: 1, log: &lockedBuffer{}}
		s.hosts[name].start(nil)
	}
	return s
}

func (s *sim) end() {
	for _, h := range s.hosts {
		h.kill()
		if s.t.Failed() {
			s.t.Logf("log of %s:\n%s", h.name, h.log.String())
		}
	}
}

// start starts the daemon; crash may be nil.
func (h *host) start(crash *crash) {
	d := &daemon{h: h, crash: crash, done: make(chan struct{}), db: store.New(store.Options{Path: filepath.Join(h.s.dir, h.name+".db")})}
	require.NoError(h.s.t, d.db.Open(ctx))
	d.alive.Store(true)
	d.full.Store(h.full)
	d.m = New(Options{
		Journal: &journal{d.db, d}, Peers: h, Hosts: h, Kinds: map[string]Kind{"copy": fakeKind{h.s.w, d}}, Host: h.name, BootID: h.generation(),
		Log: slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Now: time.Now, Interval: time.Minute,
	})
	var life context.Context
	life, d.stop = context.WithCancel(ctx)
	h.mu.Lock()
	h.d = d
	h.mu.Unlock()
	go func() {
		defer close(d.done)
		_ = d.m.Resume(life) // a crash may happen here as well
		d.m.Run(life)
	}()
	synctest.Wait()
}

// daemon is the one that runs, or ran last.
func (h *host) daemon() *daemon {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.d
}

// m is the manager of the daemon that runs.
func (h *host) m() *Manager { return h.daemon().m }

// kill ends the daemon as kill -9 does.
func (h *host) kill() {
	d := h.daemon()
	d.die()
	<-d.done
	_ = d.db.Close()
}

func (d *daemon) die() {
	d.alive.Store(false)
	d.stop()
}

// lives ends a goroutine of a daemon that has been killed: nothing it does counts any more.
func (d *daemon) lives() {
	if !d.alive.Load() {
		runtime.Goexit()
	}
}

func (h *host) up() bool { return h.daemon().alive.Load() }

func (h *host) restart() {
	h.kill()
	h.start(nil)
}

// Call implements Peers.
func (h *host) Call(c context.Context, to, route string, in, out any) error {
	h.s.mu.Lock()
	other := h.s.hosts[to]
	lost := h.s.cut[[2]string{h.name, to}] || h.s.dead[to] || h.s.dead[h.name]
	lose := h.s.lose
	h.s.calls[route]++
	h.s.mu.Unlock()
	if other == nil || lost || !other.up() {
		select {
		case <-time.After(time.Second):
		case <-c.Done():
		}
		return api.NewError(api.KindUnreachable, to+" cannot be reached")
	}
	late := lose != nil && lose(h.name, to, route)
	answer, err := other.serve(c, h.name, route, in)
	if late || !other.up() {
		return api.NewError(api.KindUnknown, to+" may or may not have done it")
	}
	if err != nil {
		return api.NewError(api.KindOf(err), to+": "+err.Error())
	}
	if out == nil {
		return nil
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

// serve answers as the server of a daemon does, on a goroutine of its own.
func (h *host) serve(c context.Context, from, route string, in any) (answer any, err error) {
	err = errors.New("killed")
	done := make(chan struct{})
	go func() {
		defer close(done)
		m := h.m()
		switch q := in.(type) {
		case api.PeerCommand:
			if route == api.RoutePeerCommand {
				answer, err = m.PeerRun(c, from, q)
			} else {
				answer, err = m.PeerAsk(c, from, q)
			}
		case api.PeerAck:
			answer, err = struct{}{}, m.PeerAck(c, from, q)
		case api.PeerCommandNotice:
			answer, err = m.PeerNotice(c, from, q)
		}
	}()
	<-done
	return answer, err
}

// Generation implements Hosts.
func (h *host) Generation(_ context.Context, other string) string {
	if h.s.hosts[other] == nil || h.s.lockless {
		return ""
	}
	return h.s.hosts[other].generation()
}

func (h *host) generation() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("vg=%d", h.gen)
}

// Dead implements Hosts.
func (h *host) Dead(_ context.Context, other, generation string) bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if generation == "" {
		return h.s.fenced[other]
	}
	return h.s.dead[other] && h.s.hosts[other].generation() == generation
}

// die powers a host off; its backends die with it.
func (s *sim) die(name string) {
	s.mu.Lock()
	s.dead[name] = true
	s.mu.Unlock()
	s.hosts[name].kill()
	s.w.vanish(name)
}

// boot brings it back.
func (s *sim) boot(name string) {
	s.mu.Lock()
	delete(s.dead, name)
	s.mu.Unlock()
	h := s.hosts[name]
	h.mu.Lock()
	h.gen++
	h.mu.Unlock()
	h.start(nil)
}

// relay cuts or mends the connection between two hosts.
func (s *sim) relay(x, y string, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[[2]string{x, y}], s.cut[[2]string{y, x}] = cut, cut
}

func (s *sim) losing(f func(from, to, route string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = f
}

// request asks a host for a command, as an operator does; it may not survive it.
func (h *host) request(req api.CommandRequest) (c api.Command, err error) {
	err = errors.New("killed")
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = h.m().Request(ctx, req, "operator uid 0")
	}()
	<-done
	return c, err
}

func copyOf(volume, executor string) api.CommandRequest {
	return api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"` + volume + `"}`), Executor: executor}
}

func (h *host) run(req api.CommandRequest) api.Command {
	h.s.t.Helper()
	c, err := h.request(req)
	require.NoError(h.s.t, err)
	return c
}

// get returns a row.
func (h *host) get(id int64) api.Command {
	h.s.t.Helper()
	c, err := h.m().View(ctx, id, false)
	require.NoError(h.s.t, err)
	return c
}

// only returns the one row there is.
func (h *host) only() api.Command {
	h.s.t.Helper()
	synctest.Wait()
	all, err := h.m().List(ctx, api.CommandFilter{Limit: 100})
	require.NoError(h.s.t, err)
	require.Len(h.s.t, all, 1)
	return h.get(all[0].ID)
}

// until lets time pass until a row has one of the states.
func (h *host) until(id int64, within time.Duration, states ...model.CommandState) api.Command {
	h.s.t.Helper()
	end := time.Now().Add(within)
	for {
		synctest.Wait() // what was begun is done
		c := h.get(id)
		for _, s := range states {
			if c.State == string(s) {
				return c
			}
		}
		require.True(h.s.t, time.Now().Before(end), "command %d on %s is %s (%s) after %s", id, h.name, c.State, c.Why, within)
		// More often at first: some tests wait for days.
		time.Sleep(max(500*time.Millisecond, within/1000))
	}
}

// path is the way a command has gone, without remarks.
func path(c api.Command) []string {
	var all []string
	for _, t := range c.History {
		if t.From == t.To {
			continue
		}
		if len(all) == 0 {
			all = append(all, t.From)
		}
		all = append(all, t.To)
	}
	return all
}

// crash kills a daemon at one of its journal writes.
type crash struct {
	mu    sync.Mutex
	at    int  // the write that it dies at, from 1
	after bool // once it is written
	count int
	hit   bool
}

var errKilled = errors.New("killed")

// journal is a store that can crash its daemon.
type journal struct {
	*store.Store
	d *daemon
}

// write does one write unless the daemon dies before it.
func (j *journal) write(do func() error) error {
	j.d.lives()
	if j.d.full.Load() {
		return api.NewError(api.KindDatabase, "the disk is full")
	}
	die := false
	c := j.d.crash
	if c != nil {
		c.mu.Lock()
		c.count++
		die = c.count == c.at
		c.hit = c.hit || die
		c.mu.Unlock()
	}
	if !die {
		return do()
	}
	if c.after {
		_ = do()
	}
	j.d.die()
	runtime.Goexit()
	return errKilled
}

func (j *journal) AddEntry(c context.Context, e store.Entry) (added store.Entry, existed bool, err error) {
	err = j.write(func() error { added, existed, err = j.Store.AddEntry(c, e); return err })
	return added, existed, err
}

func (j *journal) Change(c context.Context, id int64, fn func(*store.Entry) error) (e store.Entry, err error) {
	err = j.write(func() error { e, err = j.Store.Change(c, id, fn); return err })
	return e, err
}

func (j *journal) Interrupt(c context.Context, why string) (n int64, err error) {
	err = j.write(func() error { n, err = j.Store.Interrupt(c, why); return err })
	return n, err
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
