package check

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/peer"
	"virtlvm/internal/run/runtest"
)

// host is a scripted host: what a Checker looks at, answered with facts of good().
type host struct {
	Sources
	f              *Facts // what LVM, sanlock and the engine answer
	root, prc, sys fstest.MapFS
	repaired       []string
	asked          []string // peers that were probed
	mu             sync.Mutex
	runner         *runtest.Fake
	journal        error
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{f: good(), root: fstest.MapFS{}, prc: fstest.MapFS{}, sys: fstest.MapFS{}, runner: runtest.New(t)}
	h.Sources = Sources{
		LVM: h, Leases: h, Engine: engine{h}, Guests: h, Resolver: h, Peers: h, Runner: h.runner,
		Journal: func() (Journal, error) { return h, h.journal },
		Root:    h.root, Proc: h.prc, Sys: h.sys,
		Have: func(string) bool { return true },
		Stat: func(string) (fs.FileInfo, error) { return socketInfo{0o660}, nil }, Version: func(context.Context, string) error { return nil },
		Space: func(path string) Space { return Space{Path: path, Free: 1 << 40, Files: 1 << 20} },
		Label: func(string) (string, error) { return "u:r:virt_hook_t:s0", nil },
		Host:  "kvm-a", BootID: "boot", Now: func() time.Time { return now }, Uptime: func() time.Duration { return now.Sub(boot) },
		Scope: func() []string { return nil }, Keep: func() time.Duration { return time.Hour }, Config: func() error { return nil },
		RunDir: "/run/virtlvm", StateDir: "/var/lib/virtlvm", BreakGlass: func() string { return "" },
		Spool: func() api.SpoolSummary { return api.SpoolSummary{} },
	}
	h.systemctl(t, "systemctl-show.txt")
	h.prc["300/comm"] = file("libvirtd\n")
	h.prc["300/stat"] = file("300 (a b) c) S 1 300 300 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 6000 1 2\n")
	h.prc["self/comm"] = file("x\n")
	h.root["etc/sanlock/sanlock.conf"] = file("# our_host_name = no\nour_host_name = kvm-a # ours\nuse_watchdog = 1\n")
	return h
}

func (h *host) systemctl(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	h.runner.ExpectLine(systemctlLine()).Stdout(string(data)).Always()
}

func systemctlLine() string {
	return "systemctl show --no-pager --property=Id,LoadState,ActiveState,UnitFileState,After,ExecReload " + strings.Join(unitNames(), " ")
}

func file(text string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(text), Mode: 0o644, ModTime: boot.Add(-time.Hour)}
}

func (h *host) gathered() *Facts { return h.gather(context.Background(), peersAsked{all: true}) }

func (h *host) Version(context.Context) (string, error) {
	return h.f.LVMVersion.Value, h.f.LVMVersion.Err
}

func (h *host) Config(context.Context, ...string) (map[string]string, error) {
	return h.f.LVMConfig.Value, h.f.LVMConfig.Err
}
func (h *host) PVs(context.Context) ([]lvm.PV, error) { return h.f.PVs.Value, nil }
func (h *host) Known(_ context.Context, vgs ...string) (map[model.VolumeID]bool, []string, error) {
	if strings.Join(vgs, " ") != "vg_san" {
		return nil, nil, errors.New("the wrong volume groups: " + strings.Join(vgs, " "))
	}
	return h.f.Known.Value, h.f.Unlocked, nil
}
func (h *host) Devices() (map[string]lvm.Device, error)            { return h.f.Devices.Value, nil }
func (h *host) OpenCounts(context.Context) (map[string]int, error) { return h.f.Open.Value, nil }
func (h *host) Local(context.Context) (lease.Local, error)         { return h.f.Local.Value, nil }
func (h *host) Daemon(context.Context) (lease.Daemon, error)       { return h.f.Sanlock.Value, nil }
func (h *host) Lockspaces(context.Context) ([]lease.Lockspace, bool, error) {
	return h.f.Lockspaces.Value, h.f.LockdDown, nil
}

func (h *host) Renewals(_ context.Context, vg string) ([]lease.Renewal, error) {
	return h.f.Renewals[vg].Value, nil
}

func (h *host) Hosts(_ context.Context, vg string) (map[int]lease.Host, error) {
	return h.f.HostTables[vg].Value, nil
}

func (h *host) DiskHosts(context.Context, string) (map[int]string, error) {
	return map[int]string{1: "kvm-x"}, nil
}
func (h *host) Observe() (guests.Snapshot, error) { return h.f.Running.Value, nil }

