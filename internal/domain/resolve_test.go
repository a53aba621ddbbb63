package domain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// host is a file system as the resolver sees it.
type host struct {
	t    testing.TB
	root string
}

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{t, t.TempDir()}
	h.file("/dev/sda", "")
	h.file("/srv/disk.qcow2", "")
	return h
}

func (h *host) resolver() *Resolver { return &Resolver{Root: h.root} }

func (h *host) file(path, content string) {
	h.t.Helper()
	require.NoError(h.t, os.MkdirAll(filepath.Dir(h.root+path), 0o755))
	require.NoError(h.t, os.WriteFile(h.root+path, []byte(content), 0o644))
}

func (h *host) link(path, target string) {
	h.t.Helper()
	require.NoError(h.t, os.MkdirAll(filepath.Dir(h.root+path), 0o755))
	require.NoError(h.t, os.Symlink(target, h.root+path))
}

// dm makes a device-mapper device with the links that udev makes.
func (h *host) dm(kernel, name, uuid string) {
	h.t.Helper()
	h.file("/dev/"+kernel, "")
	h.file("/sys/block/"+kernel+"/dm/uuid", uuid+"\n")
	h.file("/sys/block/"+kernel+"/dm/name", name+"\n")
	h.link("/dev/mapper/"+name, "../"+kernel)
	h.link("/dev/disk/by-id/dm-name-"+name, "../../"+kernel)
}

func TestResolveByForm(t *testing.T) {
	for path, want := range map[string]Ref{
		"/dev/vg_san/lv1":                            {VG: "vg_san", LV: "lv1"},
		"/dev/vg-san/lv--1":                          {VG: "vg-san", LV: "lv--1"},
		"/dev/v.g+_/l.v+_-":                          {VG: "v.g+_", LV: "l.v+_-"},
		"/dev/.vg/...":                               {VG: ".vg", LV: "..."},
		"//dev//vg/./lv/":                            {VG: "vg", LV: "lv"},
		"/dev/vg/../vg/lv":                           {VG: "vg", LV: "lv"},
		"/dev/vg/x/../../other/lv":                   {VG: "other", LV: "lv"},
		"/srv/../dev/mapper/vg-lv":                   {VG: "vg", LV: "lv"},
		"/../../dev/vg/lv":                           {VG: "vg", LV: "lv"},
		"/dev/mapper/vg_san-lv1":                     {VG: "vg_san", LV: "lv1"},
		"/dev/mapper/vg--san-lv--1":                  {VG: "vg-san", LV: "lv-1"},
		"/dev/mapper/vg-pool_tdata":                  {VG: "vg", LV: "pool_tdata"},
		"/dev/disk/by-id/dm-name-vg--a-lv":           {VG: "vg-a", LV: "lv"},
		"/dev/disk/by-id/dm-uuid-" + lv1:             {DMUUID: lv1},
		"/dev/disk/by-id/dm-uuid-mpath-3600":         {},
		"/dev/disk/by-id/dm-uuid-CRYPT-LUKS2-abc-vg": {},
		"/dev/disk/by-id/lvm-pv-uuid-abc":            {},
		"/dev/disk/by-id/wwn-0x5000":                 {},
		"/dev/disk/by-uuid/1234-abcd":                {},
		"/dev/mapper/mpatha":                         {},
		"/dev/mapper/control":                        {},
		"/dev/mapper":                                {},
		"/dev/mapper/luks-8b1f3c-4a-9c-0d-1":         {},
		"/dev/mapper/vg-l v":                         {},
		"/dev/mapper/--x-lv":                         {},
		"/dev/sda":                                   {},
		"/dev/vg":                                    {},
		"/dev/vg/lv/part1":                           {},
		"/dev/-x/lv":                                 {},
		"/dev/vg/-ff":                                {},
		"/dev/v g/lv":                                {},
		"/dev/vg/lv\n":                               {},
		"/dev/vg/lv:1":                               {},
		"/dev/input/event0":                          {},
		"/dev/pts/0":                                 {},
		"/dev/md/data":                               {},
		"/dev/zvol/tank":                             {},
		"/dev/block/253:0":                           {},
		"/dev/dm-":                                   {},
		"/dev/dm-x":                                  {},
		"/srv/disk.qcow2":                            {},
		"/srv/disk.qcow2/vg/lv":                      {},
		"/srv/missing":                               {},
		"/srv/dev/vg/lv":                             {},
		"/srv/../srv/x":                              {},
		"/":                                          {},
		"/dev":                                       {},
		"":                                           {},
		"/dev/" + strings.Repeat("x", 128) + "/lv": {},
	} {
		t.Run(path, func(t *testing.T) {
			ref, ok, err := newHost(t).resolver().Resolve(Source{Path: path})
			require.NoError(t, err)
			assert.Equal(t, want != Ref{}, ok)
			assert.Equal(t, want, ref)
		})
	}
}

