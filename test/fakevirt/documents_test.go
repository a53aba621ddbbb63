package fakevirt

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirtxml"
)

const someDomain = `<domain type='kvm' id='3'><name>vm1</name><uuid>11111111-2222-3333-4444-555555555555</uuid>
<metadata><x:y xmlns:x='urn:x' z='1'/></metadata><memory unit='MiB'>48</memory><os><type arch='x86_64' machine='pc'>hvm</type><nvram>/n</nvram></os>
<devices><disk type='block' device='disk'><driver name='qemu' type='qcow2'/><source dev='/dev/vg/a' index='1'/>
<backingStore type='block' index='2'><format type='raw'/><source dev='/dev/vg/b'/><backingStore/></backingStore><target dev='vda' bus='virtio'/><shareable/></disk>
<disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk><interface type='network'><source network='default'/></interface></devices></domain>`

// What is remembered is what would be written and read, whatever has been done to a domain.
func TestDocuments(t *testing.T) {
	d := NewDocuments()
	plain := func(dom *libvirtxml.Domain) string {
		doc, err := dom.Marshal()
		require.NoError(t, err)
		return doc + "\n"
	}
	written := map[string]bool{}
	for name, change := range map[string]func(*libvirtxml.Domain){
		"nothing":     func(*libvirtxml.Domain) {},
		"no id":       func(dom *libvirtxml.Domain) { dom.ID = nil },
		"id 0":        func(dom *libvirtxml.Domain) { dom.ID = new(int) },
		"another id":  func(dom *libvirtxml.Domain) { *dom.ID = 4 },
		"name":        func(dom *libvirtxml.Domain) { dom.Name = "vm2" },
		"path":        func(dom *libvirtxml.Domain) { dom.Devices.Disks[0].Source.Block.Dev = "/dev/vg/c" },
		"chain":       func(dom *libvirtxml.Domain) { dom.Devices.Disks[0].BackingStore = nil },
		"its end":     func(dom *libvirtxml.Domain) { dom.Devices.Disks[0].BackingStore.BackingStore = nil },
		"shareable":   func(dom *libvirtxml.Domain) { dom.Devices.Disks[0].Shareable = nil },
		"disks":       func(dom *libvirtxml.Domain) { dom.Devices.Disks = dom.Devices.Disks[:1] },
		"order":       func(dom *libvirtxml.Domain) { d := dom.Devices.Disks; d[0], d[1] = d[1], d[0] },
		"metadata":    func(dom *libvirtxml.Domain) { dom.Metadata.XML = "<x/>" },
		"no metadata": func(dom *libvirtxml.Domain) { dom.Metadata = nil },
		"label":       func(dom *libvirtxml.Domain) { dom.SecLabel = []libvirtxml.DomainSecLabel{{Type: "dynamic"}} },
	} {
		for range 2 {
			dom, err := d.read(someDomain)
			require.NoError(t, err)
			want := &libvirtxml.Domain{}
			require.NoError(t, want.Unmarshal(someDomain))
			require.Equal(t, want, dom, "before %s", name)
			change(dom)
			change(want)
			require.Equal(t, plain(want), d.xmlOf(dom), name)
			again := &libvirtxml.Domain{}
			require.NoError(t, again.Unmarshal(plain(want)))
			require.Equal(t, again, d.clone(dom), name)
			written[d.xmlOf(dom)] = true
		}
	}
	assert.Len(t, written, 14)
	for i := range maxDocuments + 1 {
		d.xmlOf(&libvirtxml.Domain{Name: fmt.Sprint(i)})
	}
	assert.LessOrEqual(t, len(d.xml), maxDocuments)
	_, err := d.read("<domain>")
	require.Error(t, err)
	assert.Equal(t, d.xmlOf(&libvirtxml.Domain{Name: "a"}), (*Documents)(nil).xmlOf(&libvirtxml.Domain{Name: "a"}))
}

// A kind of value that Documents do not know would end a test.
func TestDocumentsKnowEveryKind(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var look func(reflect.Type)
	look = func(typ reflect.Type) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		appendValue(nil, reflect.Zero(typ))
		unshare(reflect.New(typ).Elem())
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice:
			look(typ.Elem())
		case reflect.Struct:
			for i := range typ.NumField() {
				require.True(t, typ.Field(i).IsExported())
				look(typ.Field(i).Type)
			}
		}
	}
	look(reflect.TypeFor[libvirtxml.Domain]())
	assert.Greater(t, len(seen), 1000)
}
