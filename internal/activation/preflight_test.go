package activation

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"virtlvm/internal/model"
)

func TestUnshareable(t *testing.T) {
	for seg, want := range map[string]string{
		"linear": "", "striped": "", "raid1": "of type raid1", "raid10": "of type raid10", "mirror": "of type mirror", "thin": "of type thin",
		"thin-pool": "of type thin-pool", "cache": "of type cache", "cache-pool": "of type cache-pool", "writecache": "of type writecache",
		"vdo": "of type vdo", "vdo-pool": "of type vdo-pool", "integrity": "of type integrity", "of the next release": "of type of the next release",
	} {
		v := model.Volume{VG: "vg", LV: "lv", SegType: seg}
		inv := &inventory{byName: map[string]model.Volume{"lv": v}}
		assert.Equal(t, want, inv.unshareable(v), seg)
	}
	origin, snap := model.Volume{VG: "vg", LV: "lv", SegType: "linear"}, model.Volume{VG: "vg", LV: "snap", SegType: "linear", Origin: "lv"}
	inv := &inventory{byName: map[string]model.Volume{"lv": origin, "snap": snap}}
	assert.Equal(t, "the origin of snapshot vg/snap", inv.unshareable(origin))
	assert.Equal(t, "a snapshot", inv.unshareable(snap))
}
