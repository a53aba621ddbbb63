//go:build e2e

package scenario

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// TestRows are the rows of docs/handoff.md that TestMigrate leaves out because they are
// rarer, or take longer.
func TestRows(t *testing.T) {
	run(t,
		scenario{"row_b2_b3", rowB2, true},
		scenario{"row_e", rowE, true},
		scenario{"row_f", rowF, true},
		scenario{"row_g", rowG, true},
		scenario{"row_h", rowH, true},
		scenario{"row_i", rowI, true},
		scenario{"row_j", rowJ, true},
		scenario{"row_m", rowM, true},
		scenario{"row_o", rowO, true},
	)
}

// running defines vm1 on both hosts and starts it on A.
func (e *env) running() (guest string, v cluster.Volume) {
	e.Helper()
	e.define(disk("vm1", e.one), e.a, e.b)
	e.start(e.a, "vm1")
	e.holds(e.a, e.one, cluster.ModeEX)
	return "vm1", e.one
}

// over ends a scenario of one guest that runs on a host, after a look that it still does
// and that its volume is that host's alone.
func (e *env) over(h *cluster.Host, guest string, v cluster.Volume) {
	e.Helper()
	e.alone(h, v)
	e.counts(h, v)
	e.destroy(h, guest)
	e.released(v)
}

// alone waits until a volume is exclusive on a host and off on the other.
func (e *env) alone(h *cluster.Host, v cluster.Volume) {
	e.Helper()
	require.NoError(e, cluster.Eventually(e.ctx, 3*time.Minute, func() error {
		for _, each := range e.hosts {
			mode := cluster.ModeOff
			switch {
			case !each.Running():
				continue
			case each == h:
				mode = cluster.ModeEX
			}
			if err := e.check(each, v, mode); err != nil {
				return err
			}
		}
		return nil
	}))
}

// throttle makes memory move so slowly from a host that there is time to do something.
func (e *env) throttle(h *cluster.Host) (undo func()) {
	e.Helper()
	e.must(h, "tc qdisc add dev eth1 root tbf rate 600kbit burst 16kbit latency 800ms")
	return func() {
		if h.Running() {
			e.must(h, "tc qdisc del dev eth1 root 2>/dev/null || true")
		}
	}
}

// whileMoving starts a live migration and does something while the guest's memory moves;
// undo lets it move quickly again.
func (e *env) whileMoving(from, to *cluster.Host, guest string, do func(undo func())) cluster.Result {
	e.Helper()
	undo := e.throttle(from)
	defer undo()
	done := make(chan cluster.Result, 1)
	go func() {
		r, err := from.Virsh(e.ctx, "migrate", "--live", guest, "qemu+ssh://"+to.Name+"/system")
		if err != nil { // the host may be gone
			r = cluster.Result{Exit: -1, Stderr: err.Error(), Duration: r.Duration}
		}
		done <- r
	}()
	require.NoError(e, cluster.Eventually(e.ctx, 2*time.Minute, func() error {
		select {
		case r := <-done:
			require.FailNow(e, "the migration ended before memory moved", "exit %d: %s", r.Exit, r.Output())
		default:
		}
		out, err := from.Must(e.ctx, "virsh -q domjobinfo "+guest)
		if err == nil && !strings.Contains(out, "Memory processed") {
			err = fmt.Errorf("memory does not move yet: %s", out)
		}
		return err
	}))
	do(undo)
	r := <-done
	e.Logf("virsh migrate --live %s from %s to %s: exit %d after %.1f s %s", guest, from.Name, to.Name, r.Exit, r.Duration.Seconds(), r.Output())
	return r
}

// neighbour is a second hook of an administrator in qemu.d on a host; it goes with undo.
func (e *env) neighbour(h *cluster.Host, script string) (undo func()) {
	e.Helper()
	const path = "/etc/libvirt/hooks/qemu.d/90-neighbour"
	e.must(h, "mkdir -p /etc/libvirt/hooks/qemu.d")
	require.NoError(e, h.WriteFile(e.ctx, path, []byte("#!/bin/sh\n"+script+"\n")))
	e.must(h, "chmod 755 "+path+" && systemctl reload libvirtd")
	return func() {
		if h.Running() {
			e.must(h, "rm "+path)
		}
	}
}

// rowB2: libvirt gives up after our `migrate` has said yes, without another hook; then, and
// at that moment, a plain start on the destination.
func rowB2(e *env) {
	guest, v := e.running()
	undo := e.neighbour(e.b, `[ "$2" != migrate ] || { echo "the neighbour says no" >&2; exit 1; }`)
	defer undo()
	r := e.migrate(e.a, e.b, guest)
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, "the neighbour says no")
	e.refused(e.b, guest, "virtlvm: cannot start vm1")
	// Off within 60 s, exclusive again as soon as the job is gone.
	require.NoError(e, cluster.Eventually(e.ctx, 75*time.Second, func() error { return e.check(e.b, v, cluster.ModeOff) }))
	e.refused(e.b, guest, "virtlvm: cannot start vm1")
	e.over(e.a, guest, v)
}

