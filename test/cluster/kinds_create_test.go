package cluster

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/test/san"
)

// template makes vg_san/base one, with an image on it.
func (r *rig) template(image []byte) {
	r.t.Helper()
	_, err := r.c.SAN.AddLV("vg_san", san.LVSpec{Name: "base", Size: rigSize, Tags: []string{model.TagShared}})
	require.NoError(r.t, err)
	require.NoError(r.t, os.WriteFile(r.data("vg_san/base"), image, 0o600))
}

// leftHere: the volume is exclusive on host a, for nobody.
func (r *rig) leftHere(name string) {
	r.t.Helper()
	require.Equal(r.t, "ex", r.state(r.a, name))
	v, err := r.a.Engine().Lookup(ctx, name)
	require.NoError(r.t, err)
	holds := r.a.Engine().HoldsOf(v.ID)
	require.Len(r.t, holds, 1)
	require.Equal(r.t, model.OwnerRetained, holds[0].Owner)
	r.released(r.a)
}

func TestVolumeCreate(t *testing.T) {
	r := newRig(t)
	v := r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/new", Size: rigSize}).end()
	require.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_two/new, 8388608 bytes, is exclusive on kvm-a"}, v)
	r.leftHere("vg_two/new")
	assert.Equal(t, []string{"virtlvm.command=kvm-a-7"}, r.tags("vg_two/new"))
	out, err := r.b.Run("lvs", "--noheadings", "-o", "lv_autoactivation", "vg_two/new")
	require.NoError(t, err, out)
	assert.NotContains(t, out, "enabled")

	v = r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/odd", Size: rigSize + 1}).end()
	assert.Equal(t, "vg_two/odd, 12582912 bytes (8388609 rounded up to whole extents), is exclusive on kvm-a", v.Reason)

	// A guest elsewhere that needs it gets it.
	define(t, r.b, "vm2", 2, Disk{Path: "/dev/vg_two/new"})
	require.NoError(t, r.b.Virt.Start(ctx, "vm2"))
	assert.Equal(t, "off", r.state(r.a, "vg_two/new"))
	assert.Equal(t, "ex", r.state(r.b, "vg_two/new"))
}

func TestVolumeCreateOnTemplate(t *testing.T) {
	r := newRig(t)
	r.template(san.Qcow2Image(3<<20, "", ""))
	w := r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/child", Backing: "vg_san/base"})
	assert.True(t, w.c.Targets[1].Shared, "others may be made above it at the same time")
	v := w.end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, "vg_two/child, 8388608 bytes, qcow2 above vg_san/base, is exclusive on kvm-a", v.Reason)
	r.leftHere("vg_two/child")
	base, err := r.a.Engine().Lookup(ctx, "vg_san/base")
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"virtlvm.command=kvm-a-7", "virtlvm.format=qcow2", "virtlvm.backing=" + base.ID.LV}, r.tags("vg_two/child"))
	assert.Equal(t, "off", r.state(r.a, "vg_san/base"))

	shown, err := r.b.Engine().ShowVolume(ctx, "vg_san/base")
	require.NoError(t, err)
	assert.Equal(t, []string{"vg_two/child"}, shown.Children)
	shown, err = r.b.Engine().ShowVolume(ctx, "vg_two/child")
	require.NoError(t, err)
	assert.Equal(t, "vg_san/base", shown.Backing)
	assert.Equal(t, "qcow2", shown.Format)
	listed, err := r.b.Engine().Volumes(ctx, "vg_two")
	require.NoError(t, err)
	assert.Equal(t, base.ID.LV, listed[0].Backing, "its volume group was not looked at")

	// A guest with the child shares the template, on whatever host.
	define(t, r.b, "vm2", 2, Disk{Path: "/dev/vg_two/child", Format: "qcow2"})
	require.NoError(t, r.b.Virt.Start(ctx, "vm2"))
	assert.Equal(t, "sh", r.state(r.b, "vg_san/base"))
	_, err = r.a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/base", Mode: "sh"}, "operator")
	require.NoError(t, err)
	_, err = r.a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/base"}, "operator")
	require.EqualError(t, err, "vg_san/base is the template below vg_two/child, which is held exclusively by kvm-b; stop its guest first")
	assert.Equal(t, "sh", r.state(r.a, "vg_san/base"))
	require.NoError(t, r.b.Virt.Destroy(ctx, "vm2"))
	_, err = r.a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/base"}, "operator")
	require.NoError(t, err)

	v = r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/bigger", Backing: "vg_san/base", Size: 20 << 20}).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	v = r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/plain", Format: "qcow2", Size: 20 << 20}).end()
	assert.Equal(t, "vg_two/plain, 25165824 bytes with a qcow2 image of 20971520, is exclusive on kvm-a", v.Reason)
}

