package fakevirt

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"libvirt.org/go/libvirtxml"
)

// Device is what a disk that is attached or detached is.
type Device struct {
	Path, Target, Format string
	ReadOnly             bool
}

// Attach gives a guest a disk, as virDomainAttachDeviceFlags: to the running guest, or to its
// definition. No hook is called. The error is *Error.
func (h *Host) Attach(ctx context.Context, name string, d Device, config bool) error {
	disk := libvirtxml.DomainDisk{
		Device: "disk", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: d.Format},
		Source: &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: d.Path}},
		Target: &libvirtxml.DomainDiskTarget{Dev: d.Target, Bus: "virtio"},
	}
	if d.ReadOnly {
		disk.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
	}
	add := func(dom *libvirtxml.Domain) error {
		for _, other := range disksOf(dom) {
			if other.Target != nil && other.Target.Dev == d.Target {
				return fmt.Errorf("Requested operation is not valid: target %s already exists", d.Target) //nolint:staticcheck // libvirt's words
			}
		}
		dom.Devices.Disks = append(dom.Devices.Disks, disk)
		return nil
	}
	return failed("Failed to attach device", h.withGuest(ctx, name, func() error {
		if config {
			return h.redefine(name, add)
		}
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		if _, err := os.Stat(h.o.Root + d.Path); err != nil {
			err = fmt.Errorf("Cannot access storage file '%s': %s", d.Path, reason(err)) //nolint:staticcheck // libvirt's words
			return errors.Join(h.logError(err), err)
		}
		if err := add(s.Domain); err != nil {
			return err
		}
		if _, err := h.probe(s.Domain); err != nil {
			return err
		}
		if err := h.markOpen(d.Path, s.PID); err != nil {
			return err
		}
		return h.writeStatus(*s)
	}))
}

// logError is what libvirtd writes to systemd's journal, as journalctl shows it in JSON.
func (h *Host) logError(err error) error {
	f, fail := os.OpenFile(h.journal(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if fail != nil {
		return fail
	}
	line, fail := json.Marshal(map[string]string{"__REALTIME_TIMESTAMP": fmt.Sprint(h.o.Now().UnixMicro()), "MESSAGE": err.Error()})
	if fail == nil {
		_, fail = f.Write(append(line, '\n'))
	}
	return errors.Join(fail, f.Close())
}

func (h *Host) journal() string { return filepath.Join(h.locks(), "journal") }

// Journal is what libvirtd has written to systemd's journal, as `journalctl -o json` shows it.
func (h *Host) Journal() (string, error) {
	lines, err := os.ReadFile(h.journal())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(lines), err
}

// Detach takes a disk away, as virDomainDetachDeviceFlags of a guest that lets go at once. The
// error is *Error.
func (h *Host) Detach(ctx context.Context, name, target string, config bool) error {
	path := ""
	remove := func(dom *libvirtxml.Domain) error {
		for i, d := range disksOf(dom) {
			if d.Target == nil || d.Target.Dev != target {
				continue
			}
			path, _ = h.pathOf(d.Source)
			dom.Devices.Disks = slices.Delete(dom.Devices.Disks, i, i+1)
			return nil
		}
		return fmt.Errorf("device not found: no target device %s", target)
	}
	return failed("Failed to detach device", h.withGuest(ctx, name, func() error {
		if config {
			return h.redefine(name, remove)
		}
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		if err := remove(s.Domain); err != nil {
			return err
		}
		if err := h.unmarkOpen(path, s.PID); err != nil {
			return err
		}
		return h.writeStatus(*s)
	}))
}

func (h *Host) redefine(name string, change func(*libvirtxml.Domain) error) error {
	def, err := h.definition(name)
	if err != nil {
		return err
	}
	if err := change(def); err != nil {
		return err
	}
	return writeFile(filepath.Join(h.definitions(), name+".xml"), h.xmlOf(def))
}

// qcow2Size is where a qcow2 header has the size of what a guest sees.
const qcow2Size = 24

// BlockResize lets a running guest see another size of a disk, as virDomainBlockResize with
// VIR_DOMAIN_BLOCK_RESIZE_BYTES. The error is *Error.
func (h *Host) BlockResize(ctx context.Context, name, target string, size int64) error {
	return failed("Failed to resize block device", h.onDisk(ctx, name, target, func(_ *status, d *libvirtxml.DomainDisk) error {
		path, err := h.pathOf(d.Source)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(h.o.Root+path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if d.Driver != nil && d.Driver.Type == "qcow2" {
			_, err = f.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(size)), qcow2Size)
			return err
		}
		info, err := f.Stat()
		if err == nil && info.Size() < size {
			err = fmt.Errorf("internal error: unable to execute QEMU command 'block_resize': Cannot grow device files")
		}
		return err
	}))
}
