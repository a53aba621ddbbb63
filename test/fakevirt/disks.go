package fakevirt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// opened are the disks a QEMU has open, with the markers by which the fake SAN knows: a
// host's folder there has sys/block/dm-N/dm/name, dev links to dm-N, and counts the files
// open/NAME/PID, each holding the start time of the process PID, or nothing.
type opened struct {
	files   []*os.File
	markers []string
	first   *os.File // the first raw disk that is writable, if any
}

// openDisks opens every disk as QEMU does and, where its CPUs run at once, writes a line
// into the first raw disk that is writable. On error nothing stays open; the error is
// QEMU's.
func openDisks(spec Spec, pid int, start string) (*opened, error) {
	o := &opened{}
	for _, d := range spec.Disks {
		// Marked first: a device may not vanish between opening and marking it.
		if err := o.mark(spec.Root, d.Path, pid, start); err != nil {
			o.close()
			return nil, err
		}
		flags := os.O_RDWR
		if d.ReadOnly {
			flags = os.O_RDONLY
		}
		f, err := os.OpenFile(spec.Root+d.Path, flags, 0)
		if err != nil {
			o.close()
			return nil, fmt.Errorf("qemu-system-x86_64: Could not open '%s': %s", d.Path, reason(err))
		}
		o.files = append(o.files, f)
		if o.first == nil && !d.ReadOnly && d.Format == "raw" {
			o.first = f
		}
	}
	if spec.Incoming {
		return o, nil
	}
	if err := o.write(spec, pid); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// write is what a guest does as soon as its CPUs run.
func (o *opened) write(spec Spec, pid int) error {
	if o.first == nil {
		return nil
	}
	if err := writeLine(o.first, fmt.Sprintf("%s runs on %s, pid %d\n", spec.Name, spec.Host, pid)); err != nil {
		return fmt.Errorf("qemu-system-x86_64: cannot write to '%s': %s", strings.TrimPrefix(o.first.Name(), spec.Root), reason(err))
	}
	return nil
}

// mark tells the fake SAN that a device is open. A path that is none of its is left alone.
func (o *opened) mark(root, path string, pid int, start string) error {
	target, err := os.Readlink(root + path)
	dm := filepath.Base(target)
	if err != nil || !strings.HasPrefix(dm, "dm-") {
		return nil
	}
	name, err := os.ReadFile(filepath.Join(root, "sys/block", dm, "dm/name"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("qemu-system-x86_64: cannot tell which device '%s' is: %w", path, err)
	}
	dir := filepath.Join(root, "open", strings.TrimSpace(string(name)))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("qemu-system-x86_64: cannot mark '%s' as open: %w", path, err)
	}
	marker := filepath.Join(dir, strconv.Itoa(pid))
	if err := os.WriteFile(marker, []byte(start), 0o644); err != nil {
		return fmt.Errorf("qemu-system-x86_64: cannot mark '%s' as open: %w", path, err)
	}
	o.markers = append(o.markers, marker)
	return nil
}

// close closes all disks. A QEMU that is killed leaves its markers behind: the fake SAN
// does not count those of processes that are no more.
func (o *opened) close() {
	for _, f := range o.files {
		_ = f.Close()
	}
	for _, m := range o.markers {
		_ = os.Remove(m)
	}
}

// writeLine adds a line to the text at the start of a disk, so that a disk tells who has
// written to it, in order.
func writeLine(f *os.File, line string) error {
	head := make([]byte, 4096)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	at := bytes.IndexByte(head[:n], 0)
	if at < 0 {
		at = n
	}
	if at+len(line) > len(head) {
		at = 0
	}
	_, err = f.WriteAt([]byte(line), int64(at))
	return err
}
