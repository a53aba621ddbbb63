//go:build e2e

package scenario

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// TestMigrate is live migration on exclusively held volumes, typed as ever. Scenarios are
// named after the rows of docs/handoff.md.
func TestMigrate(t *testing.T) {
	defer withoutSecond(t)
	run(t,
		scenario{"row_a", rowA, true},
		scenario{"row_b", rowB, true},
		scenario{"row_c", rowC, true},
		scenario{"row_d", rowD, true},
		scenario{"row_k", rowK, true},
		scenario{"row_l", rowL, true},
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
		leases := e.recorded(v, func() {
			require.Zero(e, e.migrate(from, to, "vm1").Exit)
			e.holds(to, v, cluster.ModeEX)
		})
		e.holds(from, v, cluster.ModeOff)
		require.Equal(e, cluster.Lease{EX: from.ID}, leases[0])
		require.Equal(e, cluster.Lease{EX: to.ID}, leases[len(leases)-1])
		e.Logf("virtlvm guest handoff vm1 on %s:\n%s", to.Name, e.must(to, "virtlvm guest handoff vm1"))
		e.counts(to, v)
		e.refused(from, "vm1", to.Name, "vg_san/vm1")
		from, to = to, from
	}
	// Nothing of it was lost on the way: the same bytes from both sides.
	e.must(e.a, "virsh -q suspend vm1")
	sum := "dd if=" + v.Path() + " bs=1M iflag=direct status=none | sha256sum"
	there := e.must(e.a, sum)
	e.destroy(e.a, "vm1")
	e.released(v)
	e.must(e.b, "virsh -q start --paused vm1")
	require.Equal(e, there, e.must(e.b, sum))
	e.destroy(e.b, "vm1")
	e.released(v)
}

// recorded is each lease that a volume has had while something was done, as the disk has it. It
// is an error if nobody had the volume at a time, or one host alone and the other as well.
func (e *env) recorded(v cluster.Volume, do func()) (leases []cluster.Lease) {
	e.Helper()
	begin := time.Now()
	look := func() error {
		l, err := e.b.Lease(e.ctx, v)
		if err == nil && (len(leases) == 0 || l.String() != leases[len(leases)-1].String()) {
			e.Logf("%6.1f s: the lease of %s says %s", time.Since(begin).Seconds(), v.Full(), l)
			leases = append(leases, l)
		}
		return err
	}
	require.NoError(e, look())
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			case <-time.After(100 * time.Millisecond):
			}
			if err := look(); err != nil {
				done <- err
				return
			}
		}
	}()
	do()
	close(stop)
	require.NoError(e, <-done)
	require.NoError(e, look())
	for _, l := range leases {
		require.NotEqual(e, "free", l.String(), "nobody has %s", v.Full())
		require.False(e, l.EX != 0 && slices.ContainsFunc(l.SH, func(id int) bool { return id != l.EX }), "%s: %s", v.Full(), l)
	}
	return leases
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

// rowC: QEMU cannot start on the destination, where a disk of no concern to us is missing.
func rowC(e *env) {
	v := e.one
	e.must(e.a, "truncate -s 1M /root/here-only.img")
	defer e.must(e.a, "rm -f /root/here-only.img")
	e.define(cluster.Guest{Name: "vm1", Disks: []cluster.Disk{
		{Source: v.Path()}, {Type: "file", Source: "/root/here-only.img", ReadOnly: true},
	}}, e.a, e.b)
	e.start(e.a, "vm1")
	r := e.migrate(e.a, e.b, "vm1")
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, "here-only.img")
	e.over(e.a, "vm1", v)
}

// rowD: aborted while memory moves; then the destination's QEMU is killed.
func rowD(e *env) {
	guest, v := e.running()
	r := e.whileMoving(e.a, e.b, guest, func(undo func()) {
		e.must(e.a, "virsh -q domjobabort vm1")
		undo()
	})
	require.NotZero(e, r.Exit)
	e.alone(e.a, v)
	r = e.whileMoving(e.a, e.b, guest, func(undo func()) {
		e.must(e.b, "kill -9 $(cat /run/libvirt/qemu/vm1.pid)")
		undo()
	})
	require.NotZero(e, r.Exit)
	e.over(e.a, guest, v)
}

