package lvm_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/run/runtest"
)

const (
	vgsLine = "vgs --reportformat json --units b --nosuffix -o vg_name,vg_uuid,vg_lock_type,vg_lock_args,vg_autoactivation,vg_extent_size,vg_free,vg_attr,vg_systemid,vg_tags,lv_count"
	lvsLine = "lvs --reportformat json --units b --nosuffix -o vg_name,vg_uuid,vg_lock_type,lv_name,lv_uuid,lv_lockargs,segtype,lv_tags,origin,pool_lv,lv_size "
	sanUUID = "rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M"
)

func testdata(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return string(data)
}

func TestVGs(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(vgsLine).Stdout(testdata(t, "vgs.json")).Stderr("  Skipping global lock: lockspace not found or started\n")
	vgs, err := lvm.New(f, "/sys").VGs(context.Background())
	require.NoError(t, err)
	assert.Equal(t, []lvm.VG{
		{
			Name: "vg_san", UUID: sanUUID, LockType: "sanlock", LockArgs: "1.0.0:lvmlock", Autoactivation: true,
			ExtentSize: 4 << 20, Free: 3837788160, Attr: "wz--ns", Volumes: 4,
		},
		{
			Name: "vg_plain", UUID: "f8ZLhJ-3GhT-1Y1c-9Ug2-U8bT-0rXk-2mQeVd", LockType: "none",
			ExtentSize: 4 << 20, Free: 1069547520, Attr: "wz--n-", Tags: []string{"site=a", "pool"}, Volumes: 4,
		},
		{
			Name: "vg_dlm", UUID: "A8ZLhJ-3GhT-1Y1c-9Ug2-U8bT-0rXk-2mQeVd", LockType: "dlm", LockArgs: "1.0.0:cluster",
			Autoactivation: true, ExtentSize: 4 << 20, Attr: "wz--ns", Volumes: 4,
		},
	}, vgs)
}

func TestInventory(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(lvsLine + "vg_san").Stdout(testdata(t, "lvs-2.03.31.json"))
	vols, missing, unlocked, err := lvm.New(f, "/sys").Inventory(context.Background(), "vg_san")
	require.NoError(t, err)
	assert.Empty(t, missing)
	assert.Empty(t, unlocked)
	volume := func(lv, uuid string, offset, size int64) model.Volume {
		return model.Volume{
			ID: model.VolumeID{VG: sanUUID, LV: uuid}, VG: "vg_san", LV: lv, LockType: "sanlock", SegType: "linear",
			LeaseOffset: offset, Size: size, LockLV: uuid,
		}
	}
	assert.Equal(t, []model.Volume{
		volume("base", "AHEJ6q-gy1M-ES2v-JzLi-cSbm-a6B4-pXAzEc", 71303168, 32<<20),
		volume("hot", "Gpkfnb-QApQ-A3mG-Qyjc-nEUL-ery9-k4QcTu", 73400320, 32<<20),
		volume("lv1", "pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX", 70254592, 64<<20),
		volume("top", "oCq0IA-0b61-Nw0O-Hjzb-3x3H-K1OV-TiSQVW", 72351744, 32<<20),
	}, vols, "the hidden lvmlock is left out")
}

func TestInventoryTypes(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(lvsLine + "vg_san vg_plain").Stdout(testdata(t, "lvs-types.json"))
	vols, _, _, err := lvm.New(f, "/sys").Inventory(context.Background(), "vg_san", "vg_plain")
	require.NoError(t, err)
	byName := map[string]model.Volume{}
	for _, v := range vols {
		byName[v.Name()] = v
	}
	require.Len(t, byName, 7)
	require.Len(t, vols, 7, "one for each volume, not for each segment")

	c1 := byName["vg_san/c1"]
	assert.Equal(t, "cache", c1.SegType)
	assert.Equal(t, "cc_cvol", c1.Pool)
	assert.Equal(t, "c1_corig", c1.Origin)
	assert.Equal(t, c1.ID.LV, c1.LockLV)

	o1 := byName["vg_san/o1"]
	assert.Equal(t, []string{"virtlvm.shared", "a.b"}, o1.Tags)
	assert.True(t, o1.HasTag(model.TagShared))
	assert.Equal(t, int64(8<<20), o1.Size)

	s1 := byName["vg_san/s1"]
	assert.Equal(t, "o1", s1.Origin)
	assert.Equal(t, int64(-1), s1.LeaseOffset)

	two := byName["vg_san/two"]
	assert.Equal(t, "striped", two.SegType, "of the first segment")
	assert.Equal(t, int64(-1), two.LeaseOffset, "a format that is not known")

	tv, tp := byName["vg_san/tv"], byName["vg_san/tp"]
	assert.Equal(t, "tp", tv.Pool)
	assert.Equal(t, int64(-1), tv.LeaseOffset)
	assert.Equal(t, tp.ID.LV, tv.LockLV, "the pool's lock")
	assert.Equal(t, int64(16<<20), tp.Size)

	assert.Equal(t, "none", byName["vg_plain/p1"].LockType)
}

