package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/test/san"
)

// stage is the fake SAN with two hosts and the programs.
type stage struct {
	repo     string // top of the source tree
	memory   string // folder in memory: hosts, what is in /run on a real host
	disk     string // folder on a disk: the journals
	programs string
	san      *san.SAN
	a, b     *host
	daemons  []*daemon
}

// host is one host of the SAN.
type host struct {
	san   *san.Host
	dir   string // in memory
	tools *tools
	state string // folder of the journal, on disk
	env   []string
	api   *client.Client

	daemon *daemon // the last one started
}

// newStage builds the programs as `make build` does, and the SAN. That is in this process, the
// hosts' folders lie in memory and the journals on a disk, so that what the fakes write does
// not slow down the journal's syncs.
func newStage(ctx context.Context) (s *stage, err error) {
	s = &stage{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.strike(false))
		}
	}()
	if s.repo, err = top(ctx); err != nil {
		return s, err
	}
	if s.disk, err = os.MkdirTemp("", "virtlvm-bench."); err != nil {
		return s, fmt.Errorf("cannot make a folder: %w", err)
	}
	inMemory := "/dev/shm"
	if info, err := os.Stat(inMemory); err != nil || !info.IsDir() {
		inMemory = ""
	}
	if s.memory, err = os.MkdirTemp(inMemory, "virtlvm-bench."); err != nil {
		return s, fmt.Errorf("cannot make a folder: %w", err)
	}
	s.programs = filepath.Join(s.disk, "build")
	if err = errors.Join(s.make(ctx, "build", "fakes"), s.buildEmpty(ctx), s.buildTool(ctx)); err != nil {
		return s, err
	}
	dir := filepath.Join(s.memory, "san")
	if s.san, err = san.Create(dir, san.Options{
		Hosts: []string{"kvm-a", "kvm-b"}, VGs: []san.VGSpec{{Name: sharedVG}, {Name: plainVG, LockType: san.LockNone}}, Alone: true,
	}); err != nil {
		return s, err
	}
	if s.a, err = s.newHost("kvm-a"); err == nil {
		s.b, err = s.newHost("kvm-b")
	}
	return s, err
}

// Volume groups of the SAN: one that virtlvm manages, one it does not.
const (
	sharedVG = "vg_san"
	plainVG  = "vg_local"
)

func top(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	dir := filepath.Dir(strings.TrimSpace(string(out)))
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, "test", "bench"))
	}
	if err != nil {
		return "", fmt.Errorf("cannot find the source tree; run this in it: %w", err)
	}
	return dir, nil
}

func (s *stage) make(ctx context.Context, targets ...string) error {
	cmd := exec.CommandContext(ctx, "make", append([]string{"-s", "BUILD=" + s.programs}, targets...)...)
	cmd.Dir = s.repo
	for _, v := range os.Environ() {
		// A make above has job slots of its own.
		if !strings.HasPrefix(v, "MAKEFLAGS=") && !strings.HasPrefix(v, "MFLAGS=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the programs: %w\n%s", err, out)
	}
	return nil
}

func (s *stage) program(name string) string { return filepath.Join(s.programs, name) }

// newHost makes the folder of a host, which is a root file system in little.
func (s *stage) newHost(name string) (*host, error) {
	sh, err := s.san.Host(name)
	if err != nil {
		return nil, err
	}
	h := &host{san: sh, dir: sh.Dir()}
	for _, dir := range []string{h.path("run"), h.path("images")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make host %s: %w", name, err)
		}
	}
	if h.tools, err = newTools(sh, h.path("bin"), s.program("tool")); err != nil {
		return nil, fmt.Errorf("cannot make the tools of host %s: %w", name, err)
	}
	h.env = []string{
		"LC_ALL=C", "PATH=" + h.tools.dir + ":/usr/sbin:/usr/bin:/sbin:/bin", "USER=root",
		"VIRTLVM_HOOK_SOCKET=" + h.path("run/virtlvm.sock"), "VIRTLVM_HOOK_SETTINGS=" + h.path("run/hook.json"),
		"VIRTLVM_HOOK_BREAK_GLASS=" + h.path("break-glass"), "VIRTLVM_HOOK_SPOOL=" + filepath.Join(s.disk, "spool"),
	}
	h.api = client.New(client.Options{Socket: h.path("run/virtlvm.sock")})
	return h, s.newState(h)
}

