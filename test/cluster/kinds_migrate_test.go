package cluster

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/test/fakevirt"
)

var migrateArgs = api.MigrateArgs{Guest: "vm1", To: "kvm-b"}

// runsOn: vm1 runs on one host, which has its volume exclusively, and on no other.
func (r *rig) runsOn(h *Host) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for _, each := range r.c.Hosts {
			each.Engine().Kick()
			want := "off"
			if each == h {
				want = "ex"
			}
			if r.state(each, "vg_san/vm1") != want || r.guestState(each) != map[bool]string{true: "running", false: "shut off"}[each == h] {
				return false
			}
		}
		return true
	}, patience, 5*time.Millisecond, "vm1 should run on %s", h.Name)
}

func (r *rig) guestState(h *Host) string {
	r.t.Helper()
	all, err := h.Virt.List()
	require.NoError(r.t, err)
	for _, g := range all {
		if g.Name == "vm1" {
			return g.State
		}
	}
	return "shut off"
}

func TestGuestMigrate(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
	assert.Equal(t, "vm1", w.c.Targets[0].Name)
	var once sync.Once
	r.step = func(s fakevirt.Step) error {
		if s == fakevirt.StepPerforming {
			once.Do(func() {
				s, err := r.kind(r.a, api.KindGuestMigrate).Look(ctx, w.c)
				assert.NoError(t, err)
				assert.Equal(t, command.Running, s.Where)
				assert.Equal(t, int64(3), s.Progress.Total)
				_, err = r.ask(r.a, api.KindGuestMigrate, migrateArgs)
				assert.ErrorContains(t, err, "libvirt is busy with guest vm1 (migration out)")
			})
		}
		return nil
	}
	v := w.end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vm1 runs on kvm-b"}, v)
	r.runsOn(r.b)
	v, err := r.kind(r.b, api.KindGuestMigrate).Investigate(ctx, w.c)
	require.NoError(t, err)
	assert.Equal(t, command.Done, v.Outcome)
}

// The daemon of either host dies at any step of the migration, or that of the source at a
// line of its own: the verdict is where the guest is. Under the race detector it is every
// fourth step; make test runs them all without.
func TestGuestMigrateCrashes(t *testing.T) {
	judged := func(t *testing.T, r *rig, v command.Verdict) {
		t.Helper()
		if v.Outcome == command.Done {
			r.runsOn(r.b)
		} else {
			r.runsOn(r.a)
		}
	}
	for _, name := range []string{"start job", "revoke job"} {
		for _, after := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t)
				r.startVM1()
				r.kill.arm(0, name, after)
				r.step = func(s fakevirt.Step) error {
					if name == "revoke job" && s == fakevirt.StepPerforming {
						return fakevirt.ErrAborted
					}
					return nil
				}
				v := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs).end()
				assert.Equal(t, name, r.kill.hit)
				judged(t, r, v)
			})
		}
	}
	for i, at := range fakevirt.Steps() {
		if raceOn && i%4 != 0 {
			continue
		}
		for _, host := range []string{"kvm-a", "kvm-b"} {
			t.Run(string(at)+" "+host, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.startVM1()
				w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
				r.step = func(s fakevirt.Step) error {
					if s == at {
						r.c.Hosts[host].StopDaemon()
						r.c.Hosts[host].StartDaemon()
					}
					return nil
				}
				w.begun = true
				require.NoError(t, r.kind(r.a, api.KindGuestMigrate).Start(ctx, w.c))
				r.jobs["kvm-a"].Wait()
				judged(t, r, w.end())
			})
		}
	}
}

// A migration goes on without the daemon; the next one finds it out: just before the end,
// and when it has ended in between.
func TestGuestMigrateWhileTheDaemonIsDown(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
	down := make(chan struct{})
	r.step = func(s fakevirt.Step) error {
		if s == fakevirt.StepPerformed {
			r.a.StopDaemon()
			close(down)
		}
		return nil
	}
	v, s := w.once()
	assert.NotEqual(t, command.Done, v.Outcome)
	assert.Equal(t, command.Running, s.Where)
	<-down
	r.jobs["kvm-a"].Wait()
	r.a.StartDaemon()
	assert.Equal(t, command.Done, w.end().Outcome)
	r.runsOn(r.b)
}

