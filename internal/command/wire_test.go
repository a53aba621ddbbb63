package command

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// A request whose answer was lost is sent again, and answered from the same row.
func TestAnswerToTheRequestIsLost(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		s.losing(func(_, _, route string) bool { return route == api.RoutePeerCommand })
		c := a.run(copyOf("v1", "b"))
		assert.Equal(t, "CREATED", c.State)
		assert.Empty(t, c.PeerState)
		time.Sleep(3 * time.Minute)
		s.losing(nil)
		time.Sleep(2 * time.Minute)
		assert.Equal(t, "PROCESSING_IN_BACKEND", a.get(c.ID).PeerState)
		s.w.finish(true)
		a.until(c.ID, time.Minute, model.StateCompleted)
		assert.Equal(t, 1, s.w.starts["a-"+itoa(c.Sequence)])
		b.only()
	}, "a", "b")
}

// unsent makes a request of which the row is there, and nothing was sent until much later.
func (h *host) unsent(executor string) {
	h.s.t.Helper()
	h.kill()
	h.start(&crash{at: 2, after: true})
	_, err := h.request(copyOf("v1", executor))
	require.Error(h.s.t, err)
	time.Sleep(time.Hour)
	h.restart()
}

// A request that may have arrived, and has not: it is not begun when somebody asks much later.
func TestRequestThatNeverArrived(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		a.unsent("b")
		c := a.until(a.only().ID, 2*time.Minute, model.StateFailed)
		assert.Equal(t, "not copied; the half-made destination is removed", c.Error)
		assert.Empty(t, s.w.backends)
		e := b.only()
		assert.Equal(t, []string{"DANGLED_IN_BACKEND", "FAILED"}, path(e))
		assert.Contains(t, e.History[0].Cause, "not copied")
		// And should it arrive after all, it is answered from that row.
		r, err := b.m().PeerRun(ctx, "a", api.PeerCommand{Sequence: e.Sequence, Kind: "copy", Args: e.Args})
		require.NoError(t, err)
		assert.Equal(t, "FAILED", r.State)
		assert.Empty(t, s.w.backends)
	}, "a", "b")
}

// The same without a backend, where Finish may do what is missing: nobody expects any more that a
// volume is deleted, hours after whoever asked for it was told nothing.
func TestRequestThatNeverArrivedInside(t *testing.T) {
	simulate(t, func(s *sim) {
		s.w.inside, s.w.resumes = true, true
		a, b := s.hosts["a"], s.hosts["b"]
		a.unsent("b")
		c := a.until(a.only().ID, 2*time.Minute, model.StateFailed)
		assert.Equal(t, "cancelled (not known here when a asked about it): not copied; the half-made destination is removed", c.Error)
		assert.False(t, s.w.applied["a-"+itoa(c.Sequence)])
		assert.Equal(t, []string{"DANGLED_IN_BACKEND", "FAILED"}, path(b.only()))
	}, "a", "b")
}

// One that says what was so before it must not be planned anew by a journal that has lost it: it may
// have been done. Its origin looks.
func TestLostAndPlannedOnce(t *testing.T) {
	for _, done := range []bool{true, false} {
		simulate(t, func(s *sim) {
			s.w.inside, s.w.once = true, true
			a, b := s.hosts["a"], s.hosts["b"]
			a.kill()
			a.start(&crash{at: 2, after: true})
			_, err := a.request(copyOf("v1", "b"))
			require.Error(t, err)
			s.w.applied["a-"+itoa(a.only().Sequence)] = done
			time.Sleep(time.Hour)
			a.restart()
			c := a.until(a.only().ID, 2*time.Minute, model.StateReconciled)
			assert.Equal(t, done, c.Error == "", c.Error)
			assert.NotContains(t, c.Error, "cancelled")
			e := b.until(b.only().ID, time.Hour, model.StateCompleted, model.StateFailed, model.StateReconciled)
			assert.Equal(t, c.Error == "", e.Error == "")
			assert.Empty(t, e.Targets)
		}, "a", "b")
	}
}

// And if the host that was asked about it goes down before it has looked, it waits for its origin.
func TestRequestThatNeverArrivedAndAReboot(t *testing.T) {
	simulate(t, func(s *sim) {
		s.w.inside, s.w.resumes = true, true
		a, b := s.hosts["a"], s.hosts["b"]
		b.kill()
		b.start(&crash{at: 2, after: true})
		a.unsent("b")
		s.relay("a", "b", true)
		s.die("b")
		s.boot("b")
		time.Sleep(time.Hour)
		assert.Equal(t, "INTERRUPTED", b.only().State)
		s.relay("a", "b", false)
		c := a.until(a.only().ID, 2*time.Hour, model.StateFailed, model.StateReconciled)
		assert.NotEmpty(t, c.Error)
		assert.False(t, s.w.applied["a-"+itoa(c.Sequence)])
		assert.Equal(t, []string{"DANGLED_IN_BACKEND", "INTERRUPTED", "FAILED"}, path(b.only()))
	}, "a", "b")
}

