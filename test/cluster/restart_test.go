package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/san"
)

func TestDaemonKilledWhileGuestRuns(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	h.StopDaemon()
	h.StartDaemon()
	assert.Equal(t, "ex", h.Mode("vm1"))
	require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, "un", h.Mode("vm1"))
}

func TestStopWhileDaemonIsDown(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	h.StopDaemon()
	require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, "ex", h.Mode("vm1"), "kept until somebody looks")
	err := h.Virt.Start(ctx, "vm1")
	require.Error(t, err, "no start without the daemon")
	h.StartDaemon()
	settled(t, h)
	assert.Equal(t, "un", h.Mode("vm1"))
}

// A release that lay in the spool must not end the hold of the guest that was started
// again meanwhile.
func TestStaleReleaseKeepsTheRunningGuest(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	h.StopDaemon()
	require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
	spooled := h.spool
	require.NotEmpty(t, spooled)
	h.glass.Store(true) // the administrator breaks the glass and starts it again
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	h.glass.Store(false)
	h.StartDaemon()
	settled(t, h)
	assert.Equal(t, "ex", h.Mode("vm1"))
	// And once more while it runs, as from a hook that had been slow.
	h.StopDaemon()
	h.spool = spooled
	h.StartDaemon()
	settled(t, h)
	assert.Equal(t, "ex", h.Mode("vm1"))
	require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, "un", h.Mode("vm1"))
}

// Between the answer to `prepare` and the first sight of QEMU a stale release ends nothing.
func TestStaleReleaseDuringAStart(t *testing.T) {
	_, h := one(t)
	old := api.HookCall{Guest: "vm1", UUID: UUID(1), Op: "release", SubOp: "end", Extra: "destroyed", Stamp: h.stamp()}
	h.c.Advance(time.Second)
	xml := XML("vm1", UUID(1), Disk{Path: "vm1"})
	prepare := api.HookCall{Guest: "vm1", Op: "prepare", SubOp: "begin", Extra: "-", XML: xml, Stamp: h.stamp()}
	require.True(t, h.Engine().Hook(ctx, prepare).Allow)
	h.c.Advance(100 * time.Millisecond)
	h.Engine().Hook(ctx, old)
	assert.Equal(t, "ex", h.Mode("vm1"), "the event is older than the start")
	fresh := old
	fresh.Stamp = h.stamp()
	h.Engine().Hook(ctx, fresh)
	assert.Equal(t, "un", h.Mode("vm1"), "the start has failed")
}

func TestStartThatNeverBecomesAGuest(t *testing.T) {
	_, h := one(t)
	xml := XML("vm1", UUID(1), Disk{Path: "vm1"})
	require.True(t, h.Engine().Hook(ctx, api.HookCall{Guest: "vm1", Op: "prepare", SubOp: "begin", Extra: "-", XML: xml, Stamp: h.stamp()}).Allow)
	h.Engine().Kick()
	time.Sleep(50 * time.Millisecond)
	assert.Equal(t, "ex", h.Mode("vm1"), "libvirt has time to start QEMU")
	h.c.Advance(61 * time.Second)
	h.Engine().Kick()
	settled(t, h)
	require.Eventually(t, func() bool { return h.Mode("vm1") == "un" }, patience, 5*time.Millisecond)
}

func TestLibvirtdThatAskedIsGone(t *testing.T) {
	_, h := one(t)
	xml := XML("vm1", UUID(1), Disk{Path: "vm1"})
	stamp := h.stamp()
	stamp.LibvirtdPID = 1 // not the test's own process, so not alive
	require.True(t, h.Engine().Hook(ctx, api.HookCall{Guest: "vm1", Op: "prepare", SubOp: "begin", Extra: "-", XML: xml, Stamp: stamp}).Allow)
	h.Engine().Kick()
	require.Eventually(t, func() bool { return h.Mode("vm1") == "un" }, patience, 5*time.Millisecond)
}

// The hook gives up while its start waits: what was done for it is undone.
func TestHookGoneBeforeTheVerdict(t *testing.T) {
	c, h := one(t)
	fault(t, c, san.Fault{Kind: san.FaultHang, Tool: "lvchange", Match: "-aey", After: true, For: 300 * time.Millisecond, Times: 1})
	impatient, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	xml := XML("vm1", UUID(1), Disk{Path: "vm1"})
	h.Engine().Hook(impatient, api.HookCall{Guest: "vm1", Op: "prepare", SubOp: "begin", Extra: "-", XML: xml, Stamp: h.stamp()})
	settled(t, h)
	assert.Equal(t, "un", h.Mode("vm1"))
	calls, err := h.Store().HookCalls(ctx, 1, "")
	require.NoError(t, err)
	assert.Equal(t, "gone", calls[0].Verdict)
}