// Resolve knows paths /dev/VG/LV only.
func (h *host) Resolve(s domain.Source) (domain.Ref, bool, error) {
	parts := strings.Split(s.Path, "/")
	if len(parts) != 4 {
		return domain.Ref{DMUUID: strings.TrimPrefix(s.Path, "/")}, strings.HasPrefix(s.Path, "/LVM-"), nil
	}
	return domain.Ref{VG: parts[2], LV: parts[3]}, true, nil
}

func (h *host) List(context.Context) ([]api.Peer, error) {
	return []api.Peer{{Name: "kvm-b", URL: "ssh://root@kvm-b"}, {Name: "kvm-c"}}, h.f.Peers.Err
}

func (h *host) Probe(_ context.Context, name string) (peer.Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, name)
	if name == "kvm-c" {
		return peer.Report{}, errBroken
	}
	return peer.Report{Version: h.f.Peers.Value[0].Version}, nil
}

func (h *host) Each(ctx context.Context, names []string, fn func(context.Context, string) error) map[string]error {
	failed := map[string]error{}
	for _, name := range names {
		failed[name] = fn(ctx, name)
	}
	return failed
}

func (h *host) EachWithin(ctx context.Context, _ time.Duration, names []string, fn func(context.Context, string) error) map[string]error {
	return h.Each(ctx, names, fn)
}

func (h *host) Do(_ context.Context, name, method, path string, _, out any) error {
	if name == "kvm-c" {
		return errBroken
	}
	*out.(*api.CheckReport) = api.CheckReport{Host: "liar", Version: method + " " + path, Results: []api.CheckResult{{ID: "x", State: api.CheckPass}}}
	return nil
}

func (h *host) Damage(context.Context) (string, error) { return h.f.Damage.Value, h.f.Damage.Err }
func (h *host) LastHook(_ context.Context, boot string, pid int, start uint64) (time.Time, error) {
	if boot != "boot" || start != 6000 {
		return time.Time{}, errors.New("asked for another boot or process")
	}
	return h.f.HookCalls[pid].Value, nil
}

func (h *host) Activated(_ context.Context, id model.VolumeID) (bool, error) {
	return h.f.Ours[id], nil
}
func (h *host) Close() error { return nil }

type engine struct{ h *host }

func (e engine) Conditions(context.Context) ([]activation.Condition, error) {
	return e.h.f.VGs.Value, e.h.f.VGs.Err
}
func (e engine) Status(context.Context) api.Status                   { return e.h.f.Status }
func (e engine) AskMembers(context.Context, string) map[string]error { return nil }

func (e engine) Repair(ctx context.Context, r activation.Repair, by string, verify func(context.Context) error) (api.Command, error) {
	e.h.repaired = append(e.h.repaired, by+": "+strings.Join(r.Cmd.Argv(), " "))
	if r.Cmd.Args[0] == "--setautoactivation" {
		e.h.f.san().VG.Autoactivation = false
	}
	return api.Command{ID: 7}, verify(ctx)
}

type socketInfo struct{ perm fs.FileMode }

func (s socketInfo) Name() string       { return "s" }
func (s socketInfo) Size() int64        { return 0 }
func (s socketInfo) Mode() fs.FileMode  { return fs.ModeSocket | s.perm }
func (s socketInfo) ModTime() time.Time { return boot }
func (s socketInfo) IsDir() bool        { return false }
func (s socketInfo) Sys() any           { return nil }

func TestGather(t *testing.T) {
	h := newHost(t)
	h.sys["block/dm-0/size"] = file("524288\n")
	h.f.Devices.Value["lock"] = lvm.Device{Name: "vg_san-lvmlock", UUID: "lock", Kernel: "dm-0"}
	f := h.gathered()
	assert.Equal(t, map[string]int64{"vg_san": 256 * mib}, f.LeaseVolumes)
	assert.Equal(t, "kvm-a", f.SanlockConf["our_host_name"])
	assert.Equal(t, []Process{{Name: "libvirtd", PID: 300, Start: 6000, Began: boot.Add(time.Minute)}}, f.Libvirt.Value)
	assert.Equal(t, h.f.HookCalls[300].Value, f.HookCalls[300].Value)
	assert.NoError(t, f.HookCalls[300].Err)
	assert.Len(t, f.HostTables, 1)
	assert.Empty(t, f.DiskHosts)
	assert.Equal(t, []Peer{
		{Name: "kvm-b", URL: "ssh://root@kvm-b", Asked: true, Version: h.f.Peers.Value[0].Version}, {Name: "kvm-c", Asked: true, Err: errBroken},
	}, f.Peers.Value)
	assert.Equal(t, "has mode 0660, not 0666", f.Sockets[1].Bad)
	assert.Empty(t, f.Sockets[0].Bad)

	// A lockspace that is not started is looked at on the disk.
	h.f.Sanlock.Value.Spaces = nil
	f = h.gathered()
	assert.Empty(t, f.HostTables)
	assert.Equal(t, map[int]string{1: "kvm-x"}, f.DiskHosts["vg_san"].Value)
}

