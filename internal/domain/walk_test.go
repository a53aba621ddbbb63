package domain

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/model"
)

// walkAll returns what each step finds, as "name role", until the disk is complete.
func walkAll(t *testing.T, h *host, f *fakeQemu, d Disk) ([][]string, error) {
	t.Helper()
	walk := (&Walker{Resolver: h.resolver(), Inspector: &Inspector{Runner: f}}).Start(d)
	var steps [][]string
	for {
		found, err := walk.Next(t.Context())
		if err != nil || len(found) == 0 {
			return steps, err
		}
		var names []string
		for _, x := range found {
			name := x.Source.Path
			if x.LV {
				name = x.Ref.String()
			}
			names = append(names, name+" "+string(x.Role))
		}
		steps = append(steps, names)
	}
}

func disk(path, format string) Disk {
	return Disk{Target: "vda", Role: model.RoleWritable, Source: Source{Path: path, Format: format}}
}

func TestWalk(t *testing.T) {
	headers := map[string]string{
		"/dev/vg/top":        header("/dev/mapper/vg-mid", "qcow2"),
		"/dev/mapper/vg-mid": header("base", "raw"),
		"/dev/vg/mid":        header("/dev/vg/base", "raw"),
		"/dev/vg/base":       header("/dev/vg/secret", "raw"), // written by a guest into its raw disk
		"/dev/vg/split":      strings.Replace(header("/dev/vg/base", "raw"), `"corrupt"`, `"data-file": "/dev/vg/data", "corrupt"`, 1),
		"/srv/disk.qcow2":    header("/dev/vg/base", ""),
		"/dev/vg/net":        header("nbd://h/x", "qcow2"),
		"/dev/vg/new":        header("", ""),
	}
	for name, c := range map[string]struct {
		disk Disk
		want [][]string
		runs int
	}{
		"raw is never opened": {disk("/dev/vg/base", "raw"), [][]string{{"vg/base writable"}}, 0},
		"undeclared is raw":   {disk("/dev/vg/base", ""), [][]string{{"vg/base writable"}}, 0},
		"three volumes": {
			disk("/dev/vg/top", "qcow2"),
			[][]string{{"vg/top writable"}, {"vg/mid backing"}, {"/dev/mapper/base backing"}},
			2,
		},
		"declared": {
			Disk{
				Role: model.RoleWritable, Source: Source{Path: "/dev/vg/top", Format: "qcow2"}, ChainEnd: true,
				Backing: []Source{{Path: "/dev/vg/mid", Format: "qcow2"}, {Path: "/dev/vg/base", Format: "raw"}},
			},
			[][]string{{"vg/top writable", "vg/mid backing", "vg/base backing"}},
			0,
		},
		"declared, open end": {
			Disk{
				Role: model.RoleWritable, Source: Source{Path: "/dev/vg/top", Format: "qcow2"},
				Backing: []Source{{Path: "/dev/vg/mid", Format: "qcow2"}},
			},
			[][]string{{"vg/top writable", "vg/mid backing"}, {"vg/base backing"}},
			1,
		},
		"declared raw in the middle": {
			Disk{
				Role: model.RoleWritable, Source: Source{Path: "/dev/vg/top", Format: "qcow2"},
				Backing: []Source{{Path: "/dev/vg/mid", Format: "raw"}},
			},
			[][]string{{"vg/top writable", "vg/mid backing"}},
			0,
		},
		"data file": {
			disk("/dev/vg/split", "qcow2"),
			[][]string{{"vg/split writable"}, {"vg/data writable", "vg/base backing"}},
			1,
		},
		"data file declared": {
			Disk{Role: model.RoleWritable, Source: Source{
				Path: "/dev/vg/split", Format: "qcow2", Data: &Source{Pool: "san", Volume: "other", Format: "raw"},
			}},
			[][]string{{"vg/split writable", "vg/other writable"}, {"vg/base backing"}},
			1,
		},
		"file over a volume": {
			disk("/srv/disk.qcow2", "qcow2"),
			[][]string{{"/srv/disk.qcow2 writable"}, {"vg/base backing"}},
			1,
		},
		"missing file": {disk("/srv/none.qcow2", "qcow2"), [][]string{{"/srv/none.qcow2 writable"}}, 0},
		"network":      {disk("/dev/vg/net", "qcow2"), [][]string{{"vg/net writable"}, {" backing"}}, 1},
		"pool volume": {
			Disk{Role: model.RoleReadOnly, Source: Source{Pool: "san", Volume: "mid", Format: "qcow2"}},
			[][]string{{"vg/mid readonly"}, {"vg/base backing"}},
			1,
		},
		"mirror": {
			Disk{
				Role: model.RoleWritable, Source: Source{Path: "/dev/vg/mid", Format: "qcow2"},
				Mirror: &Source{Path: "/dev/vg/new", Format: "qcow2"},
			},
			[][]string{{"vg/mid writable", "vg/new mirror"}, {"vg/base backing"}},
			2,
		},
		"commit into the own base": {
			Disk{
				Role: model.RoleWritable, Source: Source{Path: "/dev/vg/mid", Format: "qcow2"}, ChainEnd: true,
				Backing: []Source{{Path: "/dev/vg/base", Format: "raw"}}, Mirror: &Source{Path: "/dev/vg/base", Format: "raw"},
			},
			[][]string{{"vg/mid writable", "vg/base backing", "vg/base mirror"}},
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.file("/etc/libvirt/storage/san.xml", "<pool type='logical'><name>san</name><source><name>vg</name></source></pool>")
			f := &fakeQemu{out: headers}
			before := fmt.Sprintf("%#v %#v", c.disk, c.disk.Source.Data)
			steps, err := walkAll(t, h, f, c.disk)
			require.NoError(t, err)
			assert.Equal(t, c.want, steps)
			assert.Len(t, f.cmds, c.runs)
			assert.Equal(t, before, fmt.Sprintf("%#v %#v", c.disk, c.disk.Source.Data), "the disk stays as it was")
			if c.disk.Source.Data != nil {
				assert.Equal(t, "san", c.disk.Source.Data.Pool)
			}
		})
	}
}

