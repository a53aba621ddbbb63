package cluster

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// runAndStop runs vm1 until the daemon has seen it, and destroys it.
func runAndStop(t *testing.T, h *Host) {
	t.Helper()
	const guest = "vm1"
	require.NoError(t, h.Virt.Start(ctx, guest))
	h.Engine().Kick()
	require.Eventually(t, func() bool {
		holds, err := h.Store().Holds(ctx)
		seen := err == nil
		for _, hold := range holds {
			seen = seen && (hold.Guest != guest || !model.IsGuest(hold.Owner) || hold.Attempt.Seen)
		}
		return seen
	}, patience, 5*time.Millisecond)
	require.NoError(t, h.Virt.Destroy(ctx, guest))
}

// retaining makes two hosts whose configuration retains, and vm1 defined on both.
func retaining(t *testing.T) (c *Cluster, a, b *Host) {
	t.Helper()
	c = New(t, "kvm-a", "kvm-b")
	a, b = c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "vm1")
	for _, h := range []*Host{a, b} {
		h.retain.Store(true)
		define(t, h, "vm1", 1, Disk{Path: "vm1"})
	}
	return c, a, b
}

func lvchanges(t *testing.T, h *Host) int {
	t.Helper()
	rows, err := h.Store().Commands(ctx, api.CommandFilter{Limit: 10000})
	require.NoError(t, err)
	n := 0
	for _, r := range rows {
		if r.Argv[0] == "lvchange" {
			n++
		}
	}
	return n
}

func TestRetain(t *testing.T) {
	_, a, b := retaining(t)
	runAndStop(t, a)
	assert.Equal(t, "ex", a.Mode("vm1"))
	settled(t, a)
	assert.Equal(t, "lease: kvm-a(ex,live,active yes,open no,retained vm1)", shown(t, b, "vg_san/vm1"))
	vols, err := a.Engine().Volumes(ctx, "vg_san")
	require.NoError(t, err)
	assert.Equal(t, "retained, used by nobody", vols[0].Note)
	assert.Empty(t, vols[0].Guests)
	guests, err := a.Engine().ListGuests(ctx)
	require.NoError(t, err)
	assert.Empty(t, guests)

	before := lvchanges(t, a)
	runAndStop(t, a)
	assert.Equal(t, before, lvchanges(t, a), "the quick restart runs no LVM command")

	// It outlives the daemon, and another host gets it when it is needed there.
	a.StopDaemon()
	a.StartDaemon()
	settled(t, a)
	assert.Equal(t, "ex", a.Mode("vm1"))
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "un ex", a.Mode("vm1")+" "+b.Mode("vm1"))
	assert.Equal(t, "kvm-a release COMPLETED", journalled(t, b, "peer call"))
	assert.Equal(t, "locks vg_san COMPLETED, release vg_san/vm1 COMPLETED", journalled(t, a, "peer request"))
	err = a.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Equal(t, "kvm-b release FAILED", journalled(t, a, "peer call"))
	assert.Contains(t, err.Error(), "vg_san/vm1 is held exclusively by kvm-b; stop the guest that uses it there, or run 'lvchange -an vg_san/vm1' on kvm-b if nothing does (kvm-b was asked for it: vg_san/vm1 is used on kvm-b by guest vm1; stop or migrate that guest)")
	assert.Equal(t, "un ex", a.Mode("vm1")+" "+b.Mode("vm1"))
	for _, h := range []*Host{a, b} {
		ended(t, h)
	}
}

// What is retained is never taken by force, and the one who has it says why not.
func TestRetainedIsGivenUpOnlyWhenClosed(t *testing.T) {
	c, a, b := retaining(t)
	runAndStop(t, a)
	require.NoError(t, a.LVM.Open("vg_san", "vm1", 4711))
	err := b.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "vg_san/vm1 is open on kvm-a")
	assert.Equal(t, "ex", a.Mode("vm1"))
	err = a.Virt.Start(ctx, "vm1")
	require.Error(t, err, "nor is it shared with a stranger on the same host")
	assert.Contains(t, err.Error(), "vg_san/vm1 is open on this host (kvm-a) by something that is no guest")
	assert.Contains(t, shown(t, b, "vg_san/vm1"), "retained vm1", "it goes on being retained")
	require.NoError(t, a.LVM.CloseVolume("vg_san", "vm1", 0))

	c.Cut = func(string, string, string) bool { return true }
	err = b.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "(kvm-a was asked for it: cannot reach kvm-a: no answer)")
	c.Cut = nil

	id := fault(t, c, san.Fault{Kind: san.FaultUnlock, Host: "kvm-a", Tool: "lvchange", Match: "-an"})
	require.Error(t, b.Virt.Start(ctx, "vm1"), "it said that it was off, and was not")
	require.NoError(t, c.SAN.ClearFaults(id))
	settled(t, a)
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "ex", b.Mode("vm1"))
}

