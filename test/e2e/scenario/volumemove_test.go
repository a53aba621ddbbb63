//go:build e2e

package scenario

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// volumeMoves are the scenarios of TestVolumes in which a volume goes to another volume
// group, asked for on kvm-b and done on kvm-a.
func volumeMoves() []scenario {
	return []scenario{
		{"move_running", moveRunning, true},
		{"move_link_down", func(e *env) { moveDisturbed(e, e.linkDown) }, true},
		{"move_daemon_killed", func(e *env) { moveDisturbed(e, e.daemonDies) }, true},
		{"move_daemon_restarted", func(e *env) { moveDisturbed(e, e.daemonRestarted) }, true},
		{"move_cancelled", moveCancelled, true},
		{"move_off", moveOff, true},
	}
}

// second sees to it that there is an empty second volume group, which stays until
// withoutSecond.
func (e *env) second() {
	e.Helper()
	require.NoError(e, e.c.MakeSecond(e.ctx))
}

// withoutSecond ends a suite whose scenarios may have made the second volume group.
func withoutSecond(t *testing.T) {
	t.Helper()
	if suite.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(suite.ctx, 3*time.Minute)
	defer cancel()
	if err := suite.cluster.StopSecond(ctx); err != nil {
		t.Error("cannot stop the second volume group:", err)
	}
}

func (e *env) inSecond(name string) cluster.Volume {
	e.Helper()
	v, err := e.c.InSecond(e.ctx, name)
	require.NoError(e, err)
	return v[0]
}

// tags of a volume, as kvm-b reads them.
func (e *env) tags(v cluster.Volume) string {
	e.Helper()
	return e.must(e.b, "lvs --noheadings -o lv_tags "+v.Full())
}

// moving starts vm1 on A, writes to its disk, and has B ask for its move to the second
// volume group, so slowly that there is time to do something.
func (e *env) moving() (guest string, from, to cluster.Volume, origin string, disturbed func(disturbance)) {
	e.Helper()
	e.second()
	guest, from = e.running()
	require.NoError(e, e.a.WriteDisk(e.ctx, guest, 0, 0x6d, 8<<20, 4<<20))
	c := e.ask("volume", "move", from.Full(), "--to-vg", cluster.Second, "--bandwidth", "1")
	// Both are the guest's alone while it is copied.
	to = e.inSecond(from.Name)
	e.alone(e.a, from)
	e.alone(e.a, to)
	return guest, from, to, fmt.Sprint(c.ID), func(disturb disturbance) {
		adopted := disturb(func() {
			// It has caught up; with a daemon it may have pivoted since.
			const file = "/run/libvirt/qemu/vm1.xml"
			require.NoError(e, cluster.Eventually(e.ctx, 4*time.Minute, func() error {
				_, err := e.a.Must(e.ctx, "grep -q \"ready='yes'\" "+file+" || ! grep -q '<mirror' "+file)
				return err
			}))
		})
		e.succeeded(c, adopted)
	}
}

// movedAway: the guest has its disk, with what was written, on the second volume group, on
// A alone; it will start from there, and from nowhere else. Then all is as it was.
func (e *env) movedAway(guest string, from, to cluster.Volume) {
	e.Helper()
	e.alone(e.a, to)
	e.released(from)
	e.counts(e.a, to)
	require.NoError(e, e.a.CheckDisk(e.ctx, to, "raw", 0x6d, 8<<20, 4<<20))
	require.Equal(e, "virtlvm.superseded", e.tags(from))
	require.NotContains(e, e.tags(to), "incomplete")
	for _, option := range []string{"", " --inactive"} {
		doc := e.must(e.a, "virsh -q dumpxml "+guest+option)
		require.Contains(e, doc, to.Path())
		require.NotContains(e, doc, from.Path())
	}
	e.refused(e.b, guest, from.Full()+" is tagged virtlvm.superseded") // its definition there is old
	e.destroy(e.a, guest)
	e.released(to)
	// The boot sector counts in the first sectors, also after the pivot.
	e.must(e.a, fmt.Sprintf("lvchange -aey %[1]s %[2]s && cmp -i 1048576 %[3]s %[4]s", from.Full(), to.Full(), from.Path(), to.Path()))
	e.must(e.a, "lvchange -an "+from.Full()+" "+to.Full())
	e.start(e.a, guest)
	e.counts(e.a, to)
	e.destroy(e.a, guest)
	e.released(to)
}

// restored takes the tag of a move off the volume that all scenarios share.
func (e *env) restored(v cluster.Volume) {
	e.must(e.a, "lvchange --deltag virtlvm.superseded "+v.Full())
}

func moveRunning(e *env) {
	defer e.restored(e.one)
	guest, from, to, _, under := e.moving()
	under(func(work func()) bool {
		require.Contains(e, e.tags(to), "virtlvm.incomplete=")
		work()
		return false
	})
	e.movedAway(guest, from, to)
}