func TestGatherActivators(t *testing.T) {
	h := newHost(t)
	h.root["etc/systemd/system/san.service"] = file("[Service]\n# ExecStart=vgchange -ay vg_off\nExecStart=/sbin/vgchange -ay vg_san\nExecStop=/sbin/vgchange -an vg_san\n")
	h.root["etc/cron.d/x"] = file("@reboot root vgchange --activate=ey && true\n0 0 * * * root vgchange -aay\n0 0 * * * root lvchange -ay vg_san/lv\n")
	h.root["etc/rc.local"] = file("#!/bin/sh\nvgchange -qaly\n")
	assert.Equal(t, []Activator{
		{"/etc/systemd/system/san.service", "ExecStart=/sbin/vgchange -ay vg_san"},
		{"/etc/rc.local", "vgchange -qaly"},
		{"/etc/cron.d/x", "@reboot root vgchange --activate=ey && true"},
	}, h.gathered().Activators)
}

// What is odd in one look alone is on its way, and no finding.
func TestOnlyWhatIsOddTwiceIs(t *testing.T) {
	on, half := model.Actual{Lock: model.ModeEX, Active: true}, model.Actual{Lock: model.ModeOff, Active: true}
	for name, tt := range map[string]struct {
		first, second model.Actual
		want          model.Actual
	}{
		"odd, then not": {half, on, on},
		"odd twice":     {half, half, half},
		"never":         {on, on, on},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.f.vm1().Actual = tt.first
			paused := 0
			h.Pause = func() {
				paused++
				h.f.VGs = good().VGs
				h.f.vm1().Actual = tt.second
			}
			f := h.gathered()
			assert.Equal(t, tt.want, f.vm1().Actual)
			assert.Equal(t, tt.first == half, paused == 1)
		})
	}
	first, second := good(), good()
	first.vm1().Actual, second.vm2().Actual = half, half
	f := settled(first.VGs.Value, second.VGs.Value)
	assert.Equal(t, on, f[0].Volumes[0].Actual)
	assert.False(t, f[0].Volumes[1].Actual.Active, "odd for the first time")
}

func TestGatherSockets(t *testing.T) {
	h := newHost(t)
	for want, stat := range map[string]func(string) (fs.FileInfo, error){
		"is not there":        func(string) (fs.FileInfo, error) { return nil, fs.ErrNotExist },
		"cannot be looked at": func(string) (fs.FileInfo, error) { return nil, errors.New("x") },
		"is no socket":        func(string) (fs.FileInfo, error) { return fs.Stat(fstest.MapFS{"a": file("")}, "a") },
	} {
		h.Stat = stat
		assert.Contains(t, h.gathered().Sockets[0].Bad, want)
	}
	h.Stat = func(string) (fs.FileInfo, error) { return socketInfo{0o660}, nil }
	h.Sources.Version = func(context.Context, string) error { return errors.New("refused") }
	assert.Equal(t, "does not answer: refused", h.gathered().Sockets[0].Bad)
}

func TestGatherJournal(t *testing.T) {
	h := newHost(t)
	h.journal = fs.ErrNotExist
	f := h.gathered()
	assert.True(t, f.NoData)
	assert.Error(t, f.HookCalls[300].Err, "no call is not known to be none")
	h.journal = errBroken
	f = h.gathered()
	assert.False(t, f.NoData)
	assert.ErrorIs(t, f.Damage.Err, errBroken)

	h.journal = nil
	leftoverDevice(0, true)(h.f)
	assert.Equal(t, map[model.VolumeID]bool{id(goneID): true}, h.gathered().Ours)
}

