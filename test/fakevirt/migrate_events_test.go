package fakevirt

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The operator's virsh dies at each step.
func TestClientGone(t *testing.T) {
	t.Parallel()
	const (
		runs     = "running booted | -"
		resumed  = "running migration canceled | -"
		leftOver = "paused migration | running migrated"
		over     = "- | running migrated"
	)
	destroyed := []string{"kvm-b stopped end -", "kvm-b release end destroyed"}
	tests := map[Step]struct {
		events []string
		states string
	}{
		StepBegun:       {nil, runs},
		StepMigrateHook: {slices.Concat(arrives, destroyed), runs}, // libvirt ends what it has begun
		StepStartHook:   {slices.Concat(arrives, destroyed), runs},
		StepStartedHook: {slices.Concat(arrives, destroyed), runs},
		StepPerforming:  {slices.Concat(arrives, destroyed), runs},
		StepPaused:      {slices.Concat(arrives, destroyed), resumed},
		StepPerformed:   {slices.Concat(arrives, destroyed), "paused migration | -"},
		StepSwitched:    {arrives, leftOver},
		StepConfirming:  {slices.Concat(arrives, leaves), over},
		StepStopped:     {slices.Concat(arrives, leaves), over},
	}
	for step, tt := range tests {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			var seen []string
			hook := p.b.o.Hook
			p.b.o.Hook = func(ctx context.Context, call HookCall) HookResult {
				seen = append(seen, call.Op+": "+p.state(p.a))
				return hook(ctx, call)
			}
			require.ErrorIs(t, p.migrate(MigrateOptions{}, step, func() error { return ErrClientGone }), ErrClientGone)
			assert.Equal(t, tt.events, p.take())
			assert.Equal(t, tt.states, p.states())
			if step == StepMigrateHook {
				assert.Equal(t, []string{
					"migrate: running booted, migration out begin3", "prepare: running booted", "start: running booted",
					"started: running booted", "stopped: running booted", "release: running booted",
				}, seen, "the source has forgotten it long before the destination has")
			}
		})
	}
	t.Run("with P2P it does not matter", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		require.ErrorIs(t, p.migrate(MigrateOptions{P2P: true}, StepMigrateHook, func() error { return ErrClientGone }), ErrClientGone)
		assert.Equal(t, slices.Concat(arrives, leaves), p.take())
		assert.Equal(t, over, p.states())
	})
	t.Run("left over", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		require.ErrorIs(t, p.migrate(MigrateOptions{}, StepSwitched, func() error { return ErrClientGone }), ErrClientGone)
		require.NoError(t, p.b.ConnectionLost(ctx, "vm1"), "its guest is not the client's any more")
		assert.Equal(t, leftOver, p.states())
		require.NoError(t, p.a.Resume(ctx, "vm1"))
		assert.Equal(t, "running unpaused | running migrated", p.states(), "nobody stops that")
		require.NoError(t, p.a.Destroy(ctx, "vm1"))
		assert.Equal(t, []string{"kvm-a stopped end -", "kvm-a release end destroyed"}, p.take()[4:])
		assert.Equal(t, over, p.states())
	})
}

// The destination's word that it runs the guest is lost: both do.
func TestReplyLost(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	require.ErrorIs(t, p.migrate(MigrateOptions{}, StepSwitched, func() error { return ErrReplyLost }), ErrReplyLost)
	assert.Equal(t, "running migration canceled | running migrated", p.states())
	assert.Equal(t, arrives, p.take())
}