// newState gives a host a new, empty journal.
func (s *stage) newState(h *host) (err error) {
	if h.state, err = os.MkdirTemp(s.disk, h.san.Name()+"-"); err != nil {
		return fmt.Errorf("cannot make a folder: %w", err)
	}
	text := fmt.Sprintf(`[paths]
root = %[1]q
state_dir = %[2]q
run_dir = "%[1]s/run"
libvirt_run = "%[1]s/run/libvirt/qemu"
pool_dirs = []
sys = "%[1]s/sys"
dev = "%[1]s/dev"
tools = ["%[1]s/bin"]
break_glass = "%[1]s/break-glass"
socket_group = ""

[peers]
hosts = { %[3]s = "unix://%[4]s/run/peer.sock" }
`, h.dir, h.state, other(h.san.Name()), filepath.Join(filepath.Dir(h.dir), other(h.san.Name())))
	if err := os.WriteFile(h.path("virtlvm.toml"), []byte(text), 0o600); err != nil {
		return fmt.Errorf("cannot configure %s: %w", h.san.Name(), err)
	}
	return nil
}

// other is the name of the other host.
func other(name string) string { return map[string]string{"kvm-a": "kvm-b", "kvm-b": "kvm-a"}[name] }

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// strike ends the daemons and takes the folders away.
func (s *stage) strike(keep bool) error {
	var all []error
	for _, d := range s.daemons {
		all = append(all, d.stop())
	}
	for _, h := range []*host{s.a, s.b} {
		if h != nil {
			all = append(all, h.tools.close())
		}
	}
	if s.san != nil {
		all = append(all, s.san.Close())
	}
	for _, dir := range []string{s.memory, s.disk} {
		switch {
		case dir == "":
		case keep:
			fmt.Fprintln(os.Stderr, "kept:", dir)
		default:
			all = append(all, os.RemoveAll(dir))
		}
	}
	return errors.Join(all...)
}

// machine is what the numbers were measured on.
func (s *stage) machine() string {
	model := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := bytes.Cut(data, []byte("model name\t: ")); ok {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			model = string(line)
		}
	}
	load := "?"
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(data), " ")
	}
	var u unix.Utsname
	_ = unix.Uname(&u) // leaves it empty
	return fmt.Sprintf("%s, %d cores, load %s before; Linux %s; %s; journal on %s; bash hook with %s",
		model, runtime.NumCPU(), load, unix.ByteSliceToString(u.Release[:]), runtime.Version(), fsType(s.disk), xmlReader())
}

// fsType names the commonest file systems.
func fsType(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "?"
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	}
	return fmt.Sprintf("file system %#x", st.Type)
}

// journal is the path of a host's database.
func (h *host) journal() string { return filepath.Join(h.state, "virtlvm.db") }

// lastCall lists the commands that the newest hook call has run, in their order.
func (h *host) lastCall(ctx context.Context) ([]api.Command, error) {
	calls, err := h.api.Hooks(ctx, 1, "")
	if err != nil {
		return nil, err
	}
	recent, err := h.api.Commands(ctx, api.CommandFilter{Limit: 100})
	if err != nil || len(calls) == 0 {
		return nil, errors.Join(err, errors.New("the journal has no hook call"))
	}
	var all []api.Command
	for _, c := range recent {
		if c.HookCall == calls[0].ID {
			all = append(all, c)
		}
	}
	return all, nil
}
