package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/test/fakevirt"
)

// inBubble runs a test of hosts whose time is not real, with vm1 running on kvm-a, and wants
// everything to be settled at its end.
func inBubble(t *testing.T, hosts []string, test func(t *testing.T, c *Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := NewWith(t, Options{Hosts: hosts, Timeout: 20 * time.Second, Patience: time.Minute})
		c.o.Changed = func(host string, _ fakevirt.Change) { // what internal/guests watches
			if d := c.Hosts[host].Daemon(); d != nil {
				d.engine.Kick()
			}
		}
		for _, host := range hosts {
			c.Hosts[host].StartDaemon()
		}
		vm1Runs(t, c)
		test(t, c)
		c.awaitSettled(5 * time.Minute)
		assert.Empty(t, c.Unsettled(ctx))
		assert.Empty(t, c.Unsafe(nobody))
	})
}

func pair() []string { return []string{"kvm-a", "kvm-b"} }

// safely checks at each step of a migration what must never be seen, and does something at
// one of them.
func safely(c *Cluster, at fakevirt.Step, do func() error) func(fakevirt.Step) error {
	return func(s fakevirt.Step) error {
		if bad := c.Unsafe(nobody); bad != "" {
			c.T.Errorf("%s: %s", s, bad)
		}
		if s == at {
			return do()
		}
		return nil
	}
}

func migrate(c *Cluster, from, to string, o fakevirt.MigrateOptions) error {
	return fakevirt.Migrate(ctx, c.Hosts[from].Virt, c.Hosts[to].Virt, vm1, o)
}

// l: each hook is called twice.
func TestRowLHooksTwice(t *testing.T) {
	inBubble(t, pair(), func(t *testing.T, c *Cluster) {
		b := c.Hosts["kvm-b"]
		var migrating []byte // the domain as the migration's own `migrate` made it
		again := func(op string, xml []byte) api.HookVerdict {
			return b.Engine().Hook(ctx, api.HookCall{Guest: vm1, UUID: UUID(1), Op: op, SubOp: "begin", Extra: "-", XML: xml, Stamp: b.stamp()})
		}
		c.Spy = func(host string, call fakevirt.HookCall) {
			if host == "kvm-b" && call.Op == "prepare" {
				migrating = call.XML
			}
		}
		require.NoError(t, migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
			switch s {
			case fakevirt.StepPrepareHook:
				v := again("prepare", migrating)
				assert.True(t, v.Allow, v.Message)
			case fakevirt.StepStartHook:
				assert.True(t, again("start", migrating).Allow)
			case fakevirt.StepStartedHook:
				assert.True(t, again("started", migrating).Allow)
				v := again("prepare", migrating)
				assert.False(t, v.Allow, "it has a QEMU by now")
			}
			return nil
		}}))
		c.awaitSettled(time.Minute)
		assert.Equal(t, []string{"kvm-b"}, runsOn(c))
		grant, ok, err := domain.GrantOf(migrating)
		require.NoError(t, err)
		require.True(t, ok)
		// The grant stays behind in the domain. It was good once.
		require.NoError(t, b.Virt.Destroy(ctx, vm1))
		v := again("prepare", migrating)
		assert.True(t, v.Allow, "a plain start: %s", v.Message)
		assert.Equal(t, "ex", b.Mode(vm1), "and so exclusive, grant %s or not", grant.ID)
	})
}

// l: what a daemon was not there to be told is told later, after the guest has come back.
func TestRowLSpoolAfterTheGuestIsBack(t *testing.T) {
	inBubble(t, pair(), func(t *testing.T, c *Cluster) {
		a := c.Hosts["kvm-a"]
		a.c.o.Patience = time.Second
		var spooled []api.HookCall
		require.NoError(t, migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: safely(c, fakevirt.StepConfirming, func() error {
			a.StopDaemon()
			return nil
		})}))
		spooled = append(spooled, a.spool...)
		require.NotEmpty(t, spooled, "stopped and release of the source")
		a.StartDaemon()
		c.awaitSettled(time.Minute)
		assert.Equal(t, "un", a.Mode(vm1))
		a.c.o.Patience = time.Minute
		require.NoError(t, migrate(c, "kvm-b", "kvm-a", fakevirt.MigrateOptions{Step: safely(c, fakevirt.StepPerforming, func() error {
			a.mu.Lock()
			a.spool = append(a.spool, spooled...) // while it arrives,
			a.mu.Unlock()
			time.Sleep(10 * time.Second)
			return nil
		})}))
		c.awaitSettled(time.Minute)
		a.mu.Lock()
		a.spool = append(a.spool, spooled...) // and while it runs
		a.mu.Unlock()
		time.Sleep(10 * time.Second)
		assert.Equal(t, "ex", a.Mode(vm1))
	})
}

