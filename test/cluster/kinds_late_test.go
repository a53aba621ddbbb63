package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/test/san"
)

// comesBack lets host a do what a command has its job for, lose its power before anything is made
// of that, and come back after what happens meanwhile.
func (w *work) comesBack(meanwhile func()) command.Verdict {
	r := w.r
	r.t.Helper()
	require.NoError(r.t, r.kind(w.h, w.kind).Start(ctx, w.c))
	w.begun = true
	r.jobs[w.h.Name].Wait()
	w.h.PowerCut()
	r.expire()
	meanwhile()
	w.h.Boot()
	return w.end()
}

// A host goes down when a copy is compared, and its origin says that it has failed. When it is
// back somebody copies once more, as was said: the volume is incomplete until that is at its end.
func TestVolumeCopyComesTooLate(t *testing.T) {
	again := api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/copy", Overwrite: true}
	for name, there := range map[string]bool{"made by it": false, "there before": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			args := api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/copy", Overwrite: there}
			if there {
				r.volume("vg_san", "copy", rigSize)
			}
			var next *work
			v := r.mustAsk(r.a, api.KindVolumeCopy, args).comesBack(func() {
				fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "qemu-img", Match: "convert"})
				next = r.mustAsk(r.b, api.KindVolumeCopy, again)
				next.once()
				t.Cleanup(func() { r.jobs["kvm-b"].Lose("kvm-b-8", backend.Lost) })
			})
			assert.Equal(t, command.NotDone, v.Outcome)
			assert.Contains(t, v.Reason, "vg_san/vm1 was copied to vg_san/copy, but this host went down, and another command has been at that since")
			require.Contains(t, r.tags("vg_san/copy"), "virtlvm.incomplete=kvm-b-8")
			r.jobs["kvm-b"].Lose("kvm-b-8", backend.Lost)
			r.jobs["kvm-b"].Wait()
			require.Equal(t, command.NotDone, next.end().Outcome)
			assert.Contains(t, r.tags("vg_san/copy"), "virtlvm.incomplete=kvm-b-8")
			define(t, r.b, "vm2", 2, Disk{Path: "copy"})
			require.ErrorContains(t, r.b.Virt.Start(ctx, "vm2"), "the content of vg_san/copy is not complete")
		})
	}
	t.Run("nobody has been at it", func(t *testing.T) {
		r := newRig(t)
		v := r.mustAsk(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/copy"}).comesBack(func() {})
		assert.Equal(t, command.Done, v.Outcome, v.Reason)
		r.copied("vg_san/copy")
	})
	t.Run("it is complete already", func(t *testing.T) {
		r := newRig(t)
		r.volume("vg_san", "copy", 2*rigSize)
		r.mustAsk(r.a, api.KindVolumeCopy, again).comesBack(func() {
			args := again
			args.Format, args.ToFormat = "raw", "qcow2"
			v := r.mustAsk(r.b, api.KindVolumeCopy, args).end()
			require.Equal(t, command.Done, v.Outcome, v.Reason)
		})
		assert.Equal(t, []string{"virtlvm.format=qcow2"}, r.tags("vg_san/copy"), "it says what is on it now")
	})
}

