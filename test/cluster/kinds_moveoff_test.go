package cluster

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
	"virtlvm/test/san"
)

// movedOff: vm1 is off, and starts from vg_two/vm1 on a; from its old volume nobody starts.
func (r *rig) movedOff(content []byte) {
	r.t.Helper()
	require.Equal(r.t, []string{"virtlvm.command=kvm-a-7"}, r.tags("vg_two/vm1"))
	require.Equal(r.t, []string{"virtlvm.superseded"}, r.tags("vg_san/vm1"))
	require.Equal(r.t, "/dev/vg_two/vm1", r.definedAt())
	for _, name := range []string{"vg_san/vm1", "vg_two/vm1"} {
		require.Equal(r.t, "off", r.state(r.a, name))
	}
	require.True(r.t, bytes.Equal(content, r.content("vg_two/vm1")[:len(content)]))
	r.released(r.a)
	err := r.b.Virt.Start(ctx, "vm1") // with its old definition
	require.ErrorContains(r.t, err, "vg_san/vm1 is tagged virtlvm.superseded: its content has been moved to another volume")
	require.NoError(r.t, r.a.Virt.Start(ctx, "vm1"))
	require.Equal(r.t, "ex", r.state(r.a, "vg_two/vm1"))
}

// notMovedOff: nothing has happened to vm1.
func (r *rig) notMovedOff() {
	r.t.Helper()
	require.False(r.t, r.exists("vg_two/vm1"))
	require.Equal(r.t, "/dev/vg_san/vm1", r.definedAt())
	r.released(r.a)
	r.sourceIntact()
}

func TestVolumeMoveOff(t *testing.T) {
	r := newRig(t)
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	names := []string{}
	for _, target := range w.c.Targets {
		names = append(names, target.Name)
	}
	assert.Equal(t, []string{"vg_san/vm1", "vg_two/vm1", "vm1"}, names)
	gated := 0
	r.jobs["kvm-a"].Gate = func(string, int) {
		gated++
		assert.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
		assert.Equal(t, "ex", r.state(r.a, "vg_two/vm1"))
		for _, h := range []*Host{r.a, r.b} {
			assert.ErrorContains(t, h.Virt.Start(ctx, "vm1"), "vg_san/vm1 is held")
		}
	}
	v := w.end()
	assert.Equal(t, command.Verdict{
		Outcome: command.Done,
		Reason:  "vg_two/vm1 has the content of vg_san/vm1, compared, and is disk vda of guest vm1; vg_san/vm1 is tagged virtlvm.superseded: remove it when it is not needed any more",
	}, v)
	assert.Equal(t, 2, gated)
	assert.Equal(t, command.Done, w.end().Outcome, "asked again")
	r.movedOff(pattern())
}

func TestVolumeMoveOffCrashes(t *testing.T) {
	eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
		v := r.mustAsk(r.a, api.KindVolumeMove, moveArgs).end()
		require.LessOrEqual(t, r.jobs["kvm-a"].Begun(), 1)
		if v.Outcome == command.Done {
			r.movedOff(pattern())
		} else {
			require.Zero(t, r.jobs["kvm-a"].Begun(), "killed at %s: %s", r.kill.hit, v.Reason)
			r.notMovedOff()
		}
	})
}

func TestVolumeMoveOffFails(t *testing.T) {
	eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
		fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "convert", ExitCode: 1, Stderr: "qemu-img: error while writing at byte 4096: No space left on device\n"})
		v := r.mustAsk(r.a, api.KindVolumeMove, moveArgs).end()
		require.Equal(t, command.NotDone, v.Outcome)
		if r.jobs["kvm-a"].Begun() == 1 {
			require.Equal(t, "cannot move vg_san/vm1 to vg_two/vm1: qemu-img: error while writing at byte 4096: No space left on device (exit code 1)", v.Reason)
		}
		r.notMovedOff()
	})
}

func TestVolumeMoveOffCancelled(t *testing.T) {
	eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
		fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "qemu-img", Match: "convert"})
		w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
		w.tick = func(command.Sight) { w.cancel("operator uid 0") }
		v := w.end()
		require.Equal(t, command.NotDone, v.Outcome)
		if r.jobs["kvm-a"].Begun() == 1 {
			require.Equal(t, "cannot move vg_san/vm1 to vg_two/vm1: it was cancelled: operator uid 0", v.Reason)
		}
		r.notMovedOff()
	})
}

