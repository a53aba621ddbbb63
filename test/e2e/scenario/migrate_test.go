//go:build e2e

package scenario

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// TestMigrate is live migration on exclusively held volumes, typed as ever. Scenarios are
// named after the rows of docs/handoff.md.
func TestMigrate(t *testing.T) {
	run(t,
		scenario{"row_a", rowA, true},
		scenario{"row_b", rowB, true},
		scenario{"row_d", rowD, true},
		scenario{"row_k", rowK, true},
	)
}

// migrate is what an operator types.
func (e *env) migrate(from, to *cluster.Host, guest string, options ...string) cluster.Result {
	e.Helper()
	args := append([]string{"migrate", "--live"}, options...)
	r, err := from.Virsh(e.ctx, append(args, guest, "qemu+ssh://"+to.Name+"/system")...)
	require.NoError(e, err)
	e.Logf("virsh %s %s qemu+ssh://%s/system: exit %d after %.1f s %s", strings.Join(args, " "), guest, to.Name, r.Exit, r.Duration.Seconds(), r.Output())
	return r
}

// rowA: nothing goes wrong, there and back again.
func rowA(e *env) {
	v := e.one
	e.define(disk("vm1", v), e.a, e.b)
	e.start(e.a, "vm1")
	e.holds(e.a, v, cluster.ModeEX)
	from, to := e.a, e.b
	for range 2 {
		require.Zero(e, e.migrate(from, to, "vm1").Exit)
		e.holds(to, v, cluster.ModeEX)
		e.holds(from, v, cluster.ModeOff)
		e.counts(to, v)
		e.refused(from, "vm1", to.Name, "vg_san/vm1")
		from, to = to, from
	}
	e.destroy(e.a, "vm1")
	e.released(v)
}

// rowB: the source refuses, with our reason, and keeps the guest.
func rowB(e *env) {
	v := e.one
	e.define(disk("vm1", v), e.a, e.b)
	e.start(e.a, "vm1")
	r := e.migrate(e.a, e.b, "vm1", "--copy-storage-all")
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, "virtlvm: cannot migrate vm1: ")
	require.Contains(e, r.Stderr, "would copy its volumes onto themselves")
	e.holds(e.a, v, cluster.ModeEX)
	e.holds(e.b, v, cluster.ModeOff)
	e.counts(e.a, v)
	e.destroy(e.a, "vm1")
	e.released(v)
}

// rowD: aborted while memory moves.
func rowD(e *env) {
	v := e.one
	e.define(disk("vm1", v), e.a, e.b)
	e.start(e.a, "vm1")
	e.must(e.a, "tc qdisc add dev eth1 root tbf rate 600kbit burst 16kbit latency 800ms")
	slow := func() { e.must(e.a, "tc qdisc del dev eth1 root 2>/dev/null || true") }
	defer slow()
	e.must(e.a, "systemd-run --unit=abort --collect sh -c 'until virsh domjobinfo vm1 2>/dev/null | grep -q \"Memory processed\"; do sleep 1; done; sleep 3; virsh domjobabort vm1'")
	r := e.migrate(e.a, e.b, "vm1")
	require.NotZero(e, r.Exit)
	slow()
	e.holds(e.b, v, cluster.ModeOff)
	require.NoError(e, cluster.Eventually(e.ctx, time.Minute, func() error { return e.check(e.a, v, cluster.ModeEX) }))
	e.counts(e.a, v)
	e.destroy(e.a, "vm1")
	e.released(v)
}

// rowK: a qcow2 chain and a shareable disk beside it.
func rowK(e *env) {
	g := cluster.Guest{Name: "chain", Disks: []cluster.Disk{
		{Source: e.top.Path(), Format: "qcow2"}, {Source: e.two.Path(), Shareable: true},
	}}
	e.define(g, e.a, e.b)
	e.start(e.a, "chain")
	require.NoError(e, e.a.WriteDisk(e.ctx, "chain", 0, 0x5b, 1<<20, 64<<10))
	require.Zero(e, e.migrate(e.a, e.b, "chain").Exit)
	e.holds(e.b, e.top, cluster.ModeEX)
	for _, v := range []cluster.Volume{e.mid, e.base, e.two} {
		e.holds(e.b, v, cluster.ModeSH)
	}
	for _, v := range []cluster.Volume{e.top, e.mid, e.base, e.two} {
		e.holds(e.a, v, cluster.ModeOff)
	}
	require.NoError(e, e.b.CheckDisk(e.ctx, e.top, "qcow2", 0x5b, 1<<20, 64<<10))
	e.destroy(e.b, "chain")
	e.released(e.top, e.mid, e.base, e.two)
}
