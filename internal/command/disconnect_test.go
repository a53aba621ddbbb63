package command

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

func cancelThen(r *api.CommandRequest) { r.OnDisconnect = "cancel" }

func TestRelayLost(t *testing.T) {
	simulate(t, func(s *sim) {
		a, b := s.hosts["a"], s.hosts["b"]
		c, e := remote(s, cancelThen)
		time.Sleep(5 * time.Minute)
		assert.Equal(t, "PROCESSING_IN_BACKEND", b.get(e.ID).State)
		s.relay("a", "b", true)
		e = b.until(e.ID, 2*time.Minute, model.StateFailed)
		assert.Equal(t, "cancelled (the relay to its origin a was lost): not copied; the half-made destination is removed", e.Error)
		s.relay("a", "b", false)
		a.until(c.ID, 2*time.Minute, model.StateFailed)
	}, "a", "b")
}

func TestShortInterruption(t *testing.T) {
	simulate(t, func(s *sim) {
		b := s.hosts["b"]
		_, e := remote(s, cancelThen)
		time.Sleep(time.Minute)
		for range 5 {
			s.relay("a", "b", true)
			b.m().OriginMayBeLost("a", false)
			time.Sleep(20 * time.Second)
			s.relay("a", "b", false)
			time.Sleep(time.Minute)
		}
		assert.Equal(t, "PROCESSING_IN_BACKEND", b.get(e.ID).State)
	}, "a", "b")
}

// A link on the way to the origin is gone: less patience.
func TestLinkLost(t *testing.T) {
	simulate(t, func(s *sim) {
		b := s.hosts["b"]
		_, e := remote(s, cancelThen)
		time.Sleep(time.Minute)
		s.relay("a", "b", true)
		b.m().OriginMayBeLost("a", true)
		b.until(e.ID, 12*time.Second, model.StateFailed)
	}, "a", "b")
}

// The executor cannot reach its origin, which reaches it: nothing is lost while it asks.
func TestOneWayConnection(t *testing.T) {
	simulate(t, func(s *sim) {
		b := s.hosts["b"]
		s.mu.Lock()
		s.cut[[2]string{"b", "a"}] = true
		s.mu.Unlock()
		_, e := remote(s, cancelThen)
		time.Sleep(time.Hour)
		assert.Equal(t, "PROCESSING_IN_BACKEND", b.get(e.ID).State)
		s.relay("a", "b", true)
		b.until(e.ID, 3*time.Minute, model.StateFailed)
	}, "a", "b")
}

func TestDaemonStops(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		stays := a.run(copyOf("v1", ""))
		req := copyOf("v2", "")
		req.OnDisconnect = "cancel"
		goes := a.run(req)
		a.until(goes.ID, time.Minute, model.StateBackend)
		a.m().Stop(ctx)
		a.restart()
		c := a.until(goes.ID, time.Minute, model.StateFailed)
		assert.Contains(t, c.Error, "cancelled (virtlvmd stops)")
		assert.Equal(t, "PROCESSING_IN_BACKEND", a.get(stays.ID).State)
	}, "a")
}

// hooked is a kind whose Cancel fails or hangs for some.
type hooked struct{ Kind }

func (k hooked) Cancel(ctx context.Context, c Command) error {
	switch c.Targets[0].Name {
	case "vg/fails":
		return api.NewError(api.KindUnreachable, "libvirt does not answer")
	case "vg/hangs":
		<-ctx.Done()
		time.Sleep(time.Minute) // and does not even hear
		return ctx.Err()
	}
	return k.Kind.Cancel(ctx, c)
}

// A hook that fails is recorded, one that hangs ends the wait, and neither stops another.
func TestHooksRunInParallel(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		a.m().Kinds["copy"] = hooked{a.m().Kinds["copy"]}
		ids := map[string]int64{}
		for _, name := range []string{"fails", "hangs", "v1", "v2"} {
			req := copyOf(name, "")
			req.OnDisconnect = "cancel"
			ids[name] = a.run(req).ID
		}
		time.Sleep(5 * time.Second)
		began := time.Now()
		a.m().Stop(ctx)
		assert.LessOrEqual(t, time.Since(began), hookDeadline)
		time.Sleep(5 * time.Second)
		for name, want := range map[string]string{"fails": "PROCESSING_IN_BACKEND", "v1": "FAILED", "v2": "FAILED"} {
			assert.Equal(t, want, a.get(ids[name]).State, name)
		}
		said := func(name string) (all []string) {
			for _, h := range a.get(ids[name]).History {
				all = append(all, h.Cause)
			}
			return all
		}
		assert.Contains(t, said("fails"), "disconnect hook failed (virtlvmd stops): libvirt does not answer")
		assert.Contains(t, said("hangs"), "disconnect hook failed (virtlvmd stops): context deadline exceeded")
		time.Sleep(2 * time.Minute)
	}, "a")
}