// What reads differently from what was written is no move.
func TestVolumeMoveOffDiffers(t *testing.T) {
	r := newRig(t)
	r.jobs["kvm-a"].Gate = func(_ string, step int) {
		if step == 2 {
			f, err := os.OpenFile(r.data("vg_two/vm1"), os.O_WRONLY, 0)
			assert.NoError(t, err)
			_, err = f.WriteAt([]byte{0xff}, 4096)
			assert.NoError(t, err)
			assert.NoError(t, f.Close())
		}
	}
	v := r.mustAsk(r.a, api.KindVolumeMove, moveArgs).end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Equal(t, "cannot move vg_san/vm1 to vg_two/vm1: Content mismatch at offset 4096! (exit code 1)", v.Reason)
	r.notMovedOff()
}

// The host dies after the copy and before the move is decided; meanwhile the guest has run
// elsewhere: what was copied is old, and the source stays the real one.
func TestVolumeMoveOffAndTheHostDies(t *testing.T) {
	r := newRig(t)
	r.mortal()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	r.kill.arm(0, "Retag vg_san/vm1[virtlvm.superseded] []", false)
	w.restart = func() {
		r.a.PowerCut()
		r.expire()
		v, err := r.kind(r.b, api.KindVolumeMove).Investigate(ctx, w.c)
		require.NoError(t, err)
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Contains(t, v.Reason, "vg_two/vm1 is left half made")
		require.NoError(t, r.b.Virt.Start(ctx, "vm1"))
		require.NoError(t, r.b.Virt.Destroy(ctx, "vm1"))
		r.boot()
	}
	v := w.end()
	assert.Equal(t, "Retag vg_san/vm1[virtlvm.superseded] []", r.kill.hit)
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Contains(t, v.Reason, "has not been the command's alone ever since")
	assert.False(t, r.exists("vg_two/vm1"))
	assert.Equal(t, "/dev/vg_san/vm1", r.definedAt())
	assert.Empty(t, r.tags("vg_san/vm1"))
	require.NoError(t, r.a.Virt.Start(ctx, "vm1"))
}

// It dies when the move is decided: it is taken to its end, and until then nobody starts
// from the source.
func TestVolumeMoveOffAndTheHostDiesDecided(t *testing.T) {
	r := newRig(t)
	r.mortal()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	r.kill.arm(0, "Retag vg_san/vm1[virtlvm.superseded] []", true)
	w.restart = func() {
		r.a.PowerCut()
		r.expire()
		v, err := r.kind(r.b, api.KindVolumeMove).Investigate(ctx, w.c)
		require.NoError(t, err)
		assert.Equal(t, command.Done, v.Outcome)
		assert.Contains(t, v.Reason, "'lvchange --deltag virtlvm.incomplete=kvm-a-7 vg_two/vm1'")
		require.ErrorContains(t, r.b.Virt.Start(ctx, "vm1"), "virtlvm.superseded")
		r.boot()
	}
	assert.Equal(t, command.Done, w.end().Outcome)
	assert.NotEmpty(t, r.kill.hit)
	r.movedOff(pattern())
}

func TestVolumeMoveOffWhileLibvirtIsDown(t *testing.T) {
	r := newRig(t)
	r.deaf.Store(true)
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	tries := 0
	w.tick = func(s command.Sight) {
		if s.Where == command.Ended {
			tries++
		}
		r.deaf.Store(tries < 5)
	}
	assert.Equal(t, command.Done, w.end().Outcome)
	assert.GreaterOrEqual(t, tries, 5)
	r.movedOff(pattern())
}

func TestVolumeMoveOffToQcow2AndBack(t *testing.T) {
	r := newRig(t)
	args := moveArgs
	args.Format = "qcow2"
	v := r.mustAsk(r.a, api.KindVolumeMove, args).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, "QFI\xfb", string(r.content("vg_two/vm1")[:4]))
	doc := r.definition()
	assert.Equal(t, "qcow2", doc.Disks[0].Source.Format)
	assert.Greater(t, len(r.content("vg_two/vm1")), rigSize, "room for all of it")
	require.NoError(t, r.a.Virt.Start(ctx, "vm1"))
	require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))

	v = r.mustAsk(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_two/vm1", ToVG: "vg_san", Name: "back", Format: "raw"}).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, pattern(), r.content("vg_san/back"))
	doc = r.definition()
	assert.Equal(t, "raw", doc.Disks[0].Source.Format)
	assert.Equal(t, "/dev/vg_san/back", doc.Disks[0].Source.Path)
}

