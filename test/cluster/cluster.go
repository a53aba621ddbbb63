// Package cluster runs the engines of many hosts in one process: the real activation
// engine, LVM, lease and guest code and database, on the fake SAN and a fake libvirt whose
// hook calls go to the engine directly. Everything is in a folder of the test.
package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/lease"
	"virtlvm/internal/locks"
	"virtlvm/internal/lvm"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// orphanPID stands for the process of Host.orphan.
const orphanPID = 77

// Cluster is a SAN and its hosts.
type Cluster struct {
	T     *testing.T
	SAN   *san.SAN
	Hosts map[string]*Host
	// Cut says whether a call between two hosts is lost, Lost whether its answer is; nil: none.
	Cut, Lost func(from, to, path string) bool
	// Tamper changes what a host answers another; nil: nothing is.
	Tamper func(path string, answer any) (any, error)
	skew   atomic.Int64 // nanoseconds that the clock runs ahead
}

// Host is one host: its libvirt, and its daemon's engine while that runs.
type Host struct {
	Name string
	LVM  *san.Host
	Virt *fakevirt.Host

	c     *Cluster
	dir   string
	qemus *fakevirt.InProcess
	boot  int
	log   *lockedBuffer
	scope func(string) bool
	// timeout of one LVM command.
	timeout time.Duration
	// mortal, where not nil, stands between the next daemon and what it changes, so that a
	// test can end it half-way.
	mortal mortal
	// orphan is a command of an earlier daemon that still runs, nil when there is none.
	orphan   func() []string
	glass    atomic.Bool
	retain   atomic.Bool     // [locks] release = "retain"
	others   func() []string // the hosts it knows
	isolate  atomic.Bool
	skew     time.Duration // of the daemon's clock; set while it is down
	ahead    time.Duration // of the clock that it tells others
	programs programs      // those that the daemon has run
	mu       sync.Mutex
	engine   *activation.Manager // nil: the daemon is down
	locks    *locks.Locks
	store    *store.Store
	stop     context.CancelFunc
	done     chan struct{}
	spool    []api.HookCall
}

// New makes a cluster with the shared VG vg_san, the plain VG vg_plain and running
// daemons.
func New(t *testing.T, hosts ...string) *Cluster {
	t.Helper()
	c := &Cluster{T: t, Hosts: map[string]*Host{}}
	dir := scratch(t)
	var err error
	c.SAN, err = san.Create(filepath.Join(dir, "san"), san.Options{
		Hosts: hosts, VGs: []san.VGSpec{{Name: "vg_san"}, {Name: "vg_plain", LockType: san.LockNone}}, Now: c.Now,
	})
	require.NoError(t, err)
	c.SAN.Now = c.Now
	t.Cleanup(func() { _ = c.SAN.Close() })
	for _, name := range hosts {
		c.Hosts[name] = c.newHost(name)
	}
	for _, name := range hosts {
		c.Hosts[name].StartDaemon()
	}
	return c
}

// scratch is a folder in memory where there is one: the databases of many hosts, synced at
// every step, would wait for a disk most of the time.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "virtlvm-cluster-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Now is the cluster's clock: real time, moved ahead by Advance.
func (c *Cluster) Now() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) }

// Advance moves the clock ahead.
func (c *Cluster) Advance(d time.Duration) { c.skew.Add(int64(d)) }

func (c *Cluster) newHost(name string) *Host {
	h := &Host{Name: name, c: c, boot: 1, log: &lockedBuffer{}, timeout: 2 * time.Second, orphan: func() []string { return nil }, scope: func(string) bool { return true }}
	h.others = func() []string { return []string{"another"} }
	var err error
	h.LVM, err = c.SAN.Host(name)
	require.NoError(c.T, err)
	h.dir = h.LVM.Dir()
	h.qemus = fakevirt.NewInProcess(filepath.Join(h.dir, "proc"))
	h.Virt, err = fakevirt.New(fakevirt.Options{Name: name, Dir: h.dir, Hook: h.hook, Launcher: h.qemus})
	require.NoError(c.T, err)
	c.T.Cleanup(func() {
		h.StopDaemon()
		if c.T.Failed() {
			c.T.Logf("log of %s:\n%s", name, h.log.String())
		}
	})
	return h
}

