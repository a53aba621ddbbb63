//go:build e2e

package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// volumeEnds are the scenarios of TestVolumes in which the content of a volume is kept, or an
// end is made of it: asked for on kvm-b and done on kvm-a.
func volumeEnds() []scenario {
	return []scenario{
		{"delete_zeroed", deleteZeroed, true},
		{"erase_daemon_killed", eraseDaemonKilled, true},
		{"snapshot_running", snapshotRunning, true},
	}
}

// old is a volume on A that nobody uses, full of something.
func (e *env) old(name, size string) cluster.Volume {
	e.Helper()
	v := e.make(e.a, name, "--size", size)
	e.must(e.a, fmt.Sprintf("tr '\\0' x </dev/zero | dd of=%s bs=1M count=$(($(blockdev --getsize64 %[1]s) >> 20)) iflag=fullblock oflag=direct status=none; virtlvm deactivate %s", v.Path(), v.Full()))
	e.released(v)
	return v
}

// extents of a linear volume: the device below it, where they begin and how many bytes they
// have.
func (e *env) extents(v cluster.Volume) (pv string, from, size int64) {
	e.Helper()
	out := e.must(e.b, "lvs --noheadings --nosuffix --units b -o seg_pe_ranges,seg_size,vg_extent_size --segments "+v.Full())
	require.NotContains(e, out, "\n", "it is of one piece")
	var at, extent int64
	fields := strings.Fields(out)
	require.Len(e, fields, 3)
	device, pes, _ := strings.Cut(fields[0], ":")
	first, _, _ := strings.Cut(pes, "-")
	_, err := fmt.Sscan(first+" "+fields[1]+" "+fields[2], &at, &size, &extent)
	require.NoError(e, err)
	var begin int64
	_, err = fmt.Sscan(e.must(e.b, "pvs --noheadings --nosuffix --units b -o pe_start "+device), &begin)
	require.NoError(e, err)
	return device, begin + at*extent, size
}

// deleteZeroed: the extents of a volume that was deleted with --zero are zeros on the shared
// disk, as the other host reads them; those of one that was not are what they were.
func deleteZeroed(e *env) {
	defer e.unmake("zeroed", "asis")
	read := func(pv string, from, size int64) string {
		return e.must(e.b, fmt.Sprintf("blockdev --flushbufs %s; dd if=%[1]s iflag=direct,skip_bytes,count_bytes bs=1M skip=%d count=%d status=none | tr -d '\\0' | wc -c", pv, from, size))
	}
	v := e.old("zeroed", "24M")
	pv, from, size := e.extents(v)
	require.Equal(e, fmt.Sprint(size), read(pv, from, size), "this reads what is on it")
	e.Log(e.must(e.b, "virtlvm volume delete "+v.Full()+" --zero --host "+e.a.Name))
	require.NotContains(e, e.must(e.b, "lvs --noheadings -o lv_full_name"), v.Full())
	require.Equal(e, "0", read(pv, from, size), "zeros where it was")

	v = e.old("asis", "8M")
	pv, from, size = e.extents(v)
	e.must(e.b, "virtlvm volume delete "+v.Full())
	require.NotContains(e, e.must(e.b, "lvs --noheadings -o lv_full_name"), v.Full())
	require.Equal(e, fmt.Sprint(size), read(pv, from, size), "--zero was not said")

	// One that a guest has is kept.
	guest, used := e.running()
	r, err := e.b.Run(e.ctx, "virtlvm volume delete "+used.Full()+" --zero --host "+e.a.Name)
	require.NoError(e, err)
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, used.Full()+" is a disk of guest "+guest)
	e.over(e.a, guest, used)
}

// eraseDaemonKilled: zeros go on being written without a daemon, and the next one finds out
// that they have been.
func eraseDaemonKilled(e *env) {
	defer e.unmake("erased")
	v := e.old("erased", "40M")
	origin := e.ask("volume", "erase", v.Full(), "--throttle", "2")
	require.Contains(e, e.must(e.b, "lvs --noheadings -o lv_tags "+v.Full()), "virtlvm.incomplete=")
	adopted := e.daemonDies(func() {
		require.NoError(e, cluster.Eventually(e.ctx, 4*time.Minute, func() error {
			_, err := e.a.Must(e.ctx, "! pgrep -f '[v]irtlvm-zero'")
			return err
		}))
	})
	e.succeeded(origin, adopted)
	e.released(v)
	require.Equal(e, "", strings.TrimSpace(e.must(e.b, "lvs --noheadings -o lv_tags "+v.Full()+" | tr ',' '\\n' | grep -v virtlvm.command= || true")))
	e.must(e.b, "lvchange -aey "+v.Full())
	require.Equal(e, "0", e.must(e.b, "dd if="+v.Path()+" iflag=direct bs=1M status=none | tr -d '\\0' | wc -c"))
	e.must(e.b, "lvchange -an "+v.Full())
}

// snapshotRunning: a guest that writes all the while has a snapshot taken; what was on the disk
// then is in it, what came later is not; copied back, the guest starts from there.
func snapshotRunning(e *env) {
	const length = 1 << 20
	defer e.unmake("monday")
	guest, v := e.running()
	require.NoError(e, e.a.WriteDisk(e.ctx, guest, 0, 0x51, 8<<20, length))
	snap := cluster.Volume{Name: "monday"}
	e.Log(e.must(e.b, "virtlvm volume snapshot "+v.Full()+" --to "+snap.Full()+" --host "+e.a.Name))
	made, err := e.c.Volumes(e.ctx, "monday")
	require.NoError(e, err)
	snap = made[0]
	e.released(snap)
	e.counts(e.a, v)
	require.NoError(e, e.a.WriteDisk(e.ctx, guest, 0, 0x52, 8<<20, length))
	e.over(e.a, guest, v)

	e.must(e.b, "lvchange -aey "+snap.Full())
	require.NoError(e, e.b.CheckDisk(e.ctx, snap, "raw", 0x51, 8<<20, length))
	e.must(e.b, "lvchange -an "+snap.Full())

	e.Log(e.must(e.b, "virtlvm volume copy "+snap.Full()+" "+v.Full()+" --overwrite"))
	e.must(e.a, "lvchange -aey "+v.Full()+" "+snap.Full()+" && cmp "+v.Path()+" "+snap.Path())
	e.must(e.a, "lvchange -an "+v.Full()+" "+snap.Full())
	e.start(e.a, guest)
	e.counts(e.a, v)
	require.NoError(e, e.a.CheckDisk(e.ctx, v, "raw", 0x51, 8<<20, length))
	e.destroy(e.a, guest)
	e.released(v)
}
