package command

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

func TestLocalCommand(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		assert.Equal(t, []string{"vg/v1"}, c.Targets)
		c = a.until(c.ID, time.Minute, model.StateBackend)
		key := "a-" + itoa(c.Sequence)
		time.Sleep(3 * time.Second)
		s.w.set(func(w *world) { w.backends[key].done = 500 })
		time.Sleep(10 * time.Second)
		p := a.get(c.ID).Progress
		assert.Equal(t, int64(500), p.Done)
		assert.Positive(t, p.Speed)
		assert.Positive(t, p.Left)
		moved := p.Moved
		time.Sleep(time.Minute)
		p = a.get(c.ID).Progress
		assert.Equal(t, moved, p.Moved, "it has stalled")
		assert.Greater(t, p.At.Sub(p.Moved), 50*time.Second)
		s.w.finish(true)
		c = a.until(c.ID, time.Minute, model.StateCompleted)
		assert.Equal(t, []string{"STARTED", "PROCESSING_IN_BACKEND", "COMPLETED"}, path(c))
		assert.JSONEq(t, `{"bytes":1000}`, string(c.Answer))
		assert.Equal(t, "copied", c.Outcome)
		assert.Empty(t, c.Error)
	}, "a")
}

func TestStartFails(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		s.w.startErr = api.NewError(api.KindUnsupported, "vg/v1 is too small")
		c := a.run(copyOf("v1", ""))
		c = a.until(c.ID, time.Minute, model.StateFailed)
		assert.Equal(t, "vg/v1 is too small", c.Error)
	}, "a")
}

// Start has failed, but the backend runs: what is seen counts.
func TestStartFailsAndTheBackendRuns(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		s.w.blind = true // Look must be tried until it can tell
		s.w.startErr = api.NewError(api.KindUnknown, "no answer from systemd")
		c := a.run(copyOf("v1", ""))
		time.Sleep(10 * time.Second)
		assert.Equal(t, "PROCESSING_IN_BACKEND", a.get(c.ID).State)
		s.w.set(func(w *world) {
			w.blind, w.startErr = false, nil
			w.backends["a-"+itoa(c.Sequence)] = &backend{running: true}
		})
		time.Sleep(5 * time.Minute)
		s.w.finish(true)
		a.until(c.ID, time.Minute, model.StateCompleted)
	}, "a")
}

func TestCancel(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		a.until(c.ID, time.Minute, model.StateBackend)
		_, err := a.m().Cancel(ctx, c.ID, api.CancelRequest{Why: "wrong volume"}, "operator uid 7")
		require.NoError(t, err)
		c = a.until(c.ID, time.Minute, model.StateFailed)
		assert.Equal(t, "cancelled (operator uid 7: wrong volume): not copied; the half-made destination is removed", c.Error)
		_, err = a.m().Cancel(ctx, c.ID, api.CancelRequest{}, "operator uid 7")
		assert.Equal(t, api.KindBadRequest, api.KindOf(err))
		assert.ErrorContains(t, err, "has ended (FAILED); there is nothing to cancel")
		_, err = a.m().Cancel(ctx, 4711, api.CancelRequest{}, "")
		assert.Equal(t, api.KindNotFound, api.KindOf(err))
	}, "a")
}

// A cancel that comes when all is done changes nothing: what is so counts.
func TestCancelTooLate(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		a.until(c.ID, time.Minute, model.StateBackend)
		s.w.finish(true)
		_, err := a.m().Cancel(ctx, c.ID, api.CancelRequest{}, "operator uid 7")
		require.NoError(t, err)
		c = a.until(c.ID, time.Minute, model.StateCompleted)
		assert.Empty(t, c.Error)
	}, "a")
}

// slow is a kind whose Start takes a while, and whose Cancel finds nothing before that.
type slow struct{ Kind }

func (k slow) Start(ctx context.Context, c Command) error {
	time.Sleep(30 * time.Second)
	return k.Kind.Start(ctx, c)
}

