package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A guest that systemd had to kill, after which libvirt ended without calling a hook: its
// status file is still there. Its lease must not outlive the host's shutdown.
func TestHostGoesDown(t *testing.T) {
	_, a, b := two(t)
	require.NoError(t, a.Virt.KillQEMU(ctx, "vm1"))
	a.Engine().Shutdown(ctx)
	out, err := a.Run("lvmlockctl", "--info")
	require.NoError(t, err)
	assert.NotContains(t, out, "LS sanlock lvm_vg_san")
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

// A guest that still runs is never left without its volume.
func TestHostGoesDownUnderAGuest(t *testing.T) {
	_, a, _ := two(t)
	a.Engine().Shutdown(ctx)
	assert.Equal(t, "ex", a.Mode("vm1"))
}