// rowE: the daemon of either side is killed while memory moves.
func rowE(e *env) {
	guest, v := e.running()
	from, to := e.a, e.b
	for _, victim := range []*cluster.Host{e.a, e.b} {
		r := e.whileMoving(from, to, guest, func(undo func()) {
			pid := e.must(victim, "systemctl show -p MainPID --value virtlvmd.service")
			e.must(victim, "kill -9 "+pid)
			undo()
		})
		require.Zero(e, r.Exit)
		e.alone(to, v)
		from, to = to, from
	}
	e.over(from, guest, v)
}

// rowF: the hosts' daemons cannot reach each other. A migration is refused before anything
// moves; one that moves already ends well by itself.
func rowF(e *env) {
	guest, v := e.running()
	cut := func(h *cluster.Host) {
		e.must(h, "mv /usr/bin/ssh /usr/bin/ssh.away; pkill -f '[v]irtlvm relay' || true")
	}
	mend := func(h *cluster.Host) { e.must(h, "[ ! -e /usr/bin/ssh.away ] || mv /usr/bin/ssh.away /usr/bin/ssh") }
	defer func() { mend(e.a); mend(e.b) }()

	cut(e.b)
	e.must(e.a, "pkill -f '[v]irtlvm relay' || true")
	r := e.migrate(e.a, e.b, guest)
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, "virtlvm: cannot migrate vm1")
	require.Contains(e, r.Stderr, "kvm-a")
	e.alone(e.a, v)
	mend(e.b)

	r = e.whileMoving(e.a, e.b, guest, func(undo func()) {
		cut(e.a)
		cut(e.b)
		undo()
	})
	require.Zero(e, r.Exit)
	e.over(e.b, guest, v)
}

// rowG: the destination's host dies while memory moves.
func rowG(e *env) {
	guest, v := e.running()
	killed := time.Now()
	r := e.whileMoving(e.a, e.b, guest, func(func()) {
		require.NoError(e, e.b.Kill())
		killed = time.Now()
		// libvirt would wait until TCP gives up, a quarter of an hour later.
		time.Sleep(10 * time.Second)
		e.must(e.a, "virsh domjobabort "+guest)
	})
	require.NotZero(e, r.Exit)
	e.counts(e.a, v)
	require.NoError(e, cluster.Eventually(e.ctx, 3*time.Minute, func() error { return e.check(e.a, v, cluster.ModeEX) }))
	e.Logf("exclusive again %.0f s after the destination's power cut", time.Since(killed).Seconds())
	e.over(e.a, guest, v)
}

// rowH: the source's host dies when the guest runs on the destination already.
func rowH(e *env) {
	guest, v := e.running()
	undo := e.neighbour(e.a, `[ "$2" != stopped ] || sleep 300`)
	defer undo()
	go func() { _, _ = e.a.Virsh(e.ctx, "migrate", "--live", guest, "qemu+ssh://kvm-b/system") }()
	require.NoError(e, cluster.Eventually(e.ctx, 3*time.Minute, func() error {
		r, err := e.a.Run(e.ctx, "pgrep -f '90-neighbour vm1 [s]topped'")
		if err == nil && r.Exit != 0 {
			err = fmt.Errorf("the source has not stopped yet")
		}
		return err
	}))
	e.counts(e.b, v)
	require.NoError(e, e.a.Kill())
	killed := time.Now()
	require.NoError(e, e.check(e.b, v, cluster.ModeSH))
	require.NoError(e, cluster.Eventually(e.ctx, 3*time.Minute, func() error { return e.check(e.b, v, cluster.ModeEX) }))
	e.Logf("exclusive on the destination %.0f s after the source's power cut", time.Since(killed).Seconds())
	e.over(e.b, guest, v)
	e.boot(e.a)
}

