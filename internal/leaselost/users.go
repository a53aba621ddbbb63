package leaselost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"virtlvm/internal/lvm"
)

// qemu is a process that runs a guest.
type qemu struct {
	pid   int
	start string // when it began, see proc_pid_stat(5), field 22
	guest string // "" where its command line does not tell
}

func (q qemu) String() string {
	if q.guest == "" {
		return fmt.Sprintf("QEMU %d", q.pid)
	}
	return fmt.Sprintf("QEMU %d of guest %s", q.pid, q.guest)
}

// users lists the QEMUs that have one of the devices open, and describes other processes
// that have.
func (s *Stopper) users(devices []lvm.Device) (qemus []qemu, others []string, err error) {
	numbers := map[string]bool{}
	for _, d := range devices {
		data, err := os.ReadFile(filepath.Join(s.Sys, "block", d.Kernel, "dev"))
		switch {
		case gone(err):
		case err != nil:
			return nil, nil, fmt.Errorf("cannot tell the number of %s: %w", d.Name, err)
		default:
			numbers[strings.TrimSpace(string(data))] = true
		}
	}
	entries, err := os.ReadDir(s.Proc)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		opened, err := s.opens(pid, numbers)
		if err != nil {
			return nil, nil, err
		}
		if !opened {
			continue
		}
		if q, ok := s.qemu(pid); ok {
			qemus = append(qemus, q)
		} else {
			comm, _ := os.ReadFile(filepath.Join(s.Proc, e.Name(), "comm")) // only to be told
			others = append(others, fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(comm)), pid))
		}
	}
	return qemus, others, nil
}

// opens: a thread of the process has one of the devices open. The first thread can be dead
// while another one hangs in the kernel.
func (s *Stopper) opens(pid int, numbers map[string]bool) (bool, error) {
	dir := filepath.Join(s.Proc, strconv.Itoa(pid))
	tasks, err := os.ReadDir(filepath.Join(dir, "task"))
	for _, t := range tasks {
		if _, dead := stat(filepath.Join(dir, "task", t.Name())); dead {
			continue
		}
		fds := filepath.Join(dir, "task", t.Name(), "fd")
		links, err := os.ReadDir(fds)
		if gone(err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("cannot tell what process %d has open: %w", pid, err)
		}
		for _, l := range links {
			link := filepath.Join(fds, l.Name())
			// Only devices are looked at: a file may lie on storage that does not answer.
			if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "/dev/") && numbers[s.DeviceOf(link)] {
				return true, nil
			}
		}
		return false, nil // threads share what they have open
	}
	if err != nil && !gone(err) {
		return false, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return false, nil
}

// qemu tells whether a process is a QEMU, by its program or by libvirt's way to call it.
func (s *Stopper) qemu(pid int) (qemu, bool) {
	dir := filepath.Join(s.Proc, strconv.Itoa(pid))
	q := qemu{pid: pid}
	q.start, _ = stat(dir)
	program, _ := os.Readlink(filepath.Join(dir, "exe")) // gone with the memory of a dying one
	program = filepath.Base(strings.TrimSuffix(program, " (deleted)"))
	is := strings.HasPrefix(program, "qemu-system-") || program == "qemu-kvm" || program == "kvm"
	cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	args := strings.Split(string(cmdline), "\x00")
	if i := slices.Index(args, "-name"); i >= 0 && i+1 < len(args) {
		if name, ok := strings.CutPrefix(args[i+1], "guest="); ok {
			q.guest, _, _ = strings.Cut(name, ",")
			is = true
		}
	}
	return q, is
}

// alive keeps the processes of which any thread is left.
func (s *Stopper) alive(all map[int]qemu) (left []qemu) {
	for _, q := range all {
		dir := filepath.Join(s.Proc, strconv.Itoa(q.pid))
		if start, _ := stat(dir); start == "" || start != q.start {
			continue
		}
		tasks, err := os.ReadDir(filepath.Join(dir, "task"))
		threads := err != nil && !gone(err)
		for _, t := range tasks {
			_, dead := stat(filepath.Join(dir, "task", t.Name()))
			threads = threads || !dead
		}
		if threads {
			left = append(left, q)
		}
	}
	slices.SortFunc(left, func(a, b qemu) int { return a.pid - b.pid })
	return left
}

// stat reads when a process or thread began, and whether it has ended (proc_pid_stat(5),
// fields 22 and 3). One that is not there has ended.
func stat(dir string) (start string, dead bool) {
	const state, began = 0, 19 // after the name, which may contain anything
	data, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return "", gone(err)
	}
	text := string(data)
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) <= began {
		return "?", false
	}
	return f[began], f[state] == "Z" || f[state] == "X"
}

// gone: what was listed is not there any more.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENODEV)
}