func TestGatherHook(t *testing.T) {
	const program = "\x7fELF...virtlvm/hooks/qemu..."
	h := newHost(t)
	assert.Empty(t, h.gathered().Hook.Ours)
	h.root[hookOwn] = &fstest.MapFile{Data: []byte(program), Mode: 0o755}
	h.root[hookMain] = &fstest.MapFile{Data: []byte("#!/bin/sh\n# calls virtlvm/hooks/qemu\n"), Mode: 0o755}
	h.root[hookExtra] = &fstest.MapFile{Data: []byte(program), Mode: 0o755, ModTime: boot}
	h.root[hookDir+"/qemu.d/60-other"] = &fstest.MapFile{Data: []byte("#!/bin/sh\n"), Mode: 0o644}
	hook := h.gathered().Hook
	require.NoError(t, hook.Err)
	require.Len(t, hook.Ours, 1)
	assert.Equal(t, "/etc/libvirt/hooks/qemu.d/50-virtlvm", hook.Ours[0].Path)
	assert.Equal(t, boot, hook.Ours[0].Modified)
	assert.Len(t, hook.Others, 2)
	assert.True(t, hook.Same)
	assert.Empty(t, hook.Unknown)

	h.root[hookExtra].Data = []byte(program + "old")
	assert.False(t, h.gathered().Hook.Same)
	delete(h.root, hookOwn)
	assert.Contains(t, h.gathered().Hook.Unknown, "not installed from a package")
	h.root[hookMain] = &fstest.MapFile{Data: []byte("../../../" + hookExtra), Mode: fs.ModeSymlink | 0o777}
	h.root[hookMain].Data = []byte("qemu.d/50-virtlvm")
	hook = h.gathered().Hook
	require.Len(t, hook.Ours, 2)
	assert.NotZero(t, hook.Ours[0].Mode&fs.ModeSymlink)
	assert.True(t, hook.Ours[0].runs())
}

func TestGatherWatchdog(t *testing.T) {
	h := newHost(t)
	assert.Zero(t, h.gathered().Watchdog)
	h.sys["class/watchdog/watchdog0/identity"] = file("Software Watchdog\n")
	h.prc["200/comm"] = file("wdmd\n")
	h.prc["200/stat"] = file("200 (wdmd) S 1 200 200 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 100 1 2\n")
	h.prc["200/fd/0"] = &fstest.MapFile{Data: []byte("/dev/null"), Mode: fs.ModeSymlink}
	assert.Equal(t, Watchdog{Daemon: 200, Devices: []WatchdogDevice{{"watchdog0", "Software Watchdog"}}}, h.gathered().Watchdog.Value)
	for target, name := range map[string]string{"/dev/watchdog0": "watchdog0", "/dev/watchdog": "watchdog0", "/dev/watchdog1": "watchdog1"} {
		h.prc["200/fd/6"] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
		assert.Equal(t, []string{name}, h.gathered().Watchdog.Value.Open)
	}
}

func TestGatherConfinement(t *testing.T) {
	h := newHost(t)
	f := h.gathered()
	assert.Zero(t, f.AppArmor)
	assert.Zero(t, f.SELinux)

	h.sys["module/apparmor/parameters/enabled"] = file("Y\n")
	assert.Error(t, h.gathered().AppArmor.Err)
	h.sys["kernel/security/apparmor/profiles"] = file("/usr/sbin/ntpd (enforce)\nlibvirtd (enforce)\nlibvirtd//qemu_bridge_helper (enforce)\nvirtqemud (complain)\n")
	profile, err := os.ReadFile("testdata/usr.sbin.libvirtd")
	require.NoError(t, err)
	h.root["etc/apparmor.d/usr.sbin.libvirtd"] = file(string(profile))
	f = h.gathered()
	assert.NoError(t, f.AppArmor.Err)
	assert.Equal(t, []string{"libvirtd"}, f.AppArmor.Enforced)
	assert.True(t, f.AppArmor.Allows)
	h.root["etc/apparmor.d/usr.sbin.libvirtd"] = file(strings.ReplaceAll(string(profile), "/etc/libvirt/hooks/** rmix,", "/etc/libvirt/hooks/** r,"))
	assert.False(t, h.gathered().AppArmor.Allows)
	h.root["etc/apparmor.d/local/usr.sbin.libvirtd"] = file("  /etc/libvirt/hooks/** rmix,\n")
	assert.True(t, h.gathered().AppArmor.Allows)

	h.root[hookMain] = &fstest.MapFile{Data: []byte("\x7fELF" + hookMark), Mode: 0o755}
	h.sys["fs/selinux/enforce"] = file("1")
	h.sys["fs/selinux/booleans/virt_hooks_unconfined"] = file("0 0")
	assert.Equal(t, SELinux{Enforcing: true, Label: "u:r:virt_hook_t:s0"}, h.gathered().SELinux)
	h.sys["fs/selinux/booleans/virt_hooks_unconfined"] = file("1 1")
	assert.True(t, h.gathered().SELinux.Unconfined)
}

