package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
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

// longKind is a command whose backend waits in the middle of its work until it is let go on.
type longKind struct {
	kind string
	args any
	// before lets the backend wait; there: it does.
	before func(*rig) (open func(), there func() bool)
	after  func(*rig) // what must be so when it is done
	// all: it ends only when every host has said that it does not need the volume.
	all bool
}

// gated lets the jobs of host a wait.
func gated(r *rig) (open func(), there func() bool) {
	var waits atomic.Bool
	gate := make(chan struct{})
	r.jobs["kvm-a"].Gate = func(string, int) {
		waits.Store(true)
		<-gate
	}
	return func() { close(gate) }, waits.Load
}

// and makes what is there before a gate.
func and(first func(*rig)) func(*rig) (func(), func() bool) {
	return func(r *rig) (func(), func() bool) {
		first(r)
		return gated(r)
	}
}

// midMigration lets a live migration wait while memory moves.
func midMigration(r *rig) (open func(), there func() bool) {
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
}

// copying: the disk of a running guest catches up when it is let go on.
func copying(r *rig) (open func(), there func() bool) {
	r.startVM1()
	return func() { require.NoError(r.t, r.a.Virt.CatchUp(ctx, "vm1", "vda")) }, func() bool { return true }
}

// backingUp lets libvirt's backup of a running guest wait.
func backingUp(r *rig) (open func(), there func() bool) {
	r.startVM1()
	var waits atomic.Bool
	gate := make(chan struct{})
	r.duringBackup = func(context.Context) error {
		waits.Store(true)
		<-gate
		return nil
	}
	return func() { close(gate) }, waits.Load
}

// longKinds are all commands with a backend, by a name.
func longKinds() map[string]longKind {
	moved := func(r *rig) {
		assert.Equal(r.t, "/dev/vg_two/vm1", r.definedAt())
		assert.Equal(r.t, []string{"virtlvm.superseded"}, r.tags("vg_san/vm1"))
	}
	complete := func(name string) func(*rig) {
		return func(r *rig) {
			assert.True(r.t, bytes.Equal(r.content("vg_san/vm1"), r.content(name)))
			for _, tag := range r.tags(name) {
				assert.NotContains(r.t, tag, model.TagIncomplete)
			}
			assert.Equal(r.t, "off", r.state(r.a, name))
		}
	}
	onB := func(r *rig) {
		assert.True(r.t, r.isDefined(r.b))
		assert.Equal(r.t, "off", r.state(r.a, "vg_san/vm1"))
	}
	only := func(r *rig) { require.NoError(r.t, os.Remove(filepath.Join(r.b.dir, "etc/libvirt/qemu/vm1.xml"))) }
	return map[string]longKind{
		"copy":                 {api.KindVolumeCopy, copyArgs, gated, complete("vg_two/copy"), false},
		"move, running":        {api.KindVolumeMove, moveArgs, copying, moved, false},
		"move, off":            {api.KindVolumeMove, moveArgs, gated, moved, false},
		"migrate":              {api.KindGuestMigrate, migrateArgs, midMigration, func(r *rig) { r.runsOn(r.b) }, false},
		"migrate, off":         {api.KindGuestMigrate, api.MigrateArgs{Guest: "vm1", To: "kvm-b", Offline: true}, and(only), onB, false},
		"guest to group":       {api.KindGuestMove, guestMoveArgs, copying, moved, false},
		"guest to group, off":  {api.KindGuestMove, guestMoveArgs, gated, moved, false},
		"guest to host":        {api.KindGuestMove, api.GuestMoveArgs{Guest: "vm1", ToHost: "kvm-b"}, midMigration, func(r *rig) { r.runsOn(r.b) }, false},
		"erase":                {api.KindVolumeErase, eraseArgs, and(eraseRig), func(r *rig) { r.zeros(rigSize); assert.Empty(r.t, r.tags("vg_san/old")) }, false},
		"delete, zeroed":       {api.KindVolumeDelete, deleteArgs, and(eraseRig), func(r *rig) { assert.False(r.t, r.exists("vg_san/old")) }, true},
		"snapshot":             {api.KindVolumeSnapshot, snapshotArgs, gated, complete("vg_two/snap"), false},
		"snapshot, of running": {api.KindVolumeSnapshot, snapshotArgs, backingUp, complete("vg_two/snap"), false},
	}
}

// Each kind under the real framework: the daemon is killed while the backend works, and
// the next one adopts it.
func TestKindsAreAdopted(t *testing.T) {
	for name, tt := range longKinds() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			open, there := tt.before(r)
			open = sync.OnceFunc(open)
			t.Cleanup(open) // before the rig's own
			m := r.manage()
			c := m.ask(t, tt.kind, tt.args)
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
			m.until(t, c.ID, model.StateBackend)
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
