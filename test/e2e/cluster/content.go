package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
)

// Fill writes bytes at an offset of a raw volume from the host, which must have the volume
// active. The offset and the length are multiples of 512.
func (h *Host) Fill(ctx context.Context, v Volume, offset int64, content []byte) error {
	command := fmt.Sprintf("dd of=%s bs=512 seek=%d oflag=direct conv=notrunc status=none iflag=fullblock",
		Quote(v.Path()), offset/sectorSize)
	r, err := h.RunInput(ctx, command, bytes.NewReader(content))
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("cannot write to %s on %s: %s", v.Full(), h.Name, r.Output())
	}
	return err
}

// Format writes an image of a format with an empty content into volumes, which it
// activates for that and deactivates again. The first is the lowest of a qcow2 chain: each
// further one gets the one before as its backing file. A bootable chain starts with the
// boot sector.
func (c *Cluster) Format(ctx context.Context, h *Host, volumes ...Volume) error {
	var script strings.Builder
	script.WriteString("set -e\n")
	var names []string
	for _, v := range volumes {
		names = append(names, Quote(v.Full()))
	}
	list := strings.Join(names, " ")
	fmt.Fprintf(&script, "lvchange -aey %s\ntrap 'lvchange -an %s' EXIT\n", list, list)
	boot := base64.StdEncoding.EncodeToString(BootSector())
	for i, v := range volumes {
		if i == 0 {
			fmt.Fprintf(&script, "base64 -d <<<%s >/run/boot.img\nqemu-img create -q -f qcow2 %s 16M\n"+
				"qemu-io -f qcow2 -c 'write -q -s /run/boot.img 0 512' %s\nrm /run/boot.img\n", boot, v.Path(), v.Path())
			continue
		}
		fmt.Fprintf(&script, "qemu-img create -q -f qcow2 -F qcow2 -b %s %s\n", volumes[i-1].Path(), v.Path())
	}
	_, err := h.Must(ctx, "bash -c "+Quote(script.String()))
	return err
}

// MakeBootable puts the boot sector on a raw volume.
func (c *Cluster) MakeBootable(ctx context.Context, h *Host, v Volume) error {
	if _, err := h.Must(ctx, "lvchange -aey "+Quote(v.Full())); err != nil {
		return err
	}
	err := h.Fill(ctx, v, 0, BootSector())
	if _, offErr := h.Must(ctx, "lvchange -an "+Quote(v.Full())); err == nil {
		err = offErr
	}
	return err
}

// DiskIO runs one qemu-io command, such as "write -P 0x41 0 64k", inside the guest's QEMU,
// on its disk number n.
func (h *Host) DiskIO(ctx context.Context, guest string, n int, command string) (string, error) {
	r, err := h.Virsh(ctx, "qemu-monitor-command", guest, "--hmp",
		fmt.Sprintf(`qemu-io -d /machine/peripheral/virtio-disk%d/virtio-backend "%s"`, n, command))
	if err != nil {
		return "", err
	}
	// The monitor reports failures as text; virsh exits with 0 all the same.
	if out := r.Output(); r.Exit != 0 || strings.Contains(strings.ToLower(out), "error") ||
		strings.Contains(out, "failed") || strings.Contains(out, "invalid") {
		return "", fmt.Errorf("%s on disk %d of %s on %s: %s", command, n, guest, h.Name, out)
	}
	return r.Stdout, nil
}

// WriteDisk fills a part of a running guest's disk with one byte value.
func (h *Host) WriteDisk(ctx context.Context, guest string, n int, pattern byte, offset, length int64) error {
	_, err := h.DiskIO(ctx, guest, n, fmt.Sprintf("write -P %#x %d %d", pattern, offset, length))
	return err
}

// CheckDisk reads a part of a running guest's disk and fails if it does not hold that one
// byte value.
func (h *Host) CheckDisk(ctx context.Context, guest string, n int, pattern byte, offset, length int64) error {
	out, err := h.DiskIO(ctx, guest, n, fmt.Sprintf("read -P %#x %d %d", pattern, offset, length))
	if err == nil && !strings.Contains(out, "read") {
		err = fmt.Errorf("no answer to a read from %s on %s: %q", guest, h.Name, out)
	}
	if err == nil && strings.Contains(out, "Pattern verification") {
		err = fmt.Errorf("disk %d of %s on %s does not hold %#x at %d: %s", n, guest, h.Name, pattern, offset, out)
	}
	return err
}

// Counter reads the counter that a guest with the boot sector keeps on a raw volume, from
// the host where it is active.
func (h *Host) Counter(ctx context.Context, v Volume) (uint32, error) {
	out, err := h.Must(ctx, fmt.Sprintf("dd if=%s bs=512 skip=1 count=1 iflag=direct status=none | base64 -w0", Quote(v.Path())))
	if err != nil {
		return 0, err
	}
	sector, err := base64.StdEncoding.DecodeString(strings.TrimSpace(out))
	if err != nil {
		return 0, fmt.Errorf("cannot read the counter of %s: %w", v.Full(), err)
	}
	return parseCounter(sector)
}
