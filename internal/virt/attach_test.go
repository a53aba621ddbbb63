package virt

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAttachAndResize(t *testing.T) {
	f := newFake(t, both...)
	v := New(Options{Dir: f.dir})
	dom := xdr("vm1", [16]byte{1, 2, 3}, uint32(5))
	d := Disk{Device: "/dev/vg2/l&v", Target: "vdb", Format: "qcow2", ReadOnly: true}
	doc := "<disk type='block' device='disk'><driver name='qemu' type='qcow2' cache='none'/><source dev='/dev/vg2/l&amp;v'/><target dev='vdb' bus='virtio'/><readonly/></disk>"
	require.NoError(t, v.AttachDisk(ctx, uuid, d, InGuest))
	assert.Equal(t, request{"libvirt-sock", procAttachDevice, xdr(dom, doc, uint32(1))}, f.last(procAttachDevice))
	require.NoError(t, v.AttachDisk(ctx, uuid, d, InDefinition))
	assert.Equal(t, xdr(dom, doc, uint32(2)), f.last(procAttachDevice).args)
	require.NoError(t, v.DetachDisk(ctx, uuid, d, InGuest))
	assert.Equal(t, request{"libvirt-sock", procDetachDevice, xdr(dom, doc, uint32(1))}, f.last(procDetachDevice))
	require.NoError(t, v.BlockResize(ctx, uuid, "vda", 1<<40))
	assert.Equal(t, request{"libvirt-sock", procBlockResize, xdr(dom, "vda", uint64(1<<40), uint32(1))}, f.last(procBlockResize))

	f.set(procAttachDevice, libvirtError{38, "Cannot access storage file '/dev/vg2/lv': No such file or directory"})
	require.EqualError(t, v.AttachDisk(ctx, uuid, d, InGuest), "cannot attach /dev/vg2/l&v as disk vdb (live): Cannot access storage file '/dev/vg2/lv': No such file or directory")
	for target, bus := range map[string]string{"vda": "virtio", "sdb": "scsi", "hdc": "ide", "xvda": "xen"} {
		assert.Equal(t, bus, Disk{Target: target}.bus())
	}
}