func TestInventoryMissing(t *testing.T) {
	const gone = "  Volume group \"nosuch\" not found\n  Cannot process volume group nosuch\n"
	const locked = "  Cannot access VG vg_two due to failed lock.\n"
	const without = "  WARNING: lvmlockd process is not running.\n  Reading VG vg_san without a lock.\n  Reading VG vg_san without a lock.\n"
	const none = "  {\n      \"report\": [\n          {\n              \"lv\": [\n              ]\n          }\n      ]\n  }\n"
	tests := map[string]struct {
		vgs      []string
		stdout   string
		stderr   string
		exit     int
		vols     int
		missing  []string
		unlocked []string
		err      string
	}{
		"one of two":         {vgs: []string{"vg_san", "nosuch"}, stdout: testdata(t, "lvs-2.03.31.json"), stderr: gone, exit: 5, vols: 4, missing: []string{"nosuch"}},
		"the only one":       {vgs: []string{"nosuch"}, stdout: none, stderr: gone, exit: 5, missing: []string{"nosuch"}},
		"named twice":        {vgs: []string{"nosuch", "nosuch"}, stdout: "", stderr: gone, exit: 5, missing: []string{"nosuch"}},
		"empty VG":           {vgs: []string{"vg_san"}, stdout: none},
		"without a lock":     {vgs: []string{"vg_san"}, stdout: testdata(t, "lvs-2.03.31.json"), stderr: without, vols: 4, unlocked: []string{"vg_san"}},
		"another one failed": {vgs: []string{"vg_two", "nosuch"}, stdout: none, stderr: locked + gone, exit: 5, err: "failed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(lvsLine + strings.Join(tt.vgs, " ")).Stdout(tt.stdout).Stderr(tt.stderr).Exit(tt.exit)
			vols, missing, unlocked, err := lvm.New(f, "/sys").Inventory(context.Background(), tt.vgs...)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				assert.Equal(t, api.KindLocking, api.KindOf(err))
				return
			}
			require.NoError(t, err)
			assert.Len(t, vols, tt.vols)
			assert.Equal(t, tt.missing, missing)
			assert.Equal(t, tt.unlocked, unlocked)
		})
	}
}

func TestInventoryOfNothing(t *testing.T) {
	f := runtest.New(t)
	vols, missing, unlocked, err := lvm.New(f, "/sys").Inventory(context.Background())
	require.NoError(t, err)
	assert.Empty(t, vols)
	assert.Empty(t, missing)
	assert.Empty(t, unlocked)
	assert.Empty(t, f.Calls(), "without a name lvs would read every VG")
}

func TestBrokenReports(t *testing.T) {
	whole := testdata(t, "lvs-2.03.31.json")
	tests := map[string]struct{ out, text string }{
		"empty":             {"", `cannot understand the answer of lvs: it has no JSON: ""`},
		"only a warning":    {"  WARNING: {oops}\n", `cannot understand the answer of lvs: it has no JSON: "WARNING: {oops}"`},
		"cut off":           {whole[:len(whole)/2], "unexpected EOF"},
		"another object":    {`{"x": 1}`, `it has no "report"`},
		"wrong shape":       {`{"report": {}}`, "cannot unmarshal"},
		"row without uuid":  {strings.ReplaceAll(whole, "lv_uuid", "x"), "cannot understand the answer of lvs: a row has no lv_uuid"},
		"size in megabytes": {strings.ReplaceAll(whole, "33554432", "32.00m"), `lv_size is "32.00m", which is no size in bytes`},
		"negative size":     {strings.ReplaceAll(whole, "33554432", "-1"), `lv_size is "-1"`},
		"a list as a field": {strings.ReplaceAll(whole, `"lv_tags":""`, `"lv_tags":[]`), "cannot unmarshal"},
		"binary":            {"{\x00\xff" + strings.Repeat("x", 1000), "invalid character"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(lvsLine + "vg_san").Stdout(tt.out)
			_, _, _, err := lvm.New(f, "/sys").Inventory(context.Background(), "vg_san")
			require.ErrorContains(t, err, tt.text)
			assert.Equal(t, api.KindInternal, api.KindOf(err))
			assert.NotContains(t, err.Error(), "\n")
			assert.Less(t, len(err.Error()), 600)
		})
	}
	f := runtest.New(t)
	f.ExpectLine(vgsLine).Stdout(strings.ReplaceAll(testdata(t, "vgs.json"), "4194304", "many"))
	_, err := lvm.New(f, "/sys").VGs(context.Background())
	require.ErrorContains(t, err, `cannot understand the answer of vgs: vg_extent_size is "many"`)
}

func TestReadsThatFail(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(vgsLine).Exit(5).Stderr("  Global lock failed: check that lvmlockd is running.\n")
	_, err := lvm.New(f, "/sys").VGs(context.Background())
	require.ErrorContains(t, err, "cannot read this host: LVM's global lock failed (check that lvmlockd is running)")
	assert.Equal(t, api.KindLocking, api.KindOf(err))

	_, _, _, err = lvm.New(f, "/sys").Inventory(context.Background(), "vg_san", "--config=x")
	assert.Equal(t, api.KindBadRequest, api.KindOf(err))
	assert.Len(t, f.Calls(), 1, "nothing is run for a name that is an option")
}
