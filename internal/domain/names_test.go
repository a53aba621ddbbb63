package domain

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"virtlvm/internal/model"
)

const (
	vgID = "rzVnFwxSeB09tdZB0lXEewJKuzIwlU8M" // as printed by dmsetup for a volume group
	lv1  = "LVM-" + vgID + "pZpgZLWPLZVNSvXjulgkWGXL6f9HgcwX"
	base = "LVM-" + vgID + "AHEJ6qgy1MES2vJzLicSbma6B4pXAzEc"
)

func TestValidName(t *testing.T) {
	for _, good := range []string{"a", "vg_san", "a.b", ".a", "+a", "_", "a-", "a--b", "0", strings.Repeat("x", 127)} {
		assert.True(t, validName(good), good)
	}
	for _, bad := range []string{"", ".", "..", "-a", "-", "a b", "a/b", "a\n", "ä", "a:b", "a@b", strings.Repeat("x", 128)} {
		assert.False(t, validName(bad), bad)
	}
}

func TestSplitMapper(t *testing.T) {
	for name, want := range map[string]struct{ vg, lv, layer string }{
		"vg_san-lv1":           {"vg_san", "lv1", ""},
		"vg--san-lv--1":        {"vg-san", "lv-1", ""},
		"a---b":                {"a-", "b", ""},
		"a----b--c---d":        {"a--b-c-", "d", ""},
		"vg-lv--":              {"vg", "lv-", ""},
		"v.g+_-l.v+_":          {"v.g+_", "l.v+_", ""},
		"vg-lv_rimage_0":       {"vg", "lv_rimage_0", ""},
		"vg-pool-tpool":        {"vg", "pool", "tpool"},
		"vg-lv--1-real":        {"vg", "lv-1", "real"},
		"vg":                   {},
		"vg-":                  {},
		"-lv":                  {},
		"vg--lv":               {},
		"vg-lv-":               {},
		"vg-..":                {},
		"--vg-lv":              {},
		"a-b-c-d":              {},
		"luks-8b1f-4a-9c-0d-1": {},
		"control":              {},
		"":                     {},
		"vg-l v":               {},
	} {
		ref, layer, ok := splitMapper(name)
		assert.Equal(t, want.vg != "", ok, name)
		assert.Equal(t, Ref{VG: want.vg, LV: want.lv}, ref, name)
		assert.Equal(t, want.layer, layer, name)
	}
}

// Whatever LVM may call a volume, its device-mapper name leads back to it.
func TestSplitMapperInvertsMapperName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9+_.][a-z0-9+_.-]{0,12}`).Filter(validName)
		want := Ref{VG: name.Draw(t, "vg"), LV: name.Draw(t, "lv")}
		got, layer, ok := splitMapper(mapperName(want))
		if !ok || layer != "" || got != want {
			t.Fatalf("%v -> %q -> %v %q %v", want, mapperName(want), got, layer, ok)
		}
	})
}

func TestSplitDMUUID(t *testing.T) {
	id, ok := SplitDMUUID(lv1)
	require.True(t, ok)
	assert.Equal(t, model.VolumeID{
		VG: "rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M",
		LV: "pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX",
	}, id)
	assert.Equal(t, lv1, id.DMUUID())
	for _, bad := range []string{
		"", "LVM-", lv1[4:], lv1 + "-real", lv1 + "x", lv1[:len(lv1)-1], strings.Replace(lv1, "r", "-", 1),
		"CRYPT-LUKS2-" + vgID, "mpath-3600", "part1-" + lv1, "lvm" + lv1[3:],
	} {
		_, ok := SplitDMUUID(bad)
		assert.False(t, ok, bad)
	}
}