func TestGuestMigrateFails(t *testing.T) {
	for name, tt := range map[string]struct {
		step func(*rig, fakevirt.Step) error
		want string
	}{
		"refused by the destination": {func(r *rig, s fakevirt.Step) error {
			if s == fakevirt.StepBegun {
				r.b.StopDaemon()
			}
			return nil
		}, "vm1 is still on kvm-a"},
		"aborted in libvirt": {func(_ *rig, s fakevirt.Step) error {
			if s == fakevirt.StepPerforming {
				return fakevirt.ErrAborted
			}
			return nil
		}, "vm1 is still on kvm-a"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.startVM1()
			r.step = func(s fakevirt.Step) error { return tt.step(r, s) }
			w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
			v := w.end()
			assert.Equal(t, command.NotDone, v.Outcome)
			assert.Contains(t, v.Reason, tt.want)
			assert.Contains(t, v.Reason, "(exit code 1)", "virsh's own words are there")
			if r.b.Daemon() == nil {
				r.b.StartDaemon()
			}
			r.runsOn(r.a)
		})
	}
}

func TestGuestMigrateCancelled(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
	var once sync.Once
	r.step = func(s fakevirt.Step) error {
		if s == fakevirt.StepPerforming {
			once.Do(func() { w.cancel("operator uid 0") })
		}
		return nil
	}
	v := w.end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Equal(t, "vm1 is still on kvm-a: it was cancelled: operator uid 0", v.Reason)
	r.runsOn(r.a)
}

// virsh is killed between the switch and its confirmation: the guest runs on the
// destination and is paused on the source. Nothing is decided until somebody ends that.
func TestGuestMigrateLeavesBoth(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	r.step = func(s fakevirt.Step) error {
		if s == fakevirt.StepSwitched {
			return fakevirt.ErrClientGone
		}
		return nil
	}
	w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
	var last command.Verdict
	require.Eventually(t, func() bool {
		var s command.Sight
		last, s = w.once()
		return s.Where == command.Ended
	}, patience, time.Millisecond)
	assert.Equal(t, command.NotYet, last.Outcome)
	assert.Equal(t, "vm1 has a QEMU on both kvm-a (paused) and kvm-b (running)", last.Reason)
	require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, command.Done, w.end().Outcome)
	r.runsOn(r.b)
}

// A guest that was paused arrives paused; one that ran and is paused there has not arrived.
func TestGuestMigratePaused(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	require.NoError(t, r.a.Virt.Suspend(ctx, "vm1"))
	w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
	assert.Equal(t, command.Done, w.end().Outcome)
	assert.Equal(t, "paused", r.guestState(r.b))

	r = newRig(t)
	r.startVM1()
	w = r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
	suspended := false
	r.step = func(s fakevirt.Step) error {
		if s == fakevirt.StepDone {
			suspended = true
			return r.b.Virt.Suspend(ctx, "vm1")
		}
		return nil
	}
	var last command.Verdict
	require.Eventually(t, func() bool {
		var s command.Sight
		last, s = w.once()
		return s.Where == command.Ended && last.Outcome != ""
	}, patience, time.Millisecond)
	assert.True(t, suspended)
	assert.Equal(t, command.NotYet, last.Outcome)
	assert.Equal(t, "vm1 is paused on kvm-b", last.Reason)
	require.NoError(t, r.b.Virt.Resume(ctx, "vm1"))
	assert.Equal(t, command.Done, w.end().Outcome)
}

