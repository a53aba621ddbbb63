package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
	"virtlvm/test/san"
)

// With a throttle of 1 MiB/s a step has 1 MiB: there are eight.
var (
	eraseArgs  = api.EraseArgs{Volume: "vg_san/old", Throttle: 1}
	deleteArgs = api.DeleteArgs{Volume: "vg_san/old", Zero: true, Throttle: 1}
)

const step = 1 << 20

// eraseRig has vg_san/old, full of old data, which no guest names.
func eraseRig(r *rig) {
	r.volume("vg_san", "old", rigSize)
	require.NoError(r.t, os.WriteFile(r.data("vg_san/old"), pattern(), 0o600))
}

// zeros: vg_san/old is zeros up to an offset and old from there on.
func (r *rig) zeros(to int64) {
	r.t.Helper()
	have := r.content("vg_san/old")
	require.Equal(r.t, int64(-1), int64(len(bytes.TrimLeft(have[:to], "\x00")))-1, "zeros up to %d", to)
	require.Equal(r.t, pattern()[to:], have[to:], "old from %d on", to)
}

// fault that ends the nth step.
func brokenStep(n int) san.Fault {
	return san.Fault{
		Kind: san.FaultExit, Tool: "blkdiscard", Match: fmt.Sprint("--offset ", (n-1)*step), ExitCode: 1,
		Stderr: "blkdiscard: /dev/vg_san/old: BLKZEROOUT ioctl failed: Input/output error\n",
	}
}

func TestVolumeErase(t *testing.T) {
	r := newRig(t)
	eraseRig(r)
	data := r.data("vg_san/old")
	w := r.mustAsk(r.a, api.KindVolumeErase, eraseArgs)
	r.jobs["kvm-a"].Gate = func(string, int) {
		assert.Equal(t, "ex", r.a.Mode("old"))
		assert.Equal(t, []string{"virtlvm.erased=kvm-a-7:0", "virtlvm.incomplete=kvm-a-7"}, sorted(r.tags("vg_san/old")))
	}
	v := w.end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/old is zeros, 8388608 bytes"}, v)
	r.zeros(rigSize)
	assert.Equal(t, data, r.data("vg_san/old"), "the same volume")
	assert.Empty(t, r.tags("vg_san/old"))
	assert.Equal(t, "off", r.state(r.a, "vg_san/old"))
	r.released(r.a)
	assert.Equal(t, command.Done, w.end().Outcome, "asked again")
	r.sourceIntact()
}

func sorted(all []string) []string { return slices.Sorted(slices.Values(all)) }

func TestVolumeDelete(t *testing.T) {
	for name, tt := range map[string]struct {
		args      api.DeleteArgs
		zeroFirst string
		want      string
		jobs      int
	}{
		"as it is":       {api.DeleteArgs{Volume: "vg_san/old"}, "vg_two", "vg_san/old is removed", 0},
		"zeroed":         {deleteArgs, "", "vg_san/old is removed, zeroed before", 1},
		"zero_on_delete": {api.DeleteArgs{Volume: "vg_san/old", Discard: true}, "vg_san", "vg_san/old is removed, zeroed before, discarded", 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			eraseRig(r)
			r.zeroFirst = tt.zeroFirst
			// What is written to the file after it was removed can still be read here.
			f, err := os.Open(r.data("vg_san/old"))
			require.NoError(t, err)
			defer f.Close()
			w := r.mustAsk(r.a, api.KindVolumeDelete, tt.args)
			assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: tt.want}, w.end())
			assert.False(t, r.exists("vg_san/old"))
			content, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
			require.NoError(t, err)
			assert.Equal(t, tt.jobs == 1, len(bytes.TrimLeft(content, "\x00")) == 0)
			assert.Equal(t, tt.jobs, r.jobs["kvm-a"].Begun())
			r.released(r.a)
			assert.Equal(t, command.Done, w.end().Outcome, "asked again")
			v, err := r.kind(r.b, api.KindVolumeDelete).Investigate(ctx, w.c)
			require.NoError(t, err)
			assert.Equal(t, command.Done, v.Outcome)
			r.sourceIntact()
		})
	}
}

