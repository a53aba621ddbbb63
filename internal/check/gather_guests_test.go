package check

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
)

const captures = "../../test/testdata/"

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

func TestGatherDefinitions(t *testing.T) {
	h := newHost(t)
	h.Resolver = &domain.Resolver{Root: t.TempDir()}
	h.f.Running.Value = guests.Snapshot{ByUUID: map[string]guests.Guest{}}
	const defined = guestsDefined + "/vm-qcow.xml"
	h.root[defined] = file(string(read(t, captures+"hooks/libvirt-11.3/kvm-b/05-vm-qcow-prepare-begin.xml")))
	h.root[guestsDefined+"/networks/default.xml"] = file("<network/>")
	h.root[guestsDefined+"/broken.xml"] = file("<domain><name>broken</name>")
	f := h.gathered()
	require.Len(t, f.Guests, 1)
	assert.Equal(t, Guest{Name: "vm-qcow", UUID: "cc05373d-88fd-4189-a531-580c9d8e5417", Disks: []Disk{
		{Target: "vda", Path: "/dev/mapper/vg_san-top", Role: model.RoleWritable, Cache: "none", VG: "vg_san", LV: "top"},
	}}, f.Guests[0])
	require.Len(t, f.Unreadable, 1)
	assert.Contains(t, f.Unreadable[0], "/etc/libvirt/qemu/broken.xml: cannot read")

	// One that runs without a definition counts as well, one with both once.
	status := read(t, captures+"status/libvirt-11.3-vm1-running.xml")
	for _, uuid := range []string{"a", "b"} {
		h.f.Running.Value.ByUUID[uuid] = guests.Guest{Name: "vm1", Alive: guests.Alive, XML: status}
	}
	h.f.Running.Value.Unknown = []guests.UnknownFile{{Path: "/run/libvirt/qemu/x.xml", Reason: "it is odd"}}
	f = h.gathered()
	require.Len(t, f.Guests, 2)
	assert.Equal(t, "vm1", f.Guests[1].Name)
	assert.Equal(t, "vg_san", f.Guests[1].Disks[0].VG)
	assert.Len(t, f.Unreadable, 2)
}

// A volume that is named by its device, and one whose device is not there.
func TestGatherDisksByDevice(t *testing.T) {
	h := newHost(t)
	h.f.Running.Value = guests.Snapshot{}
	xml := func(path string) string {
		return "<domain><name>g</name><uuid>cc05373d-88fd-4189-a531-580c9d8e5417</uuid><devices><disk type='block'><source dev='" + path + "'/><target dev='vda'/></disk></devices></domain>"
	}
	h.root[guestsDefined+"/g.xml"] = file(xml("/" + id(lv1UUID).DMUUID()))
	f := h.gathered()
	assert.Equal(t, "vm1", f.Guests[0].Disks[0].LV)
	assert.Empty(t, f.Unreadable)
	h.root[guestsDefined+"/g.xml"] = file(xml("/" + id(goneID).DMUUID()))
	f = h.gathered()
	assert.Empty(t, f.Guests[0].Disks)
	assert.Contains(t, f.Unreadable[0], "guest g, disk vda:")
}

// The forms are those of libvirt's tests/qemustatusxml2xmldata/blockjob-blockdev-in.xml.
const statusWithJobs = `<domstatus state='running' reason='booted' pid='1'>
  <blockjobs active='yes'>
    <blockjob name='commit-vda-libvirt-2-format' type='%' state='running' jobflags='0x0'>
      <disk dst='vda'/>
      <base node='NODE'/>
      <top node='libvirt-2-format'/>
    </blockjob>
    <blockjob name='copy-vda' type='copy' state='ready'><disk dst='vda' mirror='yes'/></blockjob>
    <blockjob name='pull-vda' type='pull' state='running'><disk dst='vda'/></blockjob>
  </blockjobs>
  <domain type='kvm' id='4'>
    <name>vm1</name><uuid>0439a4a8-db56-4933-9183-d8681d7b0746</uuid>
    <devices>
      <disk type='block' device='disk'>
        <source dev='/dev/vg_san/top' index='2'/>
        <backingStore type='block' index='9'>
          <format type='qcow2'/>
          <source dev='/dev/vg_san/vm1'/>
          <backingStore type='block' index='11'><source dev='/dev/vg_san/vm2'/><backingStore/></backingStore>
        </backingStore>
        <target dev='vda' bus='virtio'/>
      </disk>
    </devices>
  </domain>
</domstatus>`

func TestGatherJobs(t *testing.T) {
	for name, tt := range map[string]struct {
		kind, node string
		lv, err    string
		none       bool
	}{
		"commit":              {kind: "commit", node: "libvirt-11-format", lv: "vm2"},
		"active commit":       {kind: "active-commit", node: "libvirt-9-storage", lv: "vm1"},
		"broken":              {kind: "broken' brokentype='commit", node: "libvirt-11-format", lv: "vm2"},
		"broken copy":         {kind: "broken' brokentype='copy", node: "libvirt-11-format", none: true},
		"backup":              {kind: "backup", node: "", none: true},
		"node of another":     {kind: "commit", node: "libvirt-77-format", err: `no image of the node "libvirt-77-format"`},
		"node not understood": {kind: "commit", node: "drive-virtio-disk0", err: "is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.f.Running.Value = guests.Snapshot{ByUUID: map[string]guests.Guest{"u": {
				Name: "vm1", Alive: guests.Alive, BlockJobs: true, XML: []byte(replace(statusWithJobs, "%", tt.kind, "NODE", tt.node)),
			}}}
			f := h.gathered()
			if tt.none {
				assert.Empty(t, f.Jobs)
				return
			}
			require.Len(t, f.Jobs, 1)
			assert.Equal(t, "vda", f.Jobs[0].Disk)
			assert.Equal(t, tt.lv, f.Jobs[0].Base.LV)
			if tt.err != "" {
				assert.ErrorContains(t, f.Jobs[0].Err, tt.err)
			} else {
				assert.NoError(t, f.Jobs[0].Err)
			}
		})
	}
	h := newHost(t)
	h.f.Running.Value = guests.Snapshot{ByUUID: map[string]guests.Guest{"u": {Name: "vm1", Alive: guests.Alive, BlockJobs: true, XML: []byte("<domstatus")}}}
	f := h.gathered()
	require.Len(t, f.Jobs, 1)
	assert.Error(t, f.Jobs[0].Err)
}

func replace(s string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(s) }