// A start that fails gives a retained volume back to nobody, not to the void.
func TestRetainedSurvivesAFailedStart(t *testing.T) {
	c, a, b := retaining(t)
	lvs(t, c, "more")
	runAndStop(t, a)
	_, err := b.Run("lvchange", "-aey", "vg_san/more")
	require.NoError(t, err)
	define(t, a, "both", 2, Disk{Path: "vm1"}, Disk{Path: "more"})
	require.Error(t, a.Virt.Start(ctx, "both"))
	settled(t, a)
	assert.Equal(t, "lease: kvm-a(ex,live,active yes,open no,retained vm1)", shown(t, a, "vg_san/vm1"))
	// A reader gets it shared, and what was retained is no more.
	define(t, a, "reader", 3, Disk{Path: "vm1", Extra: "<readonly/>"})
	require.NoError(t, a.Virt.Start(ctx, "reader"))
	assert.Equal(t, "sh", a.Mode("vm1"))
	require.NoError(t, a.Virt.Destroy(ctx, "reader"))
	assert.Equal(t, "un", a.Mode("vm1"), "only what was exclusive is retained")
}

func TestRetainEndsWithEveryOtherEnd(t *testing.T) {
	c, a, b := retaining(t)
	// Migrated away.
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
	ends(t, a, "un")
	ends(t, b, "ex")
	runStop := b.Virt.Destroy(ctx, "vm1")
	require.NoError(t, runStop)
	// An operator.
	if b.Mode("vm1") == "ex" {
		_, err := b.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "test")
		require.NoError(t, err)
	}
	assert.Equal(t, "un", b.Mode("vm1"))
	// Somebody by hand: it is not taken again.
	runAndStop(t, a)
	_, err := a.Run("lvchange", "-an", "vg_san/vm1")
	require.NoError(t, err)
	a.Engine().Kick()
	settled(t, a)
	require.Eventually(t, func() bool {
		holds, err := a.Store().Holds(ctx)
		return err == nil && len(holds) == 0
	}, patience, 5*time.Millisecond)
	assert.Equal(t, "un", a.Mode("vm1"))
	// By hand into shared: neither ours nor anybody's, and closed.
	runAndStop(t, a)
	_, err = a.Run("lvchange", "-asy", "vg_san/vm1")
	require.NoError(t, err)
	a.Engine().Kick()
	require.Eventually(t, func() bool { return a.Mode("vm1") == "un" }, patience, 5*time.Millisecond)
	// The host.
	runAndStop(t, a)
	a.PowerCut()
	c.Advance(90 * time.Second)
	a.Boot()
	settled(t, a)
	assert.NotEqual(t, "ex", a.Mode("vm1"))
}

// A host that goes down gives up what it retains, and retains nothing more.
func TestRetainedAtShutdown(t *testing.T) {
	c, a, _ := retaining(t)
	lvs(t, c, "vm2")
	define(t, a, "vm2", 2, Disk{Path: "vm2"})
	runAndStop(t, a)
	require.NoError(t, a.Virt.Start(ctx, "vm2"))
	assert.Equal(t, "ex", a.Mode("vm1"))
	// systemd kills a guest that does not end, and libvirt calls nobody any more.
	require.NoError(t, a.Virt.KillQEMU(ctx, "vm2"))
	a.Engine().Shutdown(ctx)
	assert.Equal(t, "un", a.Mode("vm1"))
	assert.Equal(t, "un", a.Mode("vm2"))
}

// Two hosts start the guest that one of them retains: one of them gets it, never both.
func TestRetainAndStartsAtOnce(t *testing.T) {
	_, a, b := retaining(t)
	for range 10 {
		runAndStop(t, a)
		var all sync.WaitGroup
		var errs [2]error
		for i, h := range []*Host{a, b} {
			all.Go(func() { errs[i] = h.Virt.Start(ctx, "vm1") })
		}
		all.Wait()
		assert.False(t, errs[0] == nil && errs[1] == nil, "never twice")
		assert.True(t, errs[0] == nil || errs[1] == nil, "one of them: %v %v", errs[0], errs[1])
		for i, h := range []*Host{a, b} {
			if errs[i] == nil {
				require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
			}
		}
		settled(t, a)
		settled(t, b)
	}
}