// The source dies in the middle: its daemon finds out when it is back, and the origin, had
// it been another host, does before.
func TestGuestMigrateAndTheSourceDies(t *testing.T) {
	for name, tt := range map[string]struct {
		at   fakevirt.Step
		want command.Outcome
		text string
	}{
		"while memory moves":            {fakevirt.StepPerforming, command.NotDone, "vm1 has stopped: it runs on no host"},
		"after the guest has gone over": {fakevirt.StepSwitched, command.Done, "vm1 runs on kvm-b"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.startVM1()
			w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
			r.step = func(s fakevirt.Step) error {
				if s == tt.at {
					r.a.PowerCut()
					return fakevirt.ErrHostGone
				}
				return nil
			}
			_, _ = w.once()
			r.jobs["kvm-a"].Wait()
			require.NoError(t, r.b.Virt.ConnectionLost(ctx, "vm1"))
			v, err := r.kind(r.b, api.KindGuestMigrate).Investigate(ctx, w.c)
			require.NoError(t, err)
			assert.Equal(t, command.NotYet, v.Outcome, "sanlock has not declared it dead: %s", v.Reason)
			r.expire()
			v, err = r.kind(r.b, api.KindGuestMigrate).Investigate(ctx, w.c)
			require.NoError(t, err)
			assert.Equal(t, tt.want, v.Outcome, v.Reason)
			assert.Equal(t, tt.text, v.Reason)

			r.a.Boot()
			assert.Equal(t, tt.want, w.end().Outcome)
		})
	}
}

// The destination does not answer after a failure. That the source has the volumes
// exclusively says that nobody else runs with them.
func TestGuestMigrateAndTheDestinationIsSilent(t *testing.T) {
	r := newRig(t)
	var silent atomic.Bool // the daemons ask each other all the time
	r.c.Cut = func(string, string, string) bool { return silent.Load() }
	r.startVM1()
	w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
	r.step = func(s fakevirt.Step) error {
		if s == fakevirt.StepPerforming {
			silent.Store(true)
			return fakevirt.ErrAborted
		}
		return nil
	}
	w.tick = func(command.Sight) { r.a.Engine().Kick() } // the guest's status file has changed
	v := w.end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Contains(t, v.Reason, "vm1 is still on kvm-a, which has its volumes exclusively")
	silent.Store(false)
	r.runsOn(r.a)
}

func TestGuestMigrateRefuses(t *testing.T) {
	r := newRig(t)
	var silent atomic.Bool
	r.c.Cut = func(_, to, _ string) bool { return silent.Load() && to == "kvm-b" }
	for _, tt := range []struct {
		args api.MigrateArgs
		want string
	}{
		{api.MigrateArgs{Guest: "vm1", To: "kvm-b"}, "guest vm1 does not run on kvm-a; 'virtlvm guests' lists those that do, --host HOST asks another host"},
		{api.MigrateArgs{Guest: "vm1", To: "kvm-a"}, "guest vm1 is on kvm-a already"},
		{api.MigrateArgs{Guest: "vm1", To: "-x"}, `"-x" is not a name of a host`},
		{api.MigrateArgs{Guest: "vm1", To: "kvm-b", UndefineSource: true}, "--undefine-source without --persistent would leave no definition of vm1 anywhere"},
	} {
		_, err := r.ask(r.a, api.KindGuestMigrate, tt.args)
		require.EqualError(t, err, tt.want)
	}
	r.startVM1()
	silent.Store(true)
	_, err := r.ask(r.a, api.KindGuestMigrate, migrateArgs)
	require.EqualError(t, err, "cannot migrate vm1 to kvm-b: cannot reach kvm-b: no answer")
	silent.Store(false)
	_, err = r.ask(r.a, api.KindGuestMigrate, api.MigrateArgs{Guest: "vm1", To: "kvm-c"})
	require.EqualError(t, err, "cannot migrate vm1 to kvm-c: cannot reach kvm-c: no answer")
}

// The unit has vanished without a trace, and the migration has succeeded all the same.
func TestGuestMigrateWhoseUnitVanishes(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs)
	jobs := r.jobs["kvm-a"]
	run := jobs.Run
	jobs.Run = func(_ context.Context, argv []string, stdout, stderr io.Writer) int {
		code := run(context.Background(), argv, stdout, stderr)
		jobs.Lose(w.c.Key, backend.Lost)
		return code
	}
	assert.Equal(t, command.Done, w.end().Outcome)
	r.runsOn(r.b)
}
