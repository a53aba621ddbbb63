package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/test/san"
)

var moveArgs = api.MoveArgs{Volume: "vg_san/vm1", ToVG: "vg_two"}

// definedAt is the disk of vm1 in its definition on host a.
func (r *rig) definedAt() string {
	r.t.Helper()
	doc, err := os.ReadFile(filepath.Join(r.a.dir, "etc/libvirt/qemu/vm1.xml"))
	require.NoError(r.t, err)
	d, err := domain.Parse(doc)
	require.NoError(r.t, err)
	return d.Disks[0].Source.Path
}

// catchUp is a tick: it lets the copy catch up when it is under way.
func (r *rig) catchUp(s command.Sight) {
	if s.Where == command.Running {
		_ = r.a.Virt.CatchUp(ctx, "vm1", "vda") // it may be aborted meanwhile
	}
}

// moved: vm1 runs from vg_two/vm1 and will start from there, its old volume is off.
func (r *rig) moved(tags ...string) {
	r.t.Helper()
	require.Equal(r.t, append([]string{"virtlvm.command=kvm-a-7"}, tags...), r.tags("vg_two/vm1"))
	require.Equal(r.t, []string{"virtlvm.superseded"}, r.tags("vg_san/vm1"))
	require.Equal(r.t, "/dev/vg_two/vm1", r.definedAt())
	require.Equal(r.t, "ex", r.state(r.a, "vg_two/vm1"))
	require.Equal(r.t, "off", r.state(r.a, "vg_san/vm1"))
	require.Equal(r.t, r.content("vg_san/vm1"), r.content("vg_two/vm1"))
	r.released(r.a)
	// The guest goes on with it: everything is in order when it ends and starts again.
	require.NoError(r.t, r.a.Virt.Destroy(ctx, "vm1"))
	require.Equal(r.t, "off", r.state(r.a, "vg_two/vm1"))
	require.NoError(r.t, r.a.Virt.Start(ctx, "vm1"))
	require.Equal(r.t, "ex", r.state(r.a, "vg_two/vm1"))
	err := r.b.Virt.Start(ctx, "vm1") // with its old definition
	require.ErrorContains(r.t, err, "vg_san/vm1 is tagged virtlvm.superseded: its content has been moved to another volume")
}

// notMoved: nothing has happened to vm1.
func (r *rig) notMoved() {
	r.t.Helper()
	require.False(r.t, r.exists("vg_two/vm1"))
	require.Empty(r.t, r.tags("vg_san/vm1"))
	require.Equal(r.t, "/dev/vg_san/vm1", r.definedAt())
	require.Equal(r.t, "ex", r.state(r.a, "vg_san/vm1"))
	r.released(r.a)
	require.NoError(r.t, r.a.Virt.Destroy(ctx, "vm1"))
	require.NoError(r.t, r.b.Virt.Start(ctx, "vm1"))
}

func (r *rig) startVM1() {
	r.t.Helper()
	require.NoError(r.t, r.a.Virt.Start(ctx, "vm1"))
	settled(r.t, r.a)
}

func TestVolumeMove(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	names := []string{}
	for _, target := range w.c.Targets {
		names = append(names, target.Name)
	}
	assert.Equal(t, []string{"vg_san/vm1", "vg_two/vm1", "vm1"}, names)
	var seen []string
	w.tick = func(s command.Sight) {
		seen = append(seen, string(s.Where)+" "+s.Progress.Phase)
		if len(seen) < 3 {
			// Both volumes are the guest's alone meanwhile.
			assert.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
			assert.Equal(t, "ex", r.state(r.a, "vg_two/vm1"))
			assert.Empty(t, r.a.Engine().Status(ctx).Problems)
			return
		}
		r.catchUp(s)
	}
	v := w.end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "disk vda of guest vm1 is on vg_two/vm1; vg_san/vm1 is off and tagged virtlvm.superseded: remove it when it is not needed any more"}, v)
	assert.Equal(t, "running copying", seen[0])
	assert.Equal(t, command.Done, w.end().Outcome, "asked again")
	r.moved()
}