// Things that happen to the hosts and their guests in the middle of it.
func TestMigrationMeetsTheWorld(t *testing.T) {
	t.Parallel()
	const runs, resumed = "running booted | -", "running migration canceled | -"
	const pipe = "operation failed: job 'migration out' failed: Unable to write to socket: Broken pipe"
	destroyed := []string{"kvm-b stopped end -", "kvm-b release end destroyed"}
	tests := map[string]struct {
		at     Step
		do     func(p *pair) error
		err    string // "" for success
		events []string
		states string
	}{
		"destination's QEMU killed": {
			StepPerforming, func(p *pair) error { return p.b.KillQEMU(ctx, "vm1") }, pipe,
			slices.Concat(arrives, []string{"kvm-b stopped end -", "kvm-b release end crashed"}), runs,
		},
		"destination's QEMU killed at once": {
			StepLaunched, func(p *pair) error { return p.b.KillQEMU(ctx, "vm1") }, "internal error: guest unexpectedly quit",
			slices.Concat(arrives[:3], []string{"kvm-b stopped end -", "kvm-b release end crashed"}), runs,
		},
		"destination's guest destroyed": {
			StepPaused, func(p *pair) error { return p.b.Destroy(ctx, "vm1") }, pipe, slices.Concat(arrives, destroyed), resumed,
		},
		"destination's guest destroyed before the switch": {
			StepPerformed, func(p *pair) error { return p.b.Destroy(ctx, "vm1") }, "internal error: guest unexpectedly quit",
			slices.Concat(arrives, destroyed), resumed,
		},
		"source's guest destroyed": {
			StepPerforming, func(p *pair) error { return p.a.Destroy(ctx, "vm1") }, "internal error: guest unexpectedly quit",
			slices.Concat(arrives, []string{"kvm-a stopped end -", "kvm-a release end destroyed"}, fails), "- | -",
		},
		"source's guest destroyed during Prepare": {
			StepPrepareHook, func(p *pair) error { return p.a.Destroy(ctx, "vm1") }, "internal error: guest unexpectedly quit",
			slices.Concat(arrives[:2], []string{"kvm-a stopped end -", "kvm-a release end destroyed"}, arrives[2:], fails), "- | -",
		},
		"source's QEMU killed": {
			StepPaused, func(p *pair) error { return p.a.KillQEMU(ctx, "vm1") }, "internal error: guest unexpectedly quit",
			slices.Concat(arrives, []string{"kvm-a stopped end -", "kvm-a release end crashed"}, fails), "- | -",
		},
		"source's guest destroyed after the switch": {
			StepSwitched, func(p *pair) error { return p.a.Destroy(ctx, "vm1") }, "",
			slices.Concat(arrives, []string{"kvm-a stopped end -", "kvm-a release end destroyed"}), "- | running migrated",
		},
		"destination's guest destroyed after the switch": {
			StepSwitched, func(p *pair) error { return p.b.Destroy(ctx, "vm1") }, "", slices.Concat(arrives, destroyed, leaves), "- | -",
		},
		"destination dies in its hook's place": {
			StepMigrateHook, func(p *pair) error { return p.powerCut(p.b) }, ErrHostGone.Error(), arrives[:1], runs,
		},
		"destination dies during Prepare": {
			StepStartHook, func(p *pair) error { return p.powerCut(p.b) }, ErrHostGone.Error(), arrives[:3], runs,
		},
		"destination dies mid-copy": {
			StepPerforming, func(p *pair) error { return p.powerCut(p.b) }, pipe, arrives, runs,
		},
		"destination dies before the switch": {
			StepPerformed, func(p *pair) error { return p.powerCut(p.b) }, ErrHostGone.Error(), arrives, resumed,
		},
		"destination dies after the switch": {
			StepSwitched, func(p *pair) error { return p.powerCut(p.b) }, "", slices.Concat(arrives, leaves), "- | -",
		},
		"source dies mid-copy": {
			StepPerforming, func(p *pair) error { return p.powerCut(p.a) }, ErrHostGone.Error(), arrives,
			"- | paused migration, migration in prepare",
		},
		"source dies before the switch": {
			StepPerformed, func(p *pair) error { return p.powerCut(p.a) }, ErrHostGone.Error(), arrives,
			"- | paused migration, migration in prepare",
		},
		"source dies after the switch": {
			StepSwitched, func(p *pair) error { return p.powerCut(p.a) }, ErrHostGone.Error(), arrives, "- | running migrated",
		},
		"source dies in its stopped": {
			StepStopped, func(p *pair) error { return p.powerCut(p.a) }, ErrHostGone.Error(), slices.Concat(arrives, leaves[:1]), "- | running migrated",
		},
		"source's libvirtd restarts mid-copy": {
			StepPaused, func(p *pair) error { return p.a.Reconnect(ctx) }, errNoJob.Error(),
			slices.Concat(arrives, []string{"kvm-a reconnect begin -"}, fails), resumed,
		},
		"source's libvirtd restarts when all has moved": {
			StepPerformed, func(p *pair) error { return p.a.Reconnect(ctx) }, "",
			slices.Concat(arrives, []string{"kvm-a reconnect begin -"}), "paused migration | running migrated",
		},
		"destination's libvirtd restarts mid-copy": {
			StepPerforming, func(p *pair) error { return p.b.Reconnect(ctx) }, pipe,
			slices.Concat(arrives, []string{"kvm-b stopped end -", "kvm-b release end daemon"}), runs,
		},
		"destination's libvirtd restarts after the switch": {
			StepSwitched, func(p *pair) error { return p.b.Reconnect(ctx) }, "",
			slices.Concat(arrives, []string{"kvm-b reconnect begin -"}, leaves), "- | running migrated",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			err := p.migrate(MigrateOptions{}, tt.at, func() error { return tt.do(p) })
			if tt.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, tt.err)
			}
			assert.Equal(t, tt.events, p.take())
			assert.Equal(t, tt.states, p.states())
			require.NoError(t, p.b.ConnectionLost(ctx, "vm1"))
			if strings.HasSuffix(tt.states, "prepare") {
				assert.Equal(t, destroyed, p.take())
				assert.Equal(t, "- | -", p.states())
			} else {
				assert.Empty(t, p.take())
			}
		})
	}
}

