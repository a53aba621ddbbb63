package command

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// move is one thing that happens in a random run.
type move struct {
	what   string
	host   string
	other  string
	n      int
	cancel bool
}

func (m move) String() string {
	return fmt.Sprintf("%s %s %s %d %v", m.what, m.host, m.other, m.n, m.cancel)
}

func moves() *rapid.Generator[move] {
	hosts := rapid.SampledFrom([]string{"a", "b", "c"})
	return rapid.Custom(func(t *rapid.T) move {
		return move{
			what: rapid.SampledFrom([]string{
				"request", "request", "request", "wait", "wait", "kill", "start", "cut", "mend", "die", "boot", "finish", "fail",
				"vanish", "blind", "see", "shy", "cancel", "lose", "stop", "crash",
			}).Draw(t, "what"),
			host: hosts.Draw(t, "host"), other: hosts.Draw(t, "other"),
			n: rapid.IntRange(0, 40).Draw(t, "n"), cancel: rapid.Bool().Draw(t, "cancel"),
		}
	})
}

// TestMain makes random runs short: `go test ./internal/command -rapid.checks=1000` does more.
func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "20")
	flag.Parse()
	os.Exit(m.Run())
}

// TestRandom lets anything happen to some commands; afterwards everything works again. Each
// command ends, and its rows tell what is so; or it is given up, with a reason.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		all := rapid.SliceOfN(moves(), 1, 40).Draw(rt, "moves")
		inside := rapid.Bool().Draw(rt, "inside")
		dir, err := os.MkdirTemp("/dev/shm", "virtlvm-command-")
		if err != nil {
			t.Skip("no memory to work in")
		}
		defer func() { _ = os.RemoveAll(dir) }()
		failures := &recorder{}
		synctest.Test(t, func(*testing.T) {
			s := newSim(failures, dir, []string{"a", "b", "c"})
			s.w.inside = inside
			defer s.end()
			defer func() {
				if r := recover(); r != nil && r != any(failures) {
					panic(r)
				}
			}()
			for _, m := range all {
				s.happen(m)
			}
			s.heal()
		})
		if failures.Failed() {
			rt.Fatalf("%s", failures.text)
		}
	})
}

func (s *sim) happen(m move) {
	h := s.hosts[m.host]
	dead := s.isDead(m.host)
	switch m.what {
	case "wait":
		for range m.n {
			time.Sleep(time.Duration(m.n) * time.Second)
		}
	case "kill":
		h.daemon().die()
	case "start":
		if !h.up() && !dead {
			h.restart()
		}
	case "crash":
		if !dead {
			h.kill()
			h.start(&crash{at: m.n + 1, after: m.cancel})
		}
	case "cut", "mend":
		s.relay(m.host, m.other, m.what == "cut")
	case "die":
		if !dead {
			s.die(m.host)
		}
	case "boot":
		if dead {
			s.boot(m.host)
		}
	case "finish", "fail":
		s.w.finish(m.what == "finish")
	case "vanish":
		s.w.vanish(m.host)
	case "blind", "see":
		s.w.set(func(w *world) { w.blind = m.what == "blind" })
	case "shy":
		s.w.set(func(w *world) { w.shy = m.n })
	case "lose":
		lose := m.cancel
		s.losing(func(from, to, _ string) bool { return lose && from == m.host && to == m.other })
	}
	if !h.up() {
		return
	}
	switch m.what {
	case "request":
		req := copyOf(fmt.Sprint("v", m.n), "")
		if m.other != m.host {
			req.Executor = m.other
		}
		if m.cancel {
			req.OnDisconnect, req.Timeout = "cancel", int64(10+m.n*10)
		}
		_, _ = h.request(req)
	case "cancel":
		_ = h.newest(func(mgr *Manager, id int64) error {
			_, err := mgr.Cancel(ctx, id, api.CancelRequest{}, "operator")
			return err
		})
	case "stop":
		_ = h.safely(func(mgr *Manager) error { mgr.Stop(ctx); return nil })
		h.daemon().die()
	}
	synctest.Wait()
}

func (s *sim) isDead(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead[name]
}

func (h *host) newest(f func(*Manager, int64) error) error {
	return h.safely(func(m *Manager) error {
		all, err := m.List(ctx, api.CommandFilter{Limit: 1})
		if err != nil || len(all) == 0 {
			return err
		}
		return f(m, all[0].ID)
	})
}

// heal mends everything, lets what runs come to its end, and checks.
func (s *sim) heal() {
	s.losing(nil)
	s.mu.Lock()
	clear(s.cut)
	s.mu.Unlock()
	s.w.set(func(w *world) { w.blind, w.shy = false, 0 })
	for _, h := range s.hosts {
		if s.isDead(h.name) {
			s.boot(h.name)
		} else {
			h.restart()
		}
	}
	for i := 0; i < 60*48 && !s.settled(); i++ {
		time.Sleep(time.Minute)
		s.w.finish(true)
	}
	require.True(s.t, s.settled(), "something is still going on")
	for _, h := range s.hosts {
		all, err := h.m().List(ctx, api.CommandFilter{Limit: 1000})
		require.NoError(s.t, err)
		for _, c := range all {
			c = h.get(c.ID)
			about := fmt.Sprintf("row %d on %s: %s (%s) error %q, %v", c.ID, h.name, c.State, c.Why, c.Error, path(c))
			if c.State == string(model.StateReconcileSkip) {
				assert.NotEmpty(s.t, c.Why, about)
				continue
			}
			require.True(s.t, model.CommandState(c.State).Final(), about)
			assert.Equal(s.t, s.w.applied[c.Origin+"-"+itoa(c.Sequence)], c.Error == "", about)
		}
	}
	for key, n := range s.w.starts {
		assert.Equal(s.t, 1, n, key)
	}
}

// recorder is a tb whose failures are told outside of the bubble.
type recorder struct {
	text   string
	failed bool
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = true
	r.text += fmt.Sprintf(format, args...) + "\n"
}

func (r *recorder) Logf(format string, args ...any) { r.text += fmt.Sprintf(format, args...) + "\n" }
func (r *recorder) FailNow()                        { panic(r) }
func (r *recorder) Failed() bool                    { return r.failed }
