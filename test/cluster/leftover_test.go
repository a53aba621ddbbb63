package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// leftOver migrates vm1, and leaves it on the source as well: the client dies between the
// switch and its confirmation.
func leftOver(t *testing.T, a, b *Host) {
	t.Helper()
	err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: failAt(fakevirt.StepSwitched, fakevirt.ErrClientGone)})
	require.ErrorIs(t, err, fakevirt.ErrClientGone)
}

// problem waits until a host reports one problem, which contains a text.
func problem(t *testing.T, h *Host, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		h.Engine().Kick()
		p := h.Engine().Status(ctx).Problems
		return len(p) == 1 && strings.Contains(p[0], text)
	}, time.Minute, 20*time.Millisecond, "%q in %v", text, h.Engine().Status(ctx).Problems)
}

// target of the table of vm1's volume on a host, such as "linear".
func target(t *testing.T, h *Host) string {
	t.Helper()
	out, err := h.Run("dmsetup", "table", "vg_san-vm1")
	if err != nil {
		return "none"
	}
	return strings.Fields(out)[2]
}

// canWrite: what opens the volume on a host can write to it.
func canWrite(h *Host, lv string) bool {
	f, err := os.OpenFile(filepath.Join(h.LVM.DevDir(), "vg_san", lv), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	_, err = f.WriteAt([]byte("x"), 8192)
	return err == nil && f.Close() == nil
}

// cutOffs counts the commands that cut a volume off.
func cutOffs(t *testing.T, h *Host) int {
	t.Helper()
	all, err := h.Store().Commands(ctx, api.CommandFilter{Limit: 1000})
	require.NoError(t, err)
	n := 0
	for _, c := range all {
		if c.Kind == "cut off" {
			assert.Equal(t, "COMPLETED", c.State)
			n++
		}
	}
	return n
}

const isHere = "guest vm1 runs on kvm-b, and a paused left-over of it is here"

func TestLeftOverIsIsolated(t *testing.T) {
	c, a, b := two(t)
	a.isolate.Store(true)
	lvs(t, c, "vm2")
	define(t, a, "vm2", 2, Disk{Path: "vm2"})
	require.NoError(t, a.Virt.Start(ctx, "vm2"))
	leftOver(t, a, b)
	problem(t, a, isHere+", cut off from its volumes: run 'virsh destroy vm1' on kvm-a, never 'virsh resume'")
	assert.Equal(t, "error", target(t, a))
	assert.False(t, canWrite(a, "vm1"))
	assert.Equal(t, "linear", target(t, b))
	assert.True(t, canWrite(b, "vm1"))
	assert.True(t, canWrite(a, "vm2"), "nobody else's")
	assert.Equal(t, "sh sh", a.Mode("vm1")+" "+b.Mode("vm1"))

	// It lasts, and is done once.
	a.StopDaemon()
	assert.Equal(t, "error", target(t, a))
	a.StartDaemon()
	problem(t, a, isHere+", cut off from its volumes")
	assert.Equal(t, 1, cutOffs(t, a))

	// Somebody resumes it all the same.
	require.NoError(t, a.Virt.Resume(ctx, "vm1"))
	problem(t, a, "guest vm1 runs on kvm-b, and what its migration left over here has been resumed; it is cut off from its volumes and writes nothing: run 'virsh destroy vm1' on kvm-a")
	assert.False(t, canWrite(a, "vm1"))
	assert.Equal(t, "sh sh", a.Mode("vm1")+" "+b.Mode("vm1"))

	// It ends, and so does all that was done.
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	ends(t, a, "un")
	ends(t, b, "ex")
	assert.Equal(t, "none", target(t, a))
	require.NoError(t, fakevirt.Migrate(ctx, b.Virt, a.Virt, "vm1", fakevirt.MigrateOptions{}))
	ends(t, a, "ex")
	assert.Equal(t, "linear", target(t, a))
	assert.True(t, canWrite(a, "vm1"))
	require.Eventually(t, func() bool {
		a.Engine().Kick()
		return len(a.Engine().Status(ctx).Problems) == 0
	}, time.Minute, 20*time.Millisecond)
}

// What is left here is out of date once the guest has run there: it does not get its
// volumes back when that one ends.
func TestIsolatedLeftOverStaysSo(t *testing.T) {
	_, a, b := two(t)
	a.isolate.Store(true)
	leftOver(t, a, b)
	problem(t, a, "cut off from its volumes")
	require.NoError(t, b.Virt.Destroy(ctx, "vm1"))
	ends(t, b, "un")
	problem(t, a, "guest vm1 ran on kvm-b and does not now; what its migration left over here is out of date and cut off from its volumes: run 'virsh destroy vm1' on kvm-a, and start it anew")
	assert.Equal(t, "error", target(t, a))
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	ends(t, a, "un")
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "ex", a.Mode("vm1"))
	assert.True(t, canWrite(a, "vm1"))
}

