package cluster

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/test/san"
)

var guestMoveArgs = api.GuestMoveArgs{Guest: "vm1", ToVG: "vg_two"}

// threeDisks gives vm1 disks: vda and vdb on vg_san, vdc on vg_two.
func (r *rig) threeDisks() {
	r.t.Helper()
	r.volume("vg_san", "data", rigSize)
	require.NoError(r.t, os.WriteFile(r.data("vg_san/data"), bytes.Repeat([]byte("data"), rigSize/4), 0o600))
	r.volume("vg_two", "there", rigSize)
	for _, h := range r.c.Hosts {
		_, err := h.Virt.Define(ctx, XML("vm1", UUID(1), Disk{Path: "vm1"}, Disk{Path: "data"}, Disk{Path: "/dev/vg_two/there"}))
		require.NoError(r.t, err)
	}
}

// disksOf vm1 in its definition on host a.
func (r *rig) paths() []string {
	r.t.Helper()
	var all []string
	for _, d := range r.definition().Disks {
		all = append(all, d.Source.Path)
	}
	return all
}

var (
	pathsBefore = []string{"/dev/vg_san/vm1", "/dev/vg_san/data", "/dev/vg_two/there"}
	pathsAfter  = []string{"/dev/vg_two/vm1", "/dev/vg_two/data", "/dev/vg_two/there"}
)

// allMoved: both disks are on vg_two, and the third is as it was; or none has moved.
func (r *rig) allMoved(moved bool) {
	r.t.Helper()
	for _, name := range []string{"vm1", "data"} {
		require.Equal(r.t, moved, r.exists("vg_two/"+name), name)
		if moved {
			require.Equal(r.t, []string{"virtlvm.superseded"}, r.tags("vg_san/"+name))
			require.Equal(r.t, []string{"virtlvm.command=kvm-a-7"}, r.tags("vg_two/"+name))
			require.Equal(r.t, "off", r.state(r.a, "vg_san/"+name))
		} else {
			require.Empty(r.t, r.tags("vg_san/"+name))
		}
	}
	want := pathsBefore
	if moved {
		want = pathsAfter
	}
	require.Equal(r.t, want, r.paths())
	require.Empty(r.t, r.tags("vg_two/there"))
	r.released(r.a)
}

func (r *rig) allCatchUp(s command.Sight) {
	if s.Where == command.Running {
		_ = r.a.Virt.CatchUp(ctx, "vm1", "vda")
		_ = r.a.Virt.CatchUp(ctx, "vm1", "vdb")
	}
}

func TestGuestMoveOff(t *testing.T) {
	r := newRig(t)
	r.threeDisks()
	w := r.mustAsk(r.a, api.KindGuestMove, guestMoveArgs)
	v := w.end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, "vg_two/vm1 has the content of vg_san/vm1, compared, and is disk vda of guest vm1; vg_san/vm1 is tagged virtlvm.superseded: remove it when it is not needed any more; "+
		"vg_two/data has the content of vg_san/data, compared, and is disk vdb of guest vm1; vg_san/data is tagged virtlvm.superseded: remove it when it is not needed any more", v.Reason)
	r.allMoved(true)
	require.True(t, bytes.Equal(pattern(), r.content("vg_two/vm1")))
	require.True(t, bytes.Equal(r.content("vg_san/data"), r.content("vg_two/data")))
	r.startVM1()
	for _, name := range []string{"vm1", "data", "there"} {
		assert.Equal(t, "ex", r.state(r.a, "vg_two/"+name))
	}
}

func TestGuestMoveOffCrashes(t *testing.T) {
	eachCrash(t, (*rig).threeDisks, func(t *testing.T, r *rig) {
		v := r.mustAsk(r.a, api.KindGuestMove, guestMoveArgs).end()
		if v.Outcome != command.Done {
			require.Zero(t, r.jobs["kvm-a"].Begun(), "killed at %s: %s", r.kill.hit, v.Reason)
		}
		r.allMoved(v.Outcome == command.Done)
	})
}