// Killed wherever it may be: the next daemon makes what is missing, or nothing is there.
func TestVolumeCreateCrashes(t *testing.T) {
	for name, args := range map[string]api.CreateArgs{
		"raw":   {Volume: "vg_two/new", Size: rigSize},
		"qcow2": {Volume: "vg_two/new", Backing: "vg_san/base"},
	} {
		t.Run(name, func(t *testing.T) {
			eachCrash(t, func(r *rig) { r.template(san.Qcow2Image(3<<20, "", "")) }, func(t *testing.T, r *rig) {
				v := r.mustAsk(r.a, api.KindVolumeCreate, args).end()
				require.Equal(t, command.Done, v.Outcome, v.Reason)
				r.leftHere("vg_two/new")
				require.Equal(t, "off", r.state(r.a, "vg_san/base"))
				for _, tag := range r.tags("vg_two/new") {
					require.NotContains(t, tag, model.TagIncomplete)
				}
			})
		})
	}
}

// What fails is undone, wherever the daemon is killed on the way.
func TestVolumeCreateFails(t *testing.T) {
	eachCrash(t, func(r *rig) { r.template(san.Qcow2Image(3<<20, "", "")) }, func(t *testing.T, r *rig) {
		fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "create", ExitCode: 1, Stderr: "qemu-img: /dev/vg_two/new: Input/output error\n"})
		v := r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/new", Backing: "vg_san/base"}).end()
		require.Equal(t, command.NotDone, v.Outcome)
		require.Contains(t, v.Reason, "cannot create vg_two/new: cannot make an image on /dev/vg_two/new above /dev/vg_san/base: ")
		require.Contains(t, v.Reason, "Input/output error")
		require.False(t, r.exists("vg_two/new"))
		require.Equal(t, "off", r.state(r.a, "vg_san/base"))
		r.released(r.a)
	})
}

func TestVolumeCreateCancelled(t *testing.T) {
	eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
		w := r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/new", Format: "qcow2", Size: 3 << 20})
		w.restart = func() { w.h.StartDaemon(); w.cancel("operator uid 1: not any more") }
		v := w.end()
		if v.Outcome == command.Done {
			r.leftHere("vg_two/new")
			return
		}
		require.Equal(t, "cannot create vg_two/new: it was cancelled: operator uid 1: not any more", v.Reason)
		require.False(t, r.exists("vg_two/new"))
		r.released(r.a)
	})
}

// What is made and can be neither taken nor removed is off, not active for nobody: others may
// need it.
func TestVolumeCreateLeavesNothingActive(t *testing.T) {
	key := "kvm-a-7"
	made := strings.Join(lvm.CreateCmd("vg_two/new", rigSize, model.TagCommand+key, model.TagIncomplete+key).Argv(), " ")
	for name, tt := range map[string]struct {
		before func(*rig)
		why    string
	}{
		"killed when it was made": {func(r *rig) { r.kill.arm(0, made, true) }, "it was cancelled: operator uid 1"},
		"its lease cannot be read": {func(r *rig) {
			fault(t, r.c, san.Fault{Kind: san.FaultExit, Host: "kvm-a", Tool: "sanlock", Match: "direct dump", Times: 1})
		}, "lvmlockd lists the locks, but sanlock cannot confirm them"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.mortal()
			define(t, r.b, "vm2", 2, Disk{Path: "/dev/vg_two/new"})
			w := r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/new", Size: rigSize})
			w.restart = func() { w.h.StartDaemon(); w.cancel("operator uid 1") }
			tt.before(r)
			v := w.end()
			assert.Equal(t, command.NotDone, v.Outcome)
			assert.Contains(t, v.Reason, tt.why)
			assert.Contains(t, v.Reason, "; vg_two/new is left half made: vg_two/new is a disk of guest vm2, which is defined on kvm-b")
			assert.Equal(t, "off", r.state(r.a, "vg_two/new"))
			r.released(r.a)
			rows, err := r.a.Store().Commands(ctx, api.CommandFilter{Limit: 100})
			require.NoError(t, err)
			for _, row := range rows {
				assert.False(t, row.Kind == "create" && strings.Contains(row.Outcome, "off"), "it was made, and active: %s", row.Outcome)
			}
		})
	}
}