// rowI: three guests at once, in both directions, and straight back again.
func rowI(e *env) {
	e.define(disk("vm1", e.one), e.a, e.b)
	e.define(disk("vm2", e.two), e.a, e.b)
	e.define(cluster.Guest{Name: "chain", Disks: []cluster.Disk{{Source: e.top.Path(), Format: "qcow2"}}}, e.a, e.b)
	e.start(e.a, "vm1")
	e.start(e.b, "vm2")
	e.start(e.a, "chain")
	at := map[string]*cluster.Host{"vm1": e.a, "vm2": e.b, "chain": e.a}
	other := func(h *cluster.Host) *cluster.Host {
		if h == e.a {
			return e.b
		}
		return e.a
	}
	for range 2 {
		moves := []func() error{}
		for guest, from := range at {
			to := other(from)
			moves = append(moves, func() error {
				// Three at once can take an emulated host longer than the hook's minute. Such a
				// migration is refused and nothing has changed: it is asked for again.
				for range 3 {
					r, err := from.Virsh(e.ctx, "migrate", "--live", guest, "qemu+ssh://"+to.Name+"/system")
					e.Logf("%s from %s to %s: exit %d after %.1f s %s", guest, from.Name, to.Name, r.Exit, r.Duration.Seconds(), r.Output())
					if err != nil || r.Exit == 0 {
						return err
					}
					if !strings.Contains(r.Output(), "has not answered within") {
						return fmt.Errorf("%s: %s", guest, r.Output())
					}
				}
				return fmt.Errorf("%s is refused again and again", guest)
			})
		}
		require.NoError(e, cluster.Together(moves...))
		for guest, from := range at {
			at[guest] = other(from)
		}
	}
	e.alone(at["vm1"], e.one)
	e.alone(at["vm2"], e.two)
	e.alone(at["chain"], e.top)
	e.counts(at["vm1"], e.one)
	e.counts(at["vm2"], e.two)
	for guest, h := range at {
		e.destroy(h, guest)
	}
	e.released(e.one, e.two, e.top, e.mid, e.base)
}

// rowJ: the ways in which a migration can be asked for.
func rowJ(e *env) {
	guest, v := e.running()
	from, to := e.a, e.b
	for _, options := range []string{
		"--p2p", "--p2p --tunnelled", "--postcopy --timeout 2 --timeout-postcopy", "--persistent --undefinesource", "--suspend",
	} {
		require.Zero(e, e.migrate(from, to, guest, strings.Fields(options)...).Exit, options)
		e.alone(to, v)
		if options == "--suspend" {
			require.Equal(e, "paused", e.must(to, "virsh -q domstate vm1"))
		} else {
			e.counts(to, v)
		}
		from, to = to, from
	}
	// Still paused: it arrives paused.
	require.Zero(e, e.migrate(from, to, guest).Exit)
	e.alone(to, v)
	e.must(to, "virsh -q resume vm1")
	e.counts(to, v)
	from, to = to, from

	// Only the definition: nothing changes hands.
	r, err := from.Virsh(e.ctx, "migrate", "--offline", "--persistent", guest, "qemu+ssh://"+to.Name+"/system")
	require.NoError(e, err)
	require.Zero(e, r.Exit, r.Output())
	e.alone(from, v)
	e.refused(to, guest, from.Name, v.Full())

	// To itself: libvirt refuses after our `migrate`.
	require.NotZero(e, e.migrate(from, from, guest).Exit)
	e.alone(from, v)

	// Under another name.
	require.Zero(e, e.migrate(from, to, guest, "--dname", "renamed").Exit)
	e.over(to, "renamed", v)
}

// rowM: libvirtd is restarted on either side, while memory moves and afterwards.
func rowM(e *env) {
	guest, v := e.running()
	for _, victim := range []*cluster.Host{e.a, e.b} {
		r := e.whileMoving(e.a, e.b, guest, func(undo func()) {
			e.must(victim, "systemctl restart libvirtd")
			undo()
		})
		require.NotZero(e, r.Exit, "libvirt does not survive that itself")
		e.alone(e.a, v)
		e.counts(e.a, v)
	}
	require.Zero(e, e.migrate(e.a, e.b, guest).Exit)
	e.must(e.b, "systemctl restart libvirtd")
	e.must(e.a, "systemctl restart libvirtd")
	e.over(e.b, guest, v)
}

// rowO: the source's host dies while memory moves: nothing stays behind on the destination.
func rowO(e *env) {
	guest, v := e.running()
	killed := time.Now()
	e.whileMoving(e.a, e.b, guest, func(func()) {
		require.NoError(e, e.a.Kill())
		killed = time.Now()
	})
	require.NoError(e, cluster.Eventually(e.ctx, 4*time.Minute, func() error { return e.check(e.b, v, cluster.ModeOff) }))
	e.Logf("off on the destination %.0f s after the source's power cut", time.Since(killed).Seconds())
	require.NoError(e, cluster.Eventually(e.ctx, 3*time.Minute, func() error {
		r, err := e.b.Virsh(e.ctx, "start", guest)
		if err == nil && r.Exit != 0 {
			err = fmt.Errorf("%s", r.Output())
		}
		return err
	}))
	e.Logf("started elsewhere %.0f s after the power cut", time.Since(killed).Seconds())
	e.over(e.b, guest, v)
}