func TestWalkRefuses(t *testing.T) {
	long := map[string]string{}
	for i := range 300 {
		long[fmt.Sprintf("/dev/vg/l%d", i)] = header(fmt.Sprintf("l%d", i+1), "qcow2")
	}
	for name, c := range map[string]struct {
		headers map[string]string
		disk    Disk
		want    string
	}{
		"cycle": {
			map[string]string{"/dev/vg/a": header("/dev/vg/b", "qcow2"), "/dev/vg/b": header("/dev/mapper/vg-a", "qcow2")},
			disk("/dev/vg/a", "qcow2"), `a cycle: "vg/a" comes twice`,
		},
		"on itself": {
			map[string]string{"/dev/vg/a": header("../vg/a", "qcow2")},
			disk("/dev/vg/a", "qcow2"), `a cycle: "vg/a" comes twice`,
		},
		"cycle of files": {
			map[string]string{"/srv/disk.qcow2": header("./disk.qcow2", "qcow2")},
			disk("/srv/disk.qcow2", "qcow2"), `a cycle: "/srv/disk.qcow2" comes twice`,
		},
		"declared cycle": {
			nil,
			Disk{Target: "vda", Source: Source{Path: "/dev/vg/a"}, Backing: []Source{{Path: "/dev/mapper/vg-a"}}},
			`a cycle: "vg/a" comes twice`,
		},
		"cycle back into the declared": {
			map[string]string{"/dev/vg/b": header("a", "qcow2")},
			Disk{Target: "vda", Source: Source{Path: "/dev/vg/a", Format: "qcow2"}, Backing: []Source{{Path: "/dev/vg/b", Format: "qcow2"}}},
			`a cycle: "vg/a" comes twice`,
		},
		"no end":            {long, disk("/dev/vg/l0", "qcow2"), "more than 200 images"},
		"not qcow2":         {nil, disk("/dev/vg/a", "qcow2"), "Image is not in qcow2 format"},
		"unreadable volume": {nil, disk("/dev/vg/a-missing", "qcow2"), "Could not open '/dev/vg/a-missing'"},
		"unknown reference": {map[string]string{"/dev/vg/a": header("fat:x", "raw")}, disk("/dev/vg/a", "qcow2"), `what "fat:x" names`},
		"no such pool":      {nil, Disk{Target: "vda", Source: Source{Pool: "p", Volume: "v"}}, `storage pool "p"`},
		"dm that is not there": {
			map[string]string{"/dev/vg/a": header("/dev/dm-9", "raw")},
			disk("/dev/vg/a", "qcow2"), "no such device",
		},
		"data file in LVM's inside": {
			map[string]string{"/dev/vg/a": `{"format": "qcow2", "format-specific": {"data": {"data-file": "/dev/mapper/vg-a-real"}}}`},
			disk("/dev/vg/a", "qcow2"), "internal device",
		},
		"declared data file": {
			nil,
			Disk{Target: "vda", Source: Source{Path: "/dev/vg/a", Data: &Source{Path: "/dev/dm-9"}}},
			"no such device",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := walkAll(t, newHost(t), &fakeQemu{out: c.headers}, c.disk)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, `disk "vda": `)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}
