package command

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// remote begins a command on b that a was asked for, and waits until its backend runs.
func remote(s *sim, change func(*api.CommandRequest)) (origin, executor api.Command) {
	s.t.Helper()
	req := copyOf("v1", "b")
	if change != nil {
		change(&req)
	}
	c := s.hosts["a"].run(req)
	id := s.hosts["b"].only().ID
	return c, s.hosts["b"].until(id, time.Minute, model.StateBackend)
}

func TestRemoteCommand(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, nil)
		assert.Equal(t, "CREATED", c.State)
		assert.Equal(t, []string{"vg/v1"}, c.Targets, "as the executor has planned it")
		assert.Equal(t, e.ID, c.PeerID)
		assert.Equal(t, "operator uid 0 on a", e.Cause)
		time.Sleep(5 * time.Second)
		assert.Equal(t, "PROCESSING_IN_BACKEND", a.get(c.ID).PeerState, "told by a notice")
		s.w.set(func(w *world) { w.backends["a-"+itoa(c.Sequence)].done = 700 })
		time.Sleep(3 * time.Second)
		fresh, err := a.m().View(ctx, c.ID, true)
		require.NoError(t, err)
		assert.Equal(t, int64(700), fresh.Progress.Done)
		s.w.finish(true)
		c = a.until(c.ID, 10*time.Second, model.StateCompleted)
		assert.JSONEq(t, `{"bytes":1000}`, string(c.Answer))
		time.Sleep(5 * time.Second)
		assert.False(t, a.get(c.ID).Unacknowledged)
		assert.False(t, b.get(e.ID).Unacknowledged)
	}, "a", "b")
}

// Scenario 1: the connection is lost for hours; the command goes on, and its answer is taken
// as soon as there is a connection.
func TestConnectionLost(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, nil)
		s.relay("a", "b", true)
		time.Sleep(3 * time.Hour)
		s.w.finish(true)
		b.until(e.ID, time.Minute, model.StateCompleted)
		time.Sleep(3 * time.Hour)
		assert.Equal(t, "CREATED", a.get(c.ID).State, "nobody guesses")
		assert.True(t, b.get(e.ID).Unacknowledged)
		s.relay("a", "b", false)
		a.until(c.ID, a.m().Interval+10*time.Second, model.StateCompleted)
		time.Sleep(5 * time.Second)
		assert.False(t, b.get(e.ID).Unacknowledged)
	}, "a", "b")
}

// The relay comes back: the answer is taken at once, not at the next minute.
func TestRelayComesBack(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c, _ := remote(s, nil)
		s.relay("a", "b", true)
		s.w.finish(true)
		time.Sleep(time.Hour)
		s.relay("a", "b", false)
		a.m().HintAll()
		a.until(c.ID, 2*time.Second, model.StateCompleted)
	}, "a", "b")
}

// Scenario 2: the executor's daemon is killed while the backend runs and ends.
func TestExecutorKilled(t *testing.T) {
	for _, ok := range []bool{true, false} {
		simulate(t, func(s *sim) {
			a, b := s.hosts["a"], s.hosts["b"]
			c, e := remote(s, nil)
			b.kill()
			time.Sleep(10 * time.Minute)
			s.w.finish(ok)
			assert.Equal(t, "CREATED", a.get(c.ID).State, "a host that cannot be reached is not dead")
			b.start(nil)
			want := map[bool]model.CommandState{true: model.StateCompleted, false: model.StateFailed}[ok]
			e = b.until(e.ID, time.Minute, want)
			assert.Equal(t, []string{"STARTED", "PROCESSING_IN_BACKEND", "DANGLED_IN_BACKEND", string(want)}, path(e))
			a.until(c.ID, 2*time.Minute, want)
		}, "a", "b")
	}
}

