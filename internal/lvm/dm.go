package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// Device is a device-mapper device of this host.
type Device struct {
	Name   string // as under /dev/mapper, see MapperName
	UUID   string // "LVM-<vg uuid><lv uuid>" without dashes, perhaps with a suffix such as "-tpool"
	Kernel string // "dm-3"
}

// Devices lists the device-mapper devices that have a uuid, by that uuid, from
// /sys/block/dm-*/dm (Documentation/ABI/testing/sysfs-block-dm); it starts no program.
func (l *LVM) Devices() (map[string]Device, error) {
	block := filepath.Join(l.sysRoot, "block")
	entries, err := os.ReadDir(block)
	if err != nil {
		return nil, fmt.Errorf("cannot list block devices: %w", err)
	}
	devices := map[string]Device{}
	for _, entry := range entries {
		kernel := entry.Name()
		if !strings.HasPrefix(kernel, "dm-") {
			continue
		}
		uuid, err := attribute(block, kernel, "uuid")
		if err == nil && uuid == "" {
			continue
		}
		name, nameErr := attribute(block, kernel, "name")
		if err = errors.Join(err, nameErr); err != nil {
			if removed(filepath.Join(block, kernel), err) {
				continue
			}
			return nil, fmt.Errorf("cannot read device %s: %w", kernel, err)
		}
		devices[uuid] = Device{Name: name, UUID: uuid, Kernel: kernel}
	}
	return devices, nil
}

// removed tells a device that has gone since the folder was listed: not there is then the
// truth. ENODEV is what sysfs says while it goes.
func removed(dir string, err error) bool {
	_, statErr := os.Stat(dir)
	return errors.Is(statErr, os.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// attribute reads a line of sysfs, which comes in one read. os.ReadFile takes twice as long, and
// this is done for every device before and after each command.
func attribute(block, kernel, name string) (string, error) {
	path := block + "/" + kernel + "/dm/" + name
	f, err := uninterrupted(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = syscall.Close(f) }()
	var line [4096]byte
	n, err := uninterrupted(func() (int, error) { return syscall.Read(f, line[:]) })
	if err != nil {
		return "", &os.PathError{Op: "read", Path: path, Err: err}
	}
	return strings.TrimSuffix(string(line[:n]), "\n"), nil
}

// uninterrupted makes a system call again that a signal has broken off, as package os does.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

// OpenCounts tells how often each device-mapper device is open on this host, by uuid.
func (l *LVM) OpenCounts(ctx context.Context) (map[string]int, error) {
	// The number comes first: a uuid of another subsystem may contain the separator.
	cmd := run.Cmd{Name: "dmsetup", Args: []string{"info", "-c", "--noheadings", "--separator", ":", "-o", "open,uuid"}}
	res, err := l.runner.Run(ctx, cmd)
	if err := Classify(cmd, res, err); err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(res.Stdout)) {
		line = strings.TrimSpace(line)
		if line == "" || line == "No devices found" {
			continue
		}
		open, uuid, found := strings.Cut(line, ":")
		n, err := strconv.Atoi(open)
		if !found || err != nil || n < 0 {
			return nil, api.NewError(api.KindInternal, fmt.Sprintf("cannot understand the answer of dmsetup info: %q", head([]byte(line))))
		}
		if uuid != "" {
			counts[uuid] = n
		}
	}
	return counts, nil
}
