//go:build e2e

package scenario

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// TestVolumes is the life of a volume.
func TestVolumes(t *testing.T) {
	defer withoutSecond(t)
	run(t, slices.Concat(volumeLife(), volumeMoves(), volumeEnds())...)
}

// qcow2Chain: the disk of the guest is exclusive, what lies below it is shared, and all of
// it goes with the guest.
func qcow2Chain(e *env) {
	base, mid, top := e.base, e.mid, e.top
	// The definition names only the top: the chain is in the headers.
	e.define(cluster.Guest{Name: "chain", Disks: []cluster.Disk{{Source: top.Path(), Format: "qcow2"}}}, e.a, e.b)

	e.start(e.a, "chain")
	e.holds(e.a, top, cluster.ModeEX)
	e.holds(e.a, mid, cluster.ModeSH)
	e.holds(e.a, base, cluster.ModeSH)
	require.NoError(e, e.a.WriteDisk(e.ctx, "chain", 0, 0x5a, 1<<20, 64<<10))
	require.NoError(e, e.a.CheckDisk(e.ctx, top, "qcow2", 0x5a, 1<<20, 64<<10))
	e.refused(e.b, "chain", "kvm-a", "vg_san/top")
	e.destroy(e.a, "chain")
	e.released(top, mid, base)

	// What was written on A is read on B.
	e.start(e.b, "chain")
	require.NoError(e, e.b.CheckDisk(e.ctx, top, "qcow2", 0x5a, 1<<20, 64<<10))
	e.destroy(e.b, "chain")
	e.released(top, mid, base)
}

// shareableTwoHosts: a <shareable/> disk is held shared by guests on both hosts, and lost
// by neither when the other ends.
func shareableTwoHosts(e *env) {
	v := e.one
	shared := []cluster.Disk{{Source: v.Path(), Shareable: true}}
	e.define(cluster.Guest{Name: "node1", Disks: shared}, e.a)
	e.define(cluster.Guest{Name: "node2", Disks: shared}, e.b)
	e.define(disk("owner", v), e.b)
	e.start(e.a, "node1")
	e.start(e.b, "node2")
	e.holds(e.a, v, cluster.ModeSH)
	e.holds(e.b, v, cluster.ModeSH)
	require.NoError(e, e.a.WriteDisk(e.ctx, "node1", 0, 0x77, 1<<20, 4096))
	require.NoError(e, e.b.CheckDisk(e.ctx, v, "raw", 0x77, 1<<20, 4096))

	e.destroy(e.b, "node2")
	e.holds(e.b, v, cluster.ModeOff)
	e.holds(e.a, v, cluster.ModeSH)
	// One who wants it for itself must wait.
	e.refused(e.b, "owner", "kvm-a", "vg_san/vm1")
	e.destroy(e.a, "node1")
	e.released(v)
}