func TestVolumeCreateRefuses(t *testing.T) {
	r := newRig(t)
	r.template(san.Qcow2Image(3<<20, "", ""))
	for _, tt := range []struct {
		args api.CreateArgs
		want string
	}{
		{api.CreateArgs{Volume: "vg_two/new"}, "a size of 0 bytes makes no sense; a volume has one extent at least"},
		{api.CreateArgs{Volume: "vg_two/new", Size: -1}, "a size of -1 bytes makes no sense"},
		{api.CreateArgs{Volume: "vg_two/new", Size: 1 << 62}, "volume group vg_two has too little room"},
		{api.CreateArgs{Volume: "vg_two/new", Size: 1<<62 + 1}, "makes no sense; the largest is"},
		{api.CreateArgs{Volume: "new", Size: 1}, `"new" cannot be a logical volume`},
		{api.CreateArgs{Volume: "vg_two/a b", Size: 1}, "the volume's name has characters other than letters, digits and . _ - +"},
		{api.CreateArgs{Volume: "vg_two/lvmlock", Size: 1}, "it is one of LVM's own internal volumes"},
		{api.CreateArgs{Volume: "vg_two/x_tdata", Size: 1}, "it is one of LVM's own internal volumes"},
		{api.CreateArgs{Volume: "vg_none/new", Size: 1}, "there is no volume group vg_none on this host"},
		{api.CreateArgs{Volume: "vg_plain/new", Size: 1}, "volume group vg_plain is not managed by virtlvm (lock type none)"},
		{api.CreateArgs{Volume: "vg_san/vm1", Size: 1}, "vg_san/vm1 exists already; name another volume, or remove that one"},
		{api.CreateArgs{Volume: "vg_two/new", Size: 1 << 50}, "volume group vg_two has too little room"},
		{api.CreateArgs{Volume: "vg_two/new", Size: 1, Format: "vmdk"}, `format "vmdk" is neither raw nor qcow2`},
		{api.CreateArgs{Volume: "vg_two/new", Size: 1, BackingFormat: "raw"}, "a backing format says nothing without a backing volume"},
		{api.CreateArgs{Volume: "vg_two/new", Format: "raw", Backing: "vg_san/base"}, "a raw volume has nothing below it; only a qcow2 image has a backing volume"},
		{api.CreateArgs{Volume: "vg_two/new", Backing: "vg_san/none"}, "there is no volume none in volume group vg_san"},
		{api.CreateArgs{Volume: "vg_two/new", Backing: "vg_san/vm1"}, "vg_san/vm1 is no template: a guest might write it, and spoil every volume above it; make it one with 'lvchange --addtag virtlvm.shared vg_san/vm1'"},
	} {
		_, err := r.ask(r.a, api.KindVolumeCreate, tt.args)
		assert.ErrorContains(t, err, tt.want, "%+v", tt.args)
	}
	refused := func(args api.CreateArgs, want string) {
		t.Helper()
		v := r.mustAsk(r.a, api.KindVolumeCreate, args).end()
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Contains(t, v.Reason, want)
		assert.False(t, r.exists(args.Volume))
		assert.Equal(t, "off", r.state(r.a, "vg_san/base"))
	}
	child := api.CreateArgs{Volume: "vg_two/new", Backing: "vg_san/base"}
	small := child
	small.Size = 1 << 20
	refused(small, "vg_two/new would be smaller than its template vg_san/base (1048576 bytes, and 3145728): a guest would not see all of it")
	require.NoError(t, os.WriteFile(r.data("vg_san/base"), san.Qcow2Image(3<<20, "/dev/vg_san/gone", "raw"), 0o600))
	refused(child, "cannot create vg_two/new: below vg_san/base: there is no volume gone in volume group vg_san")
	require.NoError(t, os.WriteFile(r.data("vg_san/base"), san.Qcow2Image(3<<20, "/dev/vg_two/new", "raw"), 0o600))
	refused(child, "there is no volume new in volume group vg_two")
	require.NoError(t, os.WriteFile(r.data("vg_san/base"), san.Qcow2Image(3<<20, "/dev/vg_san/base", "qcow2"), 0o600))
	refused(child, "the chain of images below vg_san/base comes back to vg_san/base: it has no end")
	require.NoError(t, os.WriteFile(r.data("vg_san/base"), make([]byte, 4096), 0o600))
	refused(child, "vg_san/base is not what it was said to be: ")
	fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "lvcreate", Stderr: "  Insufficient free space: 64 extents needed, but only 3 available\n  Extend sanlock LV vg_two/lvmlock to size 512.00 MiB failed.\n"})
	refused(api.CreateArgs{Volume: "vg_two/new", Size: 1}, "vg_two/new: the volume group's leases fill their area (vg_two/lvmlock), and LVM could not extend it")

	// Somebody else makes one of that name in the last moment: it is left alone.
	w := r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/late", Size: rigSize})
	r.volume("vg_two", "late", rigSize)
	v := w.end()
	assert.Equal(t, "cannot create vg_two/late: vg_two/late exists already; name another volume, or remove that one", v.Reason)
	assert.True(t, r.exists("vg_two/late"))
}

// The origin finds out from the tags what became of it.
func TestVolumeCreateInvestigated(t *testing.T) {
	r := newRig(t)
	w := r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/new", Size: rigSize})
	investigate := func() command.Verdict {
		v, err := r.kind(r.b, api.KindVolumeCreate).Investigate(ctx, w.c)
		require.NoError(t, err)
		return v
	}
	assert.Equal(t, "cannot create vg_two/new: kvm-a is gone, and has made nothing", investigate().Reason)
	w.end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_two/new is made"}, investigate())
	_, err := r.a.Run("lvchange", "--addtag", "virtlvm.incomplete=kvm-a-7", "vg_two/new")
	require.NoError(t, err)
	assert.Equal(t, command.NotYet, investigate().Outcome)
}
