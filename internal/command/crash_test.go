package command

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// story is what happens around one command while a daemon dies at one write of its journal.
type story struct {
	req     api.CommandRequest
	at      string // the host that is asked
	crashes string // the host whose daemon dies
	ok      bool   // how the backend ends
	inside  bool   // the kind has no backend
	cancel  bool   // an operator cancels it while it runs
	vanish  bool   // the backend dies without a record
}

// TestDaemonDiesAtEachWrite kills a daemon before and after each write of its journal, in turn,
// and starts it again: the command ends all the same, once, and its row says what is so.
func TestDaemonDiesAtEachWrite(t *testing.T) {
	for name, st := range map[string]story{
		"local":             {req: copyOf("v", ""), at: "a", crashes: "a", ok: true},
		"local fails":       {req: copyOf("v", ""), at: "a", crashes: "a"},
		"local vanishes":    {req: copyOf("v", ""), at: "a", crashes: "a", vanish: true},
		"local inside":      {req: copyOf("v", ""), at: "a", crashes: "a", inside: true, ok: true},
		"local cancelled":   {req: copyOf("v", ""), at: "a", crashes: "a", cancel: true},
		"origin":            {req: copyOf("v", "b"), at: "a", crashes: "a", ok: true},
		"origin cancels":    {req: copyOf("v", "b"), at: "a", crashes: "a", cancel: true},
		"executor":          {req: copyOf("v", "b"), at: "a", crashes: "b", ok: true},
		"executor fails":    {req: copyOf("v", "b"), at: "a", crashes: "b"},
		"executor vanishes": {req: copyOf("v", "b"), at: "a", crashes: "b", vanish: true},
		"executor inside":   {req: copyOf("v", "b"), at: "a", crashes: "b", inside: true, ok: true},
		"executor cancels":  {req: copyOf("v", "b"), at: "a", crashes: "b", cancel: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				c := &crash{at: at}
				hosts := []string{st.at}
				if st.req.Executor != "" {
					hosts = append(hosts, st.req.Executor)
				}
				simulate(t, func(s *sim) { st.tell(s, c) }, hosts...)
				after := &crash{at: at, after: true}
				simulate(t, func(s *sim) { st.tell(s, after) }, hosts...)
				if !c.hit || t.Failed() {
					require.Greater(t, at, 3, "nothing was written")
					t.Logf("%d writes", at-1)
					return
				}
			}
		})
	}
}

func (st story) tell(s *sim, c *crash) {
	s.w.inside = st.inside
	h := s.hosts[st.crashes]
	h.kill()
	h.start(c)
	cmd, err := s.hosts[st.at].request(st.req)
	for i := range 40 {
		time.Sleep(time.Second)
		switch {
		case i == 5 && st.cancel && s.hosts[st.at].up():
			_ = s.hosts[st.at].safely(func(m *Manager) error {
				all, err := m.List(ctx, api.CommandFilter{Limit: 1})
				if err == nil && len(all) == 1 {
					_, err = m.Cancel(ctx, all[0].ID, api.CancelRequest{}, "operator uid 0")
				}
				return err
			})
		case i == 10 && st.vanish:
			s.w.vanish("")
		case i == 20:
			s.w.finish(st.ok)
		}
		if i%3 == 0 {
			s.revive()
		}
	}
	// What the second daemon had begun after the backend's end was awaited.
	for i := 0; i < 120 && !s.settled(); i++ {
		time.Sleep(time.Minute)
		s.w.finish(st.ok)
		s.revive()
	}
	where := fmt.Sprintf("write %d, after %v: command %d, %v", c.at, c.after, cmd.ID, err)
	s.consistent(where)
	for key, n := range s.w.starts {
		assert.Equal(s.t, 1, n, "%s was begun more than once; %s", key, where)
	}
}

// safely runs f where the daemon may die.
func (h *host) safely(f func(*Manager) error) (err error) {
	err = errKilled
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f(h.m())
	}()
	<-done
	return err
}

// revive starts the daemons that have died.
func (s *sim) revive() {
	for _, h := range s.hosts {
		if !h.up() {
			h.kill()
			h.start(nil)
		}
	}
}

// settled reports whether nothing is left to be done on any host.
func (s *sim) settled() bool {
	for _, h := range s.hosts {
		if !h.up() {
			return false
		}
		tasks, err := h.daemon().db.Tasks(ctx)
		require.NoError(s.t, err)
		for _, t := range tasks {
			if t.State != model.StateReconcileSkip {
				return false
			}
		}
	}
	return true
}

// consistent checks that every row on every host has ended, is acknowledged, and tells what is
// so; and that both ends of a command agree.
func (s *sim) consistent(where string) {
	ends := map[string]bool{}
	for _, h := range s.hosts {
		all, err := h.m().List(ctx, api.CommandFilter{Limit: 100})
		require.NoError(s.t, err)
		for _, c := range all {
			c = h.get(c.ID)
			state := model.CommandState(c.State)
			about := fmt.Sprintf("%s: row %d on %s: %s (%s) error %q, %v", where, c.ID, h.name, c.State, c.Why, c.Error, path(c))
			require.True(s.t, state.Final(), about)
			assert.False(s.t, c.Unacknowledged, about)
			key := c.Origin + "-" + itoa(c.Sequence)
			done := c.Error == ""
			assert.Equal(s.t, s.w.applied[key], done, about)
			if other, known := ends[key]; known {
				assert.Equal(s.t, other, done, "both ends: %s", about)
			}
			ends[key] = done
			assert.False(s.t, c.Finished.IsZero(), about)
			for i := 1; i < len(path(c)); i++ {
				assert.True(s.t, model.CommandState(path(c)[i-1]).CanBecome(model.CommandState(path(c)[i])), about)
			}
		}
	}
	for key := range s.w.backends {
		_, known := ends[key]
		assert.True(s.t, known, "%s: %s runs and no journal knows it", where, key)
	}
}
