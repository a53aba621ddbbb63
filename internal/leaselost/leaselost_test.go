package leaselost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/run"
)

// fakeHost is a host as folders: devices below sys, processes below proc.
type fakeHost struct {
	t         *testing.T
	sys, proc string

	mu     sync.Mutex
	tables map[string]string // by dm name; dmsetup wipe_table changes it
	stuck  map[string]bool   // devices whose dmsetup does nothing
	undead map[int]bool      // processes that a signal does not end
	killed []int
	wiped  []string
	after  func(name string) // a device has been wiped
	said   []string
}

func newHost(t *testing.T) *fakeHost {
	return &fakeHost{
		t: t, sys: t.TempDir(), proc: t.TempDir(), tables: map[string]string{}, stuck: map[string]bool{}, undead: map[int]bool{}, after: func(string) {},
	}
}

func (h *fakeHost) write(data string, path ...string) {
	h.t.Helper()
	file := filepath.Join(path...)
	require.NoError(h.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(h.t, os.WriteFile(file, []byte(data), 0o600))
}

// device makes device-mapper device 253:N.
func (h *fakeHost) device(n int, name, uuid string) {
	h.t.Helper()
	block := filepath.Join(h.sys, "block", fmt.Sprintf("dm-%d", n))
	h.write(fmt.Sprintf("253:%d\n", n), block, "dev")
	h.write(name+"\n", block, "dm", "name")
	h.write(uuid+"\n", block, "dm", "uuid")
	h.write("0\n", block, "dm", "suspended")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tables[name] = "0 65536 linear 8:16 2048"
}

// process makes a process that has something open: "/dev/x=253:3" is a device, others files.
func (h *fakeHost) process(pid int, exe, cmdline string, open ...string) {
	h.t.Helper()
	dir := filepath.Join(h.proc, strconv.Itoa(pid))
	h.state(pid, pid, "S")
	h.write("x\n", dir, "comm")
	h.write(strings.ReplaceAll(cmdline, " ", "\x00")+"\x00", dir, "cmdline")
	require.NoError(h.t, os.Symlink(exe, filepath.Join(dir, "exe")))
	fds := filepath.Join(dir, "task", strconv.Itoa(pid), "fd")
	require.NoError(h.t, os.MkdirAll(fds, 0o755))
	for i, o := range open {
		require.NoError(h.t, os.Symlink(o, filepath.Join(fds, strconv.Itoa(i))))
	}
}

func (h *fakeHost) state(pid, tid int, state string) {
	h.t.Helper()
	line := fmt.Sprintf("%d (qemu) x) %s 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 777 0 0\n", tid, state)
	dir := filepath.Join(h.proc, strconv.Itoa(pid))
	h.write(line, dir, "task", strconv.Itoa(tid), "stat")
	if tid == pid {
		h.write(line, dir, "stat")
	}
}

// leaderDies leaves a process with one thread that hangs in the kernel.
func (h *fakeHost) leaderDies(pid, tid int) {
	h.t.Helper()
	tasks := filepath.Join(h.proc, strconv.Itoa(pid), "task")
	h.state(pid, tid, "D")
	h.state(pid, pid, "Z")
	require.NoError(h.t, os.Rename(filepath.Join(tasks, strconv.Itoa(pid), "fd"), filepath.Join(tasks, strconv.Itoa(tid), "fd")))
}

func (h *fakeHost) kill(pid int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.killed, pid) {
		h.killed = append(h.killed, pid)
	}
	if !h.undead[pid] {
		return os.RemoveAll(filepath.Join(h.proc, strconv.Itoa(pid)))
	}
	return nil
}

// Run implements run.Runner: dmsetup.
func (h *fakeHost) Run(_ context.Context, cmd run.Cmd) (run.Result, error) {
	name := cmd.Args[len(cmd.Args)-1]
	h.mu.Lock()
	table, there := h.tables[name]
	stuck := h.stuck[name]
	if cmd.Args[0] == "wipe_table" && there && !stuck {
		h.tables[name] = "0 65536 error "
		h.wiped = append(h.wiped, name)
	}
	h.mu.Unlock()
	if !there {
		return run.Result{ExitCode: 1}, &run.ExitError{Argv: cmd.Argv(), ExitCode: 1, Stderr: "Device does not exist."}
	}
	if cmd.Args[0] == "wipe_table" {
		if stuck {
			return run.Result{ExitCode: -1}, &run.TimeoutError{Argv: cmd.Argv()}
		}
		h.after(name)
	}
	return run.Result{Stdout: []byte(table + "\n")}, nil
}

func (h *fakeHost) stop(vg string) error {
	s := &Stopper{
		Runner: h, Sys: h.sys, Proc: h.proc, Kill: h.kill, Pause: time.Millisecond,
		DeviceOf: func(link string) string {
			to, _ := os.Readlink(link)
			_, number, _ := strings.Cut(to, "=")
			return number
		},
		Say: func(format string, args ...any) { h.said = append(h.said, fmt.Sprintf(format, args...)) },
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 200*time.Millisecond)
	defer cancel()
	return s.Stop(ctx, vg)
}

const qemuBin = "/usr/bin/qemu-system-x86_64"

