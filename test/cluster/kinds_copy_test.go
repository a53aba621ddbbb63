package cluster

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
	"virtlvm/test/san"
)

var copyArgs = api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_two/copy"}

// sourceIntact: nothing has happened to the source, and vm1 starts from it.
func (r *rig) sourceIntact() {
	r.t.Helper()
	require.Equal(r.t, pattern(), r.content("vg_san/vm1"))
	require.Empty(r.t, r.tags("vg_san/vm1"))
	require.Equal(r.t, "off", r.state(r.a, "vg_san/vm1"))
	require.NoError(r.t, r.b.Virt.Start(ctx, "vm1"))
}

// copied: the copy is complete, held by nobody, and says so.
func (r *rig) copied(dst string) {
	r.t.Helper()
	require.Equal(r.t, pattern(), r.content(dst)[:rigSize])
	require.Equal(r.t, []string{"virtlvm.command=kvm-a-7"}, r.tags(dst))
	require.Equal(r.t, "off", r.state(r.a, dst))
	r.released(r.a)
}

func TestVolumeCopy(t *testing.T) {
	r := newRig(t)
	w := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs)
	assert.Equal(t, []command.Target{
		{Volume: w.c.Targets[0].Volume, Name: "vg_san/vm1", Shared: true},
		{Volume: model.VolumeID{VG: "vg_two", LV: "name copy"}, Name: "vg_two/copy"},
	}, w.c.Targets)
	held := false
	r.jobs["kvm-a"].Gate = func(string, int) {
		held = true
		assert.Equal(t, "ex", r.a.Mode("vm1"))
		assert.Equal(t, "ex", r.a.LVM.LockMode("vg_two", "copy"))
		err := r.b.Virt.Start(ctx, "vm1")
		assert.ErrorContains(t, err, "vg_san/vm1 is held exclusively by kvm-a")
		err = r.a.Virt.Start(ctx, "vm1")
		assert.ErrorContains(t, err, "vg_san/vm1 is held on this host (kvm-a) by command kvm-a-7")
		_, err = r.a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "operator")
		assert.ErrorContains(t, err, "vg_san/vm1 is used on this host by command kvm-a-7; wait for its end, or cancel it")
	}
	v := w.end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_two/copy is a copy of vg_san/vm1, compared"}, v)
	assert.True(t, held)
	r.copied("vg_two/copy")
	r.sourceIntact()
	assert.Equal(t, command.Done, w.end().Outcome, "asked again")

	out, err := r.b.Run("lvs", "--noheadings", "-o", "lv_size", "--units", "b", "vg_two/copy")
	require.NoError(t, err)
	assert.Contains(t, out, "8388608B")
}

func TestVolumeCopyCrashes(t *testing.T) {
	eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
		v := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs).end()
		if v.Outcome == command.Done {
			r.copied("vg_two/copy")
		} else {
			// Killed before the job was started.
			require.Zero(t, r.jobs["kvm-a"].Begun(), v.Reason)
			require.False(t, r.exists("vg_two/copy"), v.Reason)
			r.released(r.a)
		}
		require.LessOrEqual(t, r.jobs["kvm-a"].Begun(), 1)
		r.sourceIntact()
	})
}

// The copy fails, as where the disk is full or broken: what was made goes.
func TestVolumeCopyFails(t *testing.T) {
	eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
		fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "convert", ExitCode: 1, Stderr: "qemu-img: error while writing at byte 4096: No space left on device\n"})
		v := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs).end()
		require.Equal(t, command.NotDone, v.Outcome)
		if r.jobs["kvm-a"].Begun() == 1 {
			require.Equal(t, "cannot copy vg_san/vm1 to vg_two/copy: qemu-img: error while writing at byte 4096: No space left on device (exit code 1)", v.Reason)
		}
		require.False(t, r.exists("vg_two/copy"))
		r.released(r.a)
		r.sourceIntact()
	})
}