// moveDisturbed: QEMU goes on copying without a daemon, and the next one pivots; without a
// link kvm-b hears of it later.
func moveDisturbed(e *env, what disturbance) {
	defer e.restored(e.one)
	guest, from, to, _, under := e.moving()
	under(what)
	e.movedAway(guest, from, to)
}

// moveCancelled: the guest goes on as if nothing had been.
func moveCancelled(e *env) {
	defer e.restored(e.one)
	guest, from, to, id, _ := e.moving()
	e.must(e.b, "virtlvm command cancel "+id)
	require.NoError(e, cluster.Eventually(e.ctx, 2*time.Minute, func() error {
		c, err := e.row(e.b, "origin")
		if err == nil && c.State != "FAILED" {
			err = fmt.Errorf("it is %s on %s: %s", c.State, e.b.Name, c.Error)
		}
		return err
	}))
	require.NotContains(e, e.must(e.b, "lvs --noheadings -o lv_full_name "+cluster.Second), to.Full())
	require.Empty(e, e.tags(from))
	require.Contains(e, e.must(e.a, "virsh -q dumpxml "+guest), from.Path())
	require.NotContains(e, strings.ToLower(e.must(e.a, "virsh -q dumpxml "+guest)), "<mirror")
	require.NoError(e, e.a.CheckDisk(e.ctx, from, "raw", 0x6d, 8<<20, 4<<20))
	e.over(e.a, guest, from)
}

// moveOff: a guest that is off, on kvm-a, goes to the second volume group as a qcow2 image and
// back to the first as a raw volume, and its content with it. What copies nothing is said before.
func moveOff(e *env) {
	const made = "moved"
	from := e.two
	defer e.restored(from)
	e.second()
	guest := "vm2"
	e.define(disk(guest, from), e.a)
	e.must(e.a, fmt.Sprintf("lvchange -aey %[1]s && qemu-io -f raw -t none -c 'write -P 0x6e 8M 4M' %[2]s && lvchange -an %[1]s", from.Full(), from.Path()))

	// It is done on kvm-a, where the guest is defined, whoever is asked.
	var plan api.CommandPlan
	require.NoError(e, e.b.Ask(e.ctx, &plan, "guest", "move", guest, "--to-vg", cluster.Second, "--plan"))
	require.Equal(e, e.a.Name, plan.Host)
	require.Equal(e, api.TierFull, plan.Volumes[0].Tier)
	require.EqualValues(e, 32<<20, plan.Volumes[0].Bytes)
	e.Logf("plan: %+v", plan.Volumes)

	e.Logf("to qcow2: %s", e.must(e.b, "virtlvm guest move "+guest+" --to-vg "+cluster.Second+" --format qcow2"))
	to := e.inSecond(from.Name)
	e.released(from, to)
	require.Equal(e, "virtlvm.superseded", e.tags(from))
	require.Contains(e, e.must(e.a, "virsh -q dumpxml --inactive "+guest), to.Path())
	e.start(e.a, guest)
	e.alone(e.a, to)
	require.NoError(e, e.a.CheckDisk(e.ctx, to, "qcow2", 0x6e, 8<<20, 4<<20))
	e.destroy(e.a, guest)
	e.released(to)

	e.Logf("to raw: %s", e.must(e.b, "virtlvm volume move "+to.Full()+" --to-vg "+cluster.VG+" --name "+made+" --format raw"))
	v, err := e.c.Volumes(e.ctx, made)
	require.NoError(e, err)
	defer e.must(e.a, "lvremove -qq -y "+v[0].Full())
	// The boot sector has counted since, in the first sectors.
	e.must(e.a, fmt.Sprintf("lvchange -aey %[1]s %[2]s && cmp -i 1048576 %[3]s %[4]s; code=$?; lvchange -an %[1]s %[2]s; exit $code", from.Full(), v[0].Full(), from.Path(), v[0].Path()))
	e.start(e.a, guest)
	e.counts(e.a, v[0])

	// Only its lock goes to kvm-b, and the guest with it.
	e.destroy(e.a, guest)
	e.released(v[0])
	e.Logf("to kvm-b: %s", e.must(e.b, "virtlvm guest move "+guest+" --to-host "+e.b.Name))
	e.start(e.b, guest)
	e.counts(e.b, v[0])
	e.destroy(e.b, guest)
	e.released(v[0])
	e.Logf("lock to kvm-a: %s", e.must(e.b, "virtlvm volume move "+v[0].Full()+" --to-host "+e.a.Name))
	e.alone(e.a, v[0])
	e.must(e.a, "virtlvm deactivate "+v[0].Full())
	e.released(v[0])
}
