package fakevirt

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/guests"
)

// sanDisk makes /dev/vg_san/lv1 the way the fake SAN does: dev/dm-0 and its links.
func (b *bench) sanDisk() {
	b.t.Helper()
	sys := filepath.Join(b.dir, "sys/block/dm-0/dm")
	require.NoError(b.t, os.MkdirAll(sys, 0o755))
	require.NoError(b.t, os.WriteFile(filepath.Join(sys, "name"), []byte("vg_san-lv1\n"), 0o600))
	b.disk("/luns/data", nil)
	require.NoError(b.t, os.MkdirAll(filepath.Join(b.dir, "dev/vg_san"), 0o755))
	require.NoError(b.t, os.Symlink("../luns/data", filepath.Join(b.dir, "dev/dm-0")))
	require.NoError(b.t, os.RemoveAll(filepath.Join(b.dir, "dev/vg_san/lv1")))
	require.NoError(b.t, os.Symlink("../dm-0", filepath.Join(b.dir, "dev/vg_san/lv1")))
}

func TestOpenDisksAreKnownToTheSAN(t *testing.T) {
	for name, launcher := range map[string]func(*bench) Launcher{
		"in process": func(b *bench) Launcher { return b.launcher },
		"processes":  func(*bench) Launcher { return Processes{} },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.o.Launcher = launcher(b)
			b.vm1()
			b.sanDisk()
			t.Cleanup(func() { _ = b.KillQEMU(ctx, "vm1") })
			for _, end := range []func() error{
				func() error { return b.Destroy(ctx, "vm1") },
				func() error { return b.Crash(ctx, "vm1") },
			} {
				b.start("vm1")
				pid := strconv.Itoa(b.guest("vm1").PID)
				assert.Equal(t, []string{filepath.Join(b.dir, "open/vg_san-lv1", pid)}, b.openMarkers())
				require.NoError(t, end())
				assert.Empty(t, b.openMarkers())
			}
		})
	}
}

func TestRealProcesses(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Launcher = Processes{} })
	b.vm1()
	b.start("vm1")
	t.Cleanup(func() { _ = b.KillQEMU(ctx, "vm1") })
	pid := b.guest("vm1").PID
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	require.NoError(t, err)
	assert.Contains(t, string(cmdline), "-name\x00guest=vm1,debug-threads=on\x00-S\x00-uuid\x00"+uuid1+"\x00")
	assert.True(t, holdsOpen(t, pid, filepath.Join(b.dir, "dev/vg_san/lv1")))

	o := guests.New(b.RunDir(), "/proc")
	s, err := o.Observe()
	require.NoError(t, err)
	assert.Equal(t, guests.Alive, s.Liveness(uuid1, "vm1"))

	require.NoError(t, b.Destroy(ctx, "vm1"))
	assert.False(t, b.o.Launcher.Alive(pid, uuid1))
	s, err = o.Observe()
	require.NoError(t, err)
	assert.Equal(t, guests.Gone, s.Liveness(uuid1, "vm1"))
	assert.Equal(t, []string{
		"vm1 prepare begin -", "vm1 start begin -", "vm1 started begin -", "vm1 stopped end -", "vm1 release end destroyed",
	}, b.args())
}

func TestRealProcessThatFailsToStart(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Launcher = Processes{} })
	b.vm1()
	path := filepath.Join(b.dir, "dev/vg_san/lv1")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o755)) // there, but no disk
	assert.Contains(t, virsh(t, b.Start(ctx, "vm1")),
		"process exited while connecting to monitor: qemu-system-x86_64: Could not open '/dev/vg_san/lv1': Is a directory")
	assert.Equal(t, "vm1 release end failed", b.args()[3])
}

// A QEMU whose maker goes away before it may begin ends by itself, and touches nothing.
func TestProcessWithoutItsMaker(t *testing.T) {
	b := newBench(t)
	b.disk("/dev/vg/lv", nil)
	q, err := Processes{}.Launch(Spec{Name: "vm1", UUID: uuid1, Root: b.dir, Disks: []Disk{{Path: "/dev/vg/lv", Format: "raw"}}})
	require.NoError(t, err)
	require.NoError(t, q.(*process).begin.Close())
	_, err = q.(*process).ready.Read(make([]byte, 1))
	require.Error(t, err, "it has closed its end")
	data, err := os.ReadFile(filepath.Join(b.dir, "dev/vg/lv"))
	require.NoError(t, err)
	assert.Empty(t, bytes.Trim(data, "\x00"))
}

func holdsOpen(t *testing.T, pid int, path string) bool {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if target, _ := os.Readlink(filepath.Join(dir, e.Name())); target == path {
			return true
		}
	}
	return false
}

func TestExecHook(t *testing.T) {
	script := filepath.Join(t.TempDir(), "hook")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n"+
		`printf '%s|' "$@"; cat; env | sort; echo no >&2; [ "$2" != prepare ]`+"\n"), 0o755))
	r := ExecHook(script, "VIRTLVM_HOOK_SOCKET=/x")(ctx, HookCall{Guest: "a b", Op: "release", SubOp: "end", Extra: "-", XML: []byte("<d/>\n")})
	assert.Zero(t, r.Code)
	assert.True(t, strings.HasPrefix(r.Stdout, "a b|release|end|-|<d/>\n"), r.Stdout)
	assert.Contains(t, r.Stdout, "LC_ALL=C\n")
	assert.Contains(t, r.Stdout, "VIRTLVM_HOOK_SOCKET=/x\n")
	assert.NotContains(t, r.Stdout, "HOME=")

	b := newBench(t, func(o *Options) { o.Hook = ExecHook(script) })
	b.define(domain("a b", uuid1, ""))
	assert.Contains(t, virsh(t, b.Start(ctx, "a b")), "Child process (LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "+
		script+" 'a b' prepare begin -) unexpected exit status 1: no\n")

	r = ExecHook(script+"-none")(ctx, HookCall{})
	assert.Equal(t, 126, r.Code)
	assert.NotEmpty(t, r.Stderr)
}