// A cancel that comes while the backend is being begun is not lost.
func TestCancelWhileItBegins(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		a.m().Kinds["copy"] = slow{a.m().Kinds["copy"]}
		c := a.run(copyOf("v1", ""))
		time.Sleep(10 * time.Second)
		_, err := a.m().Cancel(ctx, c.ID, api.CancelRequest{}, "operator uid 7")
		require.NoError(t, err)
		assert.Equal(t, "PROCESSING_IN_BACKEND", a.get(c.ID).State)
		c = a.until(c.ID, time.Minute, model.StateFailed)
		assert.Equal(t, 0, s.w.running())
	}, "a")
}

// A backend that could not be told is told again, also by the next daemon.
func TestCancelIsRepeated(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		a.until(c.ID, time.Minute, model.StateBackend)
		s.w.set(func(w *world) { w.mute = true })
		_, err := a.m().Cancel(ctx, c.ID, api.CancelRequest{}, "operator uid 7")
		require.ErrorContains(t, err, "systemd does not answer")
		a.restart()
		time.Sleep(time.Minute)
		assert.Equal(t, "PROCESSING_IN_BACKEND", a.get(c.ID).State)
		s.w.set(func(w *world) { w.mute = false })
		a.until(c.ID, time.Minute, model.StateFailed)
	}, "a")
}

func TestDeadlineKillsNothing(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		req := copyOf("v1", "")
		req.Timeout = 60
		c := a.run(req)
		a.until(c.ID, 2*time.Minute, model.StateDangled)
		time.Sleep(3 * time.Hour)
		assert.Equal(t, 1, s.w.running())
		assert.Equal(t, "DANGLED_IN_BACKEND", a.get(c.ID).State)
		s.w.finish(true)
		c = a.until(c.ID, 2*time.Minute, model.StateCompleted)
		assert.Equal(t, []string{"STARTED", "PROCESSING_IN_BACKEND", "DANGLED_IN_BACKEND", "COMPLETED"}, path(c))
	}, "a")
}

func TestOneCommandForATarget(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		_, err := a.request(copyOf("v1", ""))
		assert.Equal(t, api.KindInUse, api.KindOf(err))
		assert.ErrorContains(t, err, "vg/v1 belongs to command "+itoa(c.ID)+" (copy, ")
		a.run(copyOf("v2", ""))
		time.Sleep(2 * time.Second)
		s.w.finish(true)
		a.until(c.ID, time.Minute, model.StateCompleted)
		a.run(copyOf("v1", ""))
	}, "a")
}

