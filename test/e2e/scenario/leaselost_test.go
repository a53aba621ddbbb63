//go:build e2e

package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// guarded sets kvm-b up with the kill command and starts two guests there: "guarded" on a
// volume, and "other", which has none and shall live on.
func (e *env) guarded(v cluster.Volume) (guarded, other string) {
	e.Helper()
	e.watchdog(e.b)
	e.must(e.b, `grep -q lease-lost /etc/lvm/lvm.conf ||
sed -i 's|use_lvmlockd = 1|use_lvmlockd = 1\n\tlvmlockctl_kill_command = "/usr/bin/virtlvm lease-lost"|' /etc/lvm/lvm.conf`)
	require.Equal(e, "PASS", e.results(e.b)["lvm.kill_command"].State)
	e.define(disk("guarded", v), e.a, e.b)
	e.define(cluster.Guest{Name: "other"}, e.b)
	e.start(e.b, "guarded")
	e.start(e.b, "other")
	e.holds(e.b, v, cluster.ModeEX)
	e.counts(e.b, v)
	return e.must(e.b, "cat /run/libvirt/qemu/guarded.pid"), e.must(e.b, "cat /run/libvirt/qemu/other.pid")
}

// orAfresh cuts kvm-b's power where the scenario has failed: what is left of it would hang.
func (e *env) orAfresh() {
	if e.Failed() {
		_ = e.b.Kill() // the next step finds out whether it has
	}
}

// elsewhere starts the guest on kvm-a as soon as it can be had there, and returns when.
func (e *env) elsewhere(since time.Time, v cluster.Volume) time.Duration {
	e.Helper()
	defer func(all []*cluster.Host) { e.hosts = all }(e.hosts)
	e.hosts = e.hosts[:1] // kvm-b can read no lease now
	require.NoError(e, cluster.Eventually(e.ctx, 5*time.Minute, func() error {
		r, err := e.a.Virsh(e.ctx, "start", "guarded")
		if err == nil && r.Exit != 0 {
			err = fmt.Errorf("after %.0f s: %s", time.Since(since).Seconds(), r.Output())
		}
		return err
	}))
	took := time.Since(since)
	e.holds(e.a, v, cluster.ModeEX)
	e.counts(e.a, v)
	return took
}

// lunGone: every read and write of kvm-b's LUN fails. The guest on it is killed and its volume
// cut off, the other guest and the host live on, and kvm-a gets the volume after that.
func lunGone(e *env) {
	v := e.two
	guarded, other := e.guarded(v)
	defer e.orAfresh()
	boot := e.must(e.b, "cat /proc/sys/kernel/random/boot_id")
	gone := time.Now()
	e.must(e.b, "echo 1 >$(dirname $(readlink -f /sys/block/vdb/device))/remove")
	require.NoError(e, cluster.Eventually(e.ctx, 90*time.Second, func() error {
		out, err := e.b.Must(e.ctx, "kill -0 "+guarded+" 2>/dev/null && echo runs; dmsetup table "+cluster.VG+"-"+v.Name+" || echo removed, no error")
		if err == nil && (strings.Contains(out, "runs") || !strings.Contains(out, " error")) {
			err = fmt.Errorf("%.0f s after the LUN has gone: %s", time.Since(gone).Seconds(), out)
		}
		return err
	}))
	e.Logf("the guest was killed and cut off within %.0f s", time.Since(gone).Seconds())
	e.Logf("what it did: %s", e.must(e.b, "journalctl -q -b -o cat -t virtlvm --no-pager | tail -5"))
	took := e.elsewhere(gone, v)
	e.Logf("kvm-a has the volume %.0f s after the LUN has gone", took.Seconds())
	// Longer than the watchdog would have taken.
	e.meanwhile(func() { time.Sleep(time.Until(gone.Add(2 * time.Minute))) })
	require.Equal(e, boot, e.must(e.b, "cat /proc/sys/kernel/random/boot_id"), "the host was reset")
	require.Equal(e, other, e.must(e.b, "cat /run/libvirt/qemu/other.pid"))
	e.must(e.b, "kill -0 "+other)
	e.destroy(e.a, "guarded")
	require.NoError(e, e.b.Kill()) // its LUN is gone for good
	e.boot(e.b)
	require.NoError(e, e.b.StartLockspace(e.ctx))
	e.released(v)
}

// lunStalled: kvm-b's LUN answers next to nothing, with writes of the guest under way, which
// nobody can call back. Either all is stopped in time, or the watchdog resets the host; kvm-a
// gets the volume only after that.
func lunStalled(e *env) {
	v := e.two
	guarded, _ := e.guarded(v)
	defer e.orAfresh()
	stalled := time.Now()
	require.NoError(e, e.b.Stall(true))
	reset := make(chan struct{})
	go func() {
		defer close(reset)
		if took, err := e.b.Ended(e.ctx, stalled); err == nil {
			e.Logf("kvm-b was reset %.0f s after its LUN had stalled", took.Seconds())
		}
	}()
	took := e.elsewhere(stalled, v)
	e.Logf("kvm-a has the volume %.0f s after the LUN had stalled", took.Seconds())
	select {
	case <-reset:
	default:
		out := e.must(e.b, "kill -0 "+guarded+" 2>/dev/null && echo runs; dmsetup table "+cluster.VG+"-"+v.Name+" || echo removed, no error; cat /sys/block/dm-*/dm/suspended | sort -u; journalctl -q -b -o cat -t virtlvm --no-pager | tail -5")
		require.NotContains(e, out, "runs", "SPLIT BRAIN")
		require.Contains(e, out, " error", "SPLIT BRAIN: %s", out)
		e.Logf("kvm-b lives on: %s", out)
		require.NoError(e, e.b.Kill())
	}
	<-reset
	e.destroy(e.a, "guarded")
	e.boot(e.b)
	require.NoError(e, e.b.StartLockspace(e.ctx))
	e.released(v)
}