func TestDuplicates(t *testing.T) {
	simulate(t, func(s *sim) {
		b := s.hosts["b"]
		q := api.PeerCommand{Sequence: 17, Kind: "copy", Args: json.RawMessage(`{"volume": "v1"}`), Cause: "operator uid 0"}
		first, err := b.m().PeerRun(ctx, "a", q)
		require.NoError(t, err)
		b.until(first.ID, time.Minute, model.StateBackend)
		again, err := b.m().PeerRun(ctx, "a", q)
		require.NoError(t, err)
		assert.Equal(t, first.ID, again.ID)
		assert.Equal(t, "PROCESSING_IN_BACKEND", again.State)

		other := q
		other.Args = json.RawMessage(`{"volume": "v2"}`)
		_, err = b.m().PeerRun(ctx, "a", other)
		assert.Equal(t, api.KindBadRequest, api.KindOf(err), "never answered from the row of another command")
		_, err = b.m().PeerAsk(ctx, "a", other)
		assert.Equal(t, api.KindBadRequest, api.KindOf(err))
		// The same sequence of another origin is another command.
		third, err := b.m().PeerRun(ctx, "c", other)
		require.NoError(t, err)
		assert.NotEqual(t, first.ID, third.ID)

		s.w.finish(true)
		b.until(first.ID, time.Minute, model.StateCompleted)
		again, err = b.m().PeerRun(ctx, "a", q)
		require.NoError(t, err)
		assert.True(t, again.Final)
		assert.Equal(t, 1, s.w.starts["a-17"])
	}, "b")
}

func TestBadPeerRequests(t *testing.T) {
	simulate(t, func(s *sim) {
		b := s.hosts["b"].m()
		good := api.PeerCommand{Sequence: 1, Kind: "copy", Args: json.RawMessage(`{"volume":"v"}`)}
		for name, spoil := range map[string]func(*api.PeerCommand){
			"kind":      func(q *api.PeerCommand) { q.Kind = "rm" },
			"sequence":  func(q *api.PeerCommand) { q.Sequence = 0 },
			"arguments": func(q *api.PeerCommand) { q.Args = nil },
			"hook":      func(q *api.PeerCommand) { q.OnDisconnect = "x" },
		} {
			q := good
			spoil(&q)
			_, err := b.PeerRun(ctx, "a", q)
			assert.Equal(t, api.KindBadRequest, api.KindOf(err), name)
			_, err = b.PeerAsk(ctx, "a", q)
			assert.Equal(t, api.KindBadRequest, api.KindOf(err), name)
		}
		cancelled := good
		cancelled.Cancelled = "operator uid 0"
		_, err := b.PeerRun(ctx, "a", cancelled)
		assert.ErrorContains(t, err, "cancelled before it had begun")
		require.NoError(t, b.PeerAck(ctx, "a", api.PeerAck{Sequence: 99}), "an answer for a row that is gone")
		r, err := b.PeerRun(ctx, "a", good)
		require.NoError(t, err)
		assert.Error(t, b.PeerAck(ctx, "a", api.PeerAck{Sequence: 1}), "it has not ended")
		time.Sleep(3 * time.Second)
		assert.Error(t, b.PeerAck(ctx, "a", api.PeerAck{Sequence: 1, Found: "completed"}), "it runs")
		assert.Equal(t, "PROCESSING_IN_BACKEND", s.hosts["b"].get(r.ID).State)
		answer, err := b.PeerNotice(ctx, "a", api.PeerCommandNotice{Sequences: []int64{1, 5}})
		require.NoError(t, err)
		assert.Equal(t, []int64{1, 5}, answer.Gone, "b is the origin of neither")
	}, "b")
}

// What an executor says counts only where it makes sense.
func TestBadReports(t *testing.T) {
	simulate(t, func(s *sim) {
		c, _ := remote(s, nil)
		a := s.hosts["a"].m()
		for _, bad := range []api.PeerReport{
			{State: "DONE"}, {State: ""}, {State: "DONE", Final: true}, {State: "PROCESSING", Final: true}, {State: "RECONCILE_SKIPPED", Final: true}, {State: "COMPLETED"},
		} {
			e, err := a.Journal.Entry(ctx, c.ID)
			require.NoError(t, err)
			_, err = a.heard(ctx, e, bad)
			assert.Equal(t, api.KindInternal, api.KindOf(err), "%+v", bad)
			after, err := a.Journal.Entry(ctx, c.ID)
			require.NoError(t, err)
			assert.Equal(t, e, after)
		}
	}, "a", "b")
}

// limits notes how long a call of each route may take.
type limits map[string]time.Duration

func (p limits) Call(ctx context.Context, _, route string, _, _ any) error {
	at, _ := ctx.Deadline()
	p[route] = time.Until(at).Round(time.Second)
	return nil
}

// A host that hangs must not keep the places from the questions to others for long.
func TestPatienceWithAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := limits{}
		m := New(Options{Peers: p, Now: time.Now})
		want := limits{api.RoutePeerCommand: time.Minute, api.RoutePeerCommandPlan: time.Minute}
		for _, route := range []string{api.RoutePeerCommandAsk, api.RoutePeerCommandAck, api.RoutePeerCommandNotice} {
			want[route] = 20 * time.Second
		}
		for route := range want {
			require.NoError(t, m.call(ctx, "b", route, nil, nil))
		}
		assert.Equal(t, want, p)
	})
}

