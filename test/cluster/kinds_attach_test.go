package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

var attachArgs = api.AttachArgs{Guest: "vm1", Volume: "vg_two/data", Live: true, Config: true}

func withData(r *rig) {
	r.startVM1()
	r.volume("vg_two", "data", rigSize)
}

// disks of vm1 in its definition on host a, by target.
func (r *rig) disks() map[string]string {
	r.t.Helper()
	doc, err := os.ReadFile(filepath.Join(r.a.dir, "etc/libvirt/qemu/vm1.xml"))
	require.NoError(r.t, err)
	d, err := domain.Parse(doc)
	require.NoError(r.t, err)
	all := map[string]string{}
	for _, disk := range d.Disks {
		all[disk.Target] = disk.Source.Path
	}
	return all
}

// attached: vm1 runs with the volume, holds it itself, and will start with it.
func (r *rig) attached() {
	r.t.Helper()
	require.Equal(r.t, "ex", r.state(r.a, "vg_two/data"))
	v, err := r.a.Engine().Lookup(ctx, "vg_two/data")
	require.NoError(r.t, err)
	holds := r.a.Engine().HoldsOf(v.ID)
	require.Len(r.t, holds, 1)
	require.Equal(r.t, UUID(1), holds[0].Owner)
	require.Equal(r.t, map[string]string{"vda": "/dev/vg_san/vm1", "vdb": "/dev/vg_two/data"}, r.disks())
	r.released(r.a)
}

// notAttached: nothing has happened.
func (r *rig) notAttached() {
	r.t.Helper()
	require.Equal(r.t, "off", r.state(r.a, "vg_two/data"))
	require.Equal(r.t, map[string]string{"vda": "/dev/vg_san/vm1"}, r.disks())
	r.released(r.a)
}

