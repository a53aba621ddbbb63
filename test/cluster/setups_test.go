package cluster

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/check"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/lvm"
	"virtlvm/internal/peer"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
	"virtlvm/test/san"
)

// setup is a host of the cluster with all that a check looks at outside of LVM.
type setup struct {
	*Host
	Sources check.Sources
	space   uint64
}

const (
	hookFile = "etc/libvirt/hooks/qemu"
	pool     = "<pool type='logical'><name>p</name><source><name>vg_san</name></source></pool>"
)

const hookProgram = "\x7fELF virtlvm/hooks/qemu"

// setUp makes files of a host that is set up right.
func (h *Host) setUp() *setup {
	t := h.c.T
	s := &setup{Host: h, space: 1 << 40}
	for path, text := range map[string]string{
		"etc/sanlock/sanlock.conf":              "our_host_name = " + h.Name + "\nuse_watchdog = 1\n",
		"etc/libvirt/hooks/qemu":                hookProgram,
		"usr/lib/virtlvm/qemu":                  hookProgram,
		"proc/900000/comm":                      "libvirtd\n",
		"proc/900000/stat":                      "900000 (libvirtd) S 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 6000 1 2\n",
		"proc/900001/comm":                      "wdmd\n",
		"proc/900001/stat":                      "900001 (wdmd) S 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 6000 1 2\n",
		"sys/class/watchdog/watchdog0/identity": "Software Watchdog\n",
	} {
		s.write(path, text)
	}
	old := h.c.Now().Add(-48 * time.Hour)
	for _, path := range []string{"etc/libvirt/hooks/qemu", "usr/lib/virtlvm/qemu"} {
		require.NoError(t, os.Chmod(filepath.Join(h.dir, path), 0o755))
		require.NoError(t, os.Chtimes(filepath.Join(h.dir, path), old, old))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(h.dir, "proc/900001/fd"), 0o755))
	require.NoError(t, os.Symlink("/dev/watchdog0", filepath.Join(h.dir, "proc/900001/fd/6")))
	runner := h.LVM.Runner()
	s.Sources = check.Sources{
		LVM: lvm.New(runner, h.LVM.SysDir()), Leases: h.leases(runner), Engine: h.Engine(),
		Guests:   guests.New(h.Virt.RunDir(), filepath.Join(h.dir, "proc")),
		Resolver: &domain.Resolver{Root: h.dir, PoolDirs: []string{"/etc/libvirt/storage"}},
		Peers:    noPeers{}, Runner: systemd{},
		Journal: func() (check.Journal, error) { return store.Inspect(filepath.Join(h.dir, "state/virtlvm.db")) },
		Root:    os.DirFS(h.dir), Proc: os.DirFS(filepath.Join(h.dir, "proc")), Sys: os.DirFS(h.LVM.SysDir()),
		Have: func(string) bool { return true }, Stat: s.socket,
		Version: func(context.Context, string) error { return nil },
		Space:   func(path string) check.Space { return check.Space{Path: path, Free: s.space, Files: 1 << 20} },
		Label:   func(string) (string, error) { return "", nil },
		Host:    h.Name, BootID: h.bootID(), Now: h.c.Now, Uptime: func() time.Duration { return 24 * time.Hour },
		Scope: func() []string { return nil }, Keep: func() time.Duration { return time.Hour }, Config: func() error { return nil },
		RunDir: "/run/virtlvm", StateDir: "/var/lib/virtlvm", BreakGlass: func() string { return "" },
		Spool: func() api.SpoolSummary { return api.SpoolSummary{} },
	}
	return s
}

