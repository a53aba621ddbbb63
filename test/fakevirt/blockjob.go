package fakevirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"libvirt.org/go/libvirtxml"
)

// A block copy goes as in libvirt's qemuDomainBlockCopyCommon and qemu_blockjob.c:
//
//	BlockCopy   QEMU opens the destination, <mirror job='copy'> in the status file
//	CatchUp     QEMU has copied all, and follows from now on: ready='yes'
//	Pivot       QEMU goes on with the destination and closes the source; the disk of the
//	            persistent definition follows where it was the same, then the mirror goes
//	AbortCopy   QEMU closes the destination; the mirror goes
//
// Each guest has one at most here.

// BlockCopy begins to copy a disk to a block device, as virDomainBlockCopy with
// VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB. The error is *Error.
func (h *Host) BlockCopy(ctx context.Context, name, target, device, format string) error {
	return failed("", h.onDisk(ctx, name, target, func(s *status, d *libvirtxml.DomainDisk) error {
		if d.Mirror != nil {
			return fmt.Errorf("block copy still active: disk '%s' already in active block job", target)
		}
		if _, err := os.Stat(h.o.Root + device); err != nil {
			return fmt.Errorf("internal error: unable to execute QEMU command 'blockdev-add': Could not open '%s': %s", device, reason(err))
		}
		if err := h.markOpen(device, s.PID); err != nil {
			return err
		}
		d.Mirror = &libvirtxml.DomainDiskMirror{
			Job: "copy", Format: &libvirtxml.DomainDiskFormat{Type: format},
			Source: &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: device}},
		}
		return h.writeStatus(*s)
	}))
}

// CatchUp lets the copy of a disk come to its end, from where it follows the guest.
func (h *Host) CatchUp(ctx context.Context, name, target string) error {
	return failed("", h.onDisk(ctx, name, target, func(s *status, d *libvirtxml.DomainDisk) error {
		if d.Mirror == nil {
			return fmt.Errorf("no copy of disk %s", target)
		}
		if err := h.copyDisk(d); err != nil {
			return err
		}
		d.Mirror.Ready = "yes"
		return h.writeStatus(*s)
	}))
}

// Pivot lets the guest go on with the copy. The error is *Error.
func (h *Host) Pivot(ctx context.Context, name, target string) error {
	return failed("", h.onDisk(ctx, name, target, func(s *status, d *libvirtxml.DomainDisk) error {
		if d.Mirror == nil {
			return fmt.Errorf("Requested operation is not valid: disk %s does not have an active block job", target) //nolint:staticcheck // libvirt's words
		}
		if d.Mirror.Ready != "yes" {
			return fmt.Errorf("block copy still active: block job '%s' not ready for pivot yet", target)
		}
		if err := h.copyDisk(d); err != nil { // what the guest has written since
			return err
		}
		old, err := h.pathOf(d.Source)
		if err != nil {
			return err
		}
		format := d.Mirror.Format.Type
		if err := h.repoint(name, target, old, d.Mirror.Source.Block.Dev, format); err != nil {
			return err
		}
		index := d.Source.Index
		if d.Driver != nil {
			d.Driver.Type = format
		}
		d.Source, d.Mirror = d.Mirror.Source, nil
		d.Source.Index = index
		if err := h.unmarkOpen(old, s.PID); err != nil {
			return err
		}
		return h.writeStatus(*s)
	}))
}

// AbortCopy ends a copy and leaves the guest where it was. The error is *Error.
func (h *Host) AbortCopy(ctx context.Context, name, target string) error {
	return failed("", h.onDisk(ctx, name, target, func(s *status, d *libvirtxml.DomainDisk) error {
		if d.Mirror == nil {
			return fmt.Errorf("Requested operation is not valid: disk %s does not have an active block job", target) //nolint:staticcheck // libvirt's words
		}
		device := d.Mirror.Source.Block.Dev
		d.Mirror = nil
		if err := h.unmarkOpen(device, s.PID); err != nil {
			return err
		}
		return h.writeStatus(*s)
	}))
}

func (h *Host) onDisk(ctx context.Context, name, target string, fn func(*status, *libvirtxml.DomainDisk) error) error {
	return h.withGuest(ctx, name, func() error {
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		for i := range disksOf(s.Domain) {
			if d := &s.Domain.Devices.Disks[i]; d.Target != nil && d.Target.Dev == target {
				return fn(s, d)
			}
		}
		return fmt.Errorf("invalid argument: invalid path %s not assigned to domain", target)
	})
}

// copyDisk is QEMU's mirror job on the data. What it does between two formats is not
// simulated.
func (h *Host) copyDisk(d *libvirtxml.DomainDisk) error {
	if d.Driver != nil && d.Driver.Type != d.Mirror.Format.Type {
		return nil
	}
	from, err := h.pathOf(d.Source)
	if err != nil {
		return err
	}
	src, err := os.Open(h.o.Root + from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(h.o.Root+d.Mirror.Source.Block.Dev, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// repoint is qemuBlockJobRewriteConfigDiskSource: only a disk that is the same is changed.
func (h *Host) repoint(name, target, from, to, format string) error {
	def, err := h.definition(name)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range disksOf(def) {
		d := &def.Devices.Disks[i]
		if d.Target == nil || d.Target.Dev != target || d.Source == nil || d.Source.Block == nil || d.Source.Block.Dev != from {
			continue
		}
		d.Source.Block.Dev = to
		if format != "" && d.Driver != nil {
			d.Driver.Type = format
		}
		doc, err := def.Marshal()
		if err != nil {
			return err
		}
		return writeFile(filepath.Join(h.definitions(), name+".xml"), []byte(doc))
	}
	return nil
}

// Repoint changes a disk in a guest's definition, as virDomainUpdateDeviceFlags with
// VIR_DOMAIN_AFFECT_CONFIG. The error is *Error.
func (h *Host) Repoint(ctx context.Context, name, target, from, to string) error {
	return failed("", h.withGuest(ctx, name, func() error { return h.repoint(name, target, from, to, "") }))
}

// Redefine changes a disk in a guest's definition as a function says, as
// virDomainUpdateDeviceFlags with VIR_DOMAIN_AFFECT_CONFIG does with the element it is given.
// The error is *Error.
func (h *Host) Redefine(ctx context.Context, name, target string, change func(*libvirtxml.DomainDisk) error) error {
	return failed("", h.withGuest(ctx, name, func() error {
		def, err := h.definition(name)
		if err != nil {
			return err
		}
		for i := range disksOf(def) {
			d := &def.Devices.Disks[i]
			if d.Target == nil || d.Target.Dev != target {
				continue
			}
			if err := change(d); err != nil {
				return err
			}
			doc, err := def.Marshal()
			if err != nil {
				return err
			}
			return writeFile(filepath.Join(h.definitions(), name+".xml"), []byte(doc))
		}
		return fmt.Errorf("invalid argument: no target device %s", target)
	}))
}

// markOpen and unmarkOpen are what a running QEMU does with a device. Without its start
// time: while the marker is there the device counts as open.
func (h *Host) markOpen(device string, pid int) error {
	o := &opened{}
	return o.mark(h.o.Root, device, pid, "")
}

func (h *Host) unmarkOpen(device string, pid int) error {
	o := &opened{}
	if err := o.mark(h.o.Root, device, pid, ""); err != nil {
		return err
	}
	o.close()
	return nil
}
