package domain

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPools(t *testing.T) {
	h := newHost(t)
	pool := func(dir, name, typ, inner string) {
		h.file(dir+"/"+name+".xml", "<!-- made by libvirt -->\n<pool type='"+typ+"'><name>"+name+"</name><uuid>"+uuid+
			"</uuid><capacity unit='bytes'>0</capacity>"+inner+"</pool>")
	}
	const etc, run = "/etc/libvirt/storage", "/run/libvirt/storage"
	pool(etc, "san", "logical", "<source><device path='/dev/sda'/><name>vg_san</name><format type='lvm2'/></source><target><path>/dev/vg_san</path></target>")
	pool(etc, "vg_default", "logical", "<source/>")
	pool(etc, "bad", "logical", "<source><name>-x</name></source>")
	pool(etc, "images", "dir", "<target><path>/srv</path></target>")
	pool(etc, "links", "fs", "<target><path>/srv/links/</path></target>")
	pool(etc, "nopath", "netfs", "<source/>")
	pool(etc, "disk", "disk", "<target><path>/dev</path></target>")
	pool(etc, "mpath", "mpath", "<target><path>/dev/mapper</path></target>")
	pool(etc, "ceph", "rbd", "<source><name>p</name></source>")
	pool(etc, "future", "holographic", "<target><path>/dev/vg</path></target>")
	pool(etc, "moved", "dir", "<target><path>/old</path></target>")
	h.file(run+"/moved.xml", "<poolstate>\n<pool type='logical'><name>moved</name><source><name>vg_new</name></source></pool></poolstate>")
	h.file(etc+"/alias.xml", "<pool type='logical'><name>other</name></pool>")
	h.file(etc+"/broken.xml", "<pool type='logical'><name>broken</name>")
	h.file(etc+"/empty.xml", "")
	h.file(etc+"/wrong.xml", "<network/>")
	h.file(etc+"/entity.xml", "<!DOCTYPE a [<!ENTITY b SYSTEM '/etc/passwd'>]><pool type='dir'><name>&b;</name></pool>")
	h.file("/etc/libvirt/storage.xml", "<pool type='dir'><name>..</name></pool>")
	h.file(etc+"/dir.xml/x", "")
	h.link("/srv/links/vm1", "/dev/vg_san/vm1")

	for name, c := range map[string]struct {
		pool, volume string
		want         Ref
		path         string
	}{
		"logical":         {"san", "lv-1", Ref{VG: "vg_san", LV: "lv-1"}, "/dev/vg_san/lv-1"},
		"logical, no VG":  {"vg_default", "lv", Ref{VG: "vg_default", LV: "lv"}, "/dev/vg_default/lv"},
		"running first":   {"moved", "lv", Ref{VG: "vg_new", LV: "lv"}, "/dev/vg_new/lv"},
		"dir":             {"images", "disk.qcow2", Ref{}, "/srv/disk.qcow2"},
		"link in a dir":   {"links", "vm1", Ref{VG: "vg_san", LV: "vm1"}, "/srv/links//vm1"},
		"disk":            {"disk", "sda", Ref{}, "/dev/sda"},
		"multipath":       {"mpath", "dm-3", Ref{}, ""},
		"rbd":             {"ceph", "image", Ref{}, ""},
		"key as volume":   {"san", "/dev/vg_san/lv1", Ref{VG: "vg_san", LV: "lv1"}, "/dev/vg_san/lv1"},
		"volume with dot": {"san", "..lv", Ref{VG: "vg_san", LV: "..lv"}, "/dev/vg_san/..lv"},
	} {
		t.Run(name, func(t *testing.T) {
			s := Source{Pool: c.pool, Volume: c.volume, Format: "qcow2"}
			ref, ok, err := h.resolver().Resolve(s)
			require.NoError(t, err)
			assert.Equal(t, c.want != Ref{}, ok)
			assert.Equal(t, c.want, ref)
			located, err := h.resolver().Locate(s)
			require.NoError(t, err)
			assert.Equal(t, Source{Path: c.path, Format: "qcow2"}, located)
		})
	}

	for name, c := range map[string]struct{ pool, volume, want string }{
		"unknown":           {"nowhere", "v", `cannot find volume "v" of storage pool "nowhere": the pool is not defined on this host`},
		"slash":             {"a/san", "v", "not the name of a storage pool"},
		"parent":            {"..", "v", "not the name of a storage pool"},
		"path":              {"../storage/san", "v", "not the name of a storage pool"},
		"nul":               {"san\x00", "v", "not the name of a storage pool"},
		"volume path":       {"san", "../x", "not the name of a volume"},
		"volume parent":     {"images", "..", "not the name of a volume"},
		"no volume":         {"san", "", "not the name of a volume"},
		"volume like -x":    {"san", "-x", `"vg_san/-x" cannot be a logical volume`},
		"VG like -x":        {"bad", "lv", `"-x/lv" cannot be a logical volume`},
		"no target":         {"nopath", "v", "has no target path"},
		"type":              {"future", "v", `unknown type "holographic"`},
		"other name inside": {"alias", "v", `it defines pool "other"`},
		"truncated":         {"broken", "v", "unexpected EOF"},
		"empty":             {"empty", "v", "document is empty"},
		"no pool":           {"wrong", "v", "no <pool>"},
		"entity":            {"entity", "v", "document types and entities"},
		"unreadable":        {"dir", "v", "is a directory"},
		"newline":           {"no\nwhere", "v", `"no\nwhere"`},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			_, ok, err := h.resolver().Resolve(Source{Pool: c.pool, Volume: c.volume})
			require.ErrorContains(t, err, c.want)
			assert.False(t, ok)
			assert.NotContains(t, err.Error(), "\n")
		})
	}

	t.Run("own directories", func(t *testing.T) {
		r := h.resolver()
		r.PoolDirs = []string{"/nowhere"}
		_, _, err := r.Resolve(Source{Pool: "san", Volume: "v"})
		require.ErrorContains(t, err, "not defined on this host")
	})
}