func TestVolumeCopyCancelled(t *testing.T) {
	eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
		fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "qemu-img", Match: "convert"})
		w := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs)
		w.tick = func(command.Sight) { w.cancel("operator uid 0") }
		v := w.end()
		require.Equal(t, command.NotDone, v.Outcome)
		if r.jobs["kvm-a"].Begun() == 1 {
			require.Equal(t, "cannot copy vg_san/vm1 to vg_two/copy: it was cancelled: operator uid 0", v.Reason)
		}
		require.False(t, r.exists("vg_two/copy"))
		r.released(r.a)
		r.sourceIntact()
	})
}

// What reads differently from what was written is not a copy.
func TestVolumeCopyDiffers(t *testing.T) {
	r := newRig(t)
	r.jobs["kvm-a"].Gate = func(_ string, step int) {
		if step == 2 {
			f, err := os.OpenFile(r.data("vg_two/copy"), os.O_WRONLY, 0)
			assert.NoError(t, err)
			_, err = f.WriteAt([]byte{0xff}, 4096)
			assert.NoError(t, err)
			assert.NoError(t, f.Close())
		}
	}
	v := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs).end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Equal(t, "cannot copy vg_san/vm1 to vg_two/copy: Content mismatch at offset 4096! (exit code 1)", v.Reason)
	assert.False(t, r.exists("vg_two/copy"))
	r.sourceIntact()
}

// The unit was killed, or the host rebooted: two samples of a copy that does not go on are
// one that has vanished.
func TestVolumeCopyVanishes(t *testing.T) {
	for _, why := range []backend.Why{backend.Lost, backend.Rebooted} {
		t.Run(string(why), func(t *testing.T) {
			r := newRig(t)
			fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "qemu-img", Match: "convert"})
			w := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs)
			sights := 0
			w.tick = func(s command.Sight) {
				if sights++; sights < 3 {
					assert.Equal(t, command.Running, s.Where)
					return
				}
				r.jobs["kvm-a"].Lose("kvm-a-7", why)
				if why == backend.Rebooted && sights == 3 {
					r.jobs["kvm-a"].Wait()
					r.a.PowerCut()
					r.boot()
				}
			}
			v := w.end()
			assert.Equal(t, command.NotDone, v.Outcome)
			assert.Equal(t, "cannot copy vg_san/vm1 to vg_two/copy: "+string(why), v.Reason)
			assert.False(t, r.exists("vg_two/copy"))
			r.sourceIntact()
		})
	}
}

// A start that systemd carries out late, after its failure was taken for one, does nothing.
func TestVolumeCopyStartedLate(t *testing.T) {
	r := newRig(t)
	r.jobs["kvm-a"].StartError = func(string) (bool, error) {
		return true, api.NewError(api.KindUnknown, "systemd has not said in time that it is started")
	}
	v := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs).end()
	r.jobs["kvm-a"].Late()
	r.jobs["kvm-a"].Wait()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Equal(t, "cannot copy vg_san/vm1 to vg_two/copy: systemd has not said in time that it is started", v.Reason)
	assert.Zero(t, r.jobs["kvm-a"].Begun())
	assert.False(t, r.exists("vg_two/copy"))
	r.sourceIntact()
}

