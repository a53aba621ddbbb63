package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/san"
)

func TestWhere(t *testing.T) {
	c, a, b, o := three(t, "vm1", "base", "free")
	define(t, b, "vm1", 1, Disk{Path: "vm1"}, Disk{Path: "base", Extra: "<shareable/>"})
	define(t, o, "vm2", 2, Disk{Path: "base", Extra: "<shareable/>"})
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	require.NoError(t, o.Virt.Start(ctx, "vm2"))
	where := func(h *Host, volume, op, on string) string {
		e, err := h.Locks().Where(ctx, volume, op, on)
		if err != nil {
			return string(api.KindOf(err)) + ": " + err.Error()
		}
		return strings.Join([]string{e.Host, e.Reason, e.Text}, ", ")
	}
	for _, tt := range []struct{ volume, op, on, want string }{
		{"vg_san/vm1", "", "", "kvm-b, holder, kvm-b holds it exclusively"},
		{"vg_san/vm1", "resize", "", "kvm-b, holder, kvm-b holds it exclusively"},
		{"vg_san/vm1", "read", "kvm-c", "kvm-c, explicit, kvm-c was asked for"},
		{"vg_san/vm1", "read", "kvm-x", "not_found: there is no host kvm-x in the lockspace of vg_san; those that are up: kvm-a, kvm-b, kvm-c"},
		{"vg_san/vm1", "format", "", "bad_request: there is no operation \"format\"; known: read, write, resize, snapshot, delete"},
		{"vg_san/base", "read", "", "kvm-c, holder, kvm-c holds it shared"},
		{"vg_san/base", "resize", "", "held: vg_san/base is shared by kvm-b, kvm-c: to resize it one host must have it alone"},
		{"vg_san/free", "", "", "kvm-a, up, nobody holds it; kvm-a is the first host that is up in vg_san"},
		{"vg_san/none", "", "", "not_found: there is no volume none in volume group vg_san"},
	} {
		assert.Equal(t, tt.want, where(o, tt.volume, tt.op, tt.on), "%s %s", tt.volume, tt.op)
	}
	assert.Equal(t, "kvm-b, holder, kvm-b holds it shared", where(a, "vg_san/base", "read", ""), "the first of those that share it")

	a.StopDaemon()
	assert.Equal(t, "kvm-a, up, nobody holds it; kvm-a is the first host that is up in vg_san (no answer from kvm-a)", where(o, "vg_san/free", "", ""))
	id := fault(t, c, san.Fault{Kind: san.FaultExit, Host: "kvm-c", Tool: "sanlock", Match: "direct", ExitCode: 1})
	assert.Contains(t, where(o, "vg_san/free", "", ""), "unknown: it is not known who holds vg_san/free: ")
	require.NoError(t, c.SAN.ClearFaults(id))
	a.StartDaemon()

	// A guest that uses a volume without its lock: its host, before any other.
	require.NoError(t, b.LVM.LoseLockspace("vg_san"))
	b.PowerCut()
	c.Advance(20 * time.Second)
	assert.Contains(t, where(o, "vg_san/vm1", "", ""), "held: vg_san/vm1 is held exclusively by kvm-b, a host that is not renewing its leases (sanlock: fail)")
	assert.Contains(t, where(o, "vg_san/vm1", "", "kvm-b"), "locking: kvm-b does not renew its leases")
	c.Advance(90 * time.Second)
	assert.Equal(t, "kvm-a, up, nobody holds it; kvm-a is the first host that is up in vg_san (no answer from kvm-b)", where(o, "vg_san/vm1", "", ""))
}

