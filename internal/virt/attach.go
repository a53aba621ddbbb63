package virt

import (
	"context"
	"fmt"
	"strings"

	"github.com/digitalocean/go-libvirt"
)

// Disk is a block device as a disk of a guest.
type Disk struct {
	Device   string // its path
	Target   string // its name in the guest, such as "vdb"; the bus follows from its beginning
	Format   string // "raw", "qcow2"
	ReadOnly bool
}

// Where a change is made.
type Where string

// To the running guest, or to its definition.
const (
	InGuest      Where = "live"
	InDefinition Where = "config"
)

func (w Where) flag() uint32 {
	if w == InDefinition {
		return uint32(libvirt.DomainDeviceModifyConfig)
	}
	return uint32(libvirt.DomainDeviceModifyLive)
}

// document is the <disk> element. A device of a host that other hosts may have as well is not
// cached by the host: a live migration needs that.
func (d Disk) document() string {
	more := ""
	if d.ReadOnly {
		more = "<readonly/>"
	}
	return fmt.Sprintf("<disk type='block' device='disk'><driver name='qemu' type='%s' cache='none'/><source dev='%s'/><target dev='%s' bus='%s'/>%s</disk>",
		escape(d.Format), escape(d.Device), escape(d.Target), d.bus(), more)
}

func (d Disk) bus() string {
	switch {
	case strings.HasPrefix(d.Target, "sd"):
		return "scsi"
	case strings.HasPrefix(d.Target, "hd"):
		return "ide"
	case strings.HasPrefix(d.Target, "xvd"):
		return "xen"
	}
	return "virtio"
}

// AttachDisk gives a guest a disk. libvirt calls no hook for it: the device must be active.
func (v *Virt) AttachDisk(ctx context.Context, uuid string, disk Disk, where Where) error {
	return tell(ctx, v, fmt.Sprintf("attach %s as disk %s (%s)", disk.Device, disk.Target, where), uuid, func(l *libvirt.Libvirt, dom libvirt.Domain) error {
		return l.DomainAttachDeviceFlags(dom, disk.document(), where.flag())
	})
}

// DetachDisk takes a disk from a guest. From a running one it is only asked for: the guest
// lets go of it when it likes, and its status file shows when it has.
func (v *Virt) DetachDisk(ctx context.Context, uuid string, disk Disk, where Where) error {
	return tell(ctx, v, fmt.Sprintf("detach disk %s (%s)", disk.Target, where), uuid, func(l *libvirt.Libvirt, dom libvirt.Domain) error {
		return l.DomainDetachDeviceFlags(dom, disk.document(), where.flag())
	})
}

// BlockResize lets a running guest see another size of one of its disks, in bytes. The
// device below it must have room for it.
func (v *Virt) BlockResize(ctx context.Context, uuid, target string, size int64) error {
	return tell(ctx, v, "resize disk "+target, uuid, func(l *libvirt.Libvirt, dom libvirt.Domain) error {
		return l.DomainBlockResize(dom, target, uint64(size), libvirt.DomainBlockResizeBytes) //nolint:gosec // bytes of a disk fit
	})
}