func TestVolumeMoveCrashes(t *testing.T) {
	eachCrash(t, (*rig).startVM1, func(t *testing.T, r *rig) {
		w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
		w.tick = r.catchUp
		w.restart = func() {
			// The guest runs, on whatever volume: nobody starts it once more from the old one,
			// also when the next daemon has given that back and has not gone on with the move.
			require.Error(t, r.b.Virt.Start(ctx, "vm1"), "killed at %s", r.kill.hit)
			w.h.StartDaemon()
			settled(t, r.a)
			require.Error(t, r.b.Virt.Start(ctx, "vm1"), "killed at %s, and started again", r.kill.hit)
		}
		v := w.end()
		if v.Outcome == command.Done {
			r.moved()
		} else {
			require.Zero(t, r.copies, "killed at %s: %s", r.kill.hit, v.Reason)
			r.notMoved()
		}
	})
}

func TestVolumeMoveCancelled(t *testing.T) {
	eachCrash(t, (*rig).startVM1, func(t *testing.T, r *rig) {
		w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
		w.tick = func(command.Sight) { w.cancel("operator uid 0") }
		v := w.end()
		require.Equal(t, command.NotDone, v.Outcome)
		if w.c.Cancelled != "" {
			require.Equal(t, "cannot move vg_san/vm1 to vg_two/vm1: it was cancelled: operator uid 0; guest vm1 goes on with vg_san/vm1", v.Reason)
		}
		r.notMoved()
	})
}

// Somebody aborts the job in libvirt, or the disk is full: the guest goes on as it was.
func TestVolumeMoveAborted(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	w.tick = func(s command.Sight) {
		if s.Where == command.Running {
			require.NoError(t, r.a.Virt.AbortCopy(ctx, "vm1", "vda"))
		}
	}
	v := w.end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Equal(t, "cannot move vg_san/vm1 to vg_two/vm1: the copy ended before it had caught up; guest vm1 goes on with vg_san/vm1", v.Reason)
	r.notMoved()
}

// libvirt is down while the copy has caught up: nothing is decided until it is back.
func TestVolumeMoveWhileLibvirtIsDown(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	tries := 0
	w.tick = func(s command.Sight) {
		if s.Where == command.Running {
			r.catchUp(s)
			r.deaf.Store(true)
			return
		}
		if tries++; tries == 5 {
			r.deaf.Store(false)
		}
	}
	assert.Equal(t, command.Done, w.end().Outcome)
	assert.GreaterOrEqual(t, tries, 5)
	r.moved()
}

func TestVolumeMoveRefusedByLibvirt(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	r.deaf.Store(true)
	v := r.mustAsk(r.a, api.KindVolumeMove, moveArgs).end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Equal(t, "cannot move vg_san/vm1 to vg_two/vm1: libvirt has not answered in time; guest vm1 goes on with vg_san/vm1", v.Reason)
	r.notMoved()
}