func TestVolumeEraseCrashes(t *testing.T) {
	eachCrash(t, eraseRig, func(t *testing.T, r *rig) {
		v := r.mustAsk(r.a, api.KindVolumeErase, eraseArgs).end()
		r.released(r.a)
		require.Equal(t, "off", r.state(r.a, "vg_san/old"))
		require.Empty(t, r.tags("vg_san/old"), v.Reason)
		if v.Outcome == command.Done {
			r.zeros(rigSize)
		} else {
			// Killed before the job was started.
			require.Zero(t, r.jobs["kvm-a"].Begun(), v.Reason)
			r.zeros(0)
		}
		r.sourceIntact()
	})
}

func TestVolumeDeleteCrashes(t *testing.T) {
	for name, args := range map[string]api.DeleteArgs{"zeroed": deleteArgs, "as it is": {Volume: "vg_san/old"}} {
		t.Run(name, func(t *testing.T) {
			eachCrash(t, eraseRig, func(t *testing.T, r *rig) {
				f, err := os.Open(r.data("vg_san/old"))
				require.NoError(t, err)
				defer f.Close()
				v := r.mustAsk(r.a, api.KindVolumeDelete, args).end()
				r.released(r.a)
				content, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
				require.NoError(t, err)
				if v.Outcome == command.Done {
					require.False(t, r.exists("vg_san/old"))
					require.True(t, !args.Zero || len(bytes.TrimLeft(content, "\x00")) == 0, "removed with old data on it")
				} else {
					require.Zero(t, r.jobs["kvm-a"].Begun(), v.Reason)
					require.Empty(t, r.tags("vg_san/old"))
					require.Equal(t, "off", r.state(r.a, "vg_san/old"))
					r.zeros(0)
				}
				r.sourceIntact()
			})
		})
	}
}

// The disk breaks: the error is told, the volume kept, marked, and not removed.
func TestVolumeDeleteFails(t *testing.T) {
	eachCrash(t, eraseRig, func(t *testing.T, r *rig) {
		fault(t, r.c, brokenStep(4))
		v := r.mustAsk(r.a, api.KindVolumeDelete, deleteArgs).end()
		require.Equal(t, command.NotDone, v.Outcome)
		require.True(t, r.exists("vg_san/old"))
		r.released(r.a)
		require.Equal(t, "off", r.state(r.a, "vg_san/old"))
		if r.jobs["kvm-a"].Begun() == 0 {
			require.Empty(t, r.tags("vg_san/old"))
			return
		}
		require.Equal(t, "cannot delete vg_san/old: blkdiscard: /dev/vg_san/old: BLKZEROOUT ioctl failed: Input/output error (exit code 1); 3145728 of its 8388608 bytes are zeros, the others may be old: it is kept, tagged virtlvm.incomplete=kvm-a-7, and no guest is started from it; ask for it again, on any host, to go on from there", v.Reason)
		require.Equal(t, []string{"virtlvm.erased=kvm-a-7:3145728", "virtlvm.incomplete=kvm-a-7"}, sorted(r.tags("vg_san/old")))
		r.zeros(3 * step)
	})
}

