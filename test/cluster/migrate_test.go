package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// two makes a cluster of two hosts, with the guest vm1 running on the first. The
// scenarios below are named after the rows of docs/design: what must hold.
func two(t *testing.T) (c *Cluster, a, b *Host) {
	t.Helper()
	c = New(t, "kvm-a", "kvm-b")
	a, b = c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	define(t, b, "vm1", 1, Disk{Path: "vm1"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	return c, a, b
}

// ends waits until a host has a lock mode on vm1 and nothing is on its way.
func ends(t *testing.T, h *Host, mode string) {
	t.Helper()
	require.Eventually(t, func() bool {
		h.Engine().Kick() // rather than wait for the next try
		return h.Mode("vm1") == mode
	}, patience, 50*time.Millisecond, "%s should end with %s, has %s", h.Name, mode, h.Mode("vm1"))
	settled(t, h)
}

// neverTwice checks, at each step of a migration, what LVM must never show.
func neverTwice(t *testing.T, a, b *Host) func(fakevirt.Step) error {
	return func(s fakevirt.Step) error {
		ma, mb := a.Mode("vm1"), b.Mode("vm1")
		if ma == "ex" && mb != "un" || mb == "ex" && ma != "un" {
			t.Errorf("%s: kvm-a %s, kvm-b %s", s, ma, mb)
		}
		return nil
	}
}

func TestRowA(t *testing.T) {
	_, a, b := two(t)
	var seen []string
	check := neverTwice(t, a, b)
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		seen = append(seen, fmt.Sprintf("%s: %s %s", s, a.Mode("vm1"), b.Mode("vm1")))
		return check(s)
	}}))
	assert.Equal(t, "begun: ex un", seen[0])
	assert.Equal(t, "migrate hook: sh sh", seen[1])
	assert.Contains(t, seen, "performing: sh sh")
	ends(t, a, "un")
	ends(t, b, "ex")
	assert.False(t, a.LVM.Active("vg_san", "vm1"))
	require.NoError(t, b.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, "un", b.Mode("vm1"))
}

// What the source lets go of is taken at once: other hints wait for more of them, here for
// ever, and this one does not.
func TestTheEndOfAMigrationIsSeenAtOnce(t *testing.T) {
	c := NewWith(t, Options{Hosts: []string{"kvm-a", "kvm-b"}, After: func(_ *Daemon, pause time.Duration) <-chan time.Time {
		if pause == 50*time.Millisecond {
			return nil
		}
		return time.After(pause)
	}})
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	a.StartDaemon()
	b.StartDaemon()
	lvs(t, c, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	define(t, b, "vm1", 1, Disk{Path: "vm1"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s == fakevirt.StepSwitched {
			b.Engine().Kick() // what libvirt writes there
		}
		return nil
	}}))
	assert.Eventually(t, func() bool { return b.Mode("vm1") == "ex" }, patience, 10*time.Millisecond)
}

// refuse gives a migration an error at a step.
func failAt(at fakevirt.Step, err error) func(fakevirt.Step) error {
	return func(s fakevirt.Step) error {
		if s == at {
			return err
		}
		return nil
	}
}

// Rows b to d: whatever fails before the switch, the source ends with EX and the
// destination with nothing.
func TestRowsBToD(t *testing.T) {
	for _, step := range fakevirt.Steps() {
		if step == fakevirt.StepSwitched {
			break
		}
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			_, a, b := two(t)
			err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: failAt(step, fakevirt.ErrAborted)})
			require.Error(t, err)
			b.Engine().Kick()
			a.Engine().Kick()
			ends(t, b, "un")
			ends(t, a, "ex")
		})
	}
}

func TestRowBTypeThatCannotBeShared(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	_, err := c.SAN.AddLV("vg_san", san.LVSpec{Name: "vm1", Type: "raid1"})
	require.NoError(t, err)
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	err = fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{})
	require.Error(t, err)
	assert.Contains(t, err.Error(), "virtlvm: cannot migrate vm1: kvm-a holds its volumes and does not lend them: vg_san/vm1 is of type raid1, which LVM cannot share between two hosts")
	ends(t, b, "un")
	ends(t, a, "ex")
}