// A running guest's disk changes its format on the way, too.
func TestVolumeMoveToQcow2(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	args := moveArgs
	args.Format = "qcow2"
	w := r.mustAsk(r.a, api.KindVolumeMove, args)
	w.tick = func(s command.Sight) {
		assert.Equal(t, "QFI\xfb", string(r.content("vg_two/vm1")[:4]))
		r.catchUp(s)
	}
	v := w.end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Greater(t, len(r.content("vg_two/vm1")), rigSize)
	assert.Equal(t, "qcow2", r.definition().Disks[0].Source.Format)
	assert.Equal(t, "ex", r.state(r.a, "vg_two/vm1"))
}

// definition of vm1 on host a.
func (r *rig) definition() *domain.Domain {
	r.t.Helper()
	all, err := domain.ReadDefinitions(r.a.dir + "/etc/libvirt/qemu")
	require.NoError(r.t, err)
	for _, d := range all {
		if d.Name == "vm1" {
			return d
		}
	}
	r.t.Fatal("vm1 is not defined")
	return nil
}

// A volume that no guest has moves as well.
func TestVolumeMoveOfNobody(t *testing.T) {
	r := newRig(t)
	r.volume("vg_san", "idle", rigSize)
	require.NoError(t, os.WriteFile(r.data("vg_san/idle"), pattern(), 0o600))
	v := r.mustAsk(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/idle", ToVG: "vg_two", Name: "else"}).end()
	assert.Equal(t, command.Verdict{
		Outcome: command.Done,
		Reason:  "vg_two/else has the content of vg_san/idle, compared; vg_san/idle is tagged virtlvm.superseded: remove it when it is not needed any more",
	}, v)
	assert.Equal(t, pattern(), r.content("vg_two/else"))
	_, err := r.ask(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/idle", ToVG: "vg_two"})
	require.EqualError(t, err, "vg_san/idle is tagged virtlvm.superseded: its content has been moved elsewhere already, and is old")
}

func TestVolumeMoveToHost(t *testing.T) {
	to := api.MoveArgs{Volume: "vg_san/vm1", ToHost: "kvm-b"}
	t.Run("free", func(t *testing.T) {
		r := newRig(t)
		v := r.mustAsk(r.a, api.KindVolumeMove, to).end()
		assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "the lock of vg_san/vm1 is on kvm-b"}, v)
		assert.Equal(t, "ex", r.state(r.b, "vg_san/vm1"))
		v = r.mustAsk(r.a, api.KindVolumeMove, to).end()
		assert.Equal(t, command.Done, v.Outcome, "it is there")
		back := r.mustAsk(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/vm1", ToHost: "kvm-a"})
		assert.Equal(t, command.Done, back.end().Outcome)
		assert.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
		assert.Equal(t, "off", r.state(r.b, "vg_san/vm1"))
	})
	t.Run("a host that is not there", func(t *testing.T) {
		r := newRig(t)
		v := r.mustAsk(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/vm1", ToHost: "kvm-z"}).end()
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Contains(t, v.Reason, "there is no host kvm-z in the lockspace of vg_san")
	})
	for _, after := range []bool{false, true} {
		for _, at := range []string{"transfer", "lvchange -an vg_san/vm1"} {
			t.Run(fmt.Sprintf("killed at %s, after %v", at, after), func(t *testing.T) {
				r := newRig(t)
				require.Equal(t, command.Done, r.mustAsk(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/vm1", ToHost: "kvm-a"}).end().Outcome)
				r.mortal()
				w := r.mustAsk(r.a, api.KindVolumeMove, to)
				r.kill.arm(0, at, after)
				v := w.end()
				require.Equal(t, at, r.kill.hit)
				b := r.state(r.b, "vg_san/vm1")
				require.Equal(t, v.Outcome == command.Done, b == "ex", "%s: %s", b, v.Reason)
				if v.Outcome == command.NotDone {
					require.Contains(t, v.Reason, "the lock of vg_san/vm1 is not on kvm-b: ")
				}
			})
		}
	}
}

func TestVolumeMoveRefusesContent(t *testing.T) {
	r := newRig(t)
	for tag, want := range map[string]string{
		model.TagShared:                 "vg_san/vm1 is tagged virtlvm.shared (a template or cluster disk), which many guests name; copy it with 'virtlvm volume copy'",
		model.TagIncomplete + "kvm-b-3": "the content of vg_san/vm1 is not complete: command kvm-b-3 is at it, or has failed; see 'virtlvm commands'",
	} {
		out, err := r.a.Run("lvchange", "--addtag", tag, "vg_san/vm1")
		require.NoError(t, err, out)
		_, err = r.ask(r.a, api.KindVolumeMove, moveArgs)
		require.EqualError(t, err, want)
		out, err = r.a.Run("lvchange", "--deltag", tag, "vg_san/vm1")
		require.NoError(t, err, out)
	}
}