// Another host goes on where the first one has come to.
func TestVolumeEraseResumes(t *testing.T) {
	broken := func(t *testing.T) *rig {
		r := newRig(t)
		eraseRig(r)
		fault(t, r.c, brokenStep(6))
		require.Equal(t, command.NotDone, r.mustAsk(r.a, api.KindVolumeErase, eraseArgs).end().Outcome)
		require.NoError(t, r.c.SAN.ClearFaults())
		// What is in front of the offset is not written again.
		f, err := os.OpenFile(r.data("vg_san/old"), os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("new"), 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		return r
	}
	t.Run("on another host", func(t *testing.T) {
		r := broken(t)
		v := r.mustAsk(r.b, api.KindVolumeDelete, deleteArgs)
		assert.Contains(t, string(v.c.Plan), `"from":5242880`)
		gate := 0
		r.jobs["kvm-b"].Gate = func(string, int) {
			gate++
			assert.Equal(t, []string{"virtlvm.erased=kvm-b-8:5242880", "virtlvm.incomplete=kvm-b-8"}, sorted(r.tags("vg_san/old")))
			assert.Equal(t, "new", string(r.content("vg_san/old")[:3]))
		}
		assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "vg_san/old is removed, zeroed before (the first 5242880 by an earlier command)"}, v.end())
		assert.Equal(t, 1, gate)
		assert.False(t, r.exists("vg_san/old"))
	})
	for name, tt := range map[string]struct{ del, add string }{
		"somebody has said that it is complete": {"virtlvm.incomplete=kvm-a-7", ""},
		"another command has been at it":        {"", "virtlvm.incomplete=kvm-b-99"},
		"an offset beyond its end":              {"virtlvm.erased=kvm-a-7:5242880", "virtlvm.erased=kvm-a-7:99999999999"},
	} {
		t.Run(name, func(t *testing.T) {
			r := broken(t)
			if tt.del != "" {
				_, err := r.b.Run("lvchange", "--deltag", tt.del, "vg_san/old")
				require.NoError(t, err)
			}
			if tt.add != "" {
				_, err := r.b.Run("lvchange", "--addtag", tt.add, "vg_san/old")
				require.NoError(t, err)
			}
			v := r.mustAsk(r.b, api.KindVolumeErase, eraseArgs).end()
			require.Equal(t, command.Done, v.Outcome, v.Reason)
			assert.Equal(t, "vg_san/old is zeros, 8388608 bytes", v.Reason)
			r.zeros(rigSize)
			assert.Empty(t, r.tags("vg_san/old"))
		})
	}
}

var cancelledErase = regexp.MustCompile(`^cannot delete vg_san/old: it was cancelled: operator uid 1000; (1048576|2097152) of its 8388608 bytes are zeros`)

func TestVolumeEraseCancelled(t *testing.T) {
	eachCrash(t, eraseRig, func(t *testing.T, r *rig) {
		fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "blkdiscard", Match: fmt.Sprint("--offset ", 2*step)})
		w := r.mustAsk(r.a, api.KindVolumeDelete, deleteArgs)
		w.tick = func(s command.Sight) {
			if s.Where != command.Running || s.Progress.Done == 2*step {
				w.cancel("operator uid 1000")
			}
		}
		v := w.end()
		require.Equal(t, command.NotDone, v.Outcome)
		require.True(t, r.exists("vg_san/old"))
		r.released(r.a)
		if r.jobs["kvm-a"].Begun() == 1 {
			// After a crash it is cancelled at once, however far it is by then.
			said := cancelledErase.FindStringSubmatch(v.Reason)
			require.Len(t, said, 2, v.Reason)
			require.Equal(t, []string{"virtlvm.erased=kvm-a-7:" + said[1], "virtlvm.incomplete=kvm-a-7"}, sorted(r.tags("vg_san/old")))
		}
	})
}

// The host goes down in the midst of it: what it had written down counts, there and elsewhere.
func TestVolumeEraseRebooted(t *testing.T) {
	r := newRig(t)
	eraseRig(r)
	fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "blkdiscard", Match: fmt.Sprint("--offset ", 2*step)})
	w := r.mustAsk(r.a, api.KindVolumeErase, eraseArgs)
	w.tick = func(s command.Sight) {
		if s.Where != command.Running || s.Progress.Done < 2*step {
			return
		}
		r.jobs["kvm-a"].Lose("kvm-a-7", backend.Rebooted)
		r.jobs["kvm-a"].Wait()
		r.a.PowerCut()
		v, err := r.kind(r.b, api.KindVolumeErase).Investigate(ctx, w.c)
		require.NoError(t, err)
		assert.Equal(t, command.NotYet, v.Outcome, v.Reason)
		assert.Contains(t, v.Reason, "it may go on: vg_san/old is held exclusively by kvm-a")
		r.expire()
		v, err = r.kind(r.b, api.KindVolumeErase).Investigate(ctx, w.c)
		require.NoError(t, err)
		assert.Equal(t, command.NotDone, v.Outcome, v.Reason)
		r.a.Boot()
	}
	v := w.end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Contains(t, v.Reason, "cannot erase vg_san/old: the host rebooted; 2097152 of its 8388608 bytes are zeros")
	require.NoError(t, r.c.SAN.ClearFaults())
	v = r.mustAsk(r.b, api.KindVolumeErase, eraseArgs).end()
	assert.Equal(t, "vg_san/old is zeros, 8388608 bytes (the first 2097152 by an earlier command)", v.Reason)
	r.zeros(rigSize)
}