// The guest ends in the middle. Its definition tells where its disk is.
func TestVolumeMoveAndTheGuestEnds(t *testing.T) {
	t.Run("while it is copied", func(t *testing.T) {
		r := newRig(t)
		r.startVM1()
		w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
		w.tick = func(s command.Sight) {
			if s.Where == command.Running {
				require.NoError(t, r.a.Virt.Crash(ctx, "vm1"))
			}
		}
		v := w.end()
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Contains(t, v.Reason, "the guest does not run here, and the copy had not caught up before")
		assert.False(t, r.exists("vg_two/vm1"))
		assert.Equal(t, "/dev/vg_san/vm1", r.definedAt())
		settled(t, r.a)
		assert.Equal(t, "off", r.state(r.a, "vg_san/vm1"))
		require.NoError(t, r.b.Virt.Start(ctx, "vm1"))
	})
	// The daemon dies at the pivot, and the guest ends before the next one looks.
	pivoting := func(t *testing.T, after bool, between func(*rig)) (*rig, *work) {
		r := newRig(t)
		r.mortal()
		r.startVM1()
		w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
		w.tick = r.catchUp
		w.restart = func() {
			if between != nil {
				between(r)
			}
			require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))
			r.a.StartDaemon()
		}
		// The call of the pivot is the one that is hit.
		r.kill.arm(0, "pivot", after)
		return r, w
	}
	t.Run("after the pivot", func(t *testing.T) {
		r, w := pivoting(t, true, nil)
		v := w.end()
		assert.Equal(t, command.Done, v.Outcome, v.Reason)
		assert.Equal(t, "/dev/vg_two/vm1", r.definedAt())
		assert.Equal(t, []string{"virtlvm.command=kvm-a-7"}, r.tags("vg_two/vm1"))
		assert.Equal(t, []string{"virtlvm.superseded"}, r.tags("vg_san/vm1"))
		assert.Equal(t, "off", r.state(r.a, "vg_two/vm1"))
		require.NoError(t, r.a.Virt.Start(ctx, "vm1"))
	})
	t.Run("before the pivot", func(t *testing.T) {
		// Nobody can tell that apart from libvirtd dying with the pivot: both volumes stay.
		r, w := pivoting(t, false, nil)
		v := w.tries(20)
		assert.Equal(t, command.NotYet, v.Outcome)
		assert.Contains(t, v.Reason, "it cannot be told whether vg_san/vm1 or vg_two/vm1 is the real one")
		assert.True(t, r.exists("vg_two/vm1"))
		assert.Contains(t, r.tags("vg_two/vm1"), "virtlvm.pivot=kvm-a-7")
	})
	t.Run("after the pivot, without a definition", func(t *testing.T) {
		r, w := pivoting(t, true, func(r *rig) {
			assert.NoError(r.t, os.Remove(filepath.Join(r.a.dir, "etc/libvirt/qemu/vm1.xml")))
		})
		v := w.tries(20)
		assert.Equal(t, command.NotYet, v.Outcome)
		assert.True(t, r.exists("vg_two/vm1"))
	})
}

// libvirtd dies between the pivot and its definition: it is changed by us.
func TestVolumeMoveRepairsTheDefinition(t *testing.T) {
	r := newRig(t)
	r.mortal()
	r.startVM1()
	r.kill.arm(0, "pivot", true)
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	w.tick = r.catchUp
	w.restart = func() {
		require.NoError(t, r.a.Virt.Repoint(ctx, "vm1", "vda", "/dev/vg_two/vm1", "/dev/vg_san/vm1"))
		r.a.StartDaemon()
	}
	assert.Equal(t, command.Done, w.end().Outcome)
	r.moved()
}

func TestVolumeMoveQcow2(t *testing.T) {
	r := newRig(t)
	require.NoError(t, os.WriteFile(r.data("vg_san/vm1"), san.Qcow2Image(rigSize/2, "", ""), 0o600))
	require.NoError(t, os.Truncate(r.data("vg_san/vm1"), rigSize))
	_, err := r.a.Virt.Define(ctx, XML("vm1", UUID(1), Disk{Path: "vm1", Format: "qcow2"}))
	require.NoError(t, err)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	w.tick = func(s command.Sight) {
		assert.Equal(t, "QFI\xfb", string(r.content("vg_two/vm1")[:4]), "made before the copy begins")
		r.catchUp(s)
	}
	assert.Equal(t, command.Done, w.end().Outcome)
	r.moved("virtlvm.format=qcow2")
}

