package cluster

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
)

// MakeBootable puts the boot sector on inactive raw volumes.
func (h *Host) MakeBootable(ctx context.Context, volumes ...Volume) error {
	return h.withActive(ctx, volumes, func(script *strings.Builder) {
		for _, v := range volumes {
			fmt.Fprintf(script, "dd if=\"$boot\" of=%s oflag=direct conv=notrunc status=none\n", Quote(v.Path()))
		}
	})
}

// MakeChain makes a qcow2 chain of 16 MiB on inactive volumes, lowest first: each further
// one gets the one before as its backing file. The lowest holds the boot sector.
func (h *Host) MakeChain(ctx context.Context, volumes ...Volume) error {
	return h.withActive(ctx, volumes, func(script *strings.Builder) {
		for i, v := range volumes {
			if i == 0 {
				fmt.Fprintf(script, "qemu-img create -q -f qcow2 %[1]s 16M\n"+
					"qemu-io -f qcow2 -c \"write -q -s $boot 0 512\" %[1]s\n", Quote(v.Path()))
				continue
			}
			fmt.Fprintf(script, "qemu-img create -q -f qcow2 -F qcow2 -b %s %s\n", Quote(volumes[i-1].Path()), Quote(v.Path()))
		}
	})
}

// withActive runs a script in which the volumes are active and $boot is a file with the
// boot sector.
func (h *Host) withActive(ctx context.Context, volumes []Volume, write func(*strings.Builder)) error {
	var names []string
	for _, v := range volumes {
		names = append(names, Quote(v.Full()))
	}
	list := strings.Join(names, " ")
	var script strings.Builder
	fmt.Fprintf(&script, "set -e\nboot=$(mktemp)\nbase64 -d >\"$boot\" <<<%s\n"+
		"lvchange -aey %s\ntrap 'rm $boot; lvchange -an %s' EXIT\n", base64.StdEncoding.EncodeToString(BootSector()), list, list)
	write(&script)
	r, err := h.RunInput(ctx, "bash -s", strings.NewReader(script.String()))
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("cannot prepare %s on %s: %s", list, h.Name, r.Output())
	}
	return err
}

// WriteDisk fills a part of a running guest's disk number n with one byte value, as the
// guest would, and flushes it. Offset and length in bytes.
func (h *Host) WriteDisk(ctx context.Context, guest string, n int, pattern byte, offset, length int64) error {
	for _, command := range []string{fmt.Sprintf("write -P %#x %d %d", pattern, offset, length), "flush"} {
		// The monitor reports failures as text and virsh exits with 0 all the same; what
		// qemu-io itself prints goes nowhere.
		r, err := h.Virsh(ctx, "qemu-monitor-command", guest, "--hmp",
			fmt.Sprintf(`qemu-io -d /machine/peripheral/virtio-disk%d/virtio-backend "%s"`, n, command))
		if err == nil && r.Output() != "" {
			err = fmt.Errorf("%s on disk %d of %s on %s: %s", command, n, guest, h.Name, r.Output())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckDisk reads a part of an active volume, whose format is "raw" or "qcow2", and fails
// if it does not hold that one byte value. A guest may be using it.
func (h *Host) CheckDisk(ctx context.Context, v Volume, format string, pattern byte, offset, length int64) error {
	r, err := h.Run(ctx, fmt.Sprintf("qemu-io -r -U -t none -f %s -c 'read -P %#x %d %d' %s", format, pattern, offset, length, Quote(v.Path())))
	if err != nil {
		return err
	}
	if r.Exit != 0 || !strings.Contains(r.Stdout, "read ") || strings.Contains(r.Output(), "failed") {
		return fmt.Errorf("%s on %s does not hold %#x at %d: %s", v.Full(), h.Name, pattern, offset, r.Output())
	}
	return nil
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
