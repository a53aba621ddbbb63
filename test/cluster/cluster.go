// Package cluster runs the engines of many hosts in one process: the real activation
// engine, LVM, lease and guest code and database, on the fake SAN and a fake libvirt whose
// hook calls go to the engine directly. Everything is in a folder of the test.
package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/locks"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// orphanPID stands for the process of Host.orphan.
const orphanPID = 77

// TB is what a cluster needs of its test: a *testing.T, or a *rapid.T.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	FailNow()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Context() context.Context
}

// Cluster is a SAN and its hosts.
type Cluster struct {
	T     TB
	SAN   *san.SAN
	Hosts map[string]*Host
	// Cut says whether a call between two hosts is lost, Lost whether its answer is; nil: none.
	Cut, Lost func(from, to, path string) bool
	// Tamper changes what a host answers another; nil: nothing is.
	Tamper func(path string, answer any) (any, error)
	// At is told of each place where a daemon touches the world: it may wait there, or kill
	// the daemon. Nil: nobody is told. See Point.
	At func(ctx context.Context, d *Daemon, p Point)
	// Spy is told of each hook call; may be nil.
	Spy func(host string, call fakevirt.HookCall)
	// Granted is told of the domain that a `migrate` hook gives back; may be nil.
	Granted func(host, guest string, xml []byte)
	// Pause is told where several operations may go on at the same time: when a daemon has
	// died, or a hook has waited long enough. It may wait. Nil: nobody is told.
	Pause func(ctx context.Context, what string)
	// Net carries the calls between hosts; nil: they go straight to the other engine.
	Net Net
	o   Options

	watch  sync.Mutex
	guests map[string]Guest                      // those that are watched, by name
	runs   map[string]map[string]fakevirt.Change // status files by host and guest
	skew   atomic.Int64                          // nanoseconds that the clock runs ahead
}

// Options of a cluster.
type Options struct {
	Hosts []string
	VGs   []san.VGSpec // default vg_san and the plain vg_plain
	// Memory keeps the journals in memory, which costs less than SQLite, and asks the SAN
	// for devices instead of reading /sys; see memory.go.
	Memory bool
	// Timeout of one LVM command; default 20 s.
	Timeout time.Duration
	// Patience of a hook with a daemon that is down, or does not answer; 0: it gives up at
	// once where the daemon is down, and never where it is slow.
	Patience time.Duration
	// Lock is fakevirt's; nil: its own.
	Lock func(host, name string) (unlock func(), err error)
	// Documents are fakevirt's; nil: the cluster's own.
	Documents *fakevirt.Documents
	// Changed is told of what fakevirt changes; see fakevirt.Options.
	Changed func(host string, c fakevirt.Change)
	// After is the engines' clock; nil: time.After.
	After func(d *Daemon, pause time.Duration) <-chan time.Time
	// Break replaces what an engine is given, and Tamper what a hook tells it, to see that
	// the tests notice; may be nil.
	Break  func(d *Daemon, deps *activation.Deps)
	Tamper func(h *Host, call *api.HookCall)
}

// Host is one host: its libvirt, and its daemon while that runs.
type Host struct {
	Name string
	LVM  *san.Host
	Virt *fakevirt.Host
	// Skew is how far its wall clock is from the others'.
	Skew time.Duration

	c        *Cluster
	dir      string
	qemus    *fakevirt.InProcess
	boot     int
	libvirtd uint64 // start time of its libvirtd
	log      *lockedBuffer
	scope    func(string) bool
	// timeout of one LVM command.
	timeout time.Duration
	// mortal, where not nil, stands between the next daemon and what it changes, so that a
	// test can end it half-way.
	mortal mortal
	// orphan is a command of an earlier daemon that still runs, nil when there is none.
	orphan  func() []string
	glass   atomic.Bool
	retain  atomic.Bool     // [locks] release = "retain"
	others  func() []string // the hosts it knows
	isolate atomic.Bool
	ahead   time.Duration // of the clock that it tells others
	// members of each VG with unsafe_claims; fenceStatus is the site's command.
	members     map[string][]string
	fenceStatus func(host string) (bool, error)
	programs    programs // those that the daemon has run
	memory      *Memory  // the journal, where that is in memory
	mu          sync.Mutex
	daemon      *Daemon       // nil: it is down
	up          chan struct{} // closed when it comes up
	spool       []api.HookCall
}

// New makes a cluster with the shared VG vg_san, the plain VG vg_plain and running
// daemons.
func New(t TB, hosts ...string) *Cluster {
	t.Helper()
	c := NewWith(t, Options{Hosts: hosts})
	for _, name := range hosts {
		c.Hosts[name].StartDaemon()
	}
	return c
}

// NewWith makes a cluster whose daemons are down.
func NewWith(t TB, o Options) *Cluster {
	t.Helper()
	if o.VGs == nil {
		o.VGs = []san.VGSpec{{Name: "vg_san"}, {Name: "vg_plain", LockType: san.LockNone}}
	}
	if o.Documents == nil {
		o.Documents = fakevirt.NewDocuments()
	}
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	c := &Cluster{T: t, Hosts: map[string]*Host{}, o: o, guests: map[string]Guest{}, runs: map[string]map[string]fakevirt.Change{}}
	dir := scratch(t)
	var err error
	c.SAN, err = san.Create(filepath.Join(dir, "san"), san.Options{Hosts: o.Hosts, VGs: o.VGs, Now: c.Now, Alone: true})
	require.NoError(t, err)
	c.SAN.Now = c.Now
	t.Cleanup(func() { _ = c.SAN.Close() })
	for _, name := range o.Hosts {
		c.Hosts[name] = c.newHost(name)
	}
	return c
}