func TestLeftOverIsLeftAlone(t *testing.T) {
	t.Run("by default", func(t *testing.T) {
		_, a, b := two(t)
		leftOver(t, a, b)
		problem(t, a, isHere+": run 'virsh destroy vm1' on kvm-a, never 'virsh resume'")
		assert.True(t, canWrite(a, "vm1"))
		assert.Zero(t, cutOffs(t, a))
	})
	t.Run("where the destination cannot be asked", func(t *testing.T) {
		c, a, b := two(t)
		a.isolate.Store(true)
		c.Cut = func(from, to, _ string) bool { return from == "kvm-a" && to == "kvm-b" }
		leftOver(t, a, b)
		problem(t, a, "guest vm1 is paused here after a migration to kvm-b that cannot be asked about: find out where it runs before resuming it here (cannot reach kvm-b: no answer)")
		assert.True(t, canWrite(a, "vm1"))
		assert.Zero(t, cutOffs(t, a))
	})
	t.Run("where the guest does not run there", func(t *testing.T) {
		_, a, b := two(t)
		a.isolate.Store(true)
		err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: failAt(fakevirt.StepPerformed, fakevirt.ErrClientGone)})
		require.ErrorIs(t, err, fakevirt.ErrClientGone)
		ends(t, b, "un")
		ends(t, a, "ex")
		assert.True(t, canWrite(a, "vm1"))
		assert.Zero(t, cutOffs(t, a))
	})
	t.Run("a volume that is not linear", func(t *testing.T) {
		c := New(t, "kvm-a", "kvm-b")
		a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
		a.isolate.Store(true)
		_, err := c.SAN.AddLV("vg_san", san.LVSpec{Name: "vm1", Type: "striped"})
		require.NoError(t, err)
		define(t, a, "vm1", 1, Disk{Path: "vm1"})
		require.NoError(t, a.Virt.Start(ctx, "vm1"))
		leftOver(t, a, b)
		problem(t, a, isHere+" that cannot be cut off from its volumes (vg_san/vm1 is not cut off: its device is not linear but striped): run 'virsh destroy vm1'")
		assert.Equal(t, "striped", target(t, a))
	})
	t.Run("where dmsetup fails", func(t *testing.T) {
		c, a, b := two(t)
		a.isolate.Store(true)
		id := fault(t, c, san.Fault{Kind: san.FaultExit, Tool: "dmsetup", Match: "wipe_table", Stderr: "device-mapper: reload ioctl on vg_san-vm1 (253:0) failed: Device or resource busy\nCommand failed.\n"})
		leftOver(t, a, b)
		problem(t, a, "that cannot be cut off from its volumes (vg_san/vm1 is not cut off: ")
		assert.Equal(t, "linear", target(t, a))
		require.NoError(t, c.SAN.ClearFaults(id))
		problem(t, a, isHere+", cut off from its volumes")
		assert.Equal(t, "error", target(t, a))
	})
}

// A volume with an error table is no disk for anybody.
func TestStartOnAVolumeThatIsCutOff(t *testing.T) {
	_, a := one(t)
	_, err := a.Run("lvchange", "-aey", "vg_san/vm1")
	require.NoError(t, err)
	_, err = a.Run("dmsetup", "wipe_table", "vg_san-vm1")
	require.NoError(t, err)
	refused(t, a, "vg_san/vm1 is cut off on this host (its device has an error table)")
	_, err = a.Run("lvchange", "-an", "vg_san/vm1")
	require.NoError(t, err)
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
}
