package cluster

import (
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

const mib = 1 << 20

func (r *rig) size(name string) int64 {
	r.t.Helper()
	v, err := r.b.Engine().Lookup(ctx, name)
	require.NoError(r.t, err)
	return v.Size
}

// sees is what a guest sees of the image on a volume that is active on host a.
func (r *rig) sees(name string) int64 {
	r.t.Helper()
	i := domain.Inspector{Runner: r.a.LVM.Runner()}
	h, err := i.Inspect(ctx, domain.Source{Path: "/dev/" + name, Format: "qcow2"})
	require.NoError(r.t, err)
	return h.Size
}

func TestVolumeResize(t *testing.T) {
	r := newRig(t)
	v := r.mustAsk(r.a, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: 4*mib + 1, Add: true}).end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/vm1 has 16777216 bytes"}, v)
	assert.EqualValues(t, 16*mib, r.size("vg_san/vm1"))
	assert.Equal(t, "off", r.state(r.a, "vg_san/vm1"), "as before")

	v = r.mustAsk(r.a, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: rigSize, Shrink: true}).end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/vm1 has 8388608 bytes"}, v)
	r.sourceIntact()
}

func TestVolumeResizeRunning(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: 3 * rigSize})
	assert.Equal(t, "vm1", w.c.Targets[1].Name)
	v := w.end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/vm1 has 25165824 bytes; guest vm1 sees them as disk vda"}, v)
	assert.EqualValues(t, 3*rigSize, r.size("vg_san/vm1"))
	_, err := r.ask(r.a, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: rigSize, Shrink: true})
	require.EqualError(t, err, "vg_san/vm1 is a disk of guest vm1, which runs: a disk is made smaller only while its guest is off")
	assert.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
	r.released(r.a)

	// On another host it is not for us.
	_, err = r.ask(r.b, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: 4 * rigSize})
	require.ErrorContains(t, err, "vg_san/vm1 is held exclusively by kvm-a")
}

func TestVolumeResizeQcow2(t *testing.T) {
	r := newRig(t)
	require.Equal(t, command.Done, r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/q", Size: 6 * mib, Format: "qcow2"}).end().Outcome)
	resize := func(args api.ResizeArgs) command.Verdict {
		t.Helper()
		args.Volume = "vg_two/q"
		return r.mustAsk(r.a, api.KindVolumeResize, args).end()
	}
	// Off, and retained here.
	v := resize(api.ResizeArgs{Size: 10 * mib, Add: true})
	assert.Equal(t, "vg_two/q has 20971520 bytes, its image 16777216", v.Reason)
	assert.EqualValues(t, 16*mib, r.sees("vg_two/q"))
	assert.Equal(t, "ex", r.state(r.a, "vg_two/q"), "still")
	_, err := r.ask(r.a, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_two/q", Size: 8 * mib})
	require.EqualError(t, err, "vg_two/q has 16777216 bytes, and 8388608 are fewer: what is beyond them would be lost; say --shrink if its guest has given that up")
	v = resize(api.ResizeArgs{Size: 8 * mib, Shrink: true})
	assert.Equal(t, "vg_two/q has 12582912 bytes, its image 8388608", v.Reason)
	assert.EqualValues(t, 12*mib, r.size("vg_two/q"))
	assert.EqualValues(t, 8*mib, r.sees("vg_two/q"))

	// Running.
	define(t, r.a, "vm2", 2, Disk{Path: "/dev/vg_two/q", Format: "qcow2"})
	require.NoError(t, r.a.Virt.Start(ctx, "vm2"))
	settled(t, r.a)
	v = resize(api.ResizeArgs{Size: 1, Add: true})
	assert.Equal(t, "vg_two/q has 12582912 bytes, its image 8389120; guest vm2 sees them as disk vda", v.Reason)
	v = resize(api.ResizeArgs{Size: 32 * mib})
	assert.Equal(t, "vg_two/q has 37748736 bytes, its image 33554432; guest vm2 sees them as disk vda", v.Reason)
	assert.EqualValues(t, 32*mib, r.sees("vg_two/q"))

	// Inactive: the image cannot be read before it is taken.
	require.NoError(t, r.a.Virt.Destroy(ctx, "vm2"))
	_, err = r.ask(r.a, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_two/q", Size: mib, Add: true})
	require.EqualError(t, err, "how large the image on vg_two/q is can be read only where it is active; say the whole size")
	w := r.mustAsk(r.a, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_two/q", Size: mib})
	assert.Contains(t, w.end().Reason, "cannot resize vg_two/q: the image on it has 33554432 bytes, and 1048576 are fewer")
	assert.EqualValues(t, 36*mib, r.size("vg_two/q"))
	assert.Equal(t, "off", r.state(r.a, "vg_two/q"))
}

func TestVolumeResizeCrashes(t *testing.T) {
	grow := api.ResizeArgs{Volume: "vg_san/vm1", Size: 2 * rigSize}
	t.Run("running", func(t *testing.T) {
		eachCrash(t, (*rig).startVM1, func(t *testing.T, r *rig) {
			v := r.mustAsk(r.a, api.KindVolumeResize, grow).end()
			require.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/vm1 has 16777216 bytes; guest vm1 sees them as disk vda"}, v)
			require.EqualValues(t, 2*rigSize, r.size("vg_san/vm1"))
			require.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
			r.released(r.a)
		})
	})
	t.Run("off", func(t *testing.T) {
		eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
			w := r.mustAsk(r.a, api.KindVolumeResize, grow)
			w.restart = func() { w.h.StartDaemon(); w.cancel("operator uid 1: not any more") }
			v := w.end()
			if v.Outcome == command.NotDone {
				require.Equal(t, "cannot resize vg_san/vm1: it was cancelled: operator uid 1: not any more", v.Reason)
				require.EqualValues(t, rigSize, r.size("vg_san/vm1"))
			} else {
				require.EqualValues(t, 2*rigSize, r.size("vg_san/vm1"))
			}
			require.Equal(t, "off", r.state(r.a, "vg_san/vm1"))
			r.released(r.a)
		})
	})
}

func TestVolumeResizeFails(t *testing.T) {
	grow := api.ResizeArgs{Volume: "vg_san/vm1", Size: 2 * rigSize}
	t.Run("LVM refuses", func(t *testing.T) {
		r := newRig(t)
		r.startVM1()
		fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "lvextend", Stderr: "  Insufficient free space: 2 extents needed, but only 1 available\n"})
		v := r.mustAsk(r.a, api.KindVolumeResize, grow).end()
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Equal(t, "cannot resize vg_san/vm1: Insufficient free space: 2 extents needed, but only 1 available", v.Reason)
		assert.EqualValues(t, rigSize, r.size("vg_san/vm1"))
		assert.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
	})
	t.Run("libvirt does not answer", func(t *testing.T) {
		r := newRig(t)
		r.startVM1()
		r.deaf.Store(true)
		w := r.mustAsk(r.a, api.KindVolumeResize, grow)
		tries := 0
		w.tick = func(command.Sight) {
			if tries++; tries == 3 {
				r.deaf.Store(false)
			}
		}
		assert.Equal(t, command.Done, w.end().Outcome)
		assert.Equal(t, 3, tries)
	})
	t.Run("the guest ends on the way", func(t *testing.T) {
		r := newRig(t)
		r.startVM1()
		w := r.mustAsk(r.a, api.KindVolumeResize, grow)
		require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))
		assert.Equal(t, "vg_san/vm1 has 16777216 bytes", w.end().Reason)
		assert.Equal(t, "off", r.state(r.a, "vg_san/vm1"))
	})
}

