package domain

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/model"
)

func TestDiskForms(t *testing.T) {
	lv := Source{Path: "/dev/vg/lv"}
	for name, c := range map[string]struct {
		xml  string
		want []Disk
	}{
		"block": {
			"<disk type='block'><driver type='raw' cache='writeback'/><source dev='/dev/vg/lv'/><target dev='vda'/></disk>",
			[]Disk{{Target: "vda", Role: model.RoleWritable, Cache: "writeback", Source: Source{Path: "/dev/vg/lv", Format: "raw"}}},
		},
		"file for a device": {
			"<disk type='file'><source file='/dev/vg/lv'/></disk>",
			[]Disk{{Role: model.RoleWritable, Source: lv, File: true}},
		},
		"no type means file": {
			"<disk><source file='/dev/vg/lv'/></disk>",
			[]Disk{{Role: model.RoleWritable, Source: lv, File: true}},
		},
		"volume": {
			"<disk type='volume'><source pool='p' volume='v' mode='host'/></disk>",
			[]Disk{{Role: model.RoleWritable, Source: Source{Pool: "p", Volume: "v"}}},
		},
		"lun": {
			"<disk type='block' device='lun'><source dev='/dev/vg/lv'/></disk>",
			[]Disk{{Role: model.RoleWritable, Source: lv}},
		},
		"readonly": {
			"<disk type='block'><source dev='/dev/vg/lv'/><readonly/></disk>",
			[]Disk{{Role: model.RoleReadOnly, Source: lv}},
		},
		"shareable": {
			"<disk type='block'><source dev='/dev/vg/lv'/><shareable/></disk>",
			[]Disk{{Role: model.RoleShareable, Source: lv}},
		},
		"readonly and shareable": {
			"<disk type='block'><source dev='/dev/vg/lv'/><shareable/><readonly/></disk>",
			[]Disk{{Role: model.RoleReadOnly, Source: lv}},
		},
		"transient": {
			"<disk type='block'><source dev='/dev/vg/lv'/><transient/></disk>",
			[]Disk{{Role: model.RoleWritable, Source: lv}},
		},
		"cdrom on a volume": {
			"<disk type='block' device='cdrom'><source dev='/dev/vg/lv'/></disk>",
			[]Disk{{Role: model.RoleReadOnly, Source: lv}},
		},
		"floppy on a volume": {
			"<disk type='block' device='floppy'><source dev='/dev/vg/lv'/></disk>",
			[]Disk{{Role: model.RoleWritable, Source: lv}},
		},
		"slice": {
			"<disk type='block'><source dev='/dev/vg/lv'><slices><slice type='storage' offset='4096' size='8192'/></slices></source></disk>",
			[]Disk{{Role: model.RoleWritable, Source: Source{Path: "/dev/vg/lv", Sliced: true}}},
		},
		"data store": {
			`<disk type='block'><driver type='qcow2'/><source dev='/dev/vg/lv'>
			<dataStore type='block'><format type='raw'/><source dev='/dev/vg/data'/></dataStore></source><backingStore/></disk>`,
			[]Disk{{Role: model.RoleWritable, ChainEnd: true, Source: Source{
				Path: "/dev/vg/lv", Format: "qcow2", Data: &Source{Path: "/dev/vg/data", Format: "raw"},
			}}},
		},
		"chain": {
			`<disk type='block'><driver type='qcow2'/><source dev='/dev/vg/lv' index='3'/>
			<backingStore type='file' index='4'><format type='qcow2'/><source file='/srv/mid'/>
			<backingStore type='network'><format type='qcow2'/><source protocol='nbd' name='x'><host name='h'/></source>
			<backingStore type='volume'><format type='raw'/><source pool='p' volume='v'/>
			<backingStore/></backingStore></backingStore></backingStore></disk>`,
			[]Disk{{
				Role: model.RoleWritable, ChainEnd: true, Source: Source{Path: "/dev/vg/lv", Format: "qcow2"},
				Backing: []Source{{Path: "/srv/mid", Format: "qcow2"}, {Format: "qcow2"}, {Pool: "p", Volume: "v", Format: "raw"}},
			}},
		},
		"open chain": {
			`<disk type='block'><driver type='qcow2'/><source dev='/dev/vg/lv'/>
			<backingStore type='block'><format type='qcow2'/><source dev='/dev/vg/base'/></backingStore></disk>`,
			[]Disk{{
				Role: model.RoleWritable, Source: Source{Path: "/dev/vg/lv", Format: "qcow2"},
				Backing: []Source{{Path: "/dev/vg/base", Format: "qcow2"}},
			}},
		},
		"mirror": {
			`<disk type='block'><source dev='/dev/vg/lv'/><backingStore/>
			<mirror type='block' job='copy' ready='yes'><format type='qcow2'/><source dev='/dev/vg/new'/>
			<backingStore type='block'><format type='raw'/><source dev='/dev/vg/base'/><backingStore/></backingStore></mirror></disk>`,
			[]Disk{{
				Role: model.RoleWritable, Source: lv, ChainEnd: true,
				Mirror: &Source{Path: "/dev/vg/new", Format: "qcow2"}, MirrorReady: true,
				MirrorBacking: []Source{{Path: "/dev/vg/base", Format: "raw"}}, MirrorChainEnd: true,
			}},
		},
		"mirror, old form": {
			"<disk type='block'><source dev='/dev/vg/lv'/><mirror file='/dev/vg/new' format='raw' ready='yes'/></disk>",
			[]Disk{{Role: model.RoleWritable, Source: lv, Mirror: &Source{Path: "/dev/vg/new", Format: "raw"}, MirrorReady: true}},
		},
		"mirror, both forms": {
			`<disk type='block'><source dev='/dev/vg/lv'/><mirror type='file' file='/dev/vg/new' format='raw' job='copy'>
			<format type='raw'/><source file='/dev/vg/new'/></mirror></disk>`,
			[]Disk{{Role: model.RoleWritable, Source: lv, Mirror: &Source{Path: "/dev/vg/new", Format: "raw"}}},
		},
		"network disk over a volume": {
			`<disk type='network'><driver type='qcow2'/><source protocol='nbd' name='x'><host name='h'/></source>
			<backingStore type='block'><format type='raw'/><source dev='/dev/vg/base'/><backingStore/></backingStore></disk>`,
			[]Disk{{
				Role: model.RoleWritable, ChainEnd: true, Source: Source{Format: "qcow2"},
				Backing: []Source{{Path: "/dev/vg/base", Format: "raw"}},
			}},
		},
		"not ours": {
			`<disk type='network' device='disk'><source protocol='rbd' name='a/b'><host name='h' port='1'/></source></disk>
			<disk type='network' device='cdrom'><source protocol='http' name='/x.iso'><host name='h'/></source></disk>
			<disk type='file' device='cdrom'><source startupPolicy='optional'/></disk>
			<disk type='file' device='cdrom'/><disk type='block' device='floppy'/><disk type='volume' device='cdrom'/>
			<disk type='dir' device='floppy'><source dir='/srv/x'/></disk>
			<disk type='nvme'><source type='pci' managed='yes' namespace='1'><address domain='0x0' bus='1' slot='0' function='0'/></source></disk>
			<disk type='vhostuser'><source type='unix' path='/run/x.sock'/></disk>
			<disk type='vhostvdpa'><source dev='/dev/vhost-vdpa-0'/></disk>`,
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Parse([]byte(withDisks(c.xml)))
			require.NoError(t, err)
			assert.Equal(t, c.want, d.Disks)
		})
	}
}