// Scenario 3: the executor's daemon is restarted; a backend that still runs is adopted again.
func TestExecutorRestarted(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, nil)
		b.restart()
		b.until(e.ID, time.Minute, model.StateBackend)
		b.restart()
		b.until(e.ID, time.Minute, model.StateBackend)
		s.w.finish(true)
		e = b.until(e.ID, time.Minute, model.StateCompleted)
		assert.Equal(t, []string{"STARTED", "PROCESSING_IN_BACKEND", "DANGLED_IN_BACKEND", "PROCESSING_IN_BACKEND", "DANGLED_IN_BACKEND", "PROCESSING_IN_BACKEND", "COMPLETED"}, path(e))
		a.until(c.ID, 2*time.Minute, model.StateCompleted)
		assert.Equal(t, 1, s.w.starts["a-"+itoa(c.Sequence)])
	}, "a", "b")
}

// The same for work inside of the daemon: it is interrupted, and found out on the spot.
func TestRestartedWhileInside(t *testing.T) {
	simulate(t, func(s *sim) {
		s.w.inside = true
		a, b := s.hosts["a"], s.hosts["b"]
		for _, h := range []*host{a, b} {
			h.kill()
			// The daemon's start, the row, PROCESSING, and dead before the answer is written.
			h.start(&crash{at: 4})
		}
		_, _ = a.request(copyOf("v1", ""))
		time.Sleep(time.Second)
		a.restart()
		c := a.until(a.only().ID, time.Minute, model.StateReconciled)
		assert.Equal(t, []string{"STARTED", "PROCESSING", "INTERRUPTED", "RECONCILING", "RECONCILED"}, path(c))
		c = a.run(copyOf("v2", "b"))
		time.Sleep(time.Second)
		b.restart()
		e := b.until(b.only().ID, time.Minute, model.StateCompleted)
		assert.Equal(t, []string{"STARTED", "PROCESSING", "INTERRUPTED", "COMPLETED"}, path(e))
		a.until(c.ID, 2*time.Minute, model.StateCompleted)
	}, "a", "b")
}

// What runs inside of the executor's daemon goes on there after a restart, sooner or later: the
// origin waits for its word as long as that host lives, and does not judge from what is not
// there yet.
func TestRestartedWhileInsideAndGoesOn(t *testing.T) {
	for name, cancelled := range map[string]bool{"goes on": false, "cancelled": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(s *sim) {
				s.w.inside, s.w.resumes, s.w.shy, s.w.startErr = true, true, 1<<30, errors.New("libvirt does not answer")
				a, b := s.hosts["a"], s.hosts["b"]
				c := a.run(copyOf("v1", "b"))
				e := b.until(b.only().ID, time.Minute, model.StateProcessing)
				if cancelled {
					_, err := a.m().Cancel(ctx, c.ID, api.CancelRequest{}, "operator uid 0")
					require.NoError(t, err)
				}
				b.restart()
				time.Sleep(3 * time.Hour)
				assert.Equal(t, "INTERRUPTED", b.get(e.ID).State)
				c = a.get(c.ID)
				assert.Equal(t, "RECONCILE_RETRY", c.State, "%v %s", path(c), c.Error)
				assert.Equal(t, "it is INTERRUPTED on b, which goes on with it by itself: virtlvmd was restarted", c.Why)
				s.w.set(func(w *world) { w.shy = 0 })
				want := map[bool]model.CommandState{false: model.StateCompleted, true: model.StateFailed}[cancelled]
				b.until(e.ID, 2*time.Hour, want)
				c = a.until(c.ID, 2*time.Hour, model.StateReconciled)
				assert.Equal(t, cancelled, c.Error != "", c.Error)
			}, "a", "b")
		})
	}
}

// It dies before it has gone on: then the origin judges.
func TestRestartedWhileInsideAndDies(t *testing.T) {
	simulate(t, func(s *sim) {
		s.w.inside, s.w.resumes, s.w.shy, s.w.startErr = true, true, 1<<30, errors.New("libvirt does not answer")
		a, b := s.hosts["a"], s.hosts["b"]
		c := a.run(copyOf("v1", "b"))
		b.until(b.only().ID, time.Minute, model.StateProcessing)
		b.restart()
		time.Sleep(time.Hour)
		s.die("b")
		c = a.until(c.ID, 2*time.Hour, model.StateReconciled)
		assert.Equal(t, "nothing was copied", c.Error)
	}, "a", "b")
}