func TestHostList(t *testing.T) {
	c, a, b, o := three(t, "vm1", "base")
	define(t, b, "vm1", 1, Disk{Path: "vm1"}, Disk{Path: "base", Extra: "<readonly/>"})
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	b.ahead = 3 * time.Second
	a.StopDaemon()
	all, err := o.Locks().HostList(ctx)
	require.NoError(t, err)
	require.Len(t, all, 3)
	for i, want := range []api.Host{
		{Name: "kvm-a", HostID: 1, VGs: []string{"vg_san"}, State: "live", Problem: "cannot reach kvm-a: no answer"},
		{Name: "kvm-b", HostID: 2, VGs: []string{"vg_san"}, State: "live", Exclusive: 1, Shared: 1, Daemon: &api.HostDaemon{Version: "1.2.4"}},
		{Name: "kvm-c", HostID: 3, VGs: []string{"vg_san"}, State: "live", Self: true, Daemon: &api.HostDaemon{Version: "1.2.3"}},
	} {
		got := all[i]
		if want.Name == "kvm-b" {
			require.NotNil(t, got.Daemon)
			assert.InDelta(t, float64(3*time.Second), float64(got.Daemon.Clock), float64(time.Second))
			got.Daemon.Clock, got.Daemon.Latency = 0, 0
		}
		assert.GreaterOrEqual(t, got.Age, 0)
		got.Age = 0
		assert.Equal(t, want, got)
	}
	b.PowerCut()
	c.Advance(20 * time.Second)
	all, err = o.Locks().HostList(ctx)
	require.NoError(t, err)
	assert.Equal(t, "fail", all[1].State)
	assert.Positive(t, all[1].FreeIn)
	assert.Equal(t, 1, all[1].Exclusive, "until sanlock frees it")
	c.Advance(90 * time.Second)
	all, err = o.Locks().HostList(ctx)
	require.NoError(t, err)
	assert.Equal(t, "dead", all[1].State)
	assert.Equal(t, 0, all[1].Exclusive)
	assert.Nil(t, all[1].Daemon, "nobody asks the dead")

	id := fault(t, c, san.Fault{Kind: san.FaultExit, Host: "kvm-c", Tool: "sanlock", Match: "direct", ExitCode: 1})
	all, err = o.Locks().HostList(ctx)
	require.NoError(t, err)
	assert.Equal(t, -1, all[0].Exclusive)
	assert.Contains(t, all[0].Problem, "its volumes are not known: cannot read the leases of vg_san")
	require.NoError(t, c.SAN.ClearFaults(id))
}

// events waits for events of a host that the condition likes.
func events(t *testing.T, h *Host, want ...string) {
	t.Helper()
	var texts []string
	require.Eventually(t, func() bool {
		texts = nil
		for _, e := range h.Engine().Status(ctx).Events {
			texts = append(texts, e.Kind+" "+e.Subject+": "+e.Text)
		}
		for i, w := range want {
			if i >= len(texts) || !strings.Contains(texts[i], w) {
				return false
			}
		}
		return len(texts) == len(want)
	}, patience, 10*time.Millisecond, "want (newest first):\n%s\nevents:\n%s", strings.Join(want, "\n"), &lazy{&texts})
}

type lazy struct{ texts *[]string }

func (l *lazy) String() string { return strings.Join(*l.texts, "\n") }

// What somebody does by hand is noticed; what we do ourselves is not.
func TestHandmadeChanges(t *testing.T) {
	_, h := one(t)
	look := func() { h.Engine().DevicesChanged(ctx) }
	lvs(t, h.c, "x", "y", "z")
	for range 3 { // ours alone, looked at in the midst of it and afterwards
		require.NoError(t, h.Virt.Start(ctx, "vm1"))
		look()
		require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
		look()
	}
	look()
	events(t, h)
	_, err := h.Run("lvchange", "-asy", "vg_san/x")
	require.NoError(t, err)
	look()
	look()
	events(t, h, "activated vg_san/x: activated on this host, not by virtlvm: vg_san/x (lock sh)")
	_, err = h.Run("lvchange", "-an", "vg_san/x")
	require.NoError(t, err)
	look()
	events(t, h, "deactivated vg_san/x: deactivated on this host, not by virtlvm: vg_san/x", "activated")
	_, err = h.Run("lvchange", "-aey", "vg_san/x", "vg_san/y", "vg_san/z")
	require.NoError(t, err)
	look()
	events(t, h, "activated vg_san: activated on this host, not by virtlvm: vg_san/x (lock ex), vg_san/y (lock ex), vg_san/z (lock ex)", "deactivated", "activated")

	// Its mode: the periodic look finds it.
	_, err = h.Run("lvchange", "-asy", "vg_san/y")
	require.NoError(t, err)
	look()
	h.c.Advance(2 * time.Minute)
	h.Engine().Kick()
	events(t, h, "mode vg_san/y: the lock of vg_san/y on this host has gone from ex to sh, not by virtlvm", "activated", "deactivated", "activated")
	for _, lv := range []string{"x", "y", "z"} {
		assert.NotEqual(t, "un", h.Mode(lv), "not touched")
	}
}

// A running guest's volume is named with its guest.
func TestHandmadeUnderAGuest(t *testing.T) {
	_, h := one(t)
	h.Engine().DevicesChanged(ctx)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	settled(t, h)
	h.Engine().DevicesChanged(ctx)
	require.NoError(t, h.LVM.CloseVolume("vg_san", "vm1", 0))
	_, err := h.Run("lvchange", "-an", "vg_san/vm1")
	require.NoError(t, err)
	h.Engine().DevicesChanged(ctx)
	events(t, h, "deactivated vg_san/vm1: deactivated on this host, not by virtlvm: vg_san/vm1 (needed by guest vm1)")
	require.Eventually(t, func() bool { return h.Mode("vm1") == "ex" }, patience, 10*time.Millisecond, "and it is taken again")
	h.Engine().DevicesChanged(ctx)
	assert.Len(t, h.Engine().Status(ctx).Events, 1)
}