// b2, b3: libvirt gives up after our `migrate` hook, with no further hook; a plain start on
// the destination at that moment is refused, though the volumes are shared with it.
func TestRowB2AndB3(t *testing.T) {
	_, a, b := two(t)
	err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s != fakevirt.StepMigrateHook {
			return nil
		}
		assert.Equal(t, "sh", b.Mode("vm1"))
		start := b.Virt.Start(ctx, "vm1")
		require.Error(t, start)
		assert.Contains(t, start.Error(), "guest vm1 is being migrated to this host from kvm-a")
		assert.Equal(t, "sh", b.Mode("vm1"))
		return errors.New("operation failed: domain is already active")
	}})
	require.Error(t, err)
	b.Engine().Kick()
	ends(t, b, "un")
	a.Engine().Kick()
	ends(t, a, "ex")
}

// e: the daemon of either side dies at every step and comes back.
func TestRowE(t *testing.T) {
	for _, step := range fakevirt.Steps() {
		for _, victim := range []string{"kvm-a", "kvm-b"} {
			t.Run(fmt.Sprintf("%s %s", step, victim), func(t *testing.T) {
				t.Parallel()
				c, a, b := two(t)
				check := neverTwice(t, a, b)
				err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
					if s == step {
						c.Hosts[victim].StopDaemon()
						c.Hosts[victim].StartDaemon()
					}
					return check(s)
				}})
				if err != nil { // refused, then: as if nothing had been asked
					ends(t, b, "un")
					ends(t, a, "ex")
					return
				}
				ends(t, a, "un")
				ends(t, b, "ex")
			})
		}
	}
}

// f: the relay is cut between any two steps: refused before memory moves; after that both
// ends finish by themselves.
func TestRowF(t *testing.T) {
	for _, step := range fakevirt.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			c, a, b := two(t)
			var mu sync.Mutex
			cut := false
			c.Cut = func(string, string, string) bool {
				mu.Lock()
				defer mu.Unlock()
				return cut
			}
			check := neverTwice(t, a, b)
			err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
				if s == step {
					mu.Lock()
					cut = true
					mu.Unlock()
				}
				return check(s)
			}})
			if step == fakevirt.StepBegun || step == fakevirt.StepMigrateHook {
				require.Error(t, err, "the source cannot be asked")
				c.Advance(61 * time.Second)
				b.Engine().Kick()
				a.Engine().Kick()
				ends(t, b, "un")
				ends(t, a, "ex")
				return
			}
			require.NoError(t, err)
			ends(t, a, "un")
			ends(t, b, "ex")
		})
	}
}

// g: the destination's host dies while memory moves.
func TestRowG(t *testing.T) {
	c, a, b := two(t)
	err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s == fakevirt.StepPerforming {
			b.PowerCut()
			return fakevirt.ErrHostGone
		}
		return nil
	}})
	require.Error(t, err)
	a.Engine().Kick()
	time.Sleep(50 * time.Millisecond)
	assert.Equal(t, "sh", a.Mode("vm1"), "the dead host's lease protects still")
	c.Advance(90 * time.Second)
	a.Engine().Kick()
	ends(t, a, "ex")
}

// h: the source's host dies after the switch.
func TestRowH(t *testing.T) {
	c, a, b := two(t)
	_ = fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s == fakevirt.StepSwitched {
			a.PowerCut()
			return fakevirt.ErrHostGone
		}
		return nil
	}})
	b.Engine().Kick()
	time.Sleep(50 * time.Millisecond)
	assert.Equal(t, "sh", b.Mode("vm1"))
	c.Advance(90 * time.Second)
	b.Engine().Kick()
	ends(t, b, "ex")
}

// i: straight back again, several times.
func TestRowI(t *testing.T) {
	_, a, b := two(t)
	from, to := a, b
	for range 4 {
		require.NoError(t, fakevirt.Migrate(ctx, from.Virt, to.Virt, "vm1", fakevirt.MigrateOptions{Step: neverTwice(t, a, b)}))
		from, to = to, from
	}
	ends(t, a, "ex")
	ends(t, b, "un")
}

// j: variants of a migration.
func TestRowJ(t *testing.T) {
	for name, o := range map[string]fakevirt.MigrateOptions{
		"p2p": {P2P: true}, "tunnelled": {P2P: true, Tunnelled: true}, "postcopy": {PostCopy: true}, "suspend": {Suspend: true},
		"persistent": {Persistent: true, UndefineSource: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, a, b := two(t)
			o.Step = neverTwice(t, a, b)
			require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", o))
			ends(t, a, "un")
			ends(t, b, "ex")
		})
	}
	t.Run("copy-storage-all", func(t *testing.T) {
		_, a, b := two(t)
		err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{CopyStorageAll: true})
		require.Error(t, err)
		assert.Contains(t, err.Error(), "would copy its volumes onto themselves")
		ends(t, b, "un")
		ends(t, a, "ex")
	})
	t.Run("offline", func(t *testing.T) {
		_, a, b := two(t)
		require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Offline: true, Persistent: true}))
		ends(t, b, "un")
		ends(t, a, "ex")
	})
}