// The executor's host goes down, and its origin finds out that nothing was done. When the host is
// back it must not do it after all: somebody was told that it has failed.
func TestRebootedWhileInside(t *testing.T) {
	begin := func(s *sim) (c, e api.Command) {
		s.w.inside, s.w.resumes, s.w.shy, s.w.startErr = true, true, 1<<30, errors.New("libvirt does not answer")
		c = s.hosts["a"].run(copyOf("v1", "b"))
		return c, s.hosts["b"].until(s.hosts["b"].only().ID, time.Minute, model.StateProcessing)
	}
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := begin(s)
		s.die("b")
		a.until(c.ID, 2*time.Minute, model.StateReconciled)
		s.w.set(func(w *world) { w.shy = 0 })
		s.relay("a", "b", true)
		s.boot("b")
		time.Sleep(time.Hour)
		assert.Equal(t, "INTERRUPTED", b.get(e.ID).State)
		assert.Contains(t, b.get(e.ID).History[len(b.get(e.ID).History)-1].Cause, "this host was down meanwhile, and a cannot say whether it still waits for it")
		s.relay("a", "b", false)
		e = b.until(e.ID, 2*time.Hour, model.StateFailed, model.StateCompleted)
		assert.Equal(t, "a has found out: nothing was copied", e.Error)
		assert.False(t, s.w.applied["a-"+itoa(c.Sequence)])
	}, "a", "b")
	// It is back before anybody has judged: then it goes on.
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := begin(s)
		s.relay("a", "b", true)
		s.die("b")
		s.boot("b")
		s.w.set(func(w *world) { w.shy = 0 })
		time.Sleep(time.Hour)
		assert.Equal(t, "INTERRUPTED", b.get(e.ID).State)
		s.relay("a", "b", false)
		b.until(e.ID, 2*time.Hour, model.StateCompleted)
		c = a.until(c.ID, 2*time.Hour, model.StateCompleted, model.StateReconciled)
		assert.Empty(t, c.Error)
	}, "a", "b")
}

// The same of a command that was accepted and had not begun: within minutes of a request the host
// is back, and its origin has judged already.
func TestRebootedBeforeItBegan(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		b.kill()
		b.start(&crash{at: 2, after: true}) // the first write is that of the daemon's start
		c := a.run(copyOf("v1", "b"))
		s.die("b")
		a.until(c.ID, 2*time.Minute, model.StateReconciled)
		s.relay("a", "b", true)
		s.boot("b")
		time.Sleep(time.Minute)
		e := b.get(b.only().ID)
		assert.Equal(t, "FAILED", e.State, "%v", path(e))
		assert.Equal(t, "not begun before this host went down; nothing was done", e.Error)
		assert.Empty(t, s.w.backends)
	}, "a", "b")
}

// Scenario 4: it is done, but the answer came too late: found out from the executor.
func TestDoneButTimedOut(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, func(r *api.CommandRequest) { r.Timeout = 120 })
		s.relay("a", "b", true)
		s.w.finish(true)
		b.until(e.ID, time.Minute, model.StateCompleted)
		time.Sleep(30 * time.Minute)
		assert.Contains(t, path(a.get(c.ID)), "TIMED_OUT")
		assert.Contains(t, []string{"RECONCILE_FAILED", "RECONCILING"}, a.get(c.ID).State, "it cannot be asked, and nobody guesses")
		s.relay("a", "b", false)
		c = a.until(c.ID, 20*time.Minute, model.StateReconciled)
		assert.Empty(t, c.Error)
		assert.JSONEq(t, `{"bytes":1000}`, string(c.Answer))
		time.Sleep(time.Minute)
		assert.False(t, b.get(e.ID).Unacknowledged)
	}, "a", "b")
}

// Scenario 5: the origin is restarted, or down for long.
func TestOriginRestarted(t *testing.T) {
	for _, down := range []time.Duration{0, 5 * time.Hour} {
		simulate(t, func(s *sim) {
			a, b := s.hosts["a"], s.hosts["b"]
			c, e := remote(s, nil)
			a.kill()
			s.w.finish(true)
			b.until(e.ID, time.Minute, model.StateCompleted)
			time.Sleep(down)
			assert.True(t, b.get(e.ID).Unacknowledged, "the answer is kept")
			a.start(nil)
			a.until(c.ID, 10*time.Second, model.StateCompleted)
			time.Sleep(10 * time.Second)
			assert.False(t, b.get(e.ID).Unacknowledged)
		}, "a", "b")
	}
}