// rowK: a qcow2 chain, and beside it a shareable disk, one in another volume group, one that
// was plugged in while the guest ran, and one that is none of our business.
func rowK(e *env) {
	e.second()
	for _, h := range e.hosts {
		require.NoError(e, h.WriteFile(e.ctx, "/root/none.img", make([]byte, 1<<20)))
		defer e.must(h, "rm -f /root/none.img")
	}
	e.must(e.a, "lvcreate -qq -y -an -Wn -Zn -L 16m -n data "+cluster.Second)
	there := e.inSecond("data")

	g := cluster.Guest{Name: "chain", Disks: []cluster.Disk{
		{Source: e.top.Path(), Format: "qcow2"},
		{Source: e.two.Path(), Shareable: true},
		{Source: there.Path()},
		{Type: "file", Source: "/root/none.img", ReadOnly: true},
	}}
	e.define(g, e.a, e.b)
	e.start(e.a, "chain")
	require.NoError(e, e.a.WriteDisk(e.ctx, "chain", 0, 0x5b, 1<<20, 64<<10))
	e.must(e.a, "lvchange -aey "+e.one.Full())
	e.must(e.a, "virsh -q attach-disk chain "+e.one.Path()+" vde --driver qemu --subdriver raw --cache none --targetbus virtio --live")
	require.NoError(e, cluster.Eventually(e.ctx, time.Minute, func() error { return e.held("chain", e.one) }))

	require.Zero(e, e.migrate(e.a, e.b, "chain").Exit)
	e.alone(e.b, e.top)
	e.alone(e.b, e.one)
	for _, v := range []cluster.Volume{e.mid, e.base, e.two} {
		e.holds(e.b, v, cluster.ModeSH)
		e.holds(e.a, v, cluster.ModeOff)
	}
	e.alone(e.b, there)
	require.NoError(e, e.b.CheckDisk(e.ctx, e.top, "qcow2", 0x5b, 1<<20, 64<<10))
	e.destroy(e.b, "chain")
	e.released(e.top, e.mid, e.base, e.two, e.one, there)
}

// held says whether A's daemon has a hold of a volume for a guest.
func (e *env) held(guest string, v cluster.Volume) error {
	var guests []api.Guest
	if err := e.a.Ask(e.ctx, &guests, "guests"); err != nil {
		return err
	}
	for _, g := range guests {
		for _, d := range g.Volumes {
			if g.Name == guest && d.Volume == v.Full() {
				return nil
			}
		}
	}
	return fmt.Errorf("%s is not held for %s: %+v", v.Full(), guest, guests)
}

// rowL: hook calls that come twice, or that nobody should make, under a running guest, also
// after it has changed hosts. (What lay in the spool: release_while_masked.)
func rowL(e *env) {
	guest, v := e.running()
	call := func(h *cluster.Host, op, sub, extra string) {
		e.must(h, "virsh -q dumpxml vm1 | /etc/libvirt/hooks/qemu vm1 "+op+" "+sub+" "+extra)
	}
	disturb := func(h *cluster.Host) {
		for range 2 {
			call(h, "started", "begin", "-")
			call(h, "reconnect", "begin", "-")
			call(h, "stopped", "end", "migrated")
			call(h, "release", "end", "migrated")
		}
		call(h, "start", "begin", "-")
		e.alone(h, v)
		e.counts(h, v)
	}
	disturb(e.a)
	require.Zero(e, e.migrate(e.a, e.b, guest).Exit)
	disturb(e.b)
	// And late news at the source, of a guest that is gone from there.
	call(e.a, "stopped", "end", "migrated")
	call(e.a, "release", "end", "migrated")
	e.over(e.b, guest, v)
}
