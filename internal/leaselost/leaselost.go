// Package leaselost ends everything that this host does to a volume group whose leases are
// lost, for lvmlockctl_kill_command (lvmlockd(8)). lvmlockctl drops the locks of the volume
// group when that command exits with 0, and other hosts get its volumes: so it must be true
// by then that nothing here can write them any more. Else the watchdog resets the host.
//
// Its storage does not answer at that time, and neither does LVM. What is used is the
// kernel's: /sys, /proc, signals, and dmsetup without udev.
package leaselost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"virtlvm/internal/lvm"
	"virtlvm/internal/run"
)

// Limit is how long it may take. sanlock has lost the leases by then, and gives the host
// about 40 s more before its watchdog fires.
const Limit = 25 * time.Second

// parallel is how many devices are cut off at a time.
const parallel = 16

// Stopper ends what this host does to a volume group.
type Stopper struct {
	Runner    run.Runner
	Sys, Proc string               // where sysfs and procfs are mounted
	Kill      func(pid int) error  // sends SIGKILL
	DeviceOf  func(string) string  // "253:3" of an open block device, by its link below Proc; "": none
	Pause     time.Duration        // between two looks
	Say       func(string, ...any) // tells what is done, one line each
}

// Stop kills the QEMUs of this host that have a volume of a volume group open, and no
// others, and puts error tables under all its volumes but that of the leases. It returns nil
// only after a look that has found all of that done. ctx bounds it.
func (s *Stopper) Stop(ctx context.Context, vg string) error {
	if err := lvm.CheckName(vg + "/lv"); err != nil {
		return err
	}
	var (
		tried  = map[string]bool{} // devices, see key
		killed = map[int]qemu{}
		said   = map[string]bool{}
	)
	for {
		devices, err := s.devices(vg)
		if err != nil {
			return err
		}
		found, others, err := s.users(devices)
		if err != nil {
			return err
		}
		for _, q := range found {
			killed[q.pid] = q
		}
		alive := s.alive(killed)
		for _, q := range alive {
			if err := s.Kill(q.pid); err != nil {
				return fmt.Errorf("cannot kill %s: %w", q, err)
			}
			s.once(said, "killed %s", q)
		}
		for _, o := range others {
			s.once(said, "left alone: %s; what it has open is cut off", o)
		}
		failed := s.cutOff(ctx, devices, tried)
		if len(alive) == 0 && failed == nil {
			s.Say("%d QEMUs killed, %d volumes of %s cut off", len(killed), len(devices), vg)
			return nil
		}
		select {
		case <-time.After(s.Pause):
		case <-ctx.Done():
			for _, q := range s.alive(killed) {
				failed = errors.Join(failed, fmt.Errorf("%s has not ended", q))
			}
			if failed == nil {
				failed = ctx.Err()
			}
			return fmt.Errorf("%s may still be written by this host: %w", vg, failed)
		}
	}
}

func (s *Stopper) once(said map[string]bool, format string, what any) {
	if text := fmt.Sprintf(format, what); !said[text] {
		said[text] = true
		s.Say("%s", text)
	}
}

// devices lists the device-mapper devices of a VG, also those below its volumes, without
// that of the leases: sanlock's is no use to a guest, and sanlock must let go of it.
func (s *Stopper) devices(vg string) ([]lvm.Device, error) {
	all, err := lvm.New(s.Runner, s.Sys).Devices()
	if err != nil {
		return nil, err
	}
	prefix := strings.TrimSuffix(lvm.MapperName(vg, "x"), "x")
	var found []lvm.Device
	for _, d := range all {
		rest, ok := strings.CutPrefix(d.Name, prefix)
		// A doubled dash is one within the name of another VG.
		if ok && !strings.HasPrefix(rest, "-") && strings.HasPrefix(d.UUID, "LVM-") && d.Name != lvm.LeaseMapperName(vg) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b lvm.Device) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// cutOff returns nil where all devices were seen to be cut off. Else it puts error tables
// under them, side by side: the dmsetup of one may wait for what is under way on it.
func (s *Stopper) cutOff(ctx context.Context, devices []lvm.Device, tried map[string]bool) error {
	var (
		mu     sync.Mutex
		all    sync.WaitGroup
		failed error
		turns  = make(chan struct{}, parallel)
	)
	for _, d := range devices {
		again := tried[key(d)]
		tried[key(d)] = true
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			err := errors.New("not looked at yet")
			if again {
				err = s.isCut(ctx, d)
			}
			if err == nil {
				return
			}
			// Its exit code is no matter: the next look tells.
			_, _ = s.Runner.Run(ctx, s.wipe(ctx, d))
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, fmt.Errorf("%s is not cut off: %w", d.Name, err))
		})
	}
	all.Wait()
	return failed
}

func (s *Stopper) wipe(ctx context.Context, d lvm.Device) run.Cmd {
	cmd := lvm.WipeCmd(d.Name)
	cmd.Timeout = Limit
	if end, ok := ctx.Deadline(); ok {
		cmd.Timeout = max(time.Until(end), time.Second)
	}
	return cmd
}

func (s *Stopper) isCut(ctx context.Context, d lvm.Device) error {
	l := lvm.New(s.Runner, s.Sys)
	table, err := l.Table(ctx, d.Name)
	if err != nil {
		return err
	}
	if !table.All(lvm.TargetError) {
		return fmt.Errorf("its table is %s", strings.Join(table, ", "))
	}
	suspended, err := l.Suspended(d)
	if err == nil && suspended {
		err = errors.New("it is suspended: something is still under way")
	}
	return err
}

func key(d lvm.Device) string { return d.Kernel + " " + d.UUID }
