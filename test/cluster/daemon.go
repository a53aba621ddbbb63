package cluster

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/locks"
	"virtlvm/internal/lvm"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
	"virtlvm/internal/virt"
)

// Daemon is one life of a host's virtlvmd. All that it is given goes through it, so that
// when it is killed nothing of it goes on: what it does next ends its goroutine.
type Daemon struct {
	Host *Host

	c       *Cluster
	engine  *activation.Manager
	locks   *locks.Locks // nil where the journal is in memory
	store   *store.Store // nil: the journal is in memory
	stop    context.CancelFunc
	done    chan struct{} // closed when its loop has ended
	serving chan struct{} // closed when it takes calls
	dead    chan struct{} // closed by kill
}

// Launch starts the daemon and waits for nothing.
func (h *Host) Launch() *Daemon {
	t := h.c.T
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	d := &Daemon{
		Host: h, c: h.c, stop: stop,
		done: make(chan struct{}), serving: make(chan struct{}), dead: make(chan struct{}),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Nil(t, h.daemon, "the daemon of %s runs", h.Name)
	deps := d.deps()
	if h.c.o.Break != nil {
		h.c.o.Break(d, &deps)
	}
	d.engine = activation.New(deps)
	if d.store != nil {
		d.locks = locks.New(locks.Options{
			Engine: d.engine, Leases: d.engine.Leases, Peers: peers{d}, Hints: d.store, Attr: deps.LVM.(*lvm.LVM).Attr,
			Log: slog.New(slog.NewTextHandler(h.log, nil)), Host: h.Name, Version: "1.2.3", Now: h.c.Now, Monotonic: h.uptime,
		})
	}
	h.daemon = d
	close(h.up)
	go d.run(ctx)
	return d
}

// run is what virtlvmd does: holds, spool, then calls are taken.
func (d *Daemon) run(ctx context.Context) {
	defer close(d.done)
	ctx = d.c.named(ctx, d.Host.Name+" daemon")
	d.engine.Load(ctx)
	d.drainSpool(ctx)
	close(d.serving)
	go d.watchSpool(d.c.named(ctx, d.Host.Name+" spool"))
	d.engine.Run(ctx, time.Minute)
}

// watchSpool takes events that hooks spool while it runs.
func (d *Daemon) watchSpool(ctx context.Context) {
	const pause = 5 * time.Second
	for {
		select {
		case <-d.after(pause):
			d.alive()
			if d.drainSpool(ctx) {
				d.engine.Kick()
			}
		case <-ctx.Done():
			return
		}
	}
}

// drainSpool takes the events that lie in the spool; each stays there until it is taken.
func (d *Daemon) drainSpool(ctx context.Context) (any bool) {
	h := d.Host
	for {
		h.mu.Lock()
		if len(h.spool) == 0 {
			h.mu.Unlock()
			return any
		}
		call := h.spool[0]
		h.mu.Unlock()
		d.engine.ReplaySpool(ctx, call)
		d.alive()
		h.mu.Lock()
		h.spool = h.spool[1:]
		h.mu.Unlock()
		any = true
	}
}

// deps are the engine's, each bound to this life.
func (d *Daemon) deps() activation.Deps {
	h := d.Host
	looks := activation.Recorder{
		Runner: runner{d, "look"}, Now: h.now, BootID: h.bootID(), Timeout: func() time.Duration { return h.timeout },
	}
	deps := activation.Deps{
		Journal: journal{d.openJournal(), d},
		Peers:   peers{d}, OtherHosts: func(context.Context) []string { return h.others() },
		LVM:    lvm.New(looks, h.LVM.SysDir()),
		Leases: leases{h.leases(looks), d},
		Guests: observer{guests.New(h.Virt.RunDir(), filepath.Join(h.dir, "proc")), d},
		Disks: &domain.Walker{
			Resolver:  &domain.Resolver{Root: h.dir, PoolDirs: []string{"/etc/libvirt/storage"}},
			Inspector: &domain.Inspector{Runner: looks},
		},
		Definitions: func() ([]*domain.Domain, error) {
			all, err := domain.ReadDefinitions(filepath.Join(h.dir, "etc/libvirt/qemu"))
			if err != nil {
				return nil, err
			}
			return all, domain.MarkSaved(all, h.savedDir())
		},
		Runner: runner{d, "change"},
		Log:    slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Host:   h.Name, BootID: h.bootID(), Now: h.now, Uptime: h.uptime,
		Alive: d.isAlive, Find: d.find, After: d.after,
		Branch: func(ctx context.Context, what string) context.Context {
			return h.c.named(ctx, h.Name+" "+what)
		},
		Unopened:    h.unopened,
		FenceStatus: func(_ context.Context, host string) (bool, error) { return h.fenceStatus(host) },
		Settings: func() activation.Settings {
			return activation.Settings{
				Scope: h.scope, CommandTimeout: h.timeout, LockstartRetry: 50 * time.Millisecond,
				JournalKeep: time.Hour, BreakGlass: h.glass.Load, IsolateLeftovers: h.isolate.Load(), Retain: h.retain.Load(),
				Claims: h.claims(),
			}
		},
	}
	if h.c.o.Memory {
		deps.LVM = devices{deps.LVM.(*lvm.LVM), h.LVM}
	}
	if h.mortal != nil {
		deps.Runner, deps.Journal = h.mortal.runner(deps.Runner), h.mortal.journal(deps.Journal)
	}
	return deps
}

// unopened reads libvirt's journal as the daemon does, with the real code.
func (h *Host) unopened(ctx context.Context, since time.Time) ([]activation.Unopened, error) {
	found, err := virt.UnopenedSince(ctx, journalctl{h}, since)
	all := make([]activation.Unopened, 0, len(found))
	for _, u := range found {
		all = append(all, activation.Unopened(u))
	}
	return all, err
}

// journalctl is that of a host.
type journalctl struct{ *Host }

func (j journalctl) Run(context.Context, run.Cmd) (run.Result, error) {
	lines, err := j.Virt.Journal()
	return run.Result{Stdout: []byte(lines)}, err
}

func (d *Daemon) openJournal() activation.Journal {
	h := d.Host
	if h.c.o.Memory {
		return h.memory
	}
	state := filepath.Join(h.dir, "state")
	require.NoError(h.c.T, os.MkdirAll(state, 0o750))
	d.store = store.New(store.Options{Path: filepath.Join(state, "virtlvm.db"), Now: h.now})
	return d.store
}

// isAlive knows the processes of this host: its libvirtd, which is the test's own process,
// and the LVM commands, which run in it.
func (d *Daemon) isAlive(pid int, start uint64) bool {
	h := d.Host
	switch {
	case d.gone():
		return false // lets what waits for a process go on, to its end
	case pid == os.Getpid():
		return start == h.libvirtdStart()
	case pid == orphanPID:
		return h.orphan() != nil
	}
	return h.LVM.Alive(pid, start)
}

func (h *Host) libvirtdStart() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.libvirtd
}