// StartDaemon starts the engine as virtlvmd does and waits for its first look.
func (h *Host) StartDaemon() {
	t := h.c.T
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Nil(t, h.engine, "the daemon of %s runs", h.Name)
	state := filepath.Join(h.dir, "state")
	require.NoError(t, os.MkdirAll(state, 0o750))
	h.store = store.New(store.Options{Path: filepath.Join(state, "virtlvm.db"), Now: h.now})
	runner, journal := h.programs.noting(h.LVM.Runner()), activation.Journal(h.store)
	if h.mortal != nil {
		runner, journal = h.mortal.runner(runner), h.mortal.journal(journal)
	}
	looks := activation.Recorder{Runner: runner, Now: h.now, BootID: h.bootID(), Timeout: func() time.Duration { return h.timeout }}
	observer := guests.New(h.Virt.RunDir(), filepath.Join(h.dir, "proc"))
	volumes, leases := lvm.New(looks, h.LVM.SysDir()), lease.New(looks, "/dev", h.uptime)
	m := activation.New(activation.Deps{
		Journal: journal, Peers: peers{h}, OtherHosts: func(context.Context) []string { return h.others() },
		LVM:    volumes,
		Leases: leases,
		Guests: observer,
		Disks: &domain.Walker{
			Resolver:  &domain.Resolver{Root: h.dir, PoolDirs: []string{"/etc/libvirt/storage"}},
			Inspector: &domain.Inspector{Runner: looks},
		},
		Definitions: func() ([]*domain.Domain, error) {
			return domain.ReadDefinitions(filepath.Join(h.dir, "etc/libvirt/qemu"))
		},
		Runner: runner,
		Log:    slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Host:   h.Name, BootID: h.bootID(), Now: h.now, Uptime: h.uptime,
		// The libvirtd of a test is the test's own process, its LVM commands run in it.
		Alive: func(pid int, _ uint64) bool {
			return pid == os.Getpid() || pid == orphanPID && h.orphan() != nil
		},
		Find: func(argv []string) []run.Process {
			if slices.Equal(argv, h.orphan()) {
				return []run.Process{{PID: orphanPID}}
			}
			return nil
		},
		Settings: func() activation.Settings {
			return activation.Settings{
				Scope: h.scope, CommandTimeout: h.timeout, LockstartRetry: 50 * time.Millisecond,
				JournalKeep: time.Hour, BreakGlass: h.glass.Load, IsolateLeftovers: h.isolate.Load(), Retain: h.retain.Load(),
			}
		},
	})
	h.locks = locks.New(locks.Options{
		Engine: m, Leases: leases, Peers: peers{h}, Hints: h.store, Attr: volumes.Attr,
		Log: slog.New(slog.NewTextHandler(h.log, nil)), Host: h.Name, Version: "1.2.3", Now: h.c.Now, Monotonic: h.uptime,
	})
	ctx, stop := context.WithCancel(context.Background())
	h.engine, h.stop, h.done = m, stop, make(chan struct{})
	m.Load(ctx)
	for _, call := range h.spool {
		m.ReplaySpool(ctx, call)
	}
	h.spool = nil
	done := h.done
	go func() {
		defer close(done)
		m.Run(ctx, time.Minute)
	}()
	require.Eventually(t, func() bool { return m.Status(ctx).Ready }, 10*time.Second, time.Millisecond)
}

// StopDaemon ends the engine at once, as kill -9 does: nothing is finished.
func (h *Host) StopDaemon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.engine == nil {
		return
	}
	h.stop()
	<-h.done
	_ = h.store.Close()
	h.engine = nil
}

// Engine of the running daemon.
func (h *Host) Engine() *activation.Manager {
	h.mu.Lock()
	defer h.mu.Unlock()
	require.NotNil(h.c.T, h.engine, "the daemon of %s is down", h.Name)
	return h.engine
}

// Locks is the lock manager of the running daemon.
func (h *Host) Locks() *locks.Locks {
	h.mu.Lock()
	defer h.mu.Unlock()
	require.NotNil(h.c.T, h.engine, "the daemon of %s is down", h.Name)
	return h.locks
}

// running is the engine, nil while the daemon is down.
func (h *Host) running() *activation.Manager {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.engine
}

// Store of the running daemon.
func (h *Host) Store() *store.Store {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.store
}

func (h *Host) now() time.Time { return h.c.Now().Add(h.skew) }