// l: events in any order, of a guest that runs: they make us look, and nothing else.
func TestRowLOutOfOrder(t *testing.T) {
	inBubble(t, pair(), func(t *testing.T, c *Cluster) {
		a := c.Hosts["kvm-a"]
		xml := XML(vm1, UUID(1), Disk{Path: vm1})
		for _, op := range []string{"release", "stopped", "started", "start", "reconnect", "release", "release", "stopped"} {
			v := a.Engine().Hook(ctx, api.HookCall{Guest: vm1, Op: op, SubOp: "end", Extra: "-", XML: xml, Stamp: a.stamp()})
			assert.True(t, v.Allow, "%s: %s", op, v.Message)
			time.Sleep(2 * time.Minute)
			assert.Equal(t, "ex", a.Mode(vm1), op)
		}
	})
}

// l: both daemons are replaced by others, as in an upgrade, between any two steps.
func TestRowLUpgrade(t *testing.T) {
	for _, step := range fakevirt.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			inBubble(t, pair(), func(t *testing.T, c *Cluster) {
				err := migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: safely(c, step, func() error {
					for _, h := range c.Hosts {
						h.StopDaemon()
						h.StartDaemon()
					}
					return nil
				})})
				require.NoError(t, err)
				assert.Equal(t, []string{"kvm-b"}, runsOn(c))
			})
		})
	}
}

// m: libvirtd is restarted on either side at any step: `reconnect` always passes, and the
// guest ends on one host, or libvirt has killed it.
func TestRowM(t *testing.T) {
	for _, step := range fakevirt.Steps() {
		for _, host := range pair() {
			t.Run(string(step)+" "+host, func(t *testing.T) {
				t.Parallel()
				inBubble(t, pair(), func(t *testing.T, c *Cluster) {
					err := migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
						if bad := c.Unsafe(nobody); bad != "" {
							t.Errorf("%s: %s", s, bad)
						}
						if s != step || s == fakevirt.StepStopped { // there the guest is locked
							return nil
						}
						assert.NoError(t, c.Hosts[host].RestartLibvirtd(ctx), "a hook has failed, or a guest was not found as it was")
						return nil
					}})
					c.awaitSettled(5 * time.Minute)
					for _, h := range c.Hosts {
						require.NoError(t, h.RestartLibvirtd(ctx))
					}
					c.awaitSettled(5 * time.Minute)
					if len(runsOn(c)) == 2 { // as row n: paused here, running there
						require.NoError(t, c.Hosts["kvm-a"].Virt.Destroy(ctx, vm1))
					}
					t.Logf("migrate: %v; runs on %v", err, runsOn(c))
					assert.LessOrEqual(t, len(runsOn(c)), 1)
				})
			})
		}
	}
}

// o: the source's host dies before the switch: both let go in time.
func TestRowO(t *testing.T) {
	for _, step := range fakevirt.Steps() {
		if step == fakevirt.StepSwitched {
			break
		}
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			inBubble(t, pair(), func(t *testing.T, c *Cluster) {
				a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
				err := migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: safely(c, step, func() error {
					a.PowerCut()
					return fakevirt.ErrHostGone
				})})
				require.Error(t, err)
				time.Sleep(26 * time.Second) // libvirt's keepalive
				require.NoError(t, b.Virt.ConnectionLost(ctx, vm1))
				time.Sleep(90 * time.Second)
				assert.Equal(t, "un", b.Mode(vm1), "nothing migrates for ever")
				assert.Zero(t, b.Engine().Status(ctx).Holds)
				require.NoError(t, b.Virt.Start(ctx, vm1), "sanlock has freed the dead host's lease")
				assert.Equal(t, "ex", b.Mode(vm1))
				a.Boot()
				require.Error(t, a.Virt.Start(ctx, vm1))
			})
		})
	}
}

