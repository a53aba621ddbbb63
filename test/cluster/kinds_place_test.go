package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
)

// place is where a request that a host is asked for, without --host, runs; "": there.
func (r *rig) place(h *Host, kind string, args any) (string, error) {
	r.t.Helper()
	doc, err := json.Marshal(args)
	require.NoError(r.t, err)
	p, ok := r.kind(h, kind).(command.Placer)
	require.True(r.t, ok, kind)
	return p.Place(ctx, doc)
}

func (r *rig) undefine(h *Host) {
	r.t.Helper()
	require.NoError(r.t, os.Remove(filepath.Join(h.dir, "etc/libvirt/qemu/vm1.xml")))
}

// A guest's commands run where it runs, else where it is defined; a volume's where it is held.
func TestPlace(t *testing.T) {
	r := newRig(t, "kvm-c")
	c := r.c.Hosts["kvm-c"]
	r.volume("vg_two", "data", rigSize)
	r.volume("vg_san", "idle", rigSize)
	guest := map[string]any{
		api.KindGuestMigrate: api.MigrateArgs{Guest: "vm1", To: "kvm-b"},
		api.KindGuestMove:    guestMoveArgs,
		api.KindGuestAttach:  attachArgs,
		api.KindGuestDetach:  api.DetachArgs{Guest: "vm1", Disk: "vda"},
	}
	volume := map[string]any{
		api.KindVolumeMove: moveArgs, api.KindVolumeSnapshot: snapshotArgs, api.KindVolumeCopy: copyArgs,
		api.KindVolumeResize: api.ResizeArgs{Volume: "vg_san/vm1", Size: rigSize, Add: true},
		api.KindVolumeErase:  api.EraseArgs{Volume: "vg_san/vm1"}, api.KindVolumeDelete: api.DeleteArgs{Volume: "vg_san/vm1"},
	}
	each := func(h *Host, all map[string]any, want string) {
		t.Helper()
		for kind, args := range all {
			host, err := r.place(h, kind, args)
			require.NoError(t, err, kind)
			assert.Equal(t, want, host, "%s, asked of %s", kind, h.Name)
		}
	}
	at := func(want string, h *Host, kind string, args any) {
		t.Helper()
		each(h, map[string]any{kind: args}, want)
	}
	require.NoError(t, r.a.Virt.Start(ctx, "vm1"))
	for h, want := range map[*Host]string{r.a: "", r.b: "kvm-a", c: "kvm-a"} {
		each(h, guest, want)
	}
	each(c, volume, "kvm-a")
	at("", c, api.KindVolumeSnapshot, api.SnapshotArgs{Volume: "vg_san/vm1", To: "/srv/file"})
	at("", c, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/vm1", ToHost: "kvm-b"})
	at("", c, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/none", ToVG: "vg_two"})
	at("", c, api.KindGuestMove, api.GuestMoveArgs{Guest: "vm9", ToVG: "vg_two"})
	at("", c, api.KindGuestMove, map[string]any{"what": 1})
	require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))

	// Off: here if it is defined here, else where it is, if that is one host.
	each(c, guest, "")
	each(c, map[string]any{api.KindVolumeMove: moveArgs}, "")
	r.undefine(c)
	for kind, args := range guest {
		_, err := r.place(c, kind, args)
		require.EqualError(t, err, "guest vm1 is off, and defined on kvm-a and kvm-b: say with --host which of them", kind)
	}
	r.undefine(r.a)
	each(c, guest, "kvm-b")
	at("kvm-b", c, api.KindVolumeMove, moveArgs)
	at("", c, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/idle", ToVG: "vg_two"})

	// Used by nobody, but held.
	require.Equal(t, command.Done, r.mustAsk(c, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/idle", ToHost: "kvm-a"}).end().Outcome)
	at("kvm-a", c, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/idle", ToVG: "vg_two"})
	at("kvm-a", c, api.KindVolumeSnapshot, api.SnapshotArgs{Volume: "vg_san/idle", To: "vg_two/x"})
	over := api.CopyArgs{Source: "vg_two/data", Destination: "vg_san/idle", Overwrite: true}
	at("kvm-a", c, api.KindVolumeCopy, over)
	v := r.mustAsk(r.a, api.KindVolumeCopy, over).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)

	// A volume is made on one host, and deleted from another.
	v = r.mustAsk(r.b, api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/made", Size: rigSize}).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
	remove := api.DeleteArgs{Volume: "vg_two/made"}
	_, err := r.ask(c, api.KindVolumeDelete, remove)
	require.ErrorContains(t, err, "vg_two/made is held exclusively by kvm-b")
	at("kvm-b", c, api.KindVolumeDelete, remove)
	v = r.mustAsk(r.b, api.KindVolumeDelete, remove).end()
	require.Equal(t, command.Done, v.Outcome, v.Reason)
}

// pools are storage pools of libvirt on host a: one name more of vg_san, and vg_two.
func (r *rig) pools() {
	r.t.Helper()
	dir := filepath.Join(r.a.dir, "etc/libvirt/storage")
	require.NoError(r.t, os.MkdirAll(dir, 0o755))
	for name, doc := range map[string]string{
		"fast": "<pool type='logical'><name>fast</name><source><name>vg_san</name></source><target><path>/dev/vg_san</path></target></pool>",
		"slow": "<pool type='logical'><name>slow</name><source><name>vg_two</name></source><target><path>/dev/vg_two</path></target></pool>",
		"home": "<pool type='dir'><name>home</name><target><path>/srv</path></target></pool>",
	} {
		require.NoError(r.t, os.WriteFile(filepath.Join(dir, name+".xml"), []byte(doc), 0o600))
	}
}

var poolArgs = api.MoveArgs{Volume: "vg_san/vm1", ToPool: "fast"}

// renamed: vm1's definition names the pool, and nothing else has happened to its disk.
func (r *rig) renamed() {
	r.t.Helper()
	disk := r.definition().Disks[0]
	require.Equal(r.t, "fast/vm1", disk.Source.Pool+"/"+disk.Source.Volume)
	require.Equal(r.t, pattern(), r.content("vg_san/vm1"))
	require.Empty(r.t, r.tags("vg_san/vm1"))
	r.released(r.a)
}

// The lightweight tier: the same volume by another name.
func TestVolumeMoveToPool(t *testing.T) {
	for name, arm := range map[string]func(*killer){
		"":              func(*killer) {},
		"killed before": func(k *killer) { k.arm(1, "", false) },
		"killed after":  func(k *killer) { k.arm(1, "", true) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pools()
			w := r.mustAsk(r.a, api.KindVolumeMove, poolArgs)
			arm(r.kill)
			require.Equal(t, command.Verdict{Outcome: command.Done, Reason: "disk vda of guest vm1 is vm1 of storage pool fast"}, w.end())
			require.Equal(t, name != "", r.kill.hit != "")
			r.renamed()
			require.Equal(t, "off", r.state(r.a, "vg_san/vm1"))
			require.NoError(t, r.a.Virt.Start(ctx, "vm1"))
			require.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
		})
	}
}

// A guest that runs goes on as it is, and takes the name at its next start.
func TestVolumeMoveToPoolRunning(t *testing.T) {
	r := newRig(t)
	r.pools()
	r.startVM1()
	assert.Equal(t, []api.PlannedVolume{{
		Volume: "vg_san/vm1", Guest: "vm1", Disk: "vda", Tier: "lightweight", To: "fast",
		Reason: "storage pool fast is volume group vg_san as well: only the name in the guest's definition changes",
	}}, r.plan(r.a, api.KindVolumeMove, poolArgs))
	require.Equal(t, "/dev/vg_san/vm1", r.definedAt(), "a plan changes nothing")
	for range 2 { // again is no error
		require.Equal(t, command.Done, r.mustAsk(r.a, api.KindVolumeMove, poolArgs).end().Outcome)
	}
	require.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
	require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))
	require.NoError(t, r.a.Virt.Start(ctx, "vm1"))
	require.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
	require.NoError(t, r.a.Virt.Destroy(ctx, "vm1"))
}

func TestVolumeMoveToPoolRefuses(t *testing.T) {
	r := newRig(t)
	r.pools()
	r.volume("vg_san", "idle", rigSize)
	for _, tt := range []struct {
		args api.MoveArgs
		want string
	}{
		{api.MoveArgs{Volume: "vg_san/vm1", ToPool: "none"}, "cannot find"},
		{api.MoveArgs{Volume: "vg_san/vm1", ToPool: "home"}, "storage pool home is no volume group"},
		{api.MoveArgs{Volume: "vg_san/vm1", ToPool: "fast", ToVG: "vg_two"}, "name a volume group or a storage pool to move to, not both"},
		{api.MoveArgs{Volume: "vg_san/vm1", ToPool: "fast", ToHost: "kvm-b"}, "name a storage pool or a host to move to, one after the other: a guest's definition is on one host"},
		{api.MoveArgs{Volume: "vg_san/vm1", ToPool: "fast", Format: "qcow2"}, "vg_san/vm1 stays the same volume in this move (tier lightweight): a name or a format says nothing"},
		{api.MoveArgs{Volume: "vg_san/idle", ToPool: "fast"}, "no guest that is defined on kvm-a has vg_san/idle as a disk: there is nothing to change"},
	} {
		_, err := r.ask(r.a, api.KindVolumeMove, tt.args)
		require.ErrorContains(t, err, tt.want)
	}
	r.save(r.a, "vm1")
	_, err := r.ask(r.a, api.KindVolumeMove, poolArgs)
	require.ErrorContains(t, err, "managed-save image")
	// A pool of another volume group is a full move.
	require.NoError(t, os.Remove(filepath.Join(r.a.savedDir(), "vm1.save")))
	assert.Equal(t, "full", r.plan(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/vm1", ToPool: "slow"})[0].Tier)
}

// The volume group is full when it is asked for, or only when the new volume is made: nothing
// has happened then.
func TestVolumeMoveIntoAFullGroup(t *testing.T) {
	for name, running := range map[string]bool{"off": false, "running": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if running {
				r.startVM1()
			}
			fill := func(name string, but int64) {
				t.Helper()
				_, free, err := r.a.Engine().ExtentSize(ctx, "vg_two")
				require.NoError(t, err)
				out, err := r.b.Run("lvcreate", "-y", "-an", "-L", fmt.Sprint(free-but, "b"), "-n", name, "vg_two")
				require.NoError(t, err, out)
			}
			fill("most", 4<<20)
			_, err := r.ask(r.a, api.KindVolumeMove, moveArgs)
			require.EqualError(t, err, "volume group vg_two has too little room: 8388608 bytes are needed and 4194304 are free")
			_, err = r.b.Run("lvremove", "-y", "vg_two/most")
			require.NoError(t, err)
			fill("most", rigSize)
			w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
			fill("late", 0)
			v := w.end()
			require.Equal(t, command.NotDone, v.Outcome, v.Reason)
			require.Contains(t, v.Reason, "insufficient free space")
			require.False(t, r.exists("vg_two/vm1"))
			require.Equal(t, "/dev/vg_san/vm1", r.definedAt())
			require.Empty(t, r.tags("vg_san/vm1"))
			r.released(r.a)
			if running {
				require.Equal(t, "ex", r.state(r.a, "vg_san/vm1"))
				return
			}
			r.sourceIntact()
		})
	}
}
