//go:build e2e

package scenario

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

const units = cluster.Units

// daemonKilled: a guest's volume is released also when the daemon was killed in between.
func daemonKilled(e *env) {
	v := e.one
	e.define(disk("killed", v), e.a)
	e.start(e.a, "killed")
	e.holds(e.a, v, cluster.ModeEX)
	pid := e.must(e.a, "systemctl show -p MainPID --value virtlvmd.service")
	e.must(e.a, "kill -9 "+pid)
	e.holds(e.a, v, cluster.ModeEX)
	e.destroy(e.a, "killed")
	e.released(v)
	require.NotEqual(e, pid, e.must(e.a, "systemctl show -p MainPID --value virtlvmd.service"))
}

// releaseWhileMasked: a release that the daemon could not take waits on disk. When it is
// taken at last, it does not harm the guest that has been started again since.
func releaseWhileMasked(e *env) {
	v := e.one
	e.define(disk("masked", v), e.a)
	e.start(e.a, "masked")
	e.holds(e.a, v, cluster.ModeEX)

	e.must(e.a, "systemctl mask --now -q "+units)
	e.destroy(e.a, "masked")
	require.NotEmpty(e, e.spooled(), "the release is not in the spool")
	e.holds(e.a, v, cluster.ModeEX)
	e.refused(e.a, "masked", "virtlvm")
	e.holds(e.a, v, cluster.ModeEX)
	e.must(e.a, "rm -rf /root/stale; cp -a "+api.SpoolDir+" /root/stale")

	// Break-glass lets it start on what is still active. Then the daemon comes back with
	// the release of the guest's former life in its spool.
	e.must(e.a, "mkdir -p /etc/virtlvm && touch "+api.BreakGlassPath)
	e.start(e.a, "masked")
	e.must(e.a, "rm "+api.BreakGlassPath)
	e.comeBack()
	e.keeps(v, "masked")

	// The same events once more, under a guest that the daemon started itself.
	e.destroy(e.a, "masked")
	e.released(v)
	e.start(e.a, "masked")
	e.must(e.a, "systemctl mask --now -q "+units)
	e.must(e.a, "cp -a /root/stale/. "+api.SpoolDir+"/ && rm -rf /root/stale")
	require.NotEmpty(e, e.spooled())
	e.comeBack()
	e.keeps(v, "masked")
	e.destroy(e.a, "masked")
	e.released(v)
}

// spooled lists the hook events that wait on A.
func (e *env) spooled() string {
	e.Helper()
	return e.must(e.a, "find "+api.SpoolDir+" -maxdepth 1 -type f")
}

// comeBack unmasks and starts the daemon on A and waits until its spool is empty.
func (e *env) comeBack() {
	e.Helper()
	e.must(e.a, "systemctl unmask -q "+units+" && systemctl start "+units)
	require.NoError(e, cluster.Eventually(e.ctx, 30*time.Second, func() error {
		var s api.Status
		if err := e.a.Ask(e.ctx, &s, "status"); err != nil {
			return err
		}
		if !s.Ready || s.Spool.Waiting > 0 {
			return fmt.Errorf("ready: %v, spool: %d waiting", s.Ready, s.Spool.Waiting)
		}
		return nil
	}))
}

// keeps checks for a few seconds that a guest on A goes on writing to a volume that stays
// exclusive, and that the daemon has a hold for it.
func (e *env) keeps(v cluster.Volume, guest string) {
	e.Helper()
	for range 3 {
		e.holds(e.a, v, cluster.ModeEX)
		e.counts(e.a, v)
	}
	var guests []api.Guest
	require.NoError(e, e.a.Ask(e.ctx, &guests, "guests"))
	for _, g := range guests {
		if g.Name != guest {
			continue
		}
		require.Len(e, g.Volumes, 1)
		require.Equal(e, api.GuestDisk{
			Volume: v.Full(), Role: "writable", Phase: "held", Wanted: "ex", Actual: "ex",
		}, g.Volumes[0])
		return
	}
	require.Fail(e, "the daemon does not know guest "+guest, "%+v", guests)
}

// libvirtdRestart: a guest and its lock live through a restart of libvirtd, and its end is
// noticed afterwards.
func libvirtdRestart(e *env) {
	v := e.one
	e.define(disk("survivor", v), e.a)
	e.start(e.a, "survivor")
	pid := e.must(e.a, "cat /run/libvirt/qemu/survivor.pid")
	e.must(e.a, "systemctl restart libvirtd")
	running, err := e.a.Guests(e.ctx, true)
	require.NoError(e, err)
	require.Contains(e, running, "survivor")
	require.Equal(e, pid, e.must(e.a, "cat /run/libvirt/qemu/survivor.pid"))
	e.keeps(v, "survivor")
	e.destroy(e.a, "survivor")
	e.released(v)
}

// adoptRunning: a daemon that finds a guest running, on a volume that is only shared,
// makes it exclusive and takes it over.
func adoptRunning(e *env) {
	v := e.one
	e.define(disk("found", v), e.a)
	e.must(e.a, "systemctl mask --now -q "+units)
	e.must(e.a, "mkdir -p /etc/virtlvm && touch "+api.BreakGlassPath)
	e.must(e.a, "lvchange -asy "+v.Full())
	e.start(e.a, "found")
	e.holds(e.a, v, cluster.ModeSH)
	e.must(e.a, "rm "+api.BreakGlassPath)
	e.comeBack()
	e.keeps(v, "found")
	e.destroy(e.a, "found")
	e.released(v)
}
