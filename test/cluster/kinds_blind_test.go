package cluster

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/test/san"
)

// One look at the volumes fails, whichever it is: a command that says that it is not done has
// not done it, and what it has made and left is active nowhere.
func TestALookFails(t *testing.T) {
	old := func(r *rig) { r.volume("vg_two", "old", rigSize) }
	for name, tt := range map[string]struct {
		kind   string
		args   any
		before func(*rig)
		// what is made, or as it was where it is not done
		made   string
		undone func(*rig) bool
	}{
		"create":   {api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/new", Size: rigSize}, nil, "vg_two/new", nil},
		"copy":     {api.KindVolumeCopy, copyArgs, nil, "vg_two/copy", nil},
		"snapshot": {api.KindVolumeSnapshot, snapshotArgs, nil, "vg_two/snap", nil},
		"move":     {api.KindVolumeMove, moveArgs, nil, "vg_two/vm1", nil},
		"resize": {api.KindVolumeResize, api.ResizeArgs{Volume: "vg_san/vm1", Size: 2 * rigSize}, nil, "", func(r *rig) bool {
			return r.size("vg_san/vm1") == rigSize
		}},
		"delete": {api.KindVolumeDelete, api.DeleteArgs{Volume: "vg_two/old"}, old, "", func(r *rig) bool { return r.exists("vg_two/old") }},
	} {
		for how, stderr := range map[string]string{
			"unseen": "  Volume group \"%[1]s\" not found\n  Cannot process volume group %[1]s\n",
			"locked": "  VG %s lock failed: error -221\n",
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				for nth, hit := 1, true; hit; nth++ {
					r := newRig(t)
					if tt.before != nil {
						tt.before(r)
					}
					w := r.mustAsk(r.a, tt.kind, tt.args)
					for _, vg := range []string{"vg_san", "vg_two"} {
						fault(t, r.c, san.Fault{Kind: san.FaultExit, Host: "kvm-a", Tool: "lvs", Match: vg, Nth: nth, Stderr: fmt.Sprintf(stderr, vg)})
					}
					w.tick = r.catchUp
					v := w.end()
					hit = r.faultHit()
					if v.Outcome == command.NotDone && tt.undone != nil {
						assert.True(t, tt.undone(r), "look %d: it is done: %s", nth, v.Reason)
					}
					if v.Outcome == command.NotDone && tt.made != "" && r.exists(tt.made) {
						assert.Equal(t, "off", r.state(r.a, tt.made), "look %d: %s", nth, v.Reason)
						assert.Contains(t, v.Reason, tt.made+" is left half made", "look %d", nth)
					}
					r.released(r.a)
				}
			})
		}
	}
}

// faultHit clears the faults, and reports whether one has hit.
func (r *rig) faultHit() (hit bool) {
	r.t.Helper()
	all, err := r.c.SAN.Faults()
	require.NoError(r.t, err)
	for _, f := range all {
		hit = hit || f.Hit > 0
	}
	require.NoError(r.t, r.c.SAN.ClearFaults())
	return hit
}