func TestVolumeResizeRefuses(t *testing.T) {
	r := newRig(t)
	r.template(san.Qcow2Image(3<<20, "", ""))
	require.Equal(t, command.Done, r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/child", Backing: "vg_san/base"}).end().Outcome)
	r.volume("vg_san", "old", rigSize)
	_, err := r.a.Run("lvchange", "--addtag", model.TagSuperseded, "vg_san/old")
	require.NoError(t, err)
	for _, tt := range []struct {
		args api.ResizeArgs
		want string
	}{
		{api.ResizeArgs{Volume: "vg_san/none", Size: 1}, "there is no volume none in volume group vg_san"},
		{api.ResizeArgs{Volume: "vg_plain/plain", Size: 1}, "volume group vg_plain is not managed by virtlvm (lock type none)"},
		{api.ResizeArgs{Volume: "vg_san/vm1"}, "a size of 0 bytes makes no sense"},
		{api.ResizeArgs{Volume: "vg_san/vm1", Size: -1, Add: true}, "a size of -1 bytes makes no sense"},
		{api.ResizeArgs{Volume: "vg_san/vm1", Size: 1 << 62, Add: true}, "a size of 4611686018427387904 bytes makes no sense"},
		{api.ResizeArgs{Volume: "vg_san/vm1", Size: rigSize - 1}, "vg_san/vm1 has 8388608 bytes already"},
		{api.ResizeArgs{Volume: "vg_san/vm1", Size: 1}, "vg_san/vm1 has 8388608 bytes, and 4194304 are fewer: what is beyond them would be lost; say --shrink if its guest has given that up"},
		{api.ResizeArgs{Volume: "vg_san/vm1", Size: 1 << 50}, "volume group vg_san has too little room"},
		{api.ResizeArgs{Volume: "vg_san/base", Size: 2 * rigSize}, "vg_san/base is the template below vg_two/child and keeps its size; make another volume"},
		{api.ResizeArgs{Volume: "vg_san/old", Size: 2 * rigSize}, "vg_san/old is tagged virtlvm.superseded"},
		{api.ResizeArgs{Volume: "vg_two/child", Size: 2 * rigSize, Format: "raw"}, "vg_two/child is qcow2, not raw"},
	} {
		_, err := r.ask(r.a, api.KindVolumeResize, tt.args)
		assert.ErrorContains(t, err, tt.want, "%+v", tt.args)
	}
	// Its content is frozen in the image of its guest's memory.
	saved := r.b.dir + "/var/lib/libvirt/qemu/save"
	require.NoError(t, os.MkdirAll(saved, 0o755))
	require.NoError(t, os.WriteFile(saved+"/vm1.save", nil, 0o600))
	_, err = r.ask(r.a, api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: 2 * rigSize})
	require.ErrorContains(t, err, "vg_san/vm1 is a disk of guest vm1, which is defined on kvm-b and has a managed-save image there")
}