// A destination that was there is never removed; while its content is neither the old nor
// the new one it carries a tag, and no guest is started from it.
func TestVolumeCopyOverwrites(t *testing.T) {
	args := api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/vm2", Overwrite: true}
	rig := func(t *testing.T, size int64) *rig {
		r := newRig(t)
		r.volume("vg_san", "vm2", size)
		define(t, r.a, "vm2", 2, Disk{Path: "vm2"})
		return r
	}
	t.Run("larger", func(t *testing.T) {
		r := rig(t, 2*rigSize)
		v := r.mustAsk(r.a, api.KindVolumeCopy, args).end()
		require.Equal(t, command.Done, v.Outcome, v.Reason)
		assert.Equal(t, pattern(), r.content("vg_san/vm2")[:rigSize])
		assert.Empty(t, r.tags("vg_san/vm2"))
		require.NoError(t, r.a.Virt.Start(ctx, "vm2"))
	})
	t.Run("too small", func(t *testing.T) {
		r := rig(t, rigSize/2)
		_, err := r.ask(r.a, api.KindVolumeCopy, args)
		require.EqualError(t, err, "vg_san/vm2 is too small: it has 4194304 bytes and needs 8388608; make it larger with 'lvextend -L 8388608b vg_san/vm2'")
	})
	t.Run("fails half-way", func(t *testing.T) {
		r := rig(t, rigSize)
		fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "convert", ExitCode: 1, Stderr: "qemu-img: Input/output error\n"})
		v := r.mustAsk(r.a, api.KindVolumeCopy, args).end()
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Contains(t, v.Reason, "Input/output error (exit code 1); the old content of vg_san/vm2 is lost and the new one not complete: it stays tagged virtlvm.incomplete=kvm-a-7")
		assert.Equal(t, []string{"virtlvm.incomplete=kvm-a-7"}, r.tags("vg_san/vm2"))
		err := r.a.Virt.Start(ctx, "vm2")
		require.ErrorContains(t, err, "the content of vg_san/vm2 is not complete: command kvm-a-7 is at it, or has failed")
		assert.Equal(t, "off", r.state(r.a, "vg_san/vm2"))
		_, err = r.ask(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm2", Destination: "vg_two/x"})
		require.ErrorContains(t, err, "the content of vg_san/vm2 is not complete")

		// Once more, as it says.
		require.NoError(t, r.c.SAN.ClearFaults())
		v = r.mustAsk(r.a, api.KindVolumeCopy, args).end()
		assert.Equal(t, command.Done, v.Outcome, v.Reason)
		assert.Empty(t, r.tags("vg_san/vm2"))
		require.NoError(t, r.a.Virt.Start(ctx, "vm2"))
	})
	t.Run("power cut", func(t *testing.T) {
		r := rig(t, rigSize)
		w := r.mustAsk(r.a, api.KindVolumeCopy, args)
		// How far the job had come was not on the disk yet.
		r.jobs["kvm-a"].Gate = func(id string, _ int) { r.jobs["kvm-a"].Lose(id, backend.Rebooted) }
		v := w.end()
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Contains(t, v.Reason, "the old content of vg_san/vm2 is lost and the new one not complete")
		assert.Equal(t, []string{"virtlvm.incomplete=kvm-a-7"}, r.tags("vg_san/vm2"))
		require.ErrorContains(t, r.a.Virt.Start(ctx, "vm2"), "the content of vg_san/vm2 is not complete")
	})
	t.Run("never begins", func(t *testing.T) {
		r := rig(t, rigSize)
		r.jobs["kvm-a"].StartError = func(string) (bool, error) { return false, api.NewError(api.KindInternal, "no bus") }
		v := r.mustAsk(r.a, api.KindVolumeCopy, args).end()
		assert.Equal(t, command.Verdict{Outcome: command.NotDone, Reason: "cannot copy vg_san/vm1 to vg_san/vm2: no bus"}, v)
		assert.Empty(t, r.tags("vg_san/vm2"))
		require.NoError(t, r.a.Virt.Start(ctx, "vm2"))
	})
}