func (s *setup) write(path, text string) {
	path = filepath.Join(s.dir, path)
	require.NoError(s.c.T, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(s.c.T, os.WriteFile(path, []byte(text), 0o600))
}

// socket stands for the sockets of the daemon: a real one with the right mode.
func (s *setup) socket(path string) (fs.FileInfo, error) {
	mode := map[string]fs.FileMode{"virtlvm.sock": 0o660, "virtlvm-ro.sock": 0o666, "peer.sock": 0o600}[filepath.Base(path)]
	// A short path: that of a socket has 107 bytes at most.
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	at := filepath.Join(dir, "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	if err := os.Chmod(at, mode); err != nil {
		return nil, err
	}
	return os.Stat(at)
}

func (s *setup) report() []api.CheckResult {
	s.c.T.Helper()
	r, err := check.New(s.Sources, nil).Check(s.c.T.Context())
	require.NoError(s.c.T, err)
	return r.Results
}

// line is the result of one check.
func (s *setup) line(id string) api.CheckResult {
	s.c.T.Helper()
	for _, r := range s.report() {
		if r.ID == id {
			return r
		}
	}
	s.c.T.Fatalf("there is no check %s", id)
	return api.CheckResult{}
}

func (s *setup) path(name string) string { return filepath.Join(s.dir, name) }

func (s *setup) must(err error) {
	s.c.T.Helper()
	require.NoError(s.c.T, err)
}

func (s *setup) run(line string) {
	s.c.T.Helper()
	_, err := s.Run(strings.Fields(line)...)
	s.must(err)
}

func set(name, value string) func(*setup) {
	return func(s *setup) {
		s.write("bin/true", "")
		s.must(os.Chmod(s.path("bin/true"), 0o755))
		s.must(s.LVM.Set(name, value))
	}
}

func write(path, text string) func(*setup) { return func(s *setup) { s.write(path, text) } }
func remove(path string) func(*setup)      { return func(s *setup) { s.must(os.Remove(s.path(path))) } }

// disk defines the guest vm9 with one disk.
func disk(driver, path string) func(*setup) {
	return write("etc/libvirt/qemu/vm9.xml", "<domain><name>vm9</name><uuid>"+UUID(9)+"</uuid><devices><disk type='block'><driver name='qemu' "+driver+
		"/><source dev='"+path+"'/><target dev='vda'/></disk></devices></domain>")
}

type noPeers struct{}

func (noPeers) List(context.Context) ([]api.Peer, error) { return nil, nil }
func (noPeers) Probe(context.Context, string) (peer.Report, error) {
	return peer.Report{}, nil
}

func (noPeers) Each(context.Context, []string, func(context.Context, string) error) map[string]error {
	return nil
}

// systemd answers `systemctl show` for a host where all is enabled.
type systemd struct{}

func (systemd) Run(_ context.Context, cmd run.Cmd) (run.Result, error) {
	var b strings.Builder
	for _, arg := range cmd.Args {
		if strings.HasSuffix(arg, ".service") && !strings.HasPrefix(arg, "virtqemud") {
			b.WriteString("Id=" + arg + "\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nAfter=virtlvmd.service\n\n")
		}
	}
	return run.Result{Stdout: []byte(b.String())}, nil
}

// broken is a thing that is wrong with a host, and the line that says so.
type broken struct {
	name      string
	spoil     func(*setup)
	id, state string
	detail    string
}

// settings are wrong files and settings: the host is as before when they are put right.
func settings() []broken {
	const w, f = api.CheckWarn, api.CheckFail
	return []broken{
		{"no watchdog", set("use_watchdog", "0"), "sanlock.watchdog", f, "split brain"},
		{"watchdog not armed", remove("proc/900001/fd/6"), "sanlock.watchdog", f, "no watchdog open"},
		{"use_lvmlockd off", set("use_lvmlockd", "0"), "lvm.use_lvmlockd", f, ""},
		{"no host_id", set("host_id", "0"), "lvm.host_id", f, "not set"},
		{"somebody's host_id", set("host_id", "2"), "lvm.host_id_unique", f, "belongs to kvm-b"},
		{"kill command", set("lvmlockctl_kill_command", `"/bin/true"`), "lvm.kill_command", f, "split brain"},
		{"guests' VGs scanned", set("scan_lvs", "1"), "lvm.devices", w, ""},
		{"host name changed", write("etc/sanlock/sanlock.conf", "our_host_name = kvm-x\n"), "sanlock.host_name", f, "sanlock runs with kvm-a"},
		{"hook cannot be run", func(s *setup) { s.must(os.Chmod(s.path(hookFile), 0o644)) }, "libvirt.hook", f, "cannot be run"},
		{"hook gone", remove(hookFile), "libvirt.hook", f, "unprotected"},
		{"hook of yesterday", write("usr/lib/virtlvm/qemu", hookProgram+"2"), "libvirt.hook_current", f, ""},
		{"hook newer", func(s *setup) { s.must(os.Chtimes(s.path(hookFile), s.c.Now(), s.c.Now())) }, "libvirt.hook_seen", w, "may not call it"},
		{"a pool", func(s *setup) {
			s.write("etc/libvirt/storage/p.xml", pool)
			s.write("etc/libvirt/storage/autostart/p.xml", pool)
		}, "libvirt.pools", f, "pool p"},
		{"cache mode", disk("cache='unsafe'", "/dev/vg_san/vm2"), "guests.cache", f, "guest vm9"},
		{"two paths", disk("cache='none'", "/dev/mapper/vg_san-vm1"), "guests.twice", w, "vm9 vda as /dev/mapper/vg_san-vm1"},
		{"cannot migrate", disk("cache='none'", "/dev/vg_san/r1"), "guests.migratable", w, "vg_san/r1 (vda) is of type raid1"},
		{"plain volume group", disk("cache='none'", "/dev/vg_plain/x"), "lvm.unshared", w, "vg_plain"},
		{"disk full", func(s *setup) { s.space = 1 << 20 }, "virtlvm.space", f, "1 MiB free"},
		{"autoactivation", func(s *setup) { s.run("vgchange --setautoactivation y vg_san") }, "lvm.autoactivation", w, "it is on for vg_san"},
	}
}

// accidents leave the host in a state of its own.
func accidents() []broken {
	const w, f = api.CheckWarn, api.CheckFail
	return []broken{
		{"taken by hand", func(s *setup) { s.run("lvchange -aey vg_san/vm2") }, "volumes.strangers", w, "vg_san/vm2 is active here (ex)"},
		{"device taken away", func(s *setup) { s.run("dmsetup remove vg_san-vm2") }, "volumes.lock_without_dm", w, "vg_san/vm2"},
		{"lvmlockd killed", func(s *setup) { s.must(s.LVM.StopLvmlockd()) }, "lvm.lvmlockd", f, "left locks behind"},
		{"its orphan", func(*setup) {}, "sanlock.orphans", f, "vg_san/vm1 (ex)"},
		{"lockspace not started", func(*setup) {}, "lvm.lockspaces", f, "lockspace of vg_san"},
		{"storage stalled", func(s *setup) { s.must(s.LVM.Stall()) }, "sanlock.renewal", f, "the last renewal in vg_san failed"},
		{"sanlock killed", func(s *setup) { s.must(s.LVM.KillSanlock()) }, "sanlock.daemon", f, "does not run"},
	}
}

// A host that is set up right has no WARN and no FAIL; each thing that is broken has its
// line, on the fake SAN as on a real one.
func TestCheckFindsWhatIsBroken(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a := c.Hosts["kvm-a"]
	for lv, kind := range map[string]string{"vm1": "", "vm2": "", "r1": "raid1"} {
		_, err := c.SAN.AddLV("vg_san", san.LVSpec{Name: lv, Type: kind})
		require.NoError(t, err)
	}
	_, err := a.Run("vgchange", "--setautoactivation", "n", "vg_san")
	require.NoError(t, err)
	_, err = a.Virt.Define(t.Context(), XML("vm1", UUID(1), Disk{Path: "vm1"}))
	require.NoError(t, err)
	require.NoError(t, a.Virt.Start(t.Context(), "vm1"))
	judge := func(b broken, s *setup) {
		t.Run(b.name, func(t *testing.T) {
			b.spoil(s)
			line := s.line(b.id)
			assert.Equal(t, b.state, line.State, line.Detail)
			assert.Contains(t, line.Detail, b.detail)
			assert.NotEmpty(t, line.Fix)
		})
	}
	for _, b := range settings() {
		judge(b, a.setUp())
		a.putRight()
	}
	s := a.setUp()
	t.Run("nothing", func(t *testing.T) {
		for _, r := range s.report() {
			assert.NotContains(t, []string{api.CheckWarn, api.CheckFail}, r.State, "%s: %s", r.ID, r.Detail)
		}
	})
	for _, b := range accidents() {
		judge(b, s)
	}
}

// A repair is offered, run and verified; the second time there is nothing to repair.
func TestCheckRepairs(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	s := a.setUp()
	checker := check.New(s.Sources, nil)
	require.Equal(t, []api.Repair{{ID: "lvm.autoactivation:vg_san", Argv: []string{"vgchange", "--setautoactivation", "n", "vg_san"}}}, s.line("lvm.autoactivation").Repairs)
	done, err := checker.Fix(t.Context(), "lvm.autoactivation:vg_san", "operator uid 0")
	require.NoError(t, err)
	assert.Equal(t, "COMPLETED", done.State)
	assert.Equal(t, api.CheckPass, s.line("lvm.autoactivation").State)
	_, err = checker.Fix(t.Context(), "lvm.autoactivation:vg_san", "operator uid 0")
	assert.Equal(t, api.KindNotFound, api.KindOf(err))

	s.run("vgchange --lockstop vg_san")
	_, err = checker.Fix(t.Context(), "lvm.lockspaces:vg_san", "operator uid 0")
	require.NoError(t, err)
	assert.Equal(t, api.CheckPass, s.line("lvm.lockspaces").State)
}

// putRight undoes what settings has spoilt.
func (h *Host) putRight() {
	t := h.c.T
	for _, path := range []string{"etc/libvirt/storage", "etc/libvirt/qemu/vm9.xml", "proc/900001", "usr"} {
		require.NoError(t, os.RemoveAll(filepath.Join(h.dir, path)))
	}
	for _, name := range []string{"use_watchdog", "use_lvmlockd", "host_id", "lvmlockctl_kill_command", "scan_lvs"} {
		require.NoError(t, h.LVM.Set(name, ""))
	}
	_, _ = h.Run("vgchange", "--setautoactivation", "n", "vg_san") // an error where it is off
}
