//go:build e2e

package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// hostBKilled: the host that holds a volume loses power. Its guest starts elsewhere as
// soon as sanlock has declared the host dead, and not before; until then the administrator
// reads who holds the volume, and when to try again as soon as that is known.
func hostBKilled(e *env) {
	v := e.two
	g := disk("failover", v)
	e.define(g, e.a, e.b)
	e.start(e.b, g.Name)
	e.holds(e.b, v, cluster.ModeEX)
	e.counts(e.b, v)
	last, err := e.b.Counter(e.ctx, v)
	require.NoError(e, err)

	require.NoError(e, e.b.Kill())
	killed := time.Now()
	r := e.refused(e.a, g.Name, "kvm-b", v.Full())
	// sanlock takes kvm-b for alive still: it is asked to give the volume up, for up to twenty seconds.
	require.Less(e, r.Duration, 50*time.Second, "far from the minute after which libvirt is told no")

	// sanlock notices after some 16 s that kvm-b is silent.
	var told string
	require.NoError(e, cluster.Eventually(e.ctx, 40*time.Second, func() error {
		told = e.refused(e.a, g.Name, "kvm-b", v.Full()).Stderr
		if !strings.Contains(told, "try again") {
			return fmt.Errorf("the message does not say when to try again: %s", told)
		}
		return nil
	}))

	// Eight I/O timeouts of 2 s and a minute for the watchdog make 76 s.
	require.NoError(e, e.a.RemoveGuest(e.ctx, g.Name))
	e.meanwhile(func() { time.Sleep(time.Until(killed.Add(78 * time.Second))) })
	e.define(g, e.a)
	require.NoError(e, cluster.Eventually(e.ctx, 100*time.Second, func() error {
		r, err := e.a.Virsh(e.ctx, "start", g.Name)
		if err == nil && r.Exit != 0 {
			require.Contains(e, r.Stderr, "kvm-b")
			err = fmt.Errorf("%.0f s after the power cut: %s", time.Since(killed).Seconds(), r.Output())
		}
		return err
	}))
	e.Logf("started on kvm-a %.0f s after the power cut of kvm-b", time.Since(killed).Seconds())
	e.holds(e.a, v, cluster.ModeEX)
	e.counts(e.a, v)
	n, err := e.a.Counter(e.ctx, v)
	require.NoError(e, err)
	require.GreaterOrEqual(e, n, last, "writes of the dead host are lost")
	e.destroy(e.a, g.Name)
	require.NoError(e, e.a.RemoveGuest(e.ctx, g.Name))
	e.released(v)

	// The dead host comes back and joins; its daemon or the harness starts the lockspace.
	e.meanwhile(func() { err = e.b.Boot(e.ctx) })
	require.NoError(e, err)
	require.NoError(e, e.b.StartLockspace(e.ctx))
	e.define(g, e.a)
	e.start(e.a, g.Name)
	e.refused(e.b, g.Name, "kvm-a", v.Full())
	e.destroy(e.a, g.Name)
	e.released(v)
}