func TestBadRequests(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		for name, tt := range map[string]struct {
			req  api.CommandRequest
			kind api.Kind
			want string
		}{
			"unknown kind":      {api.CommandRequest{Kind: "format"}, api.KindBadRequest, `does not know commands of kind "format"`},
			"no arguments":      {api.CommandRequest{Kind: "copy"}, api.KindBadRequest, "no volume"},
			"not an object":     {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`[1]`)}, api.KindBadRequest, "JSON object"},
			"null":              {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`null`)}, api.KindBadRequest, "JSON object"},
			"no JSON":           {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{`)}, api.KindBadRequest, "JSON object"},
			"too large":         {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"` + strings.Repeat("x", maxArgs) + `"}`)}, api.KindBadRequest, "at most"},
			"on disconnect":     {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v"}`), OnDisconnect: "panic"}, api.KindBadRequest, `"panic" is neither continue nor cancel`},
			"negative timeout":  {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v"}`), Timeout: -1}, api.KindBadRequest, "at most"},
			"endless timeout":   {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v"}`), Timeout: 1 << 60}, api.KindBadRequest, "at most"},
			"refused by Plan":   {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v","refuse":"in use"}`)}, api.KindUnsupported, "cannot copy v: in use"},
			"refused elsewhere": {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v","refuse":"in use"}`), Executor: "b"}, api.KindUnsupported, "b: cannot copy v: in use"},
			"no such host":      {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v"}`), Executor: "z"}, api.KindUnreachable, "z cannot be reached"},
			"no host name":      {api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v"}`), Executor: "-oProxyCommand=id"}, api.KindBadRequest, "-oProxyCommand"},
		} {
			_, err := a.request(tt.req)
			assert.Equal(t, tt.kind, api.KindOf(err), name)
			assert.ErrorContains(t, err, tt.want, name)
		}
		for _, h := range s.hosts {
			time.Sleep(10 * time.Second)
			all, err := h.m().List(ctx, api.CommandFilter{Limit: 10})
			require.NoError(t, err)
			for _, c := range all {
				assert.Equal(t, "FAILED", c.State)
				assert.False(t, c.Unacknowledged)
			}
		}
		assert.Empty(t, s.w.backends)
	})
}

// Where nobody has named a host, the kind says which; one that is named counts.
func TestPlaced(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		for args, want := range map[string]string{`{"volume":"v1","place":"b"}`: "b", `{"volume":"v2","place":"a"}`: "a", `{"volume":"v3"}`: "a"} {
			c := a.run(api.CommandRequest{Kind: "copy", Args: json.RawMessage(args)})
			assert.Equal(t, want, c.Executor, args)
		}
		c := a.run(api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v4","place":"a"}`), Executor: "b"})
		assert.Equal(t, "b", c.Executor)
		c = b.run(api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v5","place":"b"}`)})
		assert.Equal(t, "b", c.Executor)
		req := api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"volume":"v6","place":"?"}`)}
		_, err := a.request(req)
		require.EqualError(t, err, "say with --host where")
		_, err = a.m().Preview(ctx, req)
		require.EqualError(t, err, "say with --host where")
		s.w.finish(true)
		time.Sleep(time.Minute)
	})
}

// The journal cannot be written for a while: nothing is begun, and what runs is not lost.
func TestDiskIsFull(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		a.until(c.ID, time.Minute, model.StateBackend)
		a.daemon().full.Store(true)
		_, err := a.request(copyOf("v2", ""))
		assert.Equal(t, api.KindDatabase, api.KindOf(err))
		s.w.finish(true)
		time.Sleep(time.Hour)
		assert.Equal(t, "PROCESSING_IN_BACKEND", a.get(c.ID).State)
		assert.Len(t, s.w.backends, 1)
		a.daemon().full.Store(false)
		a.until(c.ID, 10*time.Second, model.StateCompleted)
	}, "a")
}

// The same at the start of the daemon: it takes nothing before it has read its journal.
func TestDiskIsFullAtTheStart(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		a.until(c.ID, time.Minute, model.StateBackend)
		a.kill()
		a.full = true
		a.start(nil)
		_, err := a.request(copyOf("v2", ""))
		assert.ErrorContains(t, err, "could not read its journal yet")
		a.daemon().full.Store(false)
		s.w.finish(true)
		a.until(c.ID, time.Minute, model.StateCompleted)
	}, "a")
}

// A daemon that comes back late begins nothing that nobody expects any more.
func TestAcceptedLongAgo(t *testing.T) {
	for down, want := range map[time.Duration]model.CommandState{time.Minute: model.StateBackend, time.Hour: model.StateFailed} {
		simulate(t, func(s *sim) {
			a := s.hosts["a"]
			a.kill()
			a.start(&crash{at: 2, after: true}) // the first write is that of the daemon's start
			_, err := a.request(copyOf("v1", ""))
			require.Error(t, err)
			time.Sleep(down)
			a.restart()
			c := a.until(a.only().ID, time.Minute, want)
			if want == model.StateFailed {
				assert.Equal(t, "not begun in time, since virtlvmd was down; nothing was done", c.Error)
				assert.Empty(t, s.w.backends)
			}
		}, "a")
	}
}
