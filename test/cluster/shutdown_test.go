package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
)

// goingDown is two hosts, vm1 running on kvm-a, where time passes by itself.
func goingDown(t *testing.T, test func(t *testing.T, c *Cluster, a, b *Host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := NewWith(t, Options{Hosts: pair(), Timeout: 20 * time.Second, Patience: time.Minute})
		a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
		a.StartDaemon()
		b.StartDaemon()
		vm1Runs(t, c)
		test(t, c, a, b)
	})
}

func lockspaces(t *testing.T, h *Host) string {
	t.Helper()
	out, err := h.Run("lvmlockctl", "--info")
	require.NoError(t, err)
	return out
}

// A guest that systemd had to kill, after which libvirt ended without calling a hook: its
// status file is still there. Its lease must not outlive the host's shutdown.
func TestHostGoesDown(t *testing.T) {
	_, a, b := two(t)
	require.NoError(t, a.Virt.KillQEMU(ctx, "vm1"))
	a.Engine().Shutdown(ctx)
	assert.NotContains(t, lockspaces(t, a), "LS sanlock lvm_vg_san")
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "ex", b.Mode("vm1"))
}

// What somebody else has activated stays as it is, and its lockspace with it.
func TestHostGoesDownWithAnothersVolume(t *testing.T) {
	c, a, _ := two(t)
	lvs(t, c, "vm2")
	_, err := a.Run("lvchange", "-aey", "vg_san/vm2")
	require.NoError(t, err)
	require.NoError(t, a.Virt.KillQEMU(ctx, "vm1"))
	a.Engine().Shutdown(ctx)
	assert.Equal(t, "un", a.Mode("vm1"))
	assert.Equal(t, "ex", a.Mode("vm2"))
	assert.Contains(t, a.log.String(), "vg_san-vm2 is active")
}

// Where nothing makes systemd end the guests before libvirt, the daemon may be told first.
func TestHostGoesDownBeforeItsGuest(t *testing.T) {
	goingDown(t, func(t *testing.T, _ *Cluster, a, b *Host) {
		time.AfterFunc(10*time.Second, func() { assert.NoError(t, a.Virt.KillQEMU(ctx, vm1)) })
		began := time.Now()
		a.Engine().Shutdown(ctx)
		assert.Less(t, time.Since(began), 15*time.Second)
		assert.NotContains(t, lockspaces(t, a), "LS sanlock lvm_vg_san")
		require.NoError(t, b.Virt.Start(ctx, vm1))
		assert.Equal(t, "ex", b.Mode(vm1))
	})
}

// A guest that still runs is never left without its volume, nor waited for for ever.
func TestHostGoesDownUnderAGuest(t *testing.T) {
	goingDown(t, func(t *testing.T, _ *Cluster, a, _ *Host) {
		began := time.Now()
		a.Engine().Shutdown(ctx)
		assert.Less(t, time.Since(began), 40*time.Second)
		assert.Equal(t, "ex", a.Mode(vm1))
		assert.Contains(t, lockspaces(t, a), "LS sanlock lvm_vg_san")
	})
}

// What an operator has activated would keep the lockspace, and with it sanlock, from stopping.
// What is open is left alone.
func TestHostGoesDownWithAnOperatorsVolume(t *testing.T) {
	goingDown(t, func(t *testing.T, c *Cluster, a, _ *Host) {
		lvs(t, c, "image", "mounted")
		for _, lv := range []string{"image", "mounted"} {
			_, err := a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/" + lv}, "root")
			require.NoError(t, err)
		}
		require.NoError(t, a.Virt.KillQEMU(ctx, vm1))
		require.NoError(t, a.LVM.Open("vg_san", "mounted", 4711))
		a.Engine().Shutdown(ctx)
		assert.Equal(t, "un", a.Mode("image"))
		assert.Equal(t, "ex", a.Mode("mounted"))
		require.NoError(t, a.LVM.CloseVolume("vg_san", "mounted", 4711))
		a.Engine().Shutdown(ctx)
		assert.NotContains(t, lockspaces(t, a), "LS sanlock lvm_vg_san")
	})
}

// A migration that had only asked: libvirt has ended, and nothing of it comes any more. Kept
// shared, the volume would stay so for its source until this host is declared dead.
func TestHostGoesDownUnderAMigration(t *testing.T) {
	goingDown(t, func(t *testing.T, c *Cluster, a, b *Host) {
		_ = migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: safely(c, fakevirt.StepMigrateHook, func() error {
			b.Engine().Shutdown(ctx)
			assert.Equal(t, "un", b.Mode(vm1))
			return fakevirt.ErrHostGone
		})})
		time.Sleep(time.Minute)
		assert.Equal(t, "ex", a.Mode(vm1))
	})
}
