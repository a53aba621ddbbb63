package fakevirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"libvirt.org/go/libvirtxml"
)

// backupJob is what the status file shows while a backup is under way.
const backupJob = "<job type='none' async='backup' flags='0x0' asyncStarted='1795998646970'/>"

// BackupBegin begins a full backup of a disk in push mode, as virDomainBackupBegin with
// VIR_DOMAIN_BACKUP_BEGIN_REUSE_EXTERNAL: what the disk holds now goes behind an offset of a
// file of this machine. device is the host's name of that, "" where it is no device. The error
// is *Error.
func (h *Host) BackupBegin(ctx context.Context, name, target, to string, offset int64, device string) error {
	return failed("", h.onDisk(ctx, name, target, func(s *status, d *libvirtxml.DomainDisk) error {
		if kind, _ := s.async(); kind != "" {
			return fmt.Errorf("Timed out during operation: cannot acquire state change lock (held by %s)", kind) //nolint:staticcheck // libvirt's words
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
		dst, err := os.OpenFile(to, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("internal error: unable to execute QEMU command 'blockdev-add': Could not open '%s': %s", to, reason(err))
		}
		_, err = dst.Seek(offset, io.SeekStart)
		if err == nil {
			_, err = io.Copy(dst, src)
		}
		if err = errors.Join(err, dst.Close()); err != nil {
			return err
		}
		if device != "" {
			if err := h.markOpen(device, s.PID); err != nil {
				return err
			}
		}
		s.Job = backupJob
		return h.writeStatus(*s)
	}))
}

// BackupEnd lets a backup come to its end, or aborts it. The error is *Error.
func (h *Host) BackupEnd(ctx context.Context, name, device string) error {
	return failed("", h.withGuest(ctx, name, func() error {
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		if kind, _ := s.async(); kind != "backup" {
			return errors.New("Requested operation is not valid: no job is active on the domain") //nolint:staticcheck // libvirt's words
		}
		if device != "" {
			if err := h.unmarkOpen(device, s.PID); err != nil {
				return err
			}
		}
		s.Job = jobNone
		return h.writeStatus(*s)
	}))
}