// busy is a host with guests of two VGs.
func busy(t *testing.T) *fakeHost {
	h := newHost(t)
	h.device(1, "vg_san-lvmlock", "LVM-vg1lock")
	h.device(2, "vg_san-vm1", "LVM-vg1lv1")
	h.device(3, "vg_san-vm2", "LVM-vg1lv2")
	h.device(4, "vg_san-vm2-real", "LVM-vg1lv2-real")
	h.device(5, "vg_san--two-vm3", "LVM-vg2lv3") // of the VG vg_san-two
	h.device(6, "vg_san-crypt", "CRYPT-LUKS2-x")
	h.process(101, qemuBin, qemuBin+" -name guest=vm1,debug-threads=on", "/dev/null", "/dev/vg_san/vm1=253:2")
	h.process(102, "/opt/own/emulator (deleted)", "emulator -name guest=vm2", "/dev/dm-3=253:3")
	h.process(103, qemuBin, qemuBin+" -name guest=vm3", "/dev/dm-5=253:5")
	h.process(104, qemuBin, qemuBin+" -name guest=none", "/srv/nfs/none.img=253:2")
	h.process(105, "/usr/bin/dd", "dd if=/dev/vg_san/vm1", "/dev/dm-2=253:2")
	return h
}

func TestStop(t *testing.T) {
	h := busy(t)
	require.NoError(t, h.stop("vg_san"))
	slices.Sort(h.killed)
	h.wiped = slices.Compact(slices.Sorted(slices.Values(h.wiped)))
	assert.Equal(t, []int{101, 102}, h.killed, "not those of other groups, nor who only reads")
	assert.Equal(t, []string{"vg_san-vm1", "vg_san-vm2", "vg_san-vm2-real"}, h.wiped, "not the leases, nor what is not LVM's or another group's")
	assert.Equal(t, []string{
		"killed QEMU 101 of guest vm1", "killed QEMU 102 of guest vm2", "left alone: x (pid 105); what it has open is cut off",
		"2 QEMUs killed, 3 volumes of vg_san cut off",
	}, h.said)

	h = busy(t)
	require.NoError(t, h.stop("vg_san-two"))
	assert.Equal(t, []int{103}, h.killed)
	assert.Equal(t, []string{"vg_san--two-vm3"}, h.wiped)

	h = busy(t)
	require.NoError(t, h.stop("vg_unknown"), "nothing of it is active here")
	assert.Empty(t, h.killed)
	assert.Empty(t, h.wiped)
}

// Whatever is not seen to be done is an error: the host must be reset.
func TestNotDone(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*fakeHost)
		want  string
	}{
		"a QEMU hangs":            {func(h *fakeHost) { h.undead[101] = true }, "QEMU 101 of guest vm1 has not ended"},
		"only its first thread":   {func(h *fakeHost) { h.undead[101] = true; h.leaderDies(101, 199) }, "QEMU 101 of guest vm1 has not ended"},
		"dmsetup hangs":           {func(h *fakeHost) { h.stuck["vg_san-vm2"] = true }, "vg_san-vm2 is not cut off"},
		"it is suspended":         {func(h *fakeHost) { h.write("1\n", h.sys, "block", "dm-2", "dm", "suspended") }, "vg_san-vm1 is not cut off: it is suspended"},
		"devices cannot be told":  {func(h *fakeHost) { require.NoError(h.t, os.RemoveAll(filepath.Join(h.sys, "block"))) }, "cannot list block devices"},
		"processes cannot either": {func(h *fakeHost) { require.NoError(h.t, os.RemoveAll(h.proc)) }, "cannot list processes"},
		"a table comes back": {func(h *fakeHost) {
			h.after = func(name string) {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.tables[name] = "0 65536 linear 8:16 2048"
			}
		}, "is not cut off: its table is linear"},
	} {
		t.Run(name, func(t *testing.T) {
			h := busy(t)
			tt.spoil(h)
			require.ErrorContains(t, h.stop("vg_san"), tt.want)
		})
	}
	for _, vg := range []string{"", "../x", "-x", "vg_san/vm1"} {
		require.Error(t, busy(t).stop(vg), vg)
	}
}

// What comes or goes meanwhile.
func TestMeanwhile(t *testing.T) {
	h := busy(t)
	h.after = func(name string) {
		if name != "vg_san-vm1" {
			return
		}
		// A guest that is being started, on a volume that has just been activated.
		h.device(7, "vg_san-vm4", "LVM-vg1lv4")
		h.process(107, qemuBin, qemuBin+" -name guest=vm4", "/dev/dm-7=253:7")
	}
	require.NoError(t, h.stop("vg_san"))
	assert.Contains(t, h.killed, 107)
	assert.Contains(t, h.wiped, "vg_san-vm4")

	// virtlvmd deactivates a volume whose guest has gone.
	h = busy(t)
	h.stuck["vg_san-vm2"] = true
	h.after = func(name string) {
		if name == "vg_san-vm1" {
			assert.NoError(t, os.RemoveAll(filepath.Join(h.sys, "block", "dm-3")))
		}
	}
	require.NoError(t, h.stop("vg_san"))

	// A QEMU that had all but ended, and a number that is used again.
	h = busy(t)
	h.state(101, 101, "Z")
	h.undead[102] = true
	h.after = func(string) {
		line := "102 (other) S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 999 0 0\n"
		h.write(line, h.proc, "102", "stat")
		assert.NoError(t, os.RemoveAll(filepath.Join(h.proc, "102", "task")))
	}
	require.NoError(t, h.stop("vg_san"))
	assert.NotContains(t, h.killed, 101)
}

func TestCannotKill(t *testing.T) {
	h := busy(t)
	s := New(t.TempDir(), func(string, ...any) {})
	s.Runner, s.Sys, s.Proc = h, h.sys, h.proc
	s.DeviceOf = func(string) string { return "253:2" }
	s.Kill = func(int) error { return errors.New("not permitted") }
	require.ErrorContains(t, s.Stop(t.Context(), "vg_san"), "cannot kill QEMU 101 of guest vm1: not permitted")
}

func TestDeviceOf(t *testing.T) {
	assert.Empty(t, deviceOf("/dev/null"), "a character device")
	assert.Empty(t, deviceOf(t.TempDir()))
	assert.Empty(t, deviceOf("/nowhere"))
}
