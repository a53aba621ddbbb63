package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/kinds"
	"virtlvm/internal/model"
	"virtlvm/test/fakevirt"
)

// manager is the commands' part of a daemon, with the real kinds.
type manager struct {
	*command.Manager
	stop func()
}

type noHosts struct{}

func (noHosts) Generation(context.Context, string) string { return "1" }
func (noHosts) Dead(context.Context, string, string) bool { return false }

func (r *rig) manage() *manager {
	r.t.Helper()
	return r.manageOn(r.a, peers{r.a.Daemon()}, func(d time.Duration) <-chan time.Time { return time.After(d / 50) })
}

// manageOn is manage for any host whose daemon runs.
func (r *rig) manageOn(h *Host, others command.Peers, after func(time.Duration) <-chan time.Time) *manager {
	r.t.Helper()
	m := command.New(command.Options{
		Journal: h.Store(), Peers: others, Hosts: noHosts{}, Kinds: r.kinds(h), Host: h.Name, BootID: h.bootID(),
		Log: slog.New(slog.NewTextHandler(h.log, nil)), Now: time.Now, Interval: time.Minute, After: after,
	})
	require.NoError(r.t, m.Resume(ctx))
	within, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(within)
	}()
	return &manager{m, func() { cancel(); <-done }}
}

func (r *rig) kinds(h *Host) map[string]command.Kind {
	all := map[string]command.Kind{}
	for name := range kinds.All(kinds.Deps{}) {
		all[name] = r.kind(h, name)
	}
	return all
}

func (m *manager) ask(t *testing.T, kind string, args any) api.Command {
	t.Helper()
	doc, err := json.Marshal(args)
	require.NoError(t, err)
	c, err := m.Request(ctx, api.CommandRequest{Kind: kind, Args: doc}, "operator uid 0")
	require.NoError(t, err)
	return c
}

func (m *manager) until(t *testing.T, id int64, state model.CommandState) api.Command {
	t.Helper()
	var c api.Command
	require.Eventually(t, func() bool {
		var err error
		c, err = m.View(ctx, id, false)
		require.NoError(t, err)
		return c.State == string(state)
	}, time.Minute, 5*time.Millisecond, "%s wanted; %+v", state, &c)
	return c
}

// longKind is a kind whose backend waits in the middle of its work until it is let go on.
type longKind struct {
	args any
	// before lets the backend wait; there: it does.
	before func(*rig) (open func(), there func() bool)
	after  func(*rig) // what must be so when it is done
}

func longKinds() map[string]longKind {
	return map[string]longKind{
		api.KindVolumeCopy: {copyArgs, func(r *rig) (func(), func() bool) {
			var waits atomic.Bool
			gate := make(chan struct{})
			r.jobs["kvm-a"].Gate = func(string, int) {
				waits.Store(true)
				<-gate
			}
			return func() { close(gate) }, waits.Load
		}, func(r *rig) {
			assert.Equal(r.t, pattern(), r.content("vg_two/copy"))
			assert.Equal(r.t, "off", r.state(r.a, "vg_two/copy"))
		}},
		api.KindVolumeMove: {moveArgs, func(r *rig) (func(), func() bool) {
			r.startVM1()
			return func() { require.NoError(r.t, r.a.Virt.CatchUp(ctx, "vm1", "vda")) }, func() bool { return true }
		}, func(r *rig) { assert.Equal(r.t, "/dev/vg_two/vm1", r.definedAt()) }},
		api.KindGuestMigrate: {migrateArgs, func(r *rig) (func(), func() bool) {
			r.startVM1()
			var waits atomic.Bool
			gate := make(chan struct{})
			r.step = func(s fakevirt.Step) error {
				if s == fakevirt.StepPerforming {
					waits.Store(true)
					<-gate
				}
				return nil
			}
			return func() { close(gate) }, waits.Load
		}, func(r *rig) { r.runsOn(r.b) }},
	}
}

// Each kind under the real framework: the daemon is killed while the backend works, and
// the next one adopts it.
func TestKindsAreAdopted(t *testing.T) {
	for kind, tt := range longKinds() {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			open, there := tt.before(r)
			open = sync.OnceFunc(open)
			t.Cleanup(open) // before the rig's own
			m := r.manage()
			c := m.ask(t, kind, tt.args)
			m.until(t, c.ID, model.StateBackend)
			require.Eventually(t, func() bool {
				c, err := m.View(ctx, c.ID, false)
				return err == nil && c.Progress != nil && c.Progress.Phase != "" && there()
			}, time.Minute, 5*time.Millisecond, "no progress")
			m.stop()
			r.a.StopDaemon()
			r.a.StartDaemon()
			m = r.manage()
			defer func() { m.stop() }()
			open()
			c = m.until(t, c.ID, model.StateCompleted)
			states := []string{}
			for _, h := range c.History {
				if h.From != h.To {
					states = append(states, h.To)
				}
			}
			assert.Equal(t, []string{"PROCESSING_IN_BACKEND", "DANGLED_IN_BACKEND", "PROCESSING_IN_BACKEND", "COMPLETED"}, states)
			assert.Empty(t, c.Error)
			tt.after(r)
		})
	}
}