func TestAcksAreLost(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, nil)
		s.losing(func(_, _, route string) bool { return route == api.RoutePeerCommandAck })
		s.w.finish(true)
		a.until(c.ID, 2*time.Minute, model.StateCompleted)
		time.Sleep(time.Hour)
		assert.True(t, a.get(c.ID).Unacknowledged)
		s.losing(nil)
		time.Sleep(20 * time.Minute)
		assert.False(t, a.get(c.ID).Unacknowledged)
		assert.False(t, b.get(e.ID).Unacknowledged)
	}, "a", "b")
}

// lose removes a host's journal, as when it was found corrupt.
func (h *host) loseJournal() {
	h.kill()
	files, err := filepath.Glob(filepath.Join(h.s.dir, h.name+".db*"))
	require.NoError(h.s.t, err)
	for _, f := range files {
		require.NoError(h.s.t, os.Remove(f))
	}
	h.start(nil)
}

// The executor has lost its journal while the backend runs: the origin asks, and the backend is
// adopted from what can be seen.
func TestExecutorLosesItsJournal(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, _ := remote(s, nil)
		b.loseJournal()
		time.Sleep(2 * time.Minute)
		assert.Equal(t, []string{"DANGLED_IN_BACKEND", "PROCESSING_IN_BACKEND"}, path(b.only()))
		s.w.finish(true)
		a.until(c.ID, 2*time.Minute, model.StateCompleted)
		assert.Equal(t, 1, s.w.starts["a-"+itoa(c.Sequence)])
	}, "a", "b")
}

// The same, and the command cannot be planned any more: a guest that has gone to another host,
// for example. Then the origin asks around.
func TestExecutorLosesItsJournalAndCannotPlan(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, _ := remote(s, nil)
		s.w.finish(true)
		s.w.set(func(w *world) { w.hidden["v1"] = true })
		b.loseJournal()
		c = a.until(c.ID, 5*time.Minute, model.StateReconciled, model.StateCompleted)
		assert.Empty(t, c.Error)
		time.Sleep(time.Hour)
		e := b.only()
		assert.Equal(t, "COMPLETED", e.State)
		assert.False(t, e.Unacknowledged)
	}, "a", "b")
}

// The origin has lost its journal: nobody waits for the answer, and the executor learns that.
func TestOriginLosesItsJournal(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, nil)
		a.loseJournal()
		s.w.finish(true)
		b.until(e.ID, time.Minute, model.StateCompleted)
		time.Sleep(time.Minute)
		assert.False(t, b.get(e.ID).Unacknowledged)
		// A new request has another sequence, and is not answered from the old row.
		next := a.run(copyOf("v2", "b"))
		assert.Greater(t, next.Sequence, c.Sequence)
		assert.Equal(t, "CREATED", next.State)
	}, "a", "b")
}

// The same, and the executor cannot tell how it has ended: then it is the executor's to give up.
func TestOriginLosesItsJournalAndNobodyCanTell(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		_, e := remote(s, nil)
		a.loseJournal()
		s.w.vanish("")
		s.w.set(func(w *world) { w.shy = 1 << 30 })
		b.restart()
		e = b.until(e.ID, 72*time.Hour, model.StateReconcileSkip)
		assert.Contains(t, e.Why, "paused on both hosts")
		_, problems, err := b.m().Summary(ctx)
		require.NoError(t, err)
		assert.Len(t, problems, 1)
	}, "a", "b")
}

func TestRemoteCancel(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, nil)
		s.relay("a", "b", true)
		_, err := a.m().Cancel(ctx, c.ID, api.CancelRequest{}, "operator uid 0")
		assert.Equal(t, api.KindUnknown, api.KindOf(err))
		assert.ErrorContains(t, err, "will be asked to end as soon as b can be reached")
		time.Sleep(time.Hour)
		assert.Equal(t, 1, s.w.running())
		s.relay("a", "b", false)
		c = a.until(c.ID, 2*time.Minute, model.StateFailed)
		assert.Equal(t, "cancelled (operator uid 0): not copied; the half-made destination is removed", c.Error)
		assert.Equal(t, "FAILED", b.get(e.ID).State)
	}, "a", "b")
}

// The request is answered at once where the other host cannot be reached: nothing goes on
// behind the operator's back.
func TestUnreachableExecutor(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		s.relay("a", "b", true)
		_, err := a.request(copyOf("v1", "b"))
		assert.Equal(t, api.KindUnreachable, api.KindOf(err))
		c := a.only()
		assert.Equal(t, "FAILED", c.State)
		assert.False(t, c.Unacknowledged)
		s.relay("a", "b", false)
		time.Sleep(time.Hour)
		all, err := b.m().List(ctx, api.CommandFilter{Limit: 1})
		require.NoError(t, err)
		assert.Empty(t, all)
	}, "a", "b")
}