// What others may do to a guest while it migrates.
func TestCommandsDuringMigration(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	back := func() error { return Migrate(ctx, p.b.Host, p.a.Host, "vm1", MigrateOptions{}) }
	again := func() error { return Migrate(ctx, p.a.Host, p.b.Host, "vm1", MigrateOptions{}) }
	require.NoError(t, p.migrate(MigrateOptions{}, StepPaused, func() error {
		const another = "Requested operation is not valid: another migration job is already running for domain 'vm1'"
		require.EqualError(t, again(), another)
		require.EqualError(t, back(), another)
		require.EqualError(t, p.a.Start(ctx, "vm1"), "Requested operation is not valid: domain is already running")
		require.EqualError(t, p.b.Start(ctx, "vm1"), errBusy.Error())
		require.EqualError(t, p.a.Resume(ctx, "vm1"), errBusy.Error())
		require.EqualError(t, p.b.Resume(ctx, "vm1"), errBusy.Error())
		require.EqualError(t, p.b.Suspend(ctx, "vm1"), errBusy.Error())
		return p.a.Suspend(ctx, "vm1")
	}))
	assert.Equal(t, slices.Concat(arrives, leaves), p.take(), "and none of them calls a hook")
	require.NoError(t, p.b.Suspend(ctx, "vm1"))
	assert.Equal(t, "- | paused user", p.states())
	require.NoError(t, p.b.Resume(ctx, "vm1"))
	require.EqualError(t, p.b.Resume(ctx, "vm1"), "Requested operation is not valid: domain is already running")
	require.NoError(t, back(), "straight back again")
	assert.Equal(t, "running migrated | -", p.states())
}

// A plain start on the destination at each moment of a migration.
func TestPlainStartRace(t *testing.T) {
	t.Parallel()
	t.Run("first", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		require.NoError(t, p.b.keep(parse(t, p.definition()), "vm1"))
		err := p.migrate(MigrateOptions{}, StepMigrateHook, func() error { return p.b.Start(ctx, "vm1") })
		require.EqualError(t, err, "Requested operation is not valid: domain 'vm1' is already active")
		assert.Equal(t, arrives, p.take(), "the start's own but for the first")
		assert.Equal(t, "running booted | running booted", p.states(), "libvirt lets it")
	})
	t.Run("too late", func(t *testing.T) {
		t.Parallel()
		for _, step := range []Step{StepPrepareHook, StepStartHook, StepLaunched, StepPerformed} {
			p := newPair(t)
			require.NoError(t, p.b.keep(parse(t, p.definition()), "vm1"))
			require.NoError(t, p.migrate(MigrateOptions{}, step, func() error {
				require.EqualError(t, p.b.Start(ctx, "vm1"), errBusy.Error(), step)
				return nil
			}))
			assert.Equal(t, slices.Concat(arrives, leaves), p.take())
		}
	})
	for name, code := range map[string]int{"hook passes": 0, "hook refuses": 1} {
		t.Run("in its prepare, "+name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			require.NoError(t, p.b.keep(parse(t, p.definition()), "vm1"))
			inHook, started := make(chan struct{}), make(chan error, 1)
			goOn := make(chan struct{})
			hook, first := p.b.o.Hook, sync.Once{}
			p.b.o.Hook = func(ctx context.Context, call HookCall) HookResult {
				r := hook(ctx, call)
				if call.Op == "prepare" {
					first.Do(func() {
						close(inHook)
						<-goOn
						r.Code = code
					})
				}
				return r
			}
			go func() { started <- p.b.Start(ctx, "vm1") }()
			<-inHook
			err := p.migrate(MigrateOptions{}, StepMigrateHook, func() error {
				close(goOn) // the migration's hook `migrate` ran while the start was in `prepare`
				return nil
			})
			startErr := <-started
			require.Equal(t, []string{"kvm-b prepare begin -", "kvm-b migrate begin -"}, p.events[:2])
			if code == 0 {
				require.NoError(t, startErr)
				require.EqualError(t, err, "Requested operation is not valid: domain 'vm1' is already active")
				assert.Equal(t, "running booted | running booted", p.states())
				return
			}
			require.Error(t, startErr)
			require.NoError(t, err)
			assert.Equal(t, slices.Concat(
				[]string{"kvm-b prepare begin -", "kvm-b migrate begin -"}, fails, arrives[1:], leaves), p.take())
		})
	}
}

// Both directions at once, and many.
func TestConcurrentMigrations(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	names := []string{"g1", "g2", "g3", "g4"}
	for i, name := range names {
		host := []*bench{p.a, p.b}[i%2]
		p.a.disk("/dev/vg_san/"+name, nil)
		host.define(domain(name, strings.Replace(uuid1, "1", string(rune('a'+i)), 1),
			"<disk type='block' device='disk'><source dev='/dev/vg_san/"+name+"'/><target dev='vda' bus='virtio'/></disk>"))
		host.start(name)
	}
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			from, to := p.a.Host, p.b.Host
			if i%2 == 1 {
				from, to = to, from
			}
			for range 2 {
				assert.NoError(t, Migrate(ctx, from, to, name, MigrateOptions{}))
				from, to = to, from
			}
		})
		// The same guest twice: one wins, or they go one after the other.
		wg.Go(func() { _ = Migrate(ctx, p.a.Host, p.b.Host, "vm1", MigrateOptions{}) })
	}
	wg.Wait()
	assert.Equal(t, "- | running migrated", p.states())
	for i, name := range names {
		assert.Equal(t, "running", []*bench{p.a, p.b}[i%2].guest(name).State, name)
	}
}