func (d *Daemon) find(argv []string) []run.Process {
	if o := d.Host.orphan(); o != nil && equal(o, argv) {
		return []run.Process{{PID: orphanPID}}
	}
	return d.Host.LVM.Find(argv)
}

func (d *Daemon) after(pause time.Duration) <-chan time.Time {
	switch {
	case d.gone():
		now := make(chan time.Time)
		close(now)
		return now
	case d.c.o.After != nil:
		return d.c.o.After(d, pause)
	}
	return time.After(pause)
}

// StartDaemon starts the daemon and waits for its first look.
func (h *Host) StartDaemon() {
	t := h.c.T
	t.Helper()
	d := h.Launch()
	require.Eventually(t, func() bool {
		select {
		case <-d.serving:
			return d.gone() || d.engine.Status(context.Background()).Ready
		default:
			return d.gone()
		}
	}, time.Minute, time.Millisecond)
}

// StopDaemon ends the daemon at once, as kill -9 does: nothing is finished.
func (h *Host) StopDaemon() {
	d := h.Daemon()
	if d == nil {
		return
	}
	d.Kill()
	<-d.done
	if d.store != nil {
		_ = d.store.Close()
	}
}

// Kill is kill -9: nothing that it was about to do is done. It waits for nothing.
func (d *Daemon) Kill() {
	h := d.Host
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.gone() {
		return
	}
	close(d.dead)
	d.stop()
	h.daemon, h.up = nil, make(chan struct{})
}

func (d *Daemon) gone() bool {
	select {
	case <-d.dead:
		return true
	default:
		return false
	}
}

// alive ends the goroutine if the daemon has been killed.
func (d *Daemon) alive() {
	if d.gone() {
		runtime.Goexit()
	}
}

// savedDir is where libvirt keeps managed-save images.
func (h *Host) savedDir() string { return filepath.Join(h.dir, "var/lib/libvirt/qemu/save") }