func TestVolumeCopyFormats(t *testing.T) {
	r := newRig(t)
	v := r.mustAsk(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_two/q", ToFormat: "qcow2"}).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	head := r.content("vg_two/q")[:4]
	assert.Equal(t, "QFI\xfb", string(head))
	v = r.mustAsk(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_two/q", Destination: "vg_two/raw", Format: "qcow2", ToFormat: "raw"}).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, pattern(), r.content("vg_two/raw"))

	// An image that has another below it, and one that is none.
	require.NoError(t, os.WriteFile(r.data("vg_two/q"), san.Qcow2Image(rigSize, "/dev/vg_san/base", "raw"), 0o600))
	v = r.mustAsk(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_two/q", Destination: "vg_two/flat", Format: "qcow2", ToFormat: "raw"}).end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Contains(t, v.Reason, `the image on vg_two/q has another image below it ("/dev/vg_san/base")`)
	v = r.mustAsk(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_two/flat", Format: "qcow2"}).end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Contains(t, v.Reason, "Image is not in qcow2 format")
	assert.False(t, r.exists("vg_two/flat"))
	r.sourceIntact()
}

func TestVolumeCopyRefuses(t *testing.T) {
	r := newRig(t)
	r.volume("vg_san", "vm2", rigSize)
	for _, tt := range []struct {
		args api.CopyArgs
		want string
	}{
		{api.CopyArgs{Source: "vg_san/none", Destination: "vg_two/x"}, "there is no volume none in volume group vg_san"},
		{api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_none/x"}, "there is no volume group vg_none on this host"},
		{api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_plain/x"}, "volume group vg_plain is not managed by virtlvm (lock type none); see [scope] in virtlvm.toml"},
		{api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/vm1", Overwrite: true}, "vg_san/vm1 cannot be copied onto itself"},
		{api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/vm2"}, "vg_san/vm2 exists already; name another destination, or say --overwrite to lose what is on it"},
		{api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_two/x", Format: "vmdk"}, `format "vmdk" is neither raw nor qcow2`},
		{api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_two/x", Bandwidth: -1}, "a bandwidth of -1 MiB/s makes no sense"},
		{api.CopyArgs{Source: "vm1", Destination: "vg_two/x"}, `"vm1" cannot be a logical volume: it is not of the form "vg/lv"`},
	} {
		_, err := r.ask(r.a, api.KindVolumeCopy, tt.args)
		require.EqualError(t, err, tt.want)
	}
	_, err := r.kind(r.a, api.KindVolumeCopy).Plan(ctx, []byte(`{"source":"vg_san/vm1","from":"x"}`))
	require.ErrorContains(t, err, `cannot read the arguments: json: unknown field "from"`)

	_, err = r.a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "operator")
	require.NoError(t, err)
	_, err = r.ask(r.a, api.KindVolumeCopy, copyArgs)
	require.EqualError(t, err, "vg_san/vm1 is held on this host by an operator (virtlvm activate); run 'virtlvm deactivate vg_san/vm1' first")
	_, err = r.ask(r.b, api.KindVolumeCopy, copyArgs)
	require.EqualError(t, err, "vg_san/vm1 is held exclusively by kvm-a; stop the guest that uses it there, or run 'lvchange -an vg_san/vm1' on kvm-a if nothing does")
	_, err = r.a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/vm1"}, "operator")
	require.NoError(t, err)

	require.NoError(t, r.a.Virt.Start(ctx, "vm1"))
	_, err = r.ask(r.a, api.KindVolumeCopy, copyArgs)
	require.EqualError(t, err, "vg_san/vm1 is used on this host (kvm-a) by guest vm1 as a writable disk; stop that guest first, or copy a running guest's disk with 'virtlvm volume move'")
	_, err = r.ask(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm2", Destination: "vg_san/vm1", Overwrite: true})
	require.ErrorContains(t, err, "vg_san/vm1 is used on this host (kvm-a) by guest vm1 as a writable disk")

	fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "lvcreate", Stderr: "  Volume group \"vg_two\" has insufficient free space (1 extents): 2 required.\n"})
	v := r.mustAsk(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm2", Destination: "vg_two/x"}).end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Contains(t, v.Reason, "insufficient free space (1 extents): 2 required.")
}

// A template that guests on both hosts read is copied shared; a disk that a guest writes is
// not, whatever is said.
func TestVolumeCopyShared(t *testing.T) {
	r := newRig(t)
	args := copyArgs
	args.Shared = true
	_, err := r.b.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/vm1", Mode: "sh"}, "operator")
	require.NoError(t, err)
	_, err = r.ask(r.a, api.KindVolumeCopy, copyArgs)
	require.ErrorContains(t, err, "vg_san/vm1 is held shared by kvm-b")
	r.jobs["kvm-a"].Gate = func(string, int) { assert.Equal(t, "sh", r.a.Mode("vm1")) }
	v := r.mustAsk(r.a, api.KindVolumeCopy, args).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, "sh", r.b.Mode("vm1"))
	assert.Equal(t, "off", r.state(r.a, "vg_san/vm1"))

	r.volume("vg_san", "shared", rigSize)
	define(t, r.a, "vm2", 2, Disk{Path: "shared", Extra: "<shareable/>"})
	require.NoError(t, r.a.Virt.Start(ctx, "vm2"))
	_, err = r.ask(r.a, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/shared", Destination: "vg_two/x", Shared: true})
	require.ErrorContains(t, err, "vg_san/shared is used on this host (kvm-a) by guest vm2 as a shareable disk")
}

// What was made is not removed where somebody else may need it.
func TestHalfMadeVolumeStays(t *testing.T) {
	for name, tt := range map[string]struct {
		need func(*rig)
		want string
	}{
		"named by a guest here": {func(r *rig) {
			_, err := r.a.Virt.Define(ctx, XML("vm9", UUID(9), Disk{Path: "/dev/vg_two/copy"}))
			assert.NoError(r.t, err)
		}, "vg_two/copy is a disk of guest vm9, which is defined on kvm-a"},
		"named by a guest elsewhere": {func(r *rig) {
			_, err := r.b.Virt.Define(ctx, XML("vm9", UUID(9), Disk{Path: "/dev/mapper/vg_two-copy"}))
			assert.NoError(r.t, err)
		}, "vg_two/copy is a disk of guest vm9, which is defined on kvm-b"},
		"open here": {func(r *rig) { assert.NoError(r.t, r.a.LVM.Open("vg_two", "copy", 4711)) }, "vg_two/copy is open on kvm-a; 'lsof /dev/vg_two/copy' there tells by whom"},
		"somebody has taken the tag off": {func(r *rig) {
			_, err := r.a.Run("lvchange", "--deltag", "virtlvm.incomplete=kvm-a-7", "vg_two/copy")
			assert.NoError(r.t, err)
		}, "vg_two/copy does not carry the tags of command kvm-a-7 and is left alone"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "convert", ExitCode: 1, Stderr: "qemu-img: error\n"})
			r.jobs["kvm-a"].Gate = func(string, int) { tt.need(r) }
			v := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs).end()
			assert.Equal(t, command.NotDone, v.Outcome)
			assert.Contains(t, v.Reason, "; vg_two/copy is left half made: "+tt.want)
			assert.True(t, r.exists("vg_two/copy"))
		})
	}
	t.Run("a host that is alive does not answer", func(t *testing.T) {
		r := newRig(t)
		fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "convert", ExitCode: 1, Stderr: "qemu-img: error\n"})
		var silent atomic.Bool
		silent.Store(true)
		r.c.Cut = func(_, to, path string) bool { return silent.Load() && to == "kvm-b" && path == api.RoutePeerNamed }
		w := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs)
		tries := 0
		w.tick = func(s command.Sight) {
			if s.Where == command.Running {
				return
			}
			assert.True(t, r.exists("vg_two/copy"))
			if tries++; tries == 3 {
				silent.Store(false)
			}
		}
		assert.Equal(t, command.NotDone, w.end().Outcome)
		assert.Equal(t, 3, tries)
		assert.False(t, r.exists("vg_two/copy"))
	})
}

// The origin finds out what became of a copy from the tags, without the host that ran it.
func TestVolumeCopyInvestigated(t *testing.T) {
	investigate := func(r *rig, w *work) command.Verdict {
		v, err := r.kind(r.b, api.KindVolumeCopy).Investigate(ctx, w.c)
		require.NoError(r.t, err)
		return v
	}
	t.Run("done", func(t *testing.T) {
		r := newRig(t)
		w := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs)
		w.end()
		assert.Equal(t, command.Done, investigate(r, w).Outcome)
	})
	t.Run("nothing made", func(t *testing.T) {
		r := newRig(t)
		w := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs)
		assert.Equal(t, command.NotDone, investigate(r, w).Outcome)
	})
	t.Run("half made", func(t *testing.T) {
		r := newRig(t)
		fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "qemu-img", Match: "convert"})
		w := r.mustAsk(r.a, api.KindVolumeCopy, copyArgs)
		w.once()
		v := investigate(r, w)
		assert.Equal(t, command.NotYet, v.Outcome, "it is held by a host that lives")
		assert.Contains(t, v.Reason, "vg_two/copy is held exclusively by kvm-a")
		r.jobs["kvm-a"].Lose("kvm-a-7", backend.Rebooted)
		r.jobs["kvm-a"].Wait()
		r.a.PowerCut()
		r.expire()
		v = investigate(r, w)
		assert.Equal(t, command.NotDone, v.Outcome, v.Reason)
		assert.Contains(t, v.Reason, "vg_two/copy is left with incomplete content")
	})
}

// expire lets the leases of a silent host be freed.
func (r *rig) expire() { r.c.Advance(200e9) }
