package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// A vgremove that hangs on another host keeps LVM's global lock for as long: guests start
// and move as ever, also where the daemon has come up since.
func TestGlobalLockHeldElsewhere(t *testing.T) {
	c, a, b := two(t)
	id := fault(t, c, san.Fault{Kind: san.FaultGlobalLock})
	for _, h := range []*Host{a, b} {
		h.StopDaemon()
		h.StartDaemon()
	}
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
	ends(t, b, "ex")
	require.NoError(t, b.Virt.Destroy(ctx, "vm1"))
	ends(t, b, "un")
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	ends(t, a, "ex")
	problem := "cannot read this host: another host holds LVM's global lock: try again"
	assert.Contains(t, a.Engine().Status(ctx).Problems, problem)
	require.NoError(t, c.SAN.ClearFaults(id))
	_, err := a.Engine().ManagedVGs(ctx, "")
	require.NoError(t, err)
	assert.NotContains(t, a.Engine().Status(ctx).Problems, problem)
}