func TestRebootDropsTheHolds(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	h.PowerCut()
	h.Boot()
	assert.Zero(t, h.Engine().Status(ctx).Holds)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "ex", h.Mode("vm1"))
}

func TestDeadHolder(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	define(t, b, "vm1", 1, Disk{Path: "vm1"})
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	b.PowerCut()
	c.Advance(20 * time.Second)
	err := a.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Regexp(t, `vg_san/vm1 is held exclusively by kvm-b, a host that is not renewing its leases \(sanlock: fail\); sanlock frees it in about .*s, at \d\d:\d\d:\d\d: try again then; never force the lock`, err.Error())
	c.Advance(90 * time.Second)
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "ex", a.Mode("vm1"))
}

// A guest that ran before virtlvm did is adopted, with the lock it lacks.
func TestAdoption(t *testing.T) {
	for name, before := range map[string][]string{"shared": {"lvchange", "-asy", "vg_san/vm1"}, "exclusive": {"lvchange", "-aey", "vg_san/vm1"}} {
		t.Run(name, func(t *testing.T) {
			_, h := one(t)
			h.StopDaemon()
			_, err := h.Run(before...)
			require.NoError(t, err)
			h.glass.Store(true)
			require.NoError(t, h.Virt.Start(ctx, "vm1"))
			h.glass.Store(false)
			h.StartDaemon()
			settled(t, h)
			assert.Equal(t, "ex", h.Mode("vm1"))
			require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
			assert.Equal(t, "un", h.Mode("vm1"))
		})
	}
}

func TestAdoptionRefusedIsAnAlarm(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	a.StopDaemon()
	for _, h := range []*Host{a, b} {
		_, err := h.Run("lvchange", "-asy", "vg_san/vm1")
		require.NoError(t, err)
	}
	a.glass.Store(true)
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	a.glass.Store(false)
	a.StartDaemon()
	s := a.Engine().Status(ctx)
	require.Len(t, s.Pending, 1)
	assert.Equal(t, "sh", s.Pending[0].Actual)
	assert.Contains(t, s.Pending[0].Reason, "held shared by kvm-b")
	_, err := b.Run("lvchange", "-an", "vg_san/vm1")
	require.NoError(t, err)
	settled(t, a)
	assert.Equal(t, "ex", a.Mode("vm1"), "taken when the other has gone")
}

// Somebody drops the lock under a running guest: it is taken again.
func TestLostLockIsTakenAgain(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	_, err := h.Run("lvchange", "-asy", "vg_san/vm1")
	require.NoError(t, err)
	h.Engine().Kick()
	require.Eventually(t, func() bool { return h.Mode("vm1") == "ex" }, patience, 5*time.Millisecond)
}

func TestOperator(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "vm1", "other")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	row, err := a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "operator uid 0")
	require.NoError(t, err)
	assert.Equal(t, "COMPLETED", row.State)
	assert.Equal(t, "ex", a.Mode("vm1"))
	_, err = a.Engine().Activate(ctx, api.VolumeRequest{Volume: "/dev/vg_san/vm1"}, "operator uid 0")
	require.NoError(t, err, "asking again is no error")
	_, err = b.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "operator uid 0")
	assert.Equal(t, api.KindHeld, api.KindOf(err))
	refused(t, a, "held on this host by an operator (virtlvm activate); run 'virtlvm deactivate vg_san/vm1' first")
	_, err = a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "operator uid 0")
	require.NoError(t, err)
	assert.Equal(t, "un", a.Mode("vm1"))
	_, err = a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "operator uid 0")
	require.NoError(t, err, "nothing to do is no error")

	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	_, err = a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "operator uid 0")
	assert.Equal(t, api.KindInUse, api.KindOf(err))
	assert.ErrorContains(t, err, "guest vm1")
	_, err = a.Run("lvchange", "-aey", "vg_san/other")
	require.NoError(t, err)
	_, err = a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/other"}, "operator uid 0")
	assert.Equal(t, api.KindInUse, api.KindOf(err), "somebody else's activation is not touched")
	for name, kind := range map[string]api.Kind{
		"vm1": api.KindBadRequest, "vg_san/-an": api.KindBadRequest, "vg_san/nosuch": api.KindNotFound, "nosuch/lv": api.KindNotFound, "vg_plain/x": api.KindOutOfScope,
	} {
		_, err = a.Engine().Activate(ctx, api.VolumeRequest{Volume: name}, "operator uid 0")
		assert.Equal(t, kind, api.KindOf(err), "%s: %v", name, err)
	}
}