// k: a chain, a shareable disk, two volume groups, an unmanaged disk.
func TestRowK(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	require.NoError(t, c.SAN.AddVG(san.VGSpec{Name: "vg_two"}))
	for vg, names := range map[string][]string{"vg_san": {"vm1", "base", "quorum"}, "vg_two": {"data"}, "vg_plain": {"local"}} {
		for _, name := range names {
			_, err := c.SAN.AddLV(vg, san.LVSpec{Name: name})
			require.NoError(t, err)
		}
	}
	for _, h := range []*Host{a, b} {
		_, err := h.Run("lvchange", "-ay", "vg_plain/local")
		require.NoError(t, err)
	}
	qcow2(t, c, "vm1", "/dev/vg_san/base", "qcow2")
	qcow2(t, c, "base", "", "")
	define(t, a, "vm1", 1, Disk{Path: "vm1", Format: "qcow2"}, Disk{Path: "quorum", Extra: "<shareable/>"},
		Disk{Path: "/dev/vg_two/data"}, Disk{Path: "/dev/vg_plain/local"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: neverTwice(t, a, b)}))
	ends(t, a, "un")
	ends(t, b, "ex")
	modes := func(h *Host) string { return h.Mode("base") + h.Mode("quorum") + h.LVM.LockMode("vg_two", "data") }
	require.Eventually(t, func() bool { return modes(a) == "ununun" && modes(b) == "shshex" }, patience, 10*time.Millisecond, "%s %s", modes(a), modes(b))
}

// n: the operator's virsh dies between the switch and its confirmation.
func TestRowN(t *testing.T) {
	_, a, b := two(t)
	err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: failAt(fakevirt.StepSwitched, fakevirt.ErrClientGone)})
	require.ErrorIs(t, err, fakevirt.ErrClientGone)
	a.Engine().Kick()
	require.Eventually(t, func() bool {
		p := a.Engine().Status(ctx).Problems
		return len(p) == 1 && assert.ObjectsAreEqual("guest vm1 runs on kvm-b, and a paused left-over of it is here: run 'virsh destroy vm1' on kvm-a, never 'virsh resume'", p[0])
	}, patience, 10*time.Millisecond, "%v", a.Engine().Status(ctx).Problems)
	assert.Equal(t, "sh", a.Mode("vm1"), "never two writers: neither has it alone")
	assert.Equal(t, "sh", b.Mode("vm1"))
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	ends(t, a, "un")
	b.Engine().Kick()
	ends(t, b, "ex")
}

// Rule 5: a reader must not slip in while a writer is lent. A host that has just joined cannot
// tell yet whether the others live: unknown is not gone.
func TestReaderDuringAMigration(t *testing.T) {
	for name, justBooted := range map[string]bool{"": false, "just after a boot": true} {
		t.Run(name, func(t *testing.T) {
			c := New(t, "kvm-a", "kvm-b", "kvm-c")
			a, b, other := c.Hosts["kvm-a"], c.Hosts["kvm-b"], c.Hosts["kvm-c"]
			lvs(t, c, "vm1")
			define(t, a, "vm1", 1, Disk{Path: "vm1"})
			define(t, other, "reader", 3, Disk{Path: "vm1", Extra: "<readonly/>"})
			require.NoError(t, a.Virt.Start(ctx, "vm1"))
			require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
				if s == fakevirt.StepPerforming {
					if justBooted {
						other.PowerCut()
						other.Boot()
					}
					err := other.Virt.Start(ctx, "reader")
					require.Error(t, err)
					assert.Contains(t, err.Error(), "vg_san/vm1 is written by guest vm1")
					assert.Equal(t, "un", other.Mode("vm1"))
				}
				return nil
			}}))
			ends(t, b, "ex")
		})
	}
}

// The guest ends on the source at each place where its daemon touches the world while it lends:
// what has been taken off by then is not activated again.
func TestGuestEndsWhileItIsLent(t *testing.T) {
	for n, more := 0, true; more; n++ {
		if !t.Run(fmt.Sprint(n), func(t *testing.T) { more = guestEndsAt(t, n) }) {
			return
		}
	}
}