// The second of two disks cannot be copied: the first stays where it was, too.
func TestGuestMoveOffFails(t *testing.T) {
	r := newRig(t)
	r.threeDisks()
	fault(t, r.c, san.Fault{Kind: san.FaultExit, Tool: "qemu-img", Match: "convert", Nth: 2, ExitCode: 1, Stderr: "qemu-img: error while reading at byte 0: Input/output error\n"})
	v := r.mustAsk(r.a, api.KindGuestMove, guestMoveArgs).end()
	assert.Equal(t, command.Verdict{Outcome: command.NotDone, Reason: "cannot move vg_san/vm1 to vg_two/vm1, vg_san/data to vg_two/data: qemu-img: error while reading at byte 0: Input/output error (exit code 1)"}, v)
	r.allMoved(false)
	r.startVM1()
}

func TestGuestMoveRunning(t *testing.T) {
	r := newRig(t)
	r.threeDisks()
	r.startVM1()
	w := r.mustAsk(r.a, api.KindGuestMove, guestMoveArgs)
	var seen []command.Sight
	w.tick = func(s command.Sight) {
		seen = append(seen, s)
		if len(seen) == 2 {
			// Only one has caught up: nothing pivots.
			require.NoError(t, r.a.Virt.CatchUp(ctx, "vm1", "vda"))
		}
		if len(seen) == 4 {
			require.Equal(t, "/dev/vg_san/vm1", r.paths()[0])
			r.allCatchUp(s)
		}
	}
	v := w.end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, command.Running, seen[3].Where)
	r.allMoved(true)
	for _, name := range []string{"vm1", "data", "there"} {
		assert.Equal(t, "ex", r.state(r.a, "vg_two/"+name))
	}
}

func TestGuestMoveRunningCrashes(t *testing.T) {
	eachCrash(t, func(r *rig) { r.threeDisks(); r.startVM1() }, func(t *testing.T, r *rig) {
		w := r.mustAsk(r.a, api.KindGuestMove, guestMoveArgs)
		w.tick = r.allCatchUp
		v := w.end()
		if v.Outcome != command.Done {
			require.Less(t, r.copies, 2, "killed at %s: %s", r.kill.hit, v.Reason)
			require.Contains(t, v.Reason, "guest vm1 goes on with vg_san/vm1, vg_san/data")
		}
		r.allMoved(v.Outcome == command.Done)
		require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))
		require.NoError(t, r.a.Virt.Start(ctx, "vm1"))
	})
}

func TestGuestMoveRunningCancelled(t *testing.T) {
	eachCrash(t, func(r *rig) { r.threeDisks(); r.startVM1() }, func(t *testing.T, r *rig) {
		w := r.mustAsk(r.a, api.KindGuestMove, guestMoveArgs)
		w.tick = func(command.Sight) { w.cancel("operator uid 0") }
		v := w.end()
		require.Equal(t, command.NotDone, v.Outcome)
		r.allMoved(false)
	})
}

// The copy of one disk is aborted: that of the other has no use any more.
func TestGuestMoveRunningAborted(t *testing.T) {
	r := newRig(t)
	r.threeDisks()
	r.startVM1()
	w := r.mustAsk(r.a, api.KindGuestMove, guestMoveArgs)
	done := false
	w.tick = func(s command.Sight) {
		if s.Where == command.Running && !done {
			done = true
			require.NoError(t, r.a.Virt.CatchUp(ctx, "vm1", "vda"))
			require.NoError(t, r.a.Virt.AbortCopy(ctx, "vm1", "vdb"))
		}
	}
	v := w.end()
	assert.Equal(t, command.Verdict{
		Outcome: command.NotDone,
		Reason:  "cannot move vg_san/vm1 to vg_two/vm1, vg_san/data to vg_two/data: the copy ended before it had caught up; guest vm1 goes on with vg_san/vm1, vg_san/data",
	}, v)
	r.allMoved(false)
}

// plan is what --plan shows.
func (r *rig) plan(h *Host, kind string, args any) []api.PlannedVolume {
	r.t.Helper()
	doc, err := json.Marshal(args)
	require.NoError(r.t, err)
	p, err := r.kind(h, kind).Plan(ctx, doc)
	require.NoError(r.t, err)
	return p.Volumes
}

