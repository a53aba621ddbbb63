//go:build e2e

package scenario

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// TestReboot is hosts that go down and come back, in order or not.
func TestReboot(t *testing.T) {
	run(t,
		scenario{"reboot_autostart", rebootAutostart, true},
		scenario{"reboot_running", rebootRunning, true},
		scenario{"power_cut", powerCut, true},
		scenario{"watchdog", watchdogBites, true},
	)
}

// goesDown reboots hosts in order, up to the moment when they would start again.
func (e *env) goesDown(hosts ...*cluster.Host) (longest time.Duration) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, 6*time.Minute)
	defer cancel()
	down := make([]func() error, 0, len(hosts))
	took := make([]time.Duration, len(hosts))
	for i, h := range hosts {
		down = append(down, func() (err error) { took[i], err = h.GoDown(ctx, "systemctl reboot"); return err })
	}
	require.NoError(e, cluster.Together(down...))
	for i, h := range hosts {
		e.Logf("%s went down in %.0f s", h.Name, took[i].Seconds())
		longest = max(longest, took[i])
	}
	return longest
}

func (e *env) boot(hosts ...*cluster.Host) {
	e.Helper()
	boots := make([]func() error, 0, len(hosts))
	for _, h := range hosts {
		boots = append(boots, func() error { return h.Boot(e.ctx) })
	}
	require.NoError(e, cluster.Together(boots...))
}

// comesUp waits until an autostarted guest runs on a host that has booted.
func (e *env) comesUp(h *cluster.Host, guest string, v cluster.Volume) {
	e.Helper()
	require.NoError(e, cluster.Eventually(e.ctx, 3*time.Minute, func() error {
		s, err := h.Must(e.ctx, "virsh -q domstate "+guest)
		if err == nil && s != "running\n" && s != "running\n\n" {
			err = fmt.Errorf("%s is %s", guest, s)
		}
		return err
	}))
	e.holds(h, v, cluster.ModeEX)
	e.counts(h, v)
	e.Logf("%s runs on %s, %s after power-on", guest, h.Name, e.must(h, "cut -d' ' -f1 /proc/uptime"))
	e.Logf("lvmlocks.service on %s: %s", h.Name, e.must(h, "systemctl is-active lvmlocks.service || true"))
}

// rebootAutostart: both hosts are rebooted; their guests start with them, although the
// distribution's own unit fails to start the lockspace.
func rebootAutostart(e *env) {
	e.define(disk("auto-a", e.one), e.a)
	e.define(disk("auto-b", e.two), e.b)
	e.must(e.a, "virsh -q autostart auto-a")
	e.must(e.b, "virsh -q autostart auto-b")
	e.goesDown(e.a, e.b)
	e.boot(e.a, e.b)
	e.comesUp(e.a, "auto-a", e.one)
	e.comesUp(e.b, "auto-b", e.two)
	e.destroy(e.a, "auto-a")
	e.destroy(e.b, "auto-b")
	e.released(e.one, e.two)
}

// rebootRunning: a host with running guests is rebooted; none of them reacts to ACPI, so
// systemd kills them in the end. No lease outlives the host, not even that of a volume which an
// operator has activated.
func rebootRunning(e *env) {
	e.define(disk("deaf1", e.one), e.a, e.b)
	e.define(disk("deaf2", e.two), e.a)
	e.must(e.a, `printf 'ON_BOOT=ignore\nON_SHUTDOWN=shutdown\nSHUTDOWN_TIMEOUT=15\nPARALLEL_SHUTDOWN=2\n' >/etc/default/libvirt-guests
systemctl unmask -q libvirt-guests.service && systemctl start libvirt-guests.service`)
	e.start(e.a, "deaf1")
	e.start(e.a, "deaf2")
	e.must(e.a, "virtlvm activate "+e.base.Full())
	took := e.goesDown(e.a)

	for _, v := range []cluster.Volume{e.one, e.two, e.base} {
		l, err := e.b.Lease(e.ctx, v)
		require.NoError(e, err)
		require.Zero(e, l.EX, "%s is still leased: %s", v.Full(), l)
		require.Empty(e, l.SH)
	}
	begin := time.Now()
	e.start(e.b, "deaf1")
	e.holds(e.b, e.one, cluster.ModeEX)
	e.Logf("deaf1 runs on %s %.0f s after %s was gone", e.b.Name, time.Since(begin).Seconds(), e.a.Name)
	require.LessOrEqual(e, took, 90*time.Second, "the host took too long to go down")

	e.destroy(e.b, "deaf1")
	e.boot(e.a)
	e.must(e.a, "systemctl stop libvirt-guests.service; systemctl mask -q libvirt-guests.service; rm /etc/default/libvirt-guests")
	e.released(e.one, e.two, e.base)
}

// powerCut: a host loses power under a guest and comes back before sanlock has declared it
// dead. Its guest starts with it.
func powerCut(e *env) {
	v := e.one
	e.define(disk("back", v), e.a)
	e.must(e.a, "virsh -q autostart back; sync")
	e.start(e.a, "back")
	e.counts(e.a, v)
	require.NoError(e, e.a.Kill())
	cut := time.Now()
	e.boot(e.a)
	e.comesUp(e.a, "back", v)
	e.Logf("back runs again %.0f s after the power cut", time.Since(cut).Seconds())
	e.destroy(e.a, "back")
	e.released(v)
}

// watchdogBites: sanlock dies on a host with a watchdog. The host is reset before another
// host can have its volumes.
func watchdogBites(e *env) {
	v := e.two
	e.define(disk("guarded", v), e.a, e.b)
	e.must(e.b, `set -e
vgchange --lockstop `+cluster.VG+`
systemctl stop virtlvmd.service lvmlockd.service sanlock.service
sed -i 's/use_watchdog = 0/use_watchdog = 1/' /etc/sanlock/sanlock.conf
systemctl unmask -q wdmd.service
systemctl start wdmd.service sanlock.service lvmlockd.service virtlvmd.service`)
	require.NoError(e, e.b.StartLockspace(e.ctx))
	e.start(e.b, "guarded")
	e.holds(e.b, v, cluster.ModeEX)

	begin := time.Now()
	e.must(e.b, "kill -9 $(pgrep -o -x sanlock)")
	reset := make(chan time.Duration, 1)
	ctx, cancel := context.WithTimeout(e.ctx, 4*time.Minute)
	defer cancel()
	go func() {
		took, err := e.b.Ended(ctx, begin)
		if err != nil {
			e.Error(err)
			cancel()
		}
		reset <- took
	}()
	started := time.Duration(0)
	require.NoError(e, cluster.Eventually(ctx, 4*time.Minute, func() error {
		r, err := e.a.Virsh(ctx, "start", "guarded")
		if err == nil && r.Exit != 0 {
			err = fmt.Errorf("after %.0f s: %s", time.Since(begin).Seconds(), r.Output())
		}
		started = time.Since(begin)
		return err
	}))
	took := <-reset
	e.Logf("sanlock killed; kvm-b was reset after %.0f s, its guest ran on kvm-a after %.0f s", took.Seconds(), started.Seconds())
	require.NotZero(e, took)
	require.Less(e, took, started, "the guest ran on both hosts")
	e.holds(e.a, v, cluster.ModeEX)
	e.counts(e.a, v)
	e.destroy(e.a, "guarded")
	e.boot(e.b)
	e.must(e.b, "systemctl mask -q wdmd.service")
}