func TestVolumeMoveRefuses(t *testing.T) {
	r := newRig(t)
	r.volume("vg_san", "base", rigSize)
	r.volume("vg_san", "top", rigSize)
	r.volume("vg_san", "cd", rigSize)
	r.volume("vg_san", "idle", rigSize)
	r.volume("vg_two", "taken", rigSize)
	require.NoError(t, os.WriteFile(r.data("vg_san/top"), san.Qcow2Image(rigSize/2, "/dev/vg_san/base", "raw"), 0o600))
	_, err := r.a.Virt.Define(ctx, XML("vm1", UUID(1), Disk{Path: "vm1"}, Disk{Path: "top", Format: "qcow2"}, Disk{Path: "cd", Extra: "<readonly/>"}))
	require.NoError(t, err)
	r.startVM1()
	for _, tt := range []struct {
		h    *Host
		args api.MoveArgs
		want string
	}{
		{r.a, api.MoveArgs{Volume: "vg_san/vm1", ToVG: "vg_san"}, "vg_san/vm1 is in volume group vg_san already; within one volume group only the lock moves, with the guest"},
		{r.a, api.MoveArgs{Volume: "vg_san/vm1", ToVG: "vg_none"}, "there is no volume group vg_none on this host"},
		{r.a, api.MoveArgs{Volume: "vg_san/vm1", ToVG: "vg_two", Name: "taken"}, "vg_two/taken exists already; name another volume with --name, or remove that one"},
		{r.a, api.MoveArgs{Volume: "vg_san/vm1", ToVG: "-f"}, `"-f/vm1" cannot be a logical volume: the volume group's name begins with a dash`},
		{r.a, api.MoveArgs{Volume: "vg_san/vm1"}, "say where vg_san/vm1 shall go: another volume group, another host, or another storage pool"},
		{r.a, api.MoveArgs{Volume: "vg_san/vm1", ToVG: "vg_two", ToHost: "kvm-b"}, "vg_san/vm1 goes to volume group vg_two first, and then its lock to kvm-b: ask for one after the other"},
		{r.a, api.MoveArgs{Volume: "vg_san/vm1", ToHost: "kvm-b"}, "guest vm1 runs with vg_san/vm1 on kvm-a; move the guest: 'virtlvm guest move vm1 --to-host kvm-b'"},
		{r.a, api.MoveArgs{Volume: "vg_san/vm1", ToVG: "vg_two", Format: "vmdk"}, `format "vmdk" is neither raw nor qcow2`},
		{r.b, api.MoveArgs{Volume: "vg_san/vm1", ToVG: "vg_two"}, "vg_san/vm1 is held exclusively by kvm-a; stop the guest that uses it there, or run 'lvchange -an vg_san/vm1' on kvm-a if nothing does"},
		{r.a, api.MoveArgs{Volume: "vg_san/top", ToVG: "vg_two"}, "disk vdb of guest vm1 (vg_san/top) cannot be moved: it has an image below it, which a copy would swallow"},
		{r.a, api.MoveArgs{Volume: "vg_san/base", ToVG: "vg_two"}, "vg_san/base is not itself a disk of guest vm1, but an image below one (backing); only whole disks can be moved"},
		{r.a, api.MoveArgs{Volume: "vg_san/cd", ToVG: "vg_two"}, "disk vdc of guest vm1 (vg_san/cd) cannot be moved: it is readonly"},
	} {
		_, err := r.ask(tt.h, api.KindVolumeMove, tt.args)
		require.EqualError(t, err, tt.want)
	}
	require.NoError(t, r.a.Virt.BlockCopy(ctx, "vm1", "vda", "/dev/vg_san/cd", "raw"))
	_, err = r.ask(r.a, api.KindVolumeMove, moveArgs)
	require.ErrorContains(t, err, "a block job is under way on a disk of guest vm1")
}

// The origin finds out what became of a move from the tags.
func TestVolumeMoveInvestigated(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	investigate := func() command.Verdict {
		v, err := r.kind(r.b, api.KindVolumeMove).Investigate(ctx, w.c)
		require.NoError(t, err)
		return v
	}
	assert.Equal(t, command.NotDone, investigate().Outcome, "nothing made")
	w.once()
	assert.Equal(t, command.NotYet, investigate().Outcome, "it is held by a host that lives")
	w.tick = r.catchUp
	w.end()
	assert.Equal(t, command.Done, investigate().Outcome)
}

// The host dies while the disk is copied: the source is the real one, and stays.
func TestVolumeMoveAndTheHostDies(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	w.once()
	r.a.PowerCut()
	r.expire()
	v, err := r.kind(r.b, api.KindVolumeMove).Investigate(ctx, w.c)
	require.NoError(t, err)
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Contains(t, v.Reason, "vg_two/vm1 is left half made")
	require.NoError(t, r.b.Virt.Start(ctx, "vm1"))
	require.NoError(t, r.b.Virt.Destroy(ctx, "vm1"))

	// And when it is back, its own daemon cleans up.
	r.boot()
	v = w.end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.False(t, r.exists("vg_two/vm1"))
	assert.True(t, strings.HasSuffix(r.definedAt(), "vg_san/vm1"))
}