// p: the network fails while a post-copy migration has its memory on both hosts: both wait,
// and nothing is given away.
func TestRowP(t *testing.T) {
	inBubble(t, []string{"kvm-a", "kvm-b", "kvm-c"}, func(t *testing.T, c *Cluster) {
		a, b, other := c.Hosts["kvm-a"], c.Hosts["kvm-b"], c.Hosts["kvm-c"]
		err := migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{PostCopy: true, Step: safely(c, fakevirt.StepPostCopy, func() error {
			c.Cut = func(string, string, string) bool { return true }
			return assert.AnError
		})})
		require.Error(t, err)
		for range 10 {
			time.Sleep(time.Minute)
			assert.Equal(t, []string{"sh", "sh"}, []string{a.Mode(vm1), b.Mode(vm1)})
			assert.Error(t, other.Virt.Start(ctx, vm1))
		}
		for _, h := range []*Host{a, b} { // nor by a daemon that comes anew, connected or not
			h.StopDaemon()
			h.StartDaemon()
		}
		c.Cut = nil
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"sh", "sh"}, []string{a.Mode(vm1), b.Mode(vm1)})
		require.NoError(t, a.Virt.Destroy(ctx, vm1))
		require.NoError(t, b.Virt.Destroy(ctx, vm1))
		c.awaitSettled(time.Minute)
		require.NoError(t, other.Virt.Start(ctx, vm1))
	})
}

// A host that is not the destination of a migration can at most make it be refused.
func TestStrangerAsksForTheGuest(t *testing.T) {
	inBubble(t, []string{"kvm-a", "kvm-b", "kvm-c"}, func(t *testing.T, c *Cluster) {
		a := c.Hosts["kvm-a"]
		var granted api.LendAnswer
		err := migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: safely(c, fakevirt.StepPerforming, func() error {
			_, err := a.Engine().Lend(ctx, "kvm-c", api.LendRequest{UUID: UUID(1), Guest: vm1})
			assert.ErrorContains(t, err, "guest vm1 is being migrated to kvm-b already")
			holds, err := a.Store().Holds(ctx)
			require.NoError(t, err)
			for _, h := range holds {
				answer, err := a.Engine().GrantGood(ctx, "kvm-c", api.GrantQuery{UUID: UUID(1), Grant: h.Grant.ID})
				require.NoError(t, err)
				assert.False(t, answer.Good, "it is kvm-b's")
			}
			return nil
		})})
		require.NoError(t, err)
		c.awaitSettled(time.Minute)
		// And earlier than the destination: then the destination is refused.
		err = migrate(c, "kvm-b", "kvm-a", fakevirt.MigrateOptions{Step: safely(c, fakevirt.StepBegun, func() error {
			granted, err = c.Hosts["kvm-b"].Engine().Lend(ctx, "kvm-c", api.LendRequest{UUID: UUID(1), Guest: vm1})
			return err
		})})
		require.True(t, granted.Migrating)
		require.ErrorContains(t, err, "guest vm1 is being migrated to kvm-c already")
		c.awaitSettled(time.Minute)
		assert.Equal(t, "ex", c.Hosts["kvm-b"].Mode(vm1))
	})
}

// Two hosts have one host id: sanlock lets the second one in no lockspace, and so it starts
// nothing.
func TestTwoHostsWithOneID(t *testing.T) {
	inBubble(t, pair(), func(t *testing.T, c *Cluster) {
		b := c.Hosts["kvm-b"]
		b.StopDaemon()
		require.NoError(t, b.LVM.LockStop("vg_san"))
		require.NoError(t, b.LVM.SetID(c.Hosts["kvm-a"].LVM.ID()))
		require.Error(t, b.LVM.LockStart("vg_san"))
		b.StartDaemon()
		err := migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: safely(c, "", nil)})
		require.ErrorContains(t, err, "cannot tell who holds vg_san/vm1")
		require.ErrorContains(t, b.Virt.Start(ctx, vm1), "the lockspace of vg_san is not started on this host")
		assert.Equal(t, "ex", c.Hosts["kvm-a"].Mode(vm1))
		require.NoError(t, b.LVM.SetID(2))
		require.NoError(t, b.LVM.LockStart("vg_san"))
	})
}
