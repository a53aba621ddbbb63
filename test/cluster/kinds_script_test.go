package cluster

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"virtlvm/test/fakevirt"
)

// script stands in for the scripts of jobs, by their $0; tests of internal/kinds run the real
// ones.
func (r *rig) script(ctx context.Context, h *Host, name string, args []string, stdout, stderr io.Writer) int {
	switch name {
	case "virtlvm-zero":
		return zero(ctx, h, args, stdout, stderr)
	case "virtlvm-backup":
		return r.backup(ctx, h, args, stdout, stderr)
	}
	_, _ = fmt.Fprintln(stderr, "no script", name)
	return 127
}

// zero is zeroScript without a pace.
func zero(ctx context.Context, h *Host, args []string, stdout, stderr io.Writer) int {
	var n [3]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(args[i+1], 10, 64)
	}
	at, size, step := n[0], n[1], n[2]
	for at < size {
		length := min(step, size-at)
		argv := []string{"blkdiscard", "--zeroout", "--offset", strconv.FormatInt(at, 10), "--length", strconv.FormatInt(length, 10), args[0]}
		if code := h.LVM.Exec(ctx, argv, stdout, stderr); code != 0 {
			return code
		}
		at += length
		_, _ = fmt.Fprintln(stdout, at)
	}
	if args[7] == "1" {
		return h.LVM.Exec(ctx, []string{"blkdiscard", args[0]}, stdout, stderr)
	}
	return 0
}

// backup is backupScript.
func (r *rig) backup(ctx context.Context, h *Host, args []string, stdout, stderr io.Writer) int {
	var doc struct {
		Disk struct {
			Name   string `xml:"name,attr"`
			Driver struct {
				Type string `xml:"type,attr"`
			} `xml:"driver"`
			Target struct {
				Dev  string `xml:"dev,attr"`
				File string `xml:"file,attr"`
			} `xml:"target"`
		} `xml:"disks>disk"`
	}
	name := nameOf(h, args[0])
	err := xml.Unmarshal([]byte(args[1]), &doc)
	if args[2] == "1" {
		_, _ = fmt.Fprintln(stdout, "frozen")
	}
	to, offset := doc.Disk.Target.File, int64(0)
	if dev, ok := strings.CutPrefix(doc.Disk.Target.Dev, "/dev/"); ok {
		to = filepath.Join(h.LVM.DevDir(), dev)
	}
	if doc.Disk.Driver.Type == "qcow2" {
		offset = 1 << 20
	}
	if err == nil {
		err = h.Virt.BackupBegin(ctx, name, doc.Disk.Name, to, offset, doc.Disk.Target.Dev)
	}
	if err == nil {
		if r.duringBackup != nil {
			err = r.duringBackup(ctx)
		}
		err = errors.Join(err, h.Virt.BackupEnd(context.WithoutCancel(ctx), name, doc.Disk.Target.Dev))
	}
	switch {
	case ctx.Err() != nil:
		return 143
	case err != nil:
		var e *fakevirt.Error
		text := err.Error()
		if errors.As(err, &e) {
			text = strings.TrimSpace(e.Virsh())
		}
		_, _ = fmt.Fprintln(stderr, text)
		return 1
	}
	return 0
}