// The host goes down when all is zeros and the volume not removed yet. Until it is back somebody
// has put something else on it: that is not removed.
func TestVolumeDeleteComesTooLate(t *testing.T) {
	r := newRig(t)
	eraseRig(r)
	w := r.mustAsk(r.a, api.KindVolumeDelete, deleteArgs)
	require.NoError(t, r.kind(r.a, api.KindVolumeDelete).Start(ctx, w.c))
	w.begun = true
	r.jobs["kvm-a"].Wait()
	r.a.PowerCut()
	r.expire()
	v := r.mustAsk(r.b, api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_san/old", Overwrite: true}).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	r.a.Boot()
	v = w.end()
	assert.Equal(t, command.NotDone, v.Outcome, v.Reason)
	assert.Contains(t, v.Reason, "cannot delete vg_san/old: it was zeroed, and another command or an operator has been at it since: it is kept")
	require.True(t, r.exists("vg_san/old"))
	assert.Equal(t, pattern(), r.content("vg_san/old"))
	assert.Empty(t, r.tags("vg_san/old"))
}

// The offset is written down at most every 30 seconds, and at once by a daemon that has not
// written it yet.
func TestVolumeEraseMarks(t *testing.T) {
	r := newRig(t)
	eraseRig(r)
	w := r.mustAsk(r.a, api.KindVolumeErase, eraseArgs)
	k, ok := r.kind(r.a, api.KindVolumeErase).(interface {
		command.Kind
		command.Tender
	})
	require.True(t, ok)
	fault(t, r.c, san.Fault{Kind: san.FaultHang, Tool: "blkdiscard", Match: fmt.Sprint("--offset ", 4*step)})
	require.NoError(t, k.Start(ctx, w.c))
	at := func(n int64) string {
		require.NoError(t, k.Tend(ctx, w.c, command.Sight{Where: command.Running, Progress: model.Progress{Done: n}}))
		for _, tag := range r.tags("vg_san/old") {
			if rest, ok := strings.CutPrefix(tag, "virtlvm.erased=kvm-a-7:"); ok {
				return rest
			}
		}
		return ""
	}
	assert.Equal(t, "0", at(step), "it has written one just now")
	r.c.Advance(29 * time.Second)
	assert.Equal(t, "0", at(step))
	r.c.Advance(2 * time.Second)
	assert.Equal(t, "1048576", at(step))
	r.c.Advance(time.Hour)
	assert.Equal(t, "1048576", at(step))
	next, ok := r.kind(r.a, api.KindVolumeErase).(command.Tender)
	require.True(t, ok)
	require.NoError(t, next.Tend(ctx, w.c, command.Sight{Where: command.Running, Progress: model.Progress{Done: 2 * step}}))
	assert.Contains(t, r.tags("vg_san/old"), "virtlvm.erased=kvm-a-7:2097152")
	assert.Len(t, r.tags("vg_san/old"), 2)
	r.jobs["kvm-a"].Lose("kvm-a-7", backend.Lost)
}

func TestVolumeEraseRefuses(t *testing.T) {
	r := newRig(t)
	eraseRig(r)
	both := func(want string, volume string) {
		t.Helper()
		_, err := r.ask(r.a, api.KindVolumeErase, api.EraseArgs{Volume: volume})
		require.EqualError(t, err, want)
		_, err = r.ask(r.a, api.KindVolumeDelete, api.DeleteArgs{Volume: volume})
		require.EqualError(t, err, want)
	}
	both("there is no volume none in volume group vg_san", "vg_san/none")
	both(`"old" cannot be a logical volume: it is not of the form "vg/lv"`, "old")
	_, err := r.c.SAN.AddLV("vg_plain", san.LVSpec{Name: "x", Size: rigSize})
	require.NoError(t, err)
	both("volume group vg_plain is not managed by virtlvm (lock type none); see [scope] in virtlvm.toml", "vg_plain/x")
	_, err = r.ask(r.a, api.KindVolumeErase, api.EraseArgs{Volume: "vg_san/old", Throttle: -1})
	require.EqualError(t, err, "a throttle of -1 MiB/s makes no sense")
	_, err = r.ask(r.a, api.KindVolumeDelete, api.DeleteArgs{Volume: "vg_san/old", Discard: true})
	require.EqualError(t, err, "--discard is for what has been zeroed; say --zero as well")

	// Held here, there, and open here by a stranger.
	_, err = r.a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/old"}, "operator")
	require.NoError(t, err)
	both("vg_san/old is held on this host by an operator (virtlvm activate); run 'virtlvm deactivate vg_san/old' first", "vg_san/old")
	_, err = r.ask(r.b, api.KindVolumeErase, eraseArgs)
	require.EqualError(t, err, "vg_san/old is held exclusively by kvm-a; stop the guest that uses it there, or run 'lvchange -an vg_san/old' on kvm-a if nothing does")
	_, err = r.a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/old"}, "operator")
	require.NoError(t, err)
	_, err = r.b.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/old", Mode: "sh"}, "operator")
	require.NoError(t, err)
	both("vg_san/old is held shared by kvm-b; stop the guest that uses it there, or run 'lvchange -an vg_san/old' on kvm-b if nothing does", "vg_san/old")
	_, err = r.b.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/old"}, "operator")
	require.NoError(t, err)

	// A template, the origin of a snapshot.
	_, err = r.a.Run("lvchange", "--addtag", "virtlvm.shared", "vg_san/old")
	require.NoError(t, err)
	both("vg_san/old is tagged virtlvm.shared (a template or cluster disk); what uses it on another host may not be seen here. If nothing does: lvchange --deltag virtlvm.shared vg_san/old", "vg_san/old")
	_, err = r.a.Run("lvchange", "--deltag", "virtlvm.shared", "vg_san/old")
	require.NoError(t, err)
	_, err = r.c.SAN.AddLV("vg_san", san.LVSpec{Name: "snap", Type: "snapshot", Origin: "old", Size: 4 << 20})
	require.NoError(t, err)
	both("vg_san/old is what vg_san/snap is made of, a snapshot or thin volume; remove that first", "vg_san/old")
	both("vg_san/snap has no lock of its own (type linear): its pool's or origin's protects it; use LVM's own tools", "vg_san/snap")

	_, err = r.a.Run("lvremove", "-y", "vg_san/snap")
	require.NoError(t, err)
	r.volume("vg_two", "child", rigSize)
	v, err := r.a.Engine().Lookup(ctx, "vg_san/old")
	require.NoError(t, err)
	_, err = r.a.Run("lvchange", "--addtag", model.TagBacking+v.ID.LV, "vg_two/child")
	require.NoError(t, err)
	both("vg_san/old is the template below vg_two/child; delete that first", "vg_san/old")

	// A guest that is off keeps its volume, erased or not; with its memory saved not even erased.
	_, err = r.ask(r.a, api.KindVolumeDelete, api.DeleteArgs{Volume: "vg_san/vm1"})
	require.EqualError(t, err, "vg_san/vm1 is a disk of guest vm1, which is defined on kvm-a")
	for _, h := range []*Host{r.a, r.b} {
		require.NoError(t, os.MkdirAll(h.savedDir(), 0o755))
		image := filepath.Join(h.savedDir(), "vm1.save")
		require.NoError(t, os.WriteFile(image, nil, 0o600))
		both("vg_san/vm1 is a disk of guest vm1, which is defined on "+h.Name+" and has a managed-save image there: start the guest, or give the image up with 'virsh managedsave-remove vm1'", "vg_san/vm1")
		require.NoError(t, os.Remove(image))
		if h == r.a {
			require.NoError(t, os.Remove(filepath.Join(h.dir, "etc/libvirt/qemu/vm1.xml")))
		}
	}
	require.NoError(t, r.b.Virt.Start(ctx, "vm1"))
	_, err = r.ask(r.b, api.KindVolumeErase, api.EraseArgs{Volume: "vg_san/vm1"})
	require.EqualError(t, err, "vg_san/vm1 is used on this host (kvm-b) by guest vm1 as a writable disk; stop that guest first")
	require.NoError(t, r.b.Virt.Destroy(ctx, "vm1"))

	// One that runs is used; one that is off is not in the way.
	_, err = r.a.Run("lvchange", "--addtag", "virtlvm.format=qcow2", "vg_san/vm1")
	require.NoError(t, err)
	verdict := r.mustAsk(r.b, api.KindVolumeErase, api.EraseArgs{Volume: "vg_san/vm1"}).end()
	assert.Equal(t, command.Done, verdict.Outcome, verdict.Reason)
	assert.Empty(t, r.tags("vg_san/vm1"), "it has no image on it any more")
	require.NoError(t, r.b.Virt.Start(ctx, "vm1"))
}

// What changes while it is zeroed keeps the volume.
func TestVolumeDeleteIsOvertaken(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(*rig) error
		want      string
		tags      int
	}{
		"a guest is defined with it": {func(r *rig) error {
			_, err := r.b.Virt.Define(ctx, XML("vm9", UUID(9), Disk{Path: "/dev/vg_san/old"}))
			return err
		}, "cannot delete vg_san/old: vg_san/old is a disk of guest vm9, which is defined on kvm-b; it is zeros, and still there", 0},
		"it grows": {func(r *rig) error {
			_, err := r.a.Run("lvextend", "-L", "+4M", "vg_san/old")
			return err
		}, "cannot delete vg_san/old: somebody has extended it meanwhile; 8388608 of its 8388608 bytes are zeros", 2},
		"a snapshot is made of it": {func(r *rig) error {
			_, err := r.c.SAN.AddLV("vg_san", san.LVSpec{Name: "snap", Type: "snapshot", Origin: "old", Size: 4 << 20})
			return err
		}, "vg_san/old is what vg_san/snap is made of", 0},
		"it is open": {func(r *rig) error { return r.a.LVM.Open("vg_san", "old", 4711) }, "cannot delete vg_san/old: vg_san/old is open on kvm-a", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			eraseRig(r)
			r.jobs["kvm-a"].Gate = func(string, int) { assert.NoError(t, tt.meanwhile(r)) }
			v := r.mustAsk(r.a, api.KindVolumeDelete, deleteArgs).end()
			assert.Equal(t, command.NotDone, v.Outcome)
			assert.Contains(t, v.Reason, tt.want)
			assert.True(t, r.exists("vg_san/old"))
			assert.Len(t, r.tags("vg_san/old"), tt.tags)
		})
	}
	t.Run("somebody uses it after its last look", func(t *testing.T) {
		r := newRig(t)
		eraseRig(r)
		var job atomic.Value
		var used atomic.Bool
		r.jobs["kvm-a"].Gate = func(id string, _ int) { job.Store(id) }
		r.c.At = func(_ context.Context, d *Daemon, p Point) {
			id, begun := job.Load().(string)
			if d.Host != r.a || !p.After || !strings.HasPrefix(p.What, "lvs ") || !begun {
				return
			}
			if report, err := r.jobs["kvm-a"].Look(ctx, id); err != nil || !report.OK() {
				return
			}
			for _, tag := range r.tags("vg_san/old") { // if its offset is written once more, too
				_, err := r.b.Run("lvchange", "--deltag", tag, "vg_san/old")
				assert.NoError(t, err)
				used.Store(true)
			}
		}
		v := r.mustAsk(r.a, api.KindVolumeDelete, deleteArgs).end()
		assert.True(t, used.Load())
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Contains(t, v.Reason, "it was zeroed, and another command or an operator has been at it since: it is kept")
		assert.True(t, r.exists("vg_san/old"))
		r.released(r.a)
	})
	t.Run("somebody else removes it", func(t *testing.T) {
		r := newRig(t)
		eraseRig(r)
		w := r.mustAsk(r.a, api.KindVolumeErase, eraseArgs)
		_, err := r.b.Run("lvremove", "-y", "vg_san/old")
		require.NoError(t, err)
		v := w.end()
		assert.Equal(t, command.NotDone, v.Outcome)
		assert.Contains(t, v.Reason, "there is no volume old in volume group vg_san")
		r.released(r.a)
	})
}