// guestEndsAt ends the guest at the place with a number, if there is one.
func guestEndsAt(t *testing.T, n int) bool {
	c, a, b := two(t)
	settled(t, a)
	var met atomic.Int32
	var lent atomic.Bool
	ended := make(chan error, 1)
	c.At = func(_ context.Context, d *Daemon, p Point) {
		if d.Host != a || lent.Load() {
			return
		}
		lent.CompareAndSwap(false, p == (Point{Kind: "answer", What: "/v1/peer/lend"}))
		if met.Add(1) != int32(n)+1 {
			return
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			ended <- a.Virt.Destroy(ctx, "vm1")
		}()
		select { // its hooks may have to wait for what is going on here
		case <-over:
		case <-time.After(50 * time.Millisecond):
		}
	}
	err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{})
	if int(met.Load()) <= n {
		require.NoError(t, err)
		require.Greater(t, n, 10, "it was lent without a look, a command or a line in the journal?")
		return false
	}
	require.Error(t, err)
	require.NoError(t, <-ended)
	ends(t, a, "un")
	ends(t, b, "un")
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	return true
}

func TestLendRefusesWithoutAMigration(t *testing.T) {
	_, a, _ := two(t)
	answer, err := a.Engine().Lend(ctx, "kvm-b", api.LendRequest{UUID: UUID(1), Guest: "vm1"})
	require.NoError(t, err)
	assert.False(t, answer.Migrating, "no job, no lending: a stranger's word is not enough")
	assert.Equal(t, "ex", a.Mode("vm1"))
	answer, err = a.Engine().Lend(ctx, "kvm-b", api.LendRequest{UUID: UUID(9)})
	require.NoError(t, err)
	assert.False(t, answer.Migrating)
}

// The connection between the libvirtds breaks between the switch and its confirmation: libvirt
// lets the guest run on both hosts. Nobody gets it alone, and both hosts say so.
func TestGuestRunsTwice(t *testing.T) {
	c, a, b := two(t)
	err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: failAt(fakevirt.StepSwitched, fakevirt.ErrReplyLost)})
	require.Error(t, err)
	alarm := func(h *Host, other string) bool {
		h.Engine().Kick()
		s := h.Engine().Status(ctx)
		return len(s.Problems) == 1 && s.Problems[0] == "ALARM: guest vm1 runs here and on "+other+" at once, and both write to its volumes: "+
			"run 'virsh destroy vm1' on one of the two hosts now, and check its file systems" &&
			len(s.Pending) == 1 && s.Pending[0].Reason == "held shared by "+other+"; taken exclusively when that ends"
	}
	require.Eventually(t, func() bool { return alarm(a, "kvm-b") && alarm(b, "kvm-a") }, time.Minute, 20*time.Millisecond,
		"%v %v", a.Engine().Status(ctx), b.Engine().Status(ctx))
	for range 20 {
		a.Engine().Kick()
		b.Engine().Kick()
		assert.Equal(t, "sh sh", a.Mode("vm1")+" "+b.Mode("vm1"), "nobody has it alone")
		time.Sleep(10 * time.Millisecond)
	}
	g, err := b.Engine().ListGuests(ctx)
	require.NoError(t, err)
	require.Len(t, g, 1)

	// It is seen anew after a restart, and when the other host cannot be asked it is not forgotten.
	a.StopDaemon()
	a.StartDaemon()
	require.Eventually(t, func() bool { return alarm(a, "kvm-b") }, time.Minute, 20*time.Millisecond)
	c.Cut = func(string, string, string) bool { return true }
	c.Advance(61 * time.Second)
	require.Eventually(t, func() bool {
		a.Engine().Kick()
		p := a.Engine().Status(ctx).Problems
		return len(p) == 1 && p[0] == "guest vm1 runs here, and kvm-b, which shares its volumes, cannot be asked whether it runs there too: cannot reach kvm-b: no answer"
	}, time.Minute, 20*time.Millisecond, "%v", a.Engine().Status(ctx).Problems)
	c.Cut = nil

	require.NoError(t, b.Virt.Destroy(ctx, "vm1"))
	ends(t, b, "un")
	ends(t, a, "ex")
	for _, h := range []*Host{a, b} {
		require.Eventually(t, func() bool {
			h.Engine().Kick()
			return len(h.Engine().Status(ctx).Problems) == 0
		}, time.Minute, 20*time.Millisecond, "%v", h.Engine().Status(ctx).Problems)
	}
}