func TestGatherPools(t *testing.T) {
	const xml = "<pool type='%'><name>NAME</name><source><device path='/dev/sdb'/><name>vg_san</name></source></pool>"
	pool := func(kind, name string) *fstest.MapFile {
		return file("<!-- generated -->\n" + strings.NewReplacer("%", kind, "NAME", name).Replace(xml))
	}
	h := newHost(t)
	h.root["etc/libvirt/storage/san.xml"] = pool("logical", "san")
	h.root["etc/libvirt/storage/autostart/san.xml"] = &fstest.MapFile{Data: []byte("/etc/libvirt/storage/san.xml"), Mode: fs.ModeSymlink}
	h.root["etc/libvirt/storage/default.xml"] = pool("dir", "default")
	h.root["etc/libvirt/storage/vg_x.xml"] = file("<pool type='logical'><name>vg_x</name></pool>")
	h.root["run/libvirt/storage/live.xml"] = file("<poolstate>" + strings.NewReplacer("%", "logical", "NAME", "live").Replace(xml) + "</poolstate>")
	f := h.gathered()
	require.NoError(t, f.Pools.Err)
	assert.Equal(t, []Pool{
		{Name: "live", VG: "vg_san", Running: true}, {Name: "san", VG: "vg_san", Autostart: true}, {Name: "vg_x", VG: "vg_x"},
	}, f.Pools.Value)

	h.root["etc/libvirt/storage/bad.xml"] = file("<pool")
	f = h.gathered()
	assert.ErrorContains(t, f.Pools.Err, "/etc/libvirt/storage/bad.xml cannot be read")
	assert.Len(t, f.Pools.Value, 3)
}

func TestGatherUnits(t *testing.T) {
	old := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = old })
	data, err := os.ReadFile("testdata/systemctl-show.txt")
	require.NoError(t, err)
	units := parseUnits(string(data))
	assert.Equal(t, Unit{Name: "virtlvmd.service", Loaded: true, Active: "active", Enabled: "enabled", After: units["virtlvmd.service"].After}, units["virtlvmd.service"])
	assert.False(t, units["virtqemud.service"].Loaded)
	libvirtd := units["libvirtd.service"]
	assert.Equal(t, time.Date(2026, 11, 30, 0, 49, 12, 0, time.UTC), libvirtd.Reloaded)
	assert.Contains(t, libvirtd.After, "virtlvmd.service")

	h := newHost(t)
	none := runtest.New(t)
	none.ExpectLine(systemctlLine()).Exit(1).Stderr("System has not been booted with systemd as init system (PID 1). Can't operate.\n")
	h.Runner = none
	assert.ErrorContains(t, h.gathered().Units.Err, "Can't operate")
}

func TestChecker(t *testing.T) {
	h := newHost(t)
	c := New(h.Sources, h)
	r, err := c.Check(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "kvm-a", r.Host)
	assert.Equal(t, 1, r.HostID)
	assert.Len(t, r.Results, len(All()))
	assert.ElementsMatch(t, []string{"kvm-b", "kvm-c"}, h.asked)

	h.asked = nil
	_, err = c.CheckFor(t.Context(), "kvm-b")
	require.NoError(t, err)
	assert.Equal(t, []string{"kvm-b"}, h.asked, "the way to who asks, and no other")

	reports, err := c.Cluster(t.Context())
	require.NoError(t, err)
	require.Len(t, reports, 3)
	assert.Equal(t, "kvm-a", reports[0].Host)
	assert.Equal(t, "kvm-b", reports[1].Host, "whatever it calls itself")
	assert.Equal(t, "GET /v1/peer/check", reports[1].Version)
	assert.Equal(t, Silent("kvm-c", errBroken), reports[2])

	// One at a time; who does not want to wait need not.
	c.turn <- struct{}{}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Check(ended)
	assert.Equal(t, api.KindUnknown, api.KindOf(err))
	<-c.turn
}

func TestFix(t *testing.T) {
	h := newHost(t)
	c := New(h.Sources, h)
	_, err := c.Fix(t.Context(), "lvm.autoactivation:vg_san", "operator uid 0")
	assert.Equal(t, api.KindNotFound, api.KindOf(err), "nothing is wrong")
	assert.Empty(t, h.repaired)

	h.f.san().VG.Autoactivation = true
	done, err := c.Fix(t.Context(), "lvm.autoactivation:vg_san", "operator uid 0")
	require.NoError(t, err)
	assert.Equal(t, int64(7), done.ID)
	assert.Equal(t, []string{"operator uid 0: vgchange --setautoactivation n vg_san"}, h.repaired)

	h.f.san().Started = false
	_, err = c.Fix(t.Context(), "lvm.lockspaces:vg_san", "x")
	assert.ErrorContains(t, err, "still finds what it found before", "exit code 0 is no proof")
}