func TestPlans(t *testing.T) {
	r := newRig(t)
	r.threeDisks()
	off := "another volume group; no guest runs with it: qemu-img copies and compares"
	assert.Equal(t, []api.PlannedVolume{
		{Volume: "vg_two/there", Guest: "vm1", Disk: "vdc", Tier: "stays", Reason: "it is in that volume group already"},
		{Volume: "vg_san/vm1", Disk: "vda", Tier: "full", To: "vg_two/vm1", Bytes: rigSize, Reason: off},
		{Volume: "vg_san/data", Disk: "vdb", Tier: "full", To: "vg_two/data", Bytes: rigSize, Reason: off},
	}, r.plan(r.a, api.KindGuestMove, guestMoveArgs))
	some := guestMoveArgs
	some.Disks, some.Format = []string{"vg_san/data"}, "qcow2"
	assert.Equal(t, []api.PlannedVolume{
		{Volume: "vg_san/vm1", Guest: "vm1", Disk: "vda", Tier: "stays", Reason: "it was not named"},
		{Volume: "vg_two/there", Guest: "vm1", Disk: "vdc", Tier: "stays", Reason: "it was not named"},
		{Volume: "vg_san/data", Disk: "vdb", Tier: "full", To: "vg_two/data", Bytes: rigSize, Reason: off + ", from raw to qcow2"},
	}, r.plan(r.a, api.KindGuestMove, some))
	require.Equal(t, command.Done, r.mustAsk(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/data", ToHost: "kvm-a"}).end().Outcome)
	free := "same volume group; nobody holds it: it is taken when the guest starts"
	assert.Equal(t, []api.PlannedVolume{
		{Volume: "vg_san/vm1", Guest: "vm1", Disk: "vda", Tier: "transfer", To: "kvm-b", Reason: free},
		{Volume: "vg_san/data", Guest: "vm1", Disk: "vdb", Tier: "transfer", To: "kvm-b", Reason: "same volume group; only its lock goes from kvm-a to kvm-b"},
		{Volume: "vg_two/there", Guest: "vm1", Disk: "vdc", Tier: "transfer", To: "kvm-b", Reason: free},
	}, r.plan(r.a, api.KindGuestMove, api.GuestMoveArgs{Guest: "vm1", ToHost: "kvm-b"}))
	r.startVM1()
	assert.Equal(t, []api.PlannedVolume{
		{Volume: "vg_san/vm1", Guest: "vm1", Disk: "vda", Tier: "full", To: "vg_two/vm1", Bytes: rigSize, Reason: "another volume group; guest vm1 runs: libvirt copies, then the guest goes on there"},
	}, r.plan(r.a, api.KindVolumeMove, moveArgs))
	for _, v := range r.plan(r.a, api.KindGuestMove, api.GuestMoveArgs{Guest: "vm1", ToHost: "kvm-b"}) {
		assert.Equal(t, "same volume group; the guest runs: its locks are shared while its memory moves, then go with it", v.Reason)
	}
	assert.False(t, r.exists("vg_two/vm1"))
}

func TestGuestMoveRefuses(t *testing.T) {
	r := newRig(t)
	r.threeDisks()
	for _, tt := range []struct {
		args api.GuestMoveArgs
		want string
	}{
		{api.GuestMoveArgs{Guest: "vm1"}, "say whether guest vm1 shall go to another volume group or to another host; to both, one after the other"},
		{api.GuestMoveArgs{Guest: "vm1", ToVG: "a", ToHost: "b"}, "say whether guest vm1 shall go to another volume group or to another host; to both, one after the other"},
		{api.GuestMoveArgs{Guest: "vm9", ToVG: "vg_two"}, "guest vm9 neither runs on kvm-a nor is defined there; --host HOST asks another host"},
		{api.GuestMoveArgs{Guest: "vm1", ToVG: "vg_none"}, "there is no volume group vg_none on this host"},
		{api.GuestMoveArgs{Guest: "vm1", ToVG: "vg_two", Disks: []string{"vdx"}}, "guest vm1 has no disk vdx"},
		{api.GuestMoveArgs{Guest: "vm1", ToVG: "vg_two", Disks: []string{"vdc"}}, "guest vm1 has no disk to move to vg_two: each is there already, or is no volume of its own"},
		{api.GuestMoveArgs{Guest: "vm1", ToHost: "kvm-a"}, "guest vm1 is on kvm-a already"},
		{api.GuestMoveArgs{Guest: "vm1", ToHost: "kvm-b", Format: "raw"}, "to another host a guest goes with all its disks as they are: disks and a format say nothing"},
	} {
		_, err := r.ask(r.a, api.KindGuestMove, tt.args)
		require.EqualError(t, err, tt.want)
	}
}

func (r *rig) isDefined(h *Host) bool {
	all, err := domain.ReadDefinitions(filepath.Join(h.dir, "etc/libvirt/qemu"))
	require.NoError(r.t, err)
	for _, d := range all {
		if d.Name == "vm1" {
			return true
		}
	}
	return false
}

// A guest that is off goes with the lock that its host has kept.
func TestGuestMoveToHostOff(t *testing.T) {
	eachCrash(t, func(r *rig) {
		require.Equal(r.t, command.Done, r.mustAsk(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/vm1", ToHost: "kvm-a"}).end().Outcome)
		require.NoError(r.t, os.Remove(filepath.Join(r.b.dir, "etc/libvirt/qemu/vm1.xml")))
		r.asked = 0
	}, func(t *testing.T, r *rig) {
		v := r.mustAsk(r.a, api.KindGuestMove, api.GuestMoveArgs{Guest: "vm1", ToHost: "kvm-b"}).end()
		if v.Outcome != command.Done {
			// Without a daemon here the hook there may have refused it.
			require.NotEmpty(t, r.kill.hit, v.Reason)
			require.True(t, r.isDefined(r.a), v.Reason)
			require.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
			return
		}
		require.Contains(t, v.Reason, "guest vm1 is defined on kvm-b, and no longer on kvm-a")
		require.False(t, r.isDefined(r.a))
		require.True(t, r.isDefined(r.b))
		require.Equal(t, "off", r.state(r.a, "vg_san/vm1"))
		// Killed in the midst of the transfer, its host may have let go without the other's taking.
		if r.kill.hit == "" {
			require.Equal(t, "guest vm1 is defined on kvm-b, and no longer on kvm-a; the lock of vg_san/vm1 is there", v.Reason)
			require.Equal(t, "ex", r.state(r.b, "vg_san/vm1"))
		}
		require.NoError(t, r.b.Virt.Start(ctx, "vm1"))
	})
}

func TestGuestMigrateOffline(t *testing.T) {
	r := newRig(t)
	offline := api.MigrateArgs{Guest: "vm1", To: "kvm-b", Offline: true}
	require.NoError(t, os.Remove(filepath.Join(r.b.dir, "etc/libvirt/qemu/vm1.xml")))
	v := r.mustAsk(r.a, api.KindGuestMigrate, offline).end()
	assert.Equal(t, command.Verdict{Outcome: command.Done, Reason: "guest vm1 is defined on kvm-b"}, v)
	assert.True(t, r.isDefined(r.a))
	assert.True(t, r.isDefined(r.b))
	assert.Equal(t, "off", r.state(r.b, "vg_san/vm1"), "nobody held it")
	require.NoError(t, r.b.Virt.Start(ctx, "vm1"))
	_, err := r.ask(r.a, api.KindGuestMigrate, offline)
	require.EqualError(t, err, "guest vm1 has a QEMU on kvm-b already (running); that must end first")
	_, err = r.ask(r.b, api.KindGuestMigrate, api.MigrateArgs{Guest: "vm1", To: "kvm-a", Offline: true})
	require.EqualError(t, err, "guest vm1 runs on kvm-b; a cold migration is for one that is off")
	require.NoError(t, r.b.Virt.Destroy(ctx, "vm1"))
	// A volume that is used elsewhere.
	r.volume("vg_san", "data", rigSize)
	_, err = r.a.Virt.Define(ctx, XML("vm1", UUID(1), Disk{Path: "data"}))
	require.NoError(t, err)
	_, err = r.b.Virt.Define(ctx, XML("vm2", UUID(2), Disk{Path: "data"}))
	require.NoError(t, err)
	require.NoError(t, r.b.Virt.Start(ctx, "vm2"))
	_, err = r.ask(r.a, api.KindGuestMigrate, offline)
	require.NoError(t, err, "it is on the destination already")
	require.NoError(t, r.b.Virt.Destroy(ctx, "vm2"))
}
