package lvm

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// Targets of device-mapper, see dmsetup(8).
const (
	TargetLinear = "linear"
	TargetError  = "error" // every read and write fails
)

// Table is the live table of a device: the targets of its segments, in order.
type Table []string

// All reports whether the device has a table, and one of this target alone.
func (t Table) All(target string) bool {
	for _, s := range t {
		if s != target {
			return false
		}
	}
	return len(t) > 0
}

// Table reads the live table of a device by its name under /dev/mapper.
func (l *LVM) Table(ctx context.Context, name string) (Table, error) {
	cmd := run.Cmd{Name: "dmsetup", Args: []string{"table", name}}
	res, err := l.runner.Run(ctx, cmd)
	if err := Classify(cmd, res, err); err != nil {
		return nil, err
	}
	var table Table
	for line := range strings.Lines(string(res.Stdout)) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		// START LENGTH TARGET ARGUMENTS..., in sectors
		if len(f) < 3 || !isNumber(f[0]) || !isNumber(f[1]) {
			return nil, api.NewError(api.KindInternal, fmt.Sprintf("cannot understand the answer of dmsetup table: %q", head([]byte(line))))
		}
		table = append(table, f[2])
	}
	return table, nil
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// CutOffCmd is the dmsetup that lets every read and write of an LV's device fail, also for
// those who have it open: it loads an error table and makes it the live one in one go, so
// that the device is never left suspended. What is under way is neither flushed nor are
// file systems frozen. lvchange -an removes the device, lvchange --refresh brings it back.
func CutOffCmd(vg, lv string) run.Cmd {
	return run.Cmd{Name: "dmsetup", Args: []string{"wipe_table", "--noflush", "--nolockfs", MapperName(vg, lv)}, Err: CheckName(vg + "/" + lv)}
}

// WipeCmd is CutOffCmd for any device by its name under /dev/mapper, without waiting for
// udev, which may look at the device.
func WipeCmd(name string) run.Cmd {
	return run.Cmd{Name: "dmsetup", Args: []string{"wipe_table", "--noflush", "--nolockfs", "--noudevsync", name}}
}

// Suspended reports whether a device is suspended: what is written to it waits.
func (l *LVM) Suspended(d Device) (bool, error) {
	value, err := attribute(filepath.Join(l.sysRoot, "block"), d.Kernel, "suspended")
	if err != nil {
		return false, fmt.Errorf("cannot tell whether %s is suspended: %w", d.Name, err)
	}
	return value != "0", nil
}