func TestDiskRefuses(t *testing.T) {
	for name, c := range map[string]struct{ xml, want string }{
		"no source":         {"<disk type='block'><target dev='vda'/></disk>", `disk "vda": a source without path`},
		"empty path":        {"<disk type='block'><source dev=''/><target dev='vda'/></disk>", `disk "vda": a source without path`},
		"relative path":     {"<disk type='file'><source file='-x'/></disk>", "not absolute"},
		"relative cdrom":    {"<disk type='file' device='cdrom'><source file='x.iso'/></disk>", "not absolute"},
		"no volume":         {"<disk type='volume'><source pool='p'/></disk>", "without pool or volume"},
		"unknown type":      {"<disk type='telepathy'><source dev='/dev/vg/lv'/></disk>", `a disk of type "telepathy"`},
		"mirror to nothing": {"<disk type='block'><source dev='/dev/vg/lv'/><mirror type='block'/></disk>", "mirror: a source without path"},
		"backing nothing": {
			"<disk type='block'><source dev='/dev/vg/lv'/><backingStore type='block'><format type='raw'/></backingStore></disk>",
			"backing store: a source without path",
		},
		"format alone": {
			"<disk type='block'><source dev='/dev/vg/lv'/><backingStore type='file'><format type='raw'/><source/></backingStore></disk>",
			"backing store: a source without path",
		},
		"data file nowhere": {
			"<disk type='block'><source dev='/dev/vg/lv'><dataStore type='block'><source dev=''/></dataStore></source></disk>",
			"data file: a source without path",
		},
		"201 images": {
			"<disk type='block'><source dev='/dev/vg/lv'/>" + chainOf(201) + "</disk>",
			"more than 200 images",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(withDisks(c.xml)))
			require.ErrorContains(t, err, c.want)
			assert.Contains(t, err.Error(), `guest "vm1"`)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
	d, err := Parse([]byte(withDisks("<disk type='block'><source dev='/dev/vg/lv'/>" + chainOf(200) + "</disk>")))
	require.NoError(t, err)
	assert.Len(t, d.Disks[0].Backing, 200)
}

func chainOf(n int) string {
	return strings.Repeat("<backingStore type='block'><format type='qcow2'/><source dev='/dev/vg/x'/>", n) +
		strings.Repeat("</backingStore>", n)
}

func TestFirmware(t *testing.T) {
	flash := func(target, path, format string, role model.Role) Disk {
		return Disk{Target: target, Role: role, ChainEnd: true, Source: Source{Path: path, Format: format}}
	}
	for name, c := range map[string]struct {
		xml  string
		want []Disk
	}{
		"files": {
			`<loader readonly='yes' type='pflash' format='qcow2'>/usr/share/x.qcow2</loader>
			<nvram template='/usr/share/t' format='qcow2'> /var/lib/vm1 </nvram>`,
			[]Disk{flash("loader", "/usr/share/x.qcow2", "qcow2", model.RoleReadOnly), flash("nvram", "/var/lib/vm1", "qcow2", model.RoleWritable)},
		},
		"nvram on a volume": {
			"<nvram type='block'>\n<source dev='/dev/vg/nvram'/>\n</nvram>",
			[]Disk{flash("nvram", "/dev/vg/nvram", "", model.RoleWritable)},
		},
		"writable flash": {
			"<loader type='pflash'>/dev/vg/flash</loader>",
			[]Disk{flash("loader", "/dev/vg/flash", "", model.RoleWritable)},
		},
		"rom":              {"<loader type='rom'>/dev/vg/rom</loader>", []Disk{flash("loader", "/dev/vg/rom", "", model.RoleReadOnly)}},
		"name of a file":   {"<loader>hvmloader</loader><kernel>/dev/vg/kernel</kernel>", nil},
		"network nvram":    {"<nvram type='network'><source protocol='nbd' name='x'><host name='h'/></source></nvram>", nil},
		"chosen by itself": {"<loader secure='yes'/><nvram/>", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Parse([]byte(strings.Replace(withDisks(""), "<devices>", "<os>"+c.xml+"</os><devices>", 1)))
			require.NoError(t, err)
			assert.Equal(t, c.want, d.Disks)
		})
	}
}

func TestImages(t *testing.T) {
	d := Disk{
		Role: model.RoleShareable, Source: Source{Path: "/a", Data: &Source{Path: "/ad"}},
		Backing:       []Source{{Path: "/b", Data: &Source{Path: "/bd"}}, {}},
		Mirror:        &Source{Path: "/m", Data: &Source{Path: "/md"}},
		MirrorBacking: []Source{{Path: "/n"}},
	}
	var got []string
	for _, i := range d.Images() {
		got = append(got, i.Source.Path+" "+string(i.Role))
	}
	assert.Equal(t, []string{
		"/a shareable", "/ad shareable", "/b backing", "/bd backing", " backing", "/m mirror", "/md mirror", "/n backing",
	}, got)
}

func TestSourceString(t *testing.T) {
	assert.Equal(t, `"/dev/vg/a\nb"`, Source{Path: "/dev/vg/a\nb"}.String())
	assert.Equal(t, `volume "v" of storage pool "p"`, Source{Pool: "p", Volume: "v"}.String())
}
