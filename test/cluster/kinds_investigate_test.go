package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/backend/backendtest"
	"virtlvm/internal/command"
	"virtlvm/internal/kinds"
	"virtlvm/test/san"
)

// lostKind is a command whose executor's host dies, and what its origin makes of it.
type lostKind struct {
	kind   string
	args   any
	before func(*rig)
	// what the origin finds where it was done, and where it was never begun.
	done, never command.Outcome
	// unheard are the same where the executor has never said that it accepted it; nil: as above.
	unheard *[2]command.Outcome
}

const notYet, notDone, done = command.NotYet, command.NotDone, command.Done

func lostKinds(dir string) map[string]lostKind {
	none, off := func(*rig) {}, func(r *rig) {
		require.NoError(r.t, os.Remove(filepath.Join(r.b.dir, "etc/libvirt/qemu/vm1.xml")))
	}
	full := func(r *rig) { r.volume("vg_two", "old", rigSize) }
	data := func(r *rig) { r.volume("vg_two", "data", rigSize) }
	blind := &[2]command.Outcome{notYet, notYet}
	return map[string]lostKind{
		"migrate":                    {api.KindGuestMigrate, migrateArgs, (*rig).startVM1, done, notDone, nil},
		"migrate, off":               {api.KindGuestMigrate, api.MigrateArgs{Guest: "vm1", To: "kvm-b", Offline: true}, off, done, notDone, nil},
		"guest to host":              {api.KindGuestMove, api.GuestMoveArgs{Guest: "vm1", ToHost: "kvm-b"}, (*rig).startVM1, done, notDone, &[2]command.Outcome{done, notYet}},
		"guest to host, off":         {api.KindGuestMove, api.GuestMoveArgs{Guest: "vm1", ToHost: "kvm-b"}, off, done, notDone, blind},
		"guest to group":             {api.KindGuestMove, api.GuestMoveArgs{Guest: "vm1", ToVG: "vg_two"}, none, done, notDone, blind},
		"copy":                       {api.KindVolumeCopy, copyArgs, none, done, notDone, nil},
		"copy over":                  {api.KindVolumeCopy, api.CopyArgs{Source: "vg_san/vm1", Destination: "vg_two/old", Overwrite: true}, full, notYet, notYet, nil},
		"move":                       {api.KindVolumeMove, moveArgs, none, done, notDone, nil},
		"move, other name":           {api.KindVolumeMove, api.MoveArgs{Volume: "/dev/vg_san/vm1", ToVG: "vg_two", Name: "x"}, none, done, notDone, nil},
		"move lock":                  {api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/vm1", ToHost: "kvm-b"}, none, done, notDone, nil},
		"create":                     {api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/new", Size: rigSize}, none, done, notDone, nil},
		"create image":               {api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/new", Size: rigSize, Format: "qcow2"}, none, done, notDone, nil},
		"resize":                     {api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: 2*rigSize - 1}, none, done, notDone, nil},
		"resize by":                  {api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: rigSize, Add: true}, none, done, notDone, blind},
		"resize image":               {api.KindVolumeResize, api.ResizeArgs{Volume: "vg_two/q", Size: 2 * rigSize, Format: "qcow2"}, image, notYet, notDone, nil},
		"resize image, no more room": {api.KindVolumeResize, api.ResizeArgs{Volume: "vg_two/q", Size: rigSize + 512, Format: "qcow2"}, image, notYet, notYet, nil},
		"erase":                      {api.KindVolumeErase, api.EraseArgs{Volume: "vg_two/old"}, full, notYet, notYet, nil},
		"delete":                     {api.KindVolumeDelete, api.DeleteArgs{Volume: "vg_two/old"}, full, done, notDone, nil},
		"delete zeroed":              {api.KindVolumeDelete, api.DeleteArgs{Volume: "vg_two/old", Zero: true}, full, done, notDone, nil},
		"snapshot":                   {api.KindVolumeSnapshot, snapshotArgs, none, done, notDone, nil},
		"snapshot, running":          {api.KindVolumeSnapshot, snapshotArgs, (*rig).startVM1, done, notDone, nil},
		"snapshot to file":           {api.KindVolumeSnapshot, api.SnapshotArgs{Volume: "vg_san/vm1", To: filepath.Join(dir, "snap")}, none, notYet, notYet, nil},
		"attach":                     {api.KindGuestAttach, api.AttachArgs{Guest: "vm1", Volume: "vg_two/data", Config: true}, data, notYet, notYet, nil},
		"detach":                     {api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vda", Config: true}, none, notYet, notYet, nil},
	}
}

// image makes vg_two/q with an image on it, which nobody holds.
func image(r *rig) {
	_, err := r.c.SAN.AddLV("vg_two", san.LVSpec{Name: "q", Size: 12 << 20, Tags: []string{"virtlvm.format=qcow2"}})
	require.NoError(r.t, err)
	require.NoError(r.t, os.WriteFile(r.data("vg_two/q"), san.Qcow2Image(rigSize, "", ""), 0o600))
}

// The executor's host dies when it is done, or before it has begun; its origin may have heard
// what it had planned, or nothing at all. What is not known is never called failed, nor done.
func TestInvestigated(t *testing.T) {
	covered := map[string]bool{}
	for name, tt := range lostKinds(t.TempDir()) {
		covered[tt.kind] = true
		for _, ended := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " done", false: " never begun"}[ended], func(t *testing.T) {
				r := newRig(t, "kvm-c")
				tt.before(r)
				w := r.mustAsk(r.a, tt.kind, tt.args)
				if ended {
					if s, ok := tt.args.(api.SnapshotArgs); ok && filepath.IsAbs(s.To) {
						t.Cleanup(func() { _ = os.Remove(s.To) })
					}
					w.tick = r.catchUp
					v := w.end()
					require.Equal(t, done, v.Outcome, v.Reason)
				}
				r.a.PowerCut()
				r.expire()
				c := r.c.Hosts["kvm-c"]
				wants := [2][2]command.Outcome{{tt.done, tt.never}, {tt.done, tt.never}}
				if tt.unheard != nil {
					wants[1] = *tt.unheard
				}
				for i, heard := range []string{"with its plan", "never heard of"} {
					want := wants[i][map[bool]int{true: 0, false: 1}[ended]]
					cmd := w.c
					if i == 1 {
						cmd.Plan, cmd.Targets = nil, nil
					}
					v, err := r.kind(c, tt.kind).Investigate(ctx, cmd)
					if err != nil {
						v = command.Verdict{Outcome: notYet, Reason: err.Error()}
					}
					assert.Equal(t, want, v.Outcome, "%s: %s", heard, v.Reason)
					assert.NotEmpty(t, v.Reason)
					assert.NotContains(t, v.Reason, "\n")
				}
				// Where the origin does not see the volume groups it cannot tell what is in them.
				for _, vg := range []string{"vg_san", "vg_two"} {
					unseen(t, r.c, "kvm-c", vg)
				}
				v, err := r.kind(c, tt.kind).Investigate(ctx, w.c)
				if err == nil {
					assert.NotEqual(t, map[bool]command.Outcome{true: notDone, false: done}[ended], v.Outcome, "unseen: %s", v.Reason)
				}
			})
		}
	}
	for kind := range kinds.All(kinds.Deps{}) {
		assert.True(t, covered[kind], "%s is to be found out as well", kind)
	}
}