// scratch is a folder in memory where there is one: the databases of many hosts, synced at
// every step, would wait for a disk most of the time.
func scratch(t TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "virtlvm-cluster-")
	if err != nil {
		dir, err = os.MkdirTemp("", "virtlvm-cluster-")
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Now is the cluster's clock: real time, moved ahead by Advance.
func (c *Cluster) Now() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) }

// Advance moves the clock ahead.
func (c *Cluster) Advance(d time.Duration) { c.skew.Add(int64(d)) }

func (c *Cluster) newHost(name string) *Host {
	h := &Host{
		Name: name, c: c, boot: 1, libvirtd: 1, log: &lockedBuffer{}, timeout: c.o.Timeout, memory: &Memory{},
		orphan: func() []string { return nil }, scope: func(string) bool { return true }, up: make(chan struct{}),
		others:      func() []string { return []string{"another"} },
		fenceStatus: func(string) (bool, error) { return false, nil },
	}
	var err error
	h.LVM, err = c.SAN.Host(name)
	require.NoError(c.T, err)
	h.dir = h.LVM.Dir()
	h.qemus = fakevirt.NewInProcess(filepath.Join(h.dir, "proc"))
	o := fakevirt.Options{Name: name, Dir: h.dir, Hook: h.hook, Launcher: h.qemus, Documents: c.o.Documents}
	if c.o.Lock != nil {
		o.Lock = func(lock string) (func(), error) { return c.o.Lock(name, lock) }
	}
	o.Changed = func(change fakevirt.Change) {
		c.changed(name, change)
		if c.o.Changed != nil {
			c.o.Changed(name, change)
		}
	}
	h.Virt, err = fakevirt.New(o)
	require.NoError(c.T, err)
	c.T.Cleanup(func() {
		h.StopDaemon()
		if c.T.Failed() {
			c.T.Logf("log of %s:\n%s", name, h.log.String())
		}
	})
	return h
}

// now is the host's wall clock.
func (h *Host) now() time.Time { return h.c.Now().Add(h.Skew) }

// Engine of the running daemon.
func (h *Host) Engine() *activation.Manager {
	d := h.Daemon()
	require.NotNil(h.c.T, d, "the daemon of %s is down", h.Name)
	return d.engine
}

// Locks is the lock manager of the running daemon.
func (h *Host) Locks() *locks.Locks {
	d := h.Daemon()
	require.NotNil(h.c.T, d, "the daemon of %s is down", h.Name)
	return d.locks
}

// Store of the running daemon.
func (h *Host) Store() *store.Store { return h.Daemon().store }

// Daemon is the running daemon, nil where it is down.
func (h *Host) Daemon() *Daemon {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.daemon
}

func (h *Host) bootID() string { return fmt.Sprintf("%s-boot-%d", h.Name, h.boot) }

// uptime is the same clock for libvirt's hooks and the daemon; it begins high, as on a
// host that has been up for long.
func (h *Host) uptime() time.Duration {
	return time.Hour + h.c.Now().Sub(time.Unix(0, 0))%(24*time.Hour)
}

// PowerCut kills the host: daemon, guests, local locks; its leases stay.
func (h *Host) PowerCut() {
	h.StopDaemon()
	h.qemus.EndAll()
	require.NoError(h.c.T, h.LVM.Crash())
	require.NoError(h.c.T, os.RemoveAll(h.Virt.RunDir()))
	h.c.watch.Lock()
	defer h.c.watch.Unlock()
	delete(h.c.runs, h.Name)
}

// Boot brings the host back with its lockspaces started and its daemon running.
func (h *Host) Boot() {
	h.PowerOn()
	h.StartDaemon()
}

// PowerOn is Boot without the daemon.
func (h *Host) PowerOn() {
	h.boot++
	require.NoError(h.c.T, h.LVM.Reboot())
	require.NoError(h.c.T, os.MkdirAll(h.Virt.RunDir(), 0o750))
	for _, vg := range h.c.o.VGs {
		require.NoError(h.c.T, h.LVM.LockStart(vg.Name))
	}
}

// RestartLibvirtd is `systemctl restart libvirtd`.
func (h *Host) RestartLibvirtd(ctx context.Context) error {
	h.mu.Lock()
	h.libvirtd++
	h.mu.Unlock()
	return h.Virt.Reconnect(ctx)
}

// Run runs an LVM command on the host as an operator would.
func (h *Host) Run(argv ...string) (string, error) {
	return h.RunContext(context.Background(), argv...)
}

// RunContext is Run with a context.
func (h *Host) RunContext(ctx context.Context, argv ...string) (string, error) {
	res, err := h.LVM.Runner().Run(ctx, run.Cmd{Name: argv[0], Args: argv[1:]})
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