func (h *Host) bootID() string { return fmt.Sprintf("%s-boot-%d", h.Name, h.boot) }

// uptime is the same clock for libvirt's hooks and the daemon; it begins high, as on a
// host that has been up for long.
func (h *Host) uptime() time.Duration {
	return time.Hour + h.c.Now().Sub(time.Unix(0, 0))%(24*time.Hour)
}

// hook is what hooks/qemu does, without the process: verdicts, spooling, break-glass.
func (h *Host) hook(ctx context.Context, fc fakevirt.HookCall) fakevirt.HookResult {
	call := api.HookCall{Guest: fc.Guest, Op: fc.Op, SubOp: fc.SubOp, Extra: fc.Extra, XML: fc.XML, Bypassed: h.glass.Load(), Stamp: h.stamp()}
	h.mu.Lock()
	m := h.engine
	if m == nil && !api.Verdicting(fc.Op) {
		if d, err := domain.Parse(fc.XML); err == nil {
			call.UUID = d.UUID
		}
		call.XML = nil
		h.spool = append(h.spool, call)
	}
	h.mu.Unlock()
	switch {
	case m == nil && api.Verdicting(fc.Op) && !call.Bypassed:
		return fakevirt.HookResult{Code: 1, Stderr: "virtlvm: cannot start " + fc.Guest + ": virtlvmd cannot be reached\n"}
	case m == nil:
		return fakevirt.HookResult{}
	}
	v := m.Hook(ctx, call)
	if !v.Allow && api.Verdicting(fc.Op) && !call.Bypassed {
		return fakevirt.HookResult{Code: 1, Stderr: "virtlvm: " + v.Message + "\n"}
	}
	return fakevirt.HookResult{Stdout: string(v.XML)}
}

func (h *Host) stamp() api.Stamp {
	return api.Stamp{BootID: h.bootID(), UptimeMillis: h.uptime().Milliseconds(), LibvirtdPID: os.Getpid(), LibvirtdStart: 1}
}

// PowerCut kills the host: daemon, guests, local locks; its leases stay.
func (h *Host) PowerCut() {
	h.StopDaemon()
	h.qemus.EndAll()
	require.NoError(h.c.T, h.LVM.Crash())
	require.NoError(h.c.T, os.RemoveAll(h.Virt.RunDir()))
}

// Boot brings the host back with its lockspace started.
func (h *Host) Boot() {
	h.boot++
	require.NoError(h.c.T, h.LVM.Reboot())
	require.NoError(h.c.T, os.MkdirAll(h.Virt.RunDir(), 0o750))
	require.NoError(h.c.T, h.LVM.LockStart("vg_san"))
	h.StartDaemon()
}

// Run runs an LVM command on the host as an operator would.
func (h *Host) Run(argv ...string) (string, error) {
	res, err := h.LVM.Runner().Run(context.Background(), run.Cmd{Name: argv[0], Args: argv[1:]})
	return string(res.Stdout) + string(res.Stderr), err
}

// Mode is the lock the host has on a volume of vg_san: "ex", "sh", "un" or "".
func (h *Host) Mode(lv string) string { return h.LVM.LockMode("vg_san", lv) }

// mortal wraps what a daemon changes things by.
type mortal interface {
	runner(run.Runner) run.Runner
	journal(activation.Journal) activation.Journal
}

// lockedBuffer takes the log of a host.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Disk is a disk of a guest for XML.
type Disk struct {
	Path   string // or LV name in vg_san
	Format string // default raw
	Extra  string // further elements, such as <shareable/>
}

// XML makes a domain document.
func XML(name, uuid string, disks ...Disk) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>48</memory><os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\n", name, uuid)
	for i, d := range disks {
		path, format := d.Path, d.Format
		if !strings.HasPrefix(path, "/") {
			path = "/dev/vg_san/" + path
		}
		if format == "" {
			format = "raw"
		}
		fmt.Fprintf(&b, "<disk type='block' device='disk'><driver name='qemu' type='%s' cache='none'/><source dev='%s'/><target dev='vd%c' bus='virtio'/>%s</disk>\n", format, path, 'a'+i%26, d.Extra)
	}
	b.WriteString("</devices></domain>")
	return []byte(b.String())
}

// UUID makes a uuid from a number.
func UUID(n int) string { return fmt.Sprintf("11111111-2222-4333-8444-%012d", n) }
