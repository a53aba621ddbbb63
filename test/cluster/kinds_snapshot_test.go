package cluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/test/san"
)

var snapshotArgs = api.SnapshotArgs{Volume: "vg_san/vm1", To: "vg_two/snap"}

// startGuest starts vm1 on host a, and returns what is on its disk then.
func (r *rig) startGuest() []byte {
	r.t.Helper()
	require.NoError(r.t, r.a.Virt.Start(ctx, "vm1"))
	return r.content("vg_san/vm1")
}

// writes lets the guest write something else.
func (r *rig) writes() error {
	f, err := os.OpenFile(r.data("vg_san/vm1"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytes.Repeat([]byte("later "), 1000), 1<<20)
	return errors.Join(err, f.Close())
}

// goesOn: the guest runs as before, and nobody else holds anything.
func (r *rig) goesOn() {
	r.t.Helper()
	require.Equal(r.t, "ex", r.state(r.a, "vg_san/vm1"))
	require.Empty(r.t, r.tags("vg_san/vm1"))
	r.released(r.a)
	require.NoError(r.t, r.a.Virt.Destroy(ctx, "vm1"))
}

func TestVolumeSnapshotOfARunningGuest(t *testing.T) {
	for name, to := range map[string]struct {
		args   api.SnapshotArgs
		format string
		at     int64
	}{
		"to a volume":       {snapshotArgs, "raw", 0},
		"to a qcow2 volume": {api.SnapshotArgs{Volume: "vg_san/vm1", To: "vg_two/snap", ToFormat: "qcow2"}, "qcow2", 1 << 20},
		"to a file":         {api.SnapshotArgs{Volume: "vg_san/vm1"}, "raw", 0},
		"to a qcow2 file":   {api.SnapshotArgs{Volume: "vg_san/vm1", ToFormat: "qcow2"}, "qcow2", 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			file := to.args.To == ""
			if file {
				to.args.To = filepath.Join(t.TempDir(), "snap.img")
			}
			was := r.startGuest()
			r.duringBackup = func(context.Context) error {
				if !file {
					assert.Equal(t, "ex", r.a.LVM.LockMode("vg_two", "snap"))
					assert.Contains(t, r.tags("vg_two/snap"), "virtlvm.incomplete=kvm-a-7")
				}
				return r.writes()
			}
			w := r.mustAsk(r.a, api.KindVolumeSnapshot, to.args)
			v := w.end()
			require.Equal(t, command.Verdict{Outcome: command.Done, Reason: to.args.To + " is a snapshot of vg_san/vm1, taken while guest vm1 ran; it has no agent that answers, so the snapshot is as after a power cut"}, v)
			var have []byte
			if file {
				var err error
				have, err = os.ReadFile(to.args.To)
				require.NoError(t, err)
				others, err := os.ReadDir(filepath.Dir(to.args.To))
				require.NoError(t, err)
				assert.Len(t, others, 1)
			} else {
				have = r.content("vg_two/snap")
				want := []string{"virtlvm.command=kvm-a-7"}
				if to.format == "qcow2" {
					want = append(want, "virtlvm.format=qcow2")
				}
				assert.ElementsMatch(t, want, r.tags("vg_two/snap"))
				assert.Equal(t, "off", r.state(r.a, "vg_two/snap"))
			}
			assert.True(t, bytes.Equal(was, have[to.at:to.at+rigSize]), "as it was when the backup began")
			assert.NotEqual(t, was, r.content("vg_san/vm1"))
			assert.Equal(t, command.Done, w.end().Outcome, "asked again")
			r.goesOn()
		})
	}
}

func TestVolumeSnapshotCrashes(t *testing.T) {
	var was []byte
	before := func(r *rig) { was = r.startGuest(); r.duringBackup = func(context.Context) error { return r.writes() } }
	t.Run("of a running guest", func(t *testing.T) {
		eachCrash(t, before, func(t *testing.T, r *rig) {
			v := r.mustAsk(r.a, api.KindVolumeSnapshot, snapshotArgs).end()
			if v.Outcome == command.Done {
				require.True(t, bytes.Equal(was, r.content("vg_two/snap")))
				require.Equal(t, []string{"virtlvm.command=kvm-a-7"}, r.tags("vg_two/snap"))
			} else {
				require.Zero(t, r.jobs["kvm-a"].Begun(), v.Reason)
				require.False(t, r.exists("vg_two/snap"))
			}
			r.goesOn()
		})
	})
	t.Run("that nobody uses", func(t *testing.T) {
		eachCrash(t, func(*rig) {}, func(t *testing.T, r *rig) {
			v := r.mustAsk(r.a, api.KindVolumeSnapshot, snapshotArgs).end()
			if v.Outcome == command.Done {
				require.Equal(t, "vg_two/snap is a snapshot of vg_san/vm1, compared", v.Reason)
				require.Equal(t, pattern(), r.content("vg_two/snap"))
			} else {
				require.Zero(t, r.jobs["kvm-a"].Begun(), v.Reason)
				require.False(t, r.exists("vg_two/snap"))
			}
			r.released(r.a)
			r.sourceIntact()
		})
	})
	t.Run("it fails", func(t *testing.T) {
		fails := func(r *rig) {
			r.startGuest()
			r.duringBackup = func(context.Context) error { return errors.New("error: the backup has failed") }
		}
		eachCrash(t, fails, func(t *testing.T, r *rig) {
			v := r.mustAsk(r.a, api.KindVolumeSnapshot, snapshotArgs).end()
			require.Equal(t, command.NotDone, v.Outcome)
			require.False(t, r.exists("vg_two/snap"))
			r.goesOn()
		})
	})
	t.Run("it is cancelled", func(t *testing.T) {
		hangs := func(r *rig) {
			r.startGuest()
			r.duringBackup = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		}
		eachCrash(t, hangs, func(t *testing.T, r *rig) {
			w := r.mustAsk(r.a, api.KindVolumeSnapshot, snapshotArgs)
			w.tick = func(command.Sight) { w.cancel("operator uid 0") }
			v := w.end()
			require.Equal(t, command.NotDone, v.Outcome)
			require.False(t, r.exists("vg_two/snap"))
			r.goesOn()
		})
	})
}

