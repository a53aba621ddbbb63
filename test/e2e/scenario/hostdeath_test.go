//go:build e2e

package scenario

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// hostBKilled: the host that holds a volume loses power. Its guest starts elsewhere as
// soon as sanlock has declared the host dead, and not a moment earlier; until then the
// administrator reads who holds the volume and when to try again.
func hostBKilled(e *env) {
	v := e.bootable("failover")
	e.define(disk("failover", v), e.a, e.b)
	e.start(e.b, "failover")
	e.holds(e.b, v, cluster.ModeEX)
	e.counts(e.b, v)
	last, err := e.b.Counter(e.ctx, v)
	require.NoError(e, err)

	require.NoError(e, e.b.Kill())
	killed := time.Now()
	r := e.refused(e.a, "failover", "kvm-b", "vg_san/failover")
	require.Regexp(e, `[0-9]+ ?s`, r.Stderr, "the message does not say when to try again")
	require.Less(e, r.Duration, 15*time.Second)

	// Eight I/O timeouts of 2 s and a minute for the watchdog make 76 s.
	require.NoError(e, cluster.Eventually(e.ctx, 150*time.Second, func() error {
		r, err := e.a.Virsh(e.ctx, "start", "failover")
		if err == nil && r.Exit != 0 {
			err = fmt.Errorf("%.0f s after the power cut: %s", time.Since(killed).Seconds(), r.Output())
		}
		if err != nil {
			// Asking costs an LVM command each time.
			time.Sleep(4 * time.Second)
		}
		return err
	}))
	e.Logf("started on kvm-a %.0f s after the power cut of kvm-b", time.Since(killed).Seconds())
	require.Greater(e, time.Since(killed), 40*time.Second, "kvm-a took the volume before kvm-b can have been declared dead")
	e.holds(e.a, v, cluster.ModeEX)
	e.counts(e.a, v)
	n, err := e.a.Counter(e.ctx, v)
	require.NoError(e, err)
	require.GreaterOrEqual(e, n, last, "writes of the dead host are lost")

	// The dead host comes back, joins, and finds its guest running on the other.
	require.NoError(e, e.b.Boot(e.ctx))
	require.NoError(e, e.b.StartLockspace(e.ctx))
	e.refused(e.b, "failover", "kvm-a", "vg_san/failover")
	e.destroy(e.a, "failover")
	e.released(v)
}