// The same of an erasure: what the volume carries since then is not what it has to tell.
func TestVolumeEraseComesTooLate(t *testing.T) {
	toQcow2 := api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/old", Overwrite: true, Format: "raw", ToFormat: "qcow2"}
	large := func(r *rig) {
		r.volume("vg_san", "old", 2*rigSize)
	}
	t.Run("used anew", func(t *testing.T) {
		r := newRig(t)
		large(r)
		r.mustAsk(r.a, api.KindVolumeErase, eraseArgs).comesBack(func() {
			v := r.mustAsk(r.b, api.KindVolumeCopy, toQcow2).end()
			require.Equal(t, command.Done, v.Outcome, v.Reason)
		})
		assert.Equal(t, []string{"virtlvm.format=qcow2"}, r.tags("vg_san/old"))
	})
	t.Run("being used anew", func(t *testing.T) {
		r := newRig(t)
		large(r)
		v := r.mustAsk(r.a, api.KindVolumeErase, eraseArgs).comesBack(func() {
			fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "qemu-img", Match: "convert"})
			r.mustAsk(r.b, api.KindVolumeCopy, toQcow2).once()
			t.Cleanup(func() { r.jobs["kvm-b"].Lose("kvm-b-8", backend.Lost) })
		})
		assert.Equal(t, "cannot erase vg_san/old: another command has been at it since: it is left as it is", v.Reason)
		assert.Contains(t, r.tags("vg_san/old"), "virtlvm.incomplete=kvm-b-8")
	})
	for name, half := range map[string]bool{"failed, used anew": false, "failed, half of something else on it": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			large(r)
			fault(t, r.c, brokenStep(4))
			v := r.mustAsk(r.a, api.KindVolumeErase, eraseArgs).comesBack(func() {
				require.NoError(t, r.c.SAN.ClearFaults())
				want := command.Done
				if half {
					want = command.NotDone
					fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "convert", ExitCode: 1})
				}
				require.Equal(t, want, r.mustAsk(r.b, api.KindVolumeCopy, toQcow2).end().Outcome)
			})
			assert.Equal(t, command.NotDone, v.Outcome)
			require.NoError(t, r.c.SAN.ClearFaults())
			if !half {
				assert.Equal(t, []string{"virtlvm.format=qcow2"}, r.tags("vg_san/old"))
				return
			}
			// Whoever erases it now begins at its beginning.
			assert.Contains(t, r.tags("vg_san/old"), "virtlvm.incomplete=kvm-b-8")
			v = r.mustAsk(r.b, api.KindVolumeErase, eraseArgs).end()
			assert.Equal(t, "vg_san/old is zeros, 16777216 bytes", v.Reason)
		})
	}
}

// Where a volume that is to be deleted was zeroed by an earlier command, and has changed since
// this one was asked for, it is not removed unzeroed.
func TestVolumeDeleteOfAnErased(t *testing.T) {
	r := newRig(t)
	eraseRig(r)
	_, err := r.a.Run("lvchange", "--addtag", "virtlvm.incomplete=kvm-a-6", "--addtag", "virtlvm.erased=kvm-a-6:8388608", "vg_san/old")
	require.NoError(t, err)
	w := r.mustAsk(r.a, api.KindVolumeDelete, deleteArgs)
	require.Equal(t, command.Done, r.mustAsk(r.b, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/old", Overwrite: true}).end().Outcome)
	v := w.end()
	assert.Equal(t, "cannot delete vg_san/old: it has changed since this was asked for", v.Reason)
	assert.True(t, r.exists("vg_san/old"))
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/old is removed, zeroed before"}, r.mustAsk(r.a, api.KindVolumeDelete, deleteArgs).end())
}

// What runs inside of the daemon and was cancelled before it had done anything does nothing.
func TestCancelledInside(t *testing.T) {
	for name, tt := range map[string]struct {
		kind string
		args any
		want string
	}{
		"create":               {api.KindVolumeCreate, api.CreateArgs{Volume: "vg_san/new", Size: rigSize}, "cannot create vg_san/new: it was cancelled: too late"},
		"resize":               {api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: 2 * rigSize}, "cannot resize vg_san/vm1: it was cancelled: too late"},
		"delete":               {api.KindVolumeDelete, api.DeleteArgs{Volume: "vg_san/old"}, "cannot delete vg_san/old: it was cancelled: too late"},
		"attach":               {api.KindGuestAttach, api.AttachArgs{Guest: "vm1", Volume: "vg_san/old"}, "cannot attach vg_san/old to guest vm1: it was cancelled: too late"},
		"detach":               {api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vda", Config: true}, "cannot detach disk vda of guest vm1: it was cancelled: too late"},
		"move to another pool": {api.KindVolumeMove, poolArgs, "cannot rename disk vda of guest vm1: it was cancelled: too late"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pools()
			eraseRig(r)
			before := r.definition()
			w := r.mustAsk(r.a, tt.kind, tt.args)
			w.begun, w.c.Cancelled = true, "too late"
			assert.Equal(t, command.Verdict{Outcome: command.NotDone, Reason: tt.want}, w.end())
			assert.Equal(t, before, r.definition())
			assert.True(t, r.exists("vg_san/old"))
			assert.False(t, r.exists("vg_san/new"))
			assert.Len(t, r.content("vg_san/vm1"), rigSize)
			r.released(r.a)
		})
	}
}