func TestVolumeSnapshotToAFileFails(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	args := api.SnapshotArgs{Volume: "vg_san/vm1", To: filepath.Join(dir, "snap.img")}
	fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "compare", ExitCode: 1, Stderr: "Content mismatch at offset 4096!\n"})
	v := r.mustAsk(r.a, api.KindVolumeSnapshot, args).end()
	assert.Equal(t, command.Verdict{Outcome: command.NotDone, Reason: "cannot make the snapshot " + args.To + " of vg_san/vm1: Content mismatch at offset 4096! (exit code 1)"}, v)
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, all)
	require.NoError(t, r.c.SAN.ClearFaults())

	// Somebody else takes the name meanwhile.
	r.jobs["kvm-a"].Gate = func(string, int) { assert.NoError(t, os.WriteFile(args.To, []byte("mine"), 0o600)) }
	v = r.mustAsk(r.a, api.KindVolumeSnapshot, args).end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Contains(t, v.Reason, "somebody has made another file of that name meanwhile")
	all, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, all, 1)
	content, err := os.ReadFile(args.To)
	require.NoError(t, err)
	assert.Equal(t, "mine", string(content))
	r.sourceIntact()
}

// The guest's file systems are thawed by the daemon where the job that has frozen them is gone.
func TestVolumeSnapshotThaws(t *testing.T) {
	r := newRig(t)
	doc := bytes.Replace(XML("vm1", UUID(1), Disk{Path: "vm1"}), []byte("</devices>"), []byte("<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0' state='connected'/></channel></devices>"), 1)
	_, err := r.a.Virt.Define(ctx, doc)
	require.NoError(t, err)
	r.startGuest()
	w := r.mustAsk(r.a, api.KindVolumeSnapshot, snapshotArgs)
	v := w.end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Contains(t, v.Reason, "taken while guest vm1 ran, its file systems frozen for the moment")
	assert.Zero(t, r.thawed)

	began := make(chan struct{})
	r.duringBackup = func(ctx context.Context) error { close(began); <-ctx.Done(); return ctx.Err() }
	w = r.mustAsk(r.a, api.KindVolumeSnapshot, api.SnapshotArgs{Volume: "vg_san/vm1", To: "vg_two/second"})
	w.once()
	<-began
	r.jobs["kvm-a"].Lose("kvm-a-8", backend.Lost)
	r.jobs["kvm-a"].Wait()
	v = w.end()
	assert.Equal(t, command.NotDone, v.Outcome)
	assert.Positive(t, r.thawed)
	assert.False(t, r.exists("vg_two/second"))
}

func TestVolumeSnapshotRefuses(t *testing.T) {
	r := newRig(t)
	r.volume("vg_two", "there", rigSize)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "there"), nil, 0o600))
	for want, args := range map[string]api.SnapshotArgs{
		"there is no volume none in volume group vg_san":                                                {Volume: "vg_san/none", To: "vg_two/x"},
		"vg_two/there exists already; name another volume for the snapshot":                             {Volume: "vg_san/vm1", To: "vg_two/there"},
		filepath.Join(dir, "there") + " exists already on kvm-a; name another file for the snapshot":    {Volume: "vg_san/vm1", To: filepath.Join(dir, "there")},
		"there is no folder " + filepath.Join(dir, "none") + " on kvm-a":                                {Volume: "vg_san/vm1", To: filepath.Join(dir, "none/x")},
		`"/dev/vg_two/x" is not the absolute path of a file; a volume is named VG/LV`:                   {Volume: "vg_san/vm1", To: "/dev/vg_two/x"},
		`"snap" cannot be a logical volume: it is not of the form "vg/lv"`:                              {Volume: "vg_san/vm1", To: "snap"},
		`format "vmdk" is neither raw nor qcow2`:                                                        {Volume: "vg_san/vm1", To: "vg_two/x", ToFormat: "vmdk"},
		"volume group vg_plain is not managed by virtlvm (lock type none); see [scope] in virtlvm.toml": {Volume: "vg_san/vm1", To: "vg_plain/x"},
		"a bandwidth of -1 MiB/s makes no sense":                                                        {Volume: "vg_san/vm1", To: "vg_two/x", Bandwidth: -1},
	} {
		_, err := r.ask(r.a, api.KindVolumeSnapshot, args)
		require.EqualError(t, err, want)
	}
	r.startGuest()
	for want, args := range map[string]api.SnapshotArgs{
		"disk vda of guest vm1 (vg_san/vm1) is raw, not qcow2":                                           {Volume: "vg_san/vm1", To: "vg_two/x", Format: "qcow2"},
		"libvirt's backup of a running guest's disk knows no bandwidth; leave it out, or stop guest vm1": {Volume: "vg_san/vm1", To: "vg_two/x", Bandwidth: 5},
	} {
		_, err := r.ask(r.a, api.KindVolumeSnapshot, args)
		require.EqualError(t, err, want)
	}
	_, err := r.ask(r.b, api.KindVolumeSnapshot, snapshotArgs)
	require.EqualError(t, err, "vg_san/vm1 is held exclusively by kvm-a; stop the guest that uses it there, or run 'lvchange -an vg_san/vm1' on kvm-a if nothing does")
	require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))
}
