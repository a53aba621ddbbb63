package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// The kinds without a backend under the real framework: made, attached, larger, detached.
func TestVolumeLife(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	m := r.manage()
	defer m.stop()
	for _, step := range []struct {
		kind string
		args any
		want string
	}{
		{api.KindVolumeCreate, api.CreateArgs{Volume: "vg_two/data", Size: rigSize}, "vg_two/data, 8388608 bytes, is exclusive on kvm-a"},
		{api.KindGuestAttach, attachArgs, "guest vm1 has vg_two/data as disk vdb, now and in its definition"},
		{api.KindVolumeResize, api.ResizeArgs{Volume: "vg_two/data", Size: rigSize, Add: true}, "vg_two/data has 16777216 bytes; guest vm1 sees them as disk vdb"},
		{api.KindGuestDetach, api.DetachArgs{Guest: "vm1", Disk: "vdb", Live: true, Config: true}, "guest vm1 has given up disk vdb (vg_two/data), now and in its definition"},
	} {
		c := m.until(t, m.ask(t, step.kind, step.args).ID, model.StateCompleted)
		assert.Equal(t, step.want, c.Outcome)
	}
	require.Equal(t, "off", r.state(r.a, "vg_two/data"))
}