func TestResolveDevices(t *testing.T) {
	h := newHost(t)
	h.dm("dm-0", "vg_san-lv1", lv1)
	h.link("/dev/vg_san/lv1", "../dm-0")
	h.dm("dm-1", "luks-data", "CRYPT-LUKS2-0123-luks-data")
	h.dm("dm-2", "mpath-a", "mpath-3600a")
	h.dm("dm-3", "plain-old", "")
	h.dm("dm-4", "vg_san-base", base)
	h.dm("dm-5", "vg_san-base-real", base+"-real")
	h.dm("dm-6", "vg_san-p", "part1-"+lv1)
	h.link("/dev/vg_san/base", "../mapper/vg_san-base")
	h.link("/dev/disk/by-id/dm-uuid-"+lv1, "../../dm-0")
	h.link("/dev/disk/by-id/lvm-pv-uuid-x", "../../sda")
	h.link("/dev/disk/by-uuid/12-ab", "../../dm-0")
	h.link("/dev/block/253:0", "../dm-0")
	h.link("/dev/md/data", "../dm-4")
	h.link("/dev/alias/disk", "../dm-4")
	h.link("/dev/alias/crypt", "../dm-1")
	h.link("/dev/cciss/c0d0", "../sda")
	h.link("/dev/odd/c0d0", "../sda")
	h.file("/dev/odd/node", "")
	h.link("/srv/vm1", "/dev/vg_san/lv1")
	h.link("/srv/rel", "../dev/vg_san/lv1")
	h.link("/srv/hop", "vm1")
	h.link("/srv/dangling", "/dev/vg_san/gone")
	h.link("/srv/nowhere", "/srv/gone")
	h.link("/srv/kernel", "/dev/dm-0")
	h.link("/images", "srv")
	h.link("/d", "/dev")
	h.link("/deep", "/srv/sub/dir")
	h.file("/srv/sub/dir/x", "")
	h.link("/dev/vg_san/stale", "../dm-99")

	names := Ref{VG: "vg_san", LV: "lv1"}
	for path, want := range map[string]Ref{
		"/dev/vg_san/lv1":                    names,
		"/dev/mapper/vg_san-lv1":             names,
		"/dev/disk/by-id/dm-name-vg_san-lv1": names,
		"/dev/vg_san/base":                   {VG: "vg_san", LV: "base"},
		"/dev/vg_san/gone":                   {VG: "vg_san", LV: "gone"},
		"/dev/vg_san/stale":                  {VG: "vg_san", LV: "stale"},
		"/dev/disk/by-id/dm-uuid-" + lv1:     {DMUUID: lv1},
		"/dev/dm-0":                          {DMUUID: lv1},
		"/dev/disk/by-uuid/12-ab":            {DMUUID: lv1},
		"/dev/block/253:0":                   {DMUUID: lv1},
		"/srv/kernel":                        {DMUUID: lv1},
		"/dev/md/data":                       {DMUUID: base},
		"/dev/alias/disk":                    {DMUUID: base}, // the device decides, not the path
		"/srv/vm1":                           names,
		"/srv/rel":                           names,
		"/srv/hop":                           names,
		"/images/hop":                        names,
		"/images/../images/vm1":              names,
		"/d/vg_san/lv1":                      names,
		"/d/mapper/vg_san-lv2":               {VG: "vg_san", LV: "lv2"},
		"/srv/dangling":                      {VG: "vg_san", LV: "gone"},
		"/deep/../../dev/vg_san/lv1":         {}, // /srv/dev, not /dev
		"/deep/../vm1":                       {},
		"/deep/../../vm1":                    names,
		"/dev/mapper/luks-data":              {},
		"/dev/disk/by-id/dm-name-luks-data":  {},
		"/dev/alias/crypt":                   {},
		"/dev/mapper/mpath-a":                {},
		"/dev/mapper/plain-old":              {},
		"/dev/mapper/vg_san-p":               {}, // a partition mapped by hand
		"/dev/dm-1":                          {},
		"/dev/disk/by-id/lvm-pv-uuid-x":      {},
		"/dev/cciss/c0d0":                    {},
		"/dev/odd/c0d0":                      {},
		"/dev/odd/node":                      {},
		"/srv/nowhere":                       {},
	} {
		t.Run(path, func(t *testing.T) {
			ref, ok, err := h.resolver().Resolve(Source{Path: path})
			require.NoError(t, err)
			assert.Equal(t, want != Ref{}, ok)
			assert.Equal(t, want, ref)
		})
	}
}