func TestGuestAttach(t *testing.T) {
	r := newRig(t)
	withData(r)
	// Another host only retains it.
	require.NoError(t, r.b.Engine().Keep(ctx, r.retain("vg_two/data")))
	v := r.mustAsk(r.a, api.KindGuestAttach, attachArgs).end()
	require.Equal(t, command.Verdict{Outcome: command.Done, Reason: "guest vm1 has vg_two/data as disk vdb, now and in its definition"}, v)
	r.attached()
	assert.Equal(t, "off", r.state(r.b, "vg_two/data"))
	_, err := r.ask(r.a, api.KindGuestAttach, attachArgs)
	require.EqualError(t, err, "guest vm1 has vg_two/data already, as disk vdb")

	v = r.mustAsk(r.a, api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vg_two/data", Live: true, Config: true}).end()
	require.Equal(t, command.Verdict{Outcome: command.Done, Reason: "guest vm1 has given up disk vdb (vg_two/data), now and in its definition"}, v)
	r.notAttached()
	assert.Equal(t, command.Done, r.mustAsk(r.a, api.KindGuestAttach, api.AttachArgs{Guest: "vm1", Volume: "vg_two/data", Target: "vdc", ReadOnly: true}).end().Outcome)
	assert.Equal(t, "sh", r.state(r.a, "vg_two/data"))
	assert.Equal(t, command.Done, r.mustAsk(r.a, api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vdc"}).end().Outcome)
	r.notAttached()
}

func (r *rig) retain(name string) api.RetainRequest {
	v, err := r.a.Engine().Lookup(ctx, name)
	require.NoError(r.t, err)
	return api.RetainRequest{Volume: name, VGUUID: v.ID.VG, LVUUID: v.ID.LV}
}

func TestGuestAttachCrashes(t *testing.T) {
	eachCrash(t, withData, func(t *testing.T, r *rig) {
		v := r.mustAsk(r.a, api.KindGuestAttach, attachArgs).end()
		require.Equal(t, command.Done, v.Outcome, v.Reason)
		r.attached()
	})
}

func TestGuestDetachCrashes(t *testing.T) {
	eachCrash(t, func(r *rig) {
		withData(r)
		require.Equal(r.t, command.Done, r.mustAsk(r.a, api.KindGuestAttach, attachArgs).end().Outcome)
		r.asked = 0
	}, func(t *testing.T, r *rig) {
		v := r.mustAsk(r.a, api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vdb", Live: true, Config: true}).end()
		require.Equal(t, command.Done, v.Outcome, v.Reason)
		r.notAttached()
	})
}

// What fails is undone, in the definition as well.
func TestGuestAttachFails(t *testing.T) {
	eachCrash(t, func(r *rig) {
		withData(r)
		fault(r.t, r.c, san.Fault{Kind: san.FaultExit, Tool: "lvchange", Match: "vg_two/data", Stderr: "  LV locked by other host: vg_two/data\n  Failed to lock logical volume vg_two/data.\n"})
	}, func(t *testing.T, r *rig) {
		v := r.mustAsk(r.a, api.KindGuestAttach, attachArgs).end()
		require.Equal(t, command.NotDone, v.Outcome)
		require.Contains(t, v.Reason, "cannot attach vg_two/data to guest vm1: vg_two/data")
		r.notAttached()
	})
}

func TestGuestAttachCancelled(t *testing.T) {
	eachCrash(t, withData, func(t *testing.T, r *rig) {
		w := r.mustAsk(r.a, api.KindGuestAttach, attachArgs)
		w.restart = func() { w.h.StartDaemon(); w.cancel("operator uid 1: not any more") }
		if v := w.end(); v.Outcome == command.Done {
			r.attached()
		} else {
			require.Equal(t, "cannot attach vg_two/data to guest vm1: it was cancelled: operator uid 1: not any more", v.Reason)
			r.notAttached()
		}
	})
}

// An image comes with what is below it.
func TestGuestAttachImage(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	r.template(san.Qcow2Image(3<<20, "", ""))
	require.Equal(t, command.Done, r.mustAsk(r.a, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/data", Backing: "vg_san/base"}).end().Outcome)
	v := r.mustAsk(r.a, api.KindGuestAttach, api.AttachArgs{Guest: "vm1", Volume: "vg_two/data"}).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, "ex", r.state(r.a, "vg_two/data"))
	assert.Equal(t, "sh", r.state(r.a, "vg_san/base"))
	base, err := r.a.Engine().Lookup(ctx, "vg_san/base")
	require.NoError(t, err)
	holds := r.a.Engine().HoldsOf(base.ID)
	require.Len(t, holds, 1)
	assert.Equal(t, model.RoleBacking, holds[0].Role)
	v = r.mustAsk(r.a, api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vg_two/data"}).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	assert.Equal(t, "off", r.state(r.a, "vg_san/base"))
}

// A guest that does not let go keeps the disk and its lock, and its definition.
func TestGuestDetachClings(t *testing.T) {
	r := newRig(t)
	withData(r)
	require.Equal(t, command.Done, r.mustAsk(r.a, api.KindGuestAttach, attachArgs).end().Outcome)
	r.clings = true
	w := r.mustAsk(r.a, api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vdb", Live: true, Config: true})
	w.c.Created = r.a.now()
	assert.Equal(t, "guest vm1 has not let go of disk vdb yet", w.tries(3).Reason)
	w.c.Created = r.a.now().Add(-time.Hour)
	assert.Equal(t, command.Verdict{Outcome: command.NotDone, Reason: "guest vm1 has not let go of disk vdb (vg_two/data) within 1m0s; it may still do so, and its lock follows then"}, w.end())
	r.attached()
	// It does so after all.
	require.NoError(t, r.a.Virt.Detach(ctx, "vm1", "vdb", false))
	r.a.Engine().Kick()
	require.Eventually(t, func() bool { return r.state(r.a, "vg_two/data") == "off" }, time.Minute, 5*time.Millisecond)
}

func TestGuestAttachRefuses(t *testing.T) {
	r := newRig(t)
	withData(r)
	r.template(san.Qcow2Image(3<<20, "", ""))
	define(t, r.a, "vm2", 2, Disk{Path: "other"})
	r.volume("vg_san", "other", rigSize)
	with := func(change func(*api.AttachArgs)) api.AttachArgs {
		a := api.AttachArgs{Guest: "vm1", Volume: "vg_two/data"}
		change(&a)
		return a
	}
	for _, tt := range []struct {
		args api.AttachArgs
		want string
	}{
		{with(func(a *api.AttachArgs) { a.Guest = "vm9" }), "guest vm9 neither runs on kvm-a nor is defined there; name its host with --host"},
		{with(func(a *api.AttachArgs) { a.Guest, a.Live = "vm2", true }), "guest vm2 does not run on kvm-a; say --config to change its definition"},
		{with(func(a *api.AttachArgs) { a.Volume = "vg_two/none" }), "there is no volume none in volume group vg_two"},
		{with(func(a *api.AttachArgs) { a.Volume = "vg_san/vm1" }), "guest vm1 has vg_san/vm1 already, as disk vda"},
		{with(func(a *api.AttachArgs) { a.Volume = "vg_san/base" }), "vg_san/base is tagged virtlvm.shared (a template or cluster disk) and is not written by one guest; say --read-only"},
		{with(func(a *api.AttachArgs) { a.Target = "vda" }), "guest vm1 has a disk vda already; name another with --target"},
		{with(func(a *api.AttachArgs) { a.Target = "../x" }), `"../x" cannot be the name of a disk; write it as vdb or sdb`},
		{with(func(a *api.AttachArgs) { a.Format = "vmdk" }), `format "vmdk" is neither raw nor qcow2`},
	} {
		_, err := r.ask(r.a, api.KindGuestAttach, tt.args)
		assert.EqualError(t, err, tt.want, "%+v", tt.args)
	}
	require.NoError(t, r.a.Virt.Start(ctx, "vm2"))
	_, err := r.ask(r.a, api.KindGuestAttach, api.AttachArgs{Guest: "vm1", Volume: "vg_san/other"})
	require.EqualError(t, err, "vg_san/other is used on this host (kvm-a) by guest vm2 as a writable disk")
	_, err = r.ask(r.a, api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vdz"})
	require.EqualError(t, err, "guest vm1 has no disk vdz on kvm-a")
}

// A plain attach-disk of a volume that is off is libvirt's to refuse, and is explained in the
// status until the volume is active; one that somebody has activated is held from then on, and
// given up when it is detached.
func TestPlainAttachDisk(t *testing.T) {
	r := newRig(t)
	withData(r)
	r.volume("vg_san", "data", rigSize)
	attach := func(path string) error {
		return r.a.Virt.Attach(ctx, "vm1", fakevirt.Device{Path: path, Target: "vdb", Format: "raw"}, false)
	}
	plain := func() error { return attach("/dev/vg_two/data") }
	require.ErrorContains(t, plain(), "Cannot access storage file '/dev/vg_two/data': No such file or directory")
	for _, path := range []string{"/dev/vg_san/data", "/dev/vg_san/data", "/dev/vg_else/data", "/srv/none"} {
		require.ErrorContains(t, attach(path), "No such file or directory")
	}
	unopened := func() (texts []string) {
		for _, e := range r.a.Engine().Status(ctx).Events {
			if e.Kind == api.EventUnopened && e.Subject == "vg_san/data" {
				texts = append(texts, e.Text)
			} else {
				assert.NotContains(t, e.Text, "else")
			}
		}
		return texts
	}
	assert.Equal(t, []string{"libvirt could not open vg_san/data, which is not active on this host: 'virsh attach-disk' activates no volume, 'virtlvm guest attach GUEST vg_san/data' does"}, unopened())
	_, err := r.a.Run("lvchange", "-aey", "vg_san/data")
	require.NoError(t, err)
	assert.Empty(t, unopened())
	_, err = r.a.Run("lvchange", "-an", "vg_san/data")
	require.NoError(t, err)
	_, err = r.a.Run("lvchange", "-aey", "vg_two/data")
	require.NoError(t, err)
	require.NoError(t, plain())
	r.a.Engine().Kick()
	v, err := r.a.Engine().Lookup(ctx, "vg_two/data")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(r.a.Engine().HoldsOf(v.ID)) == 1 }, time.Minute, 5*time.Millisecond)
	require.NoError(t, r.a.Virt.Detach(ctx, "vm1", "vdb", false))
	r.a.Engine().Kick()
	require.Eventually(t, func() bool { return r.state(r.a, "vg_two/data") == "off" }, time.Minute, 5*time.Millisecond)
}
