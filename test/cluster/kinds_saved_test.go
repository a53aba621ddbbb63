package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// save gives a guest a managed-save image on a host.
func (r *rig) save(h *Host, guest string) (image string) {
	r.t.Helper()
	require.NoError(r.t, os.MkdirAll(h.savedDir(), 0o755))
	image = filepath.Join(h.savedDir(), guest+".save")
	require.NoError(r.t, os.WriteFile(image, nil, 0o600))
	return image
}

// The memory of a guest with a managed-save image goes on with its volumes as they are: on
// whatever host it is, nothing changes them, their size or their place.
func TestManagedSave(t *testing.T) {
	r := newRig(t)
	r.volume("vg_san", "monday", rigSize)
	requests := map[string]any{
		api.KindVolumeResize: api.ResizeArgs{Volume: "vg_san/vm1", Size: rigSize, Add: true},
		api.KindVolumeErase:  api.EraseArgs{Volume: "vg_san/vm1"},
		api.KindVolumeDelete: api.DeleteArgs{Volume: "vg_san/vm1"},
		api.KindVolumeCopy:   api.CopyArgs{Source: "vg_san/monday", Destination: "vg_san/vm1", Overwrite: true}, // a restore
		api.KindVolumeMove:   api.MoveArgs{Volume: "vg_san/vm1", ToVG: "vg_two"},
		api.KindGuestMove:    api.GuestMoveArgs{Guest: "vm1", ToVG: "vg_two"},
	}
	for _, h := range []*Host{r.a, r.b} {
		image := r.save(h, "vm1")
		for kind, args := range requests {
			_, err := r.ask(r.a, kind, args)
			if kind == api.KindVolumeDelete && h == r.b {
				require.EqualError(t, err, "vg_san/vm1 is a disk of guest vm1, which is defined on kvm-a")
				continue
			}
			require.ErrorContains(t, err, "managed-save image", "%s, saved on %s", kind, h.Name)
			require.ErrorContains(t, err, "virsh managedsave-remove vm1", "%s, saved on %s", kind, h.Name)
		}
		require.NoError(t, os.Remove(image))
	}
	r.sourceIntact()
}

// A guest that is saved after it was asked for stops what has not begun.
func TestSavedMeanwhile(t *testing.T) {
	for kind, args := range map[string]any{
		api.KindVolumeResize: api.ResizeArgs{Volume: "vg_san/vm1", Size: rigSize, Add: true},
		api.KindVolumeErase:  api.EraseArgs{Volume: "vg_san/vm1"},
		api.KindVolumeCopy:   api.CopyArgs{Source: "vg_san/monday", Destination: "vg_san/vm1", Overwrite: true},
	} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			r.volume("vg_san", "monday", rigSize)
			w := r.mustAsk(r.a, kind, args)
			r.save(r.b, "vm1")
			v := w.end()
			require.Equal(t, command.NotDone, v.Outcome, v.Reason)
			require.Contains(t, v.Reason, "managed-save image")
			r.released(r.a)
			r.sourceIntact()
		})
	}
}

// What image is on a copy its tags say, those of what was there before are gone, and how far it
// was erased counts no more.
func TestVolumeCopyTags(t *testing.T) {
	r := newRig(t)
	run := func(args api.CopyArgs) {
		t.Helper()
		v := r.mustAsk(r.a, api.KindVolumeCopy, args).end()
		require.Equal(t, command.Done, v.Outcome, v.Reason)
	}
	run(api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_two/q", ToFormat: "qcow2"})
	assert.Equal(t, []string{"virtlvm.command=kvm-a-7", "virtlvm.format=qcow2"}, sorted(r.tags("vg_two/q")))
	_, err := r.a.Run("lvchange", "--addtag", model.TagBacking+"x", "vg_two/q")
	require.NoError(t, err)
	run(api.CopyArgs{Source: "vg_two/q", Destination: "vg_two/same"})
	assert.Equal(t, []string{"virtlvm.backing=x", "virtlvm.command=kvm-a-8", "virtlvm.format=qcow2"}, sorted(r.tags("vg_two/same")))
	_, err = r.a.Run("lvchange", "--deltag", model.TagBacking+"x", "vg_two/q")
	require.NoError(t, err)

	// Restored: the guest finds what its definition says, however the snapshot was kept.
	require.NoError(t, os.WriteFile(r.data("vg_san/vm1"), make([]byte, rigSize), 0o600))
	_, err = r.a.Run("lvchange", "--addtag", "virtlvm.incomplete=kvm-b-3", "--addtag", "virtlvm.erased=kvm-b-3:4194304", "vg_san/vm1")
	require.NoError(t, err)
	run(api.CopyArgs{Source: "vg_two/q", Destination: "vg_san/vm1", Overwrite: true})
	r.sourceIntact()
	require.NoError(t, r.b.Virt.Destroy(ctx, "vm1"))
	v := r.mustAsk(r.a, api.KindVolumeErase, api.EraseArgs{Volume: "vg_san/vm1"}).end()
	require.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/vm1 is zeros, 8388608 bytes"}, v)

	// As it is said, it is done.
	run(api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_two/q", Overwrite: true, Format: "raw"})
	assert.Equal(t, []string{"virtlvm.command=kvm-a-7"}, r.tags("vg_two/q"))
}

// A half-erased volume that was to be written over is erased from its beginning.
func TestVolumeCopyOfAnErasedFails(t *testing.T) {
	r := newRig(t)
	eraseRig(r)
	_, err := r.a.Run("lvchange", "--addtag", "virtlvm.incomplete=kvm-b-3", "--addtag", "virtlvm.erased=kvm-b-3:4194304", "vg_san/old")
	require.NoError(t, err)
	r.jobs["kvm-a"].StartError = func(string) (bool, error) { return false, api.NewError(api.KindInternal, "no bus") }
	v := r.mustAsk(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/old", Overwrite: true}).end()
	require.Equal(t, command.NotDone, v.Outcome, v.Reason)
	assert.Equal(t, []string{"virtlvm.incomplete=kvm-b-3"}, r.tags("vg_san/old"), "no guest is started from it")
	r.jobs["kvm-a"].StartError = nil
	v = r.mustAsk(r.a, api.KindVolumeErase, eraseArgs).end()
	require.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/old is zeros, 8388608 bytes"}, v)
	r.zeros(rigSize)
}

func TestVolumeCopyOverATemplate(t *testing.T) {
	r := newRig(t)
	r.volume("vg_san", "base", rigSize)
	r.volume("vg_two", "child", rigSize)
	v, err := r.a.Engine().Lookup(ctx, "vg_san/base")
	require.NoError(t, err)
	_, err = r.a.Run("lvchange", "--addtag", model.TagBacking+v.ID.LV, "vg_two/child")
	require.NoError(t, err)
	_, err = r.ask(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/base", Overwrite: true})
	require.EqualError(t, err, "vg_san/base is the template below vg_two/child and keeps its content")
}