func TestResolveRefuses(t *testing.T) {
	h := newHost(t)
	h.dm("dm-5", "vg_san-base-real", base+"-real")
	h.dm("dm-7", "vg_san-odd", base+"-cow")
	h.link("/srv/a", "b")
	h.link("/srv/b", "/srv/a")
	h.link("/dev/vg/loop", "loop")
	h.link("/srv/to5", "../dev/dm-5")
	h.link("/dev/disk/by-uuid/9", "../../dm-9")
	h.file("/sys/block/dm-8/dm/uuid", lv1) // and no name
	for path, want := range map[string]string{
		"vg/lv":                        "not absolute",
		"-x":                           "not absolute",
		"./dev/vg/lv":                  "not absolute",
		"/srv/a":                       "more than 40 symbolic links",
		"/dev/vg/loop":                 "more than 40 symbolic links",
		"/dev/dm-9":                    "no such device; name the disk as /dev/VG/LV",
		"/dev/disk/by-uuid/9":          "no such device",
		"/dev/dm-8":                    "cannot read the identity of a device",
		"/dev/mapper/vg-lv-real":       `"real" of logical volume vg/lv`,
		"/dev/mapper/vg_san-base-real": "internal device of LVM",
		"/dev/mapper/vg_san-odd":       "internal device of LVM",
		"/dev/dm-5":                    "name the logical volume itself",
		"/srv/to5":                     "internal device of LVM",
		"/dev/disk/by-id/dm-uuid-" + lv1 + "-tpool": "internal device of LVM",
		"/dev/disk/by-id/dm-uuid-LVM-short":         "internal device of LVM",
		"/dev/vg/lv\x00":                            "cannot follow path",
		"/" + strings.Repeat("x", 300):              "cannot follow path",
		strings.Repeat("/..", 4096):                 "longer than 4096 bytes",
	} {
		t.Run(want, func(t *testing.T) {
			ref, ok, err := h.resolver().Resolve(Source{Path: path})
			require.ErrorContains(t, err, want)
			assert.False(t, ok)
			assert.Empty(t, ref)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

// A block device is told by its number wherever its node is, as after mknod.
func TestResolveDeviceNode(t *testing.T) {
	h := newHost(t)
	for path, minor := range map[string]uint32{"/srv/node": 77, "/dev/mapper/vg_san-lv1": 77, "/srv/disk": 78} {
		require.NoError(t, os.MkdirAll(filepath.Dir(h.root+path), 0o755))
		if err := unix.Mknod(h.root+path, unix.S_IFBLK|0o600, int(unix.Mkdev(253, minor))); err != nil {
			t.Skipf("mknod: %v", err)
		}
	}
	h.file("/sys/dev/block/253:77/dm/uuid", lv1+"\n")
	h.file("/sys/dev/block/253:77/dm/name", "vg_san-lv1\n")
	for path, want := range map[string]Ref{
		"/srv/node":              {DMUUID: lv1},
		"/dev/mapper/vg_san-lv1": {VG: "vg_san", LV: "lv1"},
		"/srv/disk":              {},
	} {
		ref, ok, err := h.resolver().Resolve(Source{Path: path})
		require.NoError(t, err)
		assert.Equal(t, want != Ref{}, ok)
		assert.Equal(t, want, ref)
	}
}

func TestRefString(t *testing.T) {
	assert.Equal(t, "vg/lv", Ref{VG: "vg", LV: "lv"}.String())
	assert.Equal(t, lv1, Ref{DMUUID: lv1}.String())
}