// The executor's host dies: nothing is running for ever, and what became of it is found out
// without it.
func TestExecutorDead(t *testing.T) {
	for _, applied := range []bool{true, false} {
		simulate(t, func(s *sim) {
			a, b := s.hosts["a"], s.hosts["b"]
			c, e := remote(s, nil)
			s.die("b")
			s.w.set(func(w *world) { w.applied["a-"+itoa(c.Sequence)] = applied })
			c = a.until(c.ID, 2*time.Minute, model.StateReconciled)
			assert.Equal(t, []string{"CREATED", "INTERRUPTED", "RECONCILING", "RECONCILED"}, path(c))
			assert.Equal(t, applied, c.Error == "")
			// It comes back, and agrees.
			s.boot("b")
			e = b.until(e.ID, time.Minute, model.StateCompleted, model.StateFailed)
			assert.Equal(t, applied, e.Error == "")
			time.Sleep(20 * time.Minute)
			assert.False(t, a.get(c.ID).Unacknowledged)
			assert.False(t, b.get(e.ID).Unacknowledged)
		}, "a", "b")
	}
}

// Without lockspaces a host is dead when somebody has said so.
func TestExecutorFenced(t *testing.T) {
	simulate(t, func(s *sim) {
		s.lockless = true
		a := s.hosts["a"]
		c, _ := remote(s, nil)
		s.die("b")
		time.Sleep(3 * time.Hour)
		assert.Equal(t, "CREATED", a.get(c.ID).State, "a host that is silent is not dead")
		s.mu.Lock()
		s.fenced = map[string]bool{"b": true}
		s.mu.Unlock()
		c = a.until(c.ID, 2*time.Minute, model.StateReconciled)
		assert.Equal(t, "nothing was copied", c.Error)
	}, "a", "b")
}

// A host that was rebooted before anybody looked is not dead: it says itself what it knows.
func TestExecutorRebooted(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c, _ := remote(s, nil)
		s.relay("a", "b", true)
		s.die("b")
		s.boot("b")
		time.Sleep(time.Hour)
		assert.Equal(t, "CREATED", a.get(c.ID).State, "it has another generation now")
		s.relay("a", "b", false)
		a.until(c.ID, 2*time.Minute, model.StateFailed)
	}, "a", "b")
}

// The origin is dead and the executor does not know: then the executor reconciles.
func TestOriginDead(t *testing.T) {
	simulate(t, func(s *sim) {
		b := s.hosts["b"]
		_, e := remote(s, nil)
		s.die("a")
		s.w.set(func(w *world) { w.blind = true })
		b.restart()
		e = b.until(e.ID, 2*time.Hour, model.StateReconcileRetry, model.StateReconcileFailed)
		assert.Equal(t, "DANGLED_IN_BACKEND", path(e)[2])
		s.w.finish(true)
		s.w.set(func(w *world) { w.blind = false })
		b.until(e.ID, 2*time.Hour, model.StateReconciled)
		s.boot("a")
		s.hosts["a"].until(s.hosts["a"].only().ID, 2*time.Minute, model.StateCompleted)
	}, "a", "b")
}

// While the origin lives, its executor only looks.
func TestExecutorThatCannotTell(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, nil)
		s.w.vanish("")
		s.w.set(func(w *world) { w.shy = 1 << 30 })
		b.restart()
		c = a.until(c.ID, 2*time.Hour, model.StateReconciled)
		assert.Equal(t, "b says INTERRUPTED: what became of it cannot be told here: paused on both hosts", c.History[0].Cause)
		assert.Equal(t, "nothing was copied", c.Error, "the origin has asked around")
		e = b.until(e.ID, 2*time.Minute, model.StateFailed)
		assert.Equal(t, []string{"STARTED", "PROCESSING_IN_BACKEND", "DANGLED_IN_BACKEND", "INTERRUPTED", "FAILED"}, path(e))
		assert.Equal(t, "a has found out: nothing was copied", e.Error)
		assert.False(t, b.get(e.ID).Unacknowledged)
	}, "a", "b")
}