// unseen hides a volume group from LVM on a host.
func unseen(t *testing.T, c *Cluster, host, vg string) {
	t.Helper()
	fault(t, c, san.Fault{
		Kind: san.FaultExit, Host: host, Tool: "lvs", Match: vg, Stderr: fmt.Sprintf("  Volume group %q not found\n  Cannot process volume group %s\n", vg, vg),
	})
}

// An executor that lives and has lost its journal: its guest has not ended with it.
func TestInvestigatedOfAHostThatLives(t *testing.T) {
	r := newRig(t)
	r.volume("vg_two", "data", rigSize)
	r.startVM1()
	for kind, args := range map[string]any{
		api.KindGuestAttach: api.AttachArgs{Guest: "vm1", Volume: "vg_two/data", Live: true},
		api.KindGuestDetach: api.DetachArgs{Guest: "vm1", Disk: "vda", Live: true},
	} {
		doc, err := json.Marshal(args)
		require.NoError(t, err)
		c := command.Command{Key: "kvm-b-7", Kind: kind, Args: doc, Origin: "kvm-b", Executor: "kvm-a"}
		v, err := r.kind(r.b, kind).Investigate(ctx, c)
		require.NoError(t, err)
		assert.Equal(t, notYet, v.Outcome, v.Reason)
		assert.Contains(t, v.Reason, "only on kvm-a it can be told")
	}
	r.a.PowerCut()
	r.expire()
	doc, err := json.Marshal(api.AttachArgs{Guest: "vm1", Volume: "vg_two/data", Live: true})
	require.NoError(t, err)
	v, err := r.kind(r.b, api.KindGuestAttach).Investigate(ctx, command.Command{Key: "kvm-b-7", Kind: api.KindGuestAttach, Args: doc, Executor: "kvm-a"})
	require.NoError(t, err)
	assert.Equal(t, command.Verdict{Outcome: notDone, Reason: "kvm-a is off, and guest vm1 has ended with it"}, v)
}

