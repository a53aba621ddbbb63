package command

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// skipped makes a local command whose outcome cannot be found out.
func skipped(s *sim) api.Command {
	s.t.Helper()
	a := s.hosts["a"]
	c := a.run(copyOf("v1", ""))
	a.until(c.ID, time.Minute, model.StateBackend)
	s.w.set(func(w *world) { w.blind = true })
	a.restart()
	return a.until(c.ID, 72*time.Hour, model.StateReconcileSkip)
}

func TestGivenUp(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		began := time.Now()
		c := skipped(s)
		assert.Greater(t, time.Since(began), 12*time.Hour, "the pauses grow")
		assert.Equal(t, maxAttempts, c.Attempts)
		assert.Equal(t, "given up after 30 attempts: libvirt does not answer", c.Why)
		attempts := 0
		for _, state := range path(c) {
			if state == "RECONCILING" {
				attempts++
			}
		}
		assert.Equal(t, maxAttempts, attempts)
		summary, problems, err := a.m().Summary(ctx)
		require.NoError(t, err)
		assert.Equal(t, api.CommandSummary{Skipped: 1}, summary)
		require.Len(t, problems, 1)
		assert.Equal(t, "command "+itoa(c.ID)+" (copy vg/v1): its outcome could not be found out (given up after 30 attempts: libvirt does not answer); look, then 'virtlvm command resolve "+itoa(c.ID)+" --as completed|failed --why ...'", problems[0])

		_, err = a.request(copyOf("v1", ""))
		assert.Equal(t, api.KindInUse, api.KindOf(err), "its volume is not to be touched until somebody decides")
		_, err = a.m().Cancel(ctx, c.ID, api.CancelRequest{}, "")
		assert.ErrorContains(t, err, "does not run any more as far as is known")

		for _, bad := range []api.ResolveRequest{{As: "done", Why: "x"}, {As: "completed"}, {As: "completed", Why: " \n"}} {
			_, err = a.m().Resolve(ctx, c.ID, bad, "operator uid 0")
			assert.Equal(t, api.KindBadRequest, api.KindOf(err))
		}
		a.restart() // it stays as it is
		time.Sleep(10 * time.Hour)
		c, err = a.m().Resolve(ctx, c.ID, api.ResolveRequest{As: "completed", Why: "I have compared\nthem"}, "operator uid 0")
		require.NoError(t, err)
		assert.Equal(t, "COMPLETED", c.State)
		assert.Equal(t, "operator uid 0: I have compared them", c.Outcome)
		_, err = a.m().Resolve(ctx, c.ID, api.ResolveRequest{As: "failed", Why: "no"}, "operator uid 0")
		assert.Equal(t, api.KindBadRequest, api.KindOf(err))
		_, problems, err = a.m().Summary(ctx)
		require.NoError(t, err)
		assert.Empty(t, problems)
		a.run(copyOf("v1", ""))
	}, "a")
}

func TestResolveBeforeItIsGivenUp(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		a.until(c.ID, time.Minute, model.StateBackend)
		_, err := a.m().Resolve(ctx, c.ID, api.ResolveRequest{As: "failed", Why: "no"}, "operator uid 0")
		assert.ErrorContains(t, err, "is PROCESSING_IN_BACKEND: only a command whose outcome is not known can be resolved")
		s.w.set(func(w *world) { w.blind = true })
		a.restart()
		a.until(c.ID, 24*time.Hour, model.StateReconcileRetry, model.StateReconcileFailed)
		c, err = a.m().Resolve(ctx, c.ID, api.ResolveRequest{As: "failed", Why: "no"}, "operator uid 0")
		require.NoError(t, err)
		assert.Equal(t, "FAILED", c.State)
		assert.Equal(t, "RECONCILE_SKIPPED", path(c)[len(path(c))-2])
		time.Sleep(5 * time.Hour)
		assert.Equal(t, "FAILED", a.get(c.ID).State)
	}, "a")
}

// An answer that comes after a command was given up is taken all the same.
func TestAnswerAfterItWasGivenUp(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c, _ := remote(s, func(r *api.CommandRequest) { r.Timeout = 60 })
		s.relay("a", "b", true)
		c = a.until(c.ID, 72*time.Hour, model.StateReconcileSkip)
		assert.Contains(t, c.Why, "b cannot be reached")
		s.w.finish(true)
		time.Sleep(time.Hour)
		s.relay("a", "b", false)
		c = a.until(c.ID, 2*time.Hour, model.StateCompleted)
		assert.JSONEq(t, `{"bytes":1000}`, string(c.Answer))
	}, "a", "b")
}

// A person has decided at the origin: the executor's row follows.
func TestResolveAtTheOrigin(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, nil)
		s.w.set(func(w *world) { w.blind = true })
		b.restart()
		a.until(c.ID, 24*time.Hour, model.StateReconcileFailed, model.StateReconcileRetry)
		_, err := a.m().Resolve(ctx, c.ID, api.ResolveRequest{As: "failed", Why: "looked"}, "operator uid 0")
		require.NoError(t, err)
		e = b.until(e.ID, time.Minute, model.StateFailed)
		assert.Equal(t, "a has found out: operator uid 0: looked", e.Error)
		time.Sleep(time.Minute)
		assert.False(t, a.get(c.ID).Unacknowledged)
		assert.False(t, b.get(e.ID).Unacknowledged)
	}, "a", "b")
}

// Something that cannot be told at first can be later: paused on both hosts, then on one.
func TestLookedAtAgain(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		a.until(c.ID, time.Minute, model.StateBackend)
		s.w.set(func(w *world) { w.shy = 14 })
		a.kill()
		s.w.finish(true)
		a.start(nil)
		c = a.until(c.ID, 24*time.Hour, model.StateReconciled)
		assert.Empty(t, c.Error)
		assert.Contains(t, path(c), "RECONCILE_RETRY")
		var remarks []string
		for _, h := range c.History {
			if h.From == h.To {
				remarks = append(remarks, h.Cause)
			}
		}
		assert.Equal(t, []string{"paused on both hosts"}, remarks, "said once")
	}, "a")
}

func TestPauses(t *testing.T) {
	last := time.Duration(0)
	for n := range 40 {
		p := pauseAfter(n)
		assert.GreaterOrEqual(t, p, last)
		assert.LessOrEqual(t, p, time.Hour)
		last = p
	}
	assert.Equal(t, 2*time.Second, pauseAfter(1))
	assert.Equal(t, time.Hour, pauseAfter(maxAttempts))
}