// Without lvmlockd no lease tells which hosts are alive: a destination that does not answer may
// run the guest, until somebody has said that it is off.
func TestMigrationInvestigatedWithoutLockspaces(t *testing.T) {
	c := NewWith(t, Options{Hosts: []string{"kvm-a", "kvm-b"}, VGs: []san.VGSpec{{Name: "vg_plain", LockType: san.LockNone}}})
	c.Members("vg_plain")
	r := &rig{t: t, c: c, a: c.Hosts["kvm-a"], b: c.Hosts["kvm-b"], jobs: map[string]*backendtest.InProcess{"kvm-a": {}}, kill: &killer{}}
	r.a.StartDaemon()
	r.b.StartDaemon()
	var silent atomic.Bool
	c.Cut = func(_, to, _ string) bool { return silent.Load() && to == "kvm-b" }
	investigate := func() command.Verdict {
		v, err := r.kind(r.a, api.KindGuestMigrate).Investigate(ctx, command.Command{
			Key: "kvm-a-7", Args: json.RawMessage(`{"guest":"vm1","to":"kvm-b"}`), Plan: json.RawMessage(`{"guest":"vm1","to":"kvm-b","from":"kvm-a","uuid":"` + UUID(1) + `"}`), Executor: "kvm-a",
		})
		require.NoError(t, err)
		return v
	}
	assert.Equal(t, command.Verdict{Outcome: notDone, Reason: "vm1 has stopped: it runs on no host"}, investigate())
	silent.Store(true)
	v := investigate()
	assert.Equal(t, notYet, v.Outcome, v.Reason)
	assert.Contains(t, v.Reason, "kvm-b, which is not known to be off, cannot say whether vm1 runs there")
	_, err := r.a.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-b"}, "operator uid 0")
	require.NoError(t, err)
	assert.Equal(t, notDone, investigate().Outcome)
}

// A host of a lockspace that cannot be read is not asked, and may run the guest.
func TestMigrationInvestigatedWhereNotAllHostsAreKnown(t *testing.T) {
	r := newRig(t)
	investigate := func() command.Verdict {
		v, err := r.kind(r.a, api.KindGuestMigrate).Investigate(ctx, command.Command{
			Key: "kvm-a-7", Args: json.RawMessage(`{"guest":"vm1","to":"kvm-b"}`), Plan: json.RawMessage(`{"guest":"vm1","to":"kvm-b","from":"kvm-a","uuid":"` + UUID(1) + `"}`), Executor: "kvm-a",
		})
		require.NoError(t, err)
		return v
	}
	require.Equal(t, command.Verdict{Outcome: notDone, Reason: "vm1 has stopped: it runs on no host"}, investigate())
	r.c.Advance(61 * time.Second) // a look at everything is due
	require.Eventually(t, func() bool {
		r.a.Engine().Kick()
		return slices.Contains(r.a.Engine().KnownVGs(), "vg_two")
	}, patience, 10*time.Millisecond)
	_, err := r.a.Run("vgchange", "--lockstop", "vg_two")
	require.NoError(t, err)
	v := investigate()
	assert.Equal(t, notYet, v.Outcome)
	assert.Contains(t, v.Reason, "vm1 runs on none of kvm-a, kvm-b, and there may be other hosts: cannot read the hosts of volume group vg_two")
	_, err = r.a.Run("vgchange", "--lockstart", "vg_two")
	require.NoError(t, err)
	assert.Equal(t, notDone, investigate().Outcome)
}
