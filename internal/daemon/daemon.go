// Package daemon wires virtlvmd together: configuration, sockets (from systemd or its
// own), database, engine, server, signals and systemd's notifications.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/config"
	"virtlvm/internal/guests"
	"virtlvm/internal/locks"
	"virtlvm/internal/peer"
	"virtlvm/internal/run"
	"virtlvm/internal/server"
	"virtlvm/internal/spool"
	"virtlvm/internal/store"
	"virtlvm/internal/version"
)

// stopPatience bounds a clean stop: what an LVM command has not finished by then goes on
// without us and is looked at by the next daemon. downPatience is for what is given up
// while the host goes down; both are within the unit's TimeoutStopSec.
const (
	stopPatience = 30 * time.Second
	downPatience = 45 * time.Second
)

// Daemon is virtlvmd.
type Daemon struct {
	configPath string
	config     atomic.Pointer[config.Config]
	level      slog.LevelVar
	log        *slog.Logger
	store      *store.Store
	engine     *activation.Manager
	locks      *locks.Locks
	exec       *run.Exec
	counters   *counters
	observer   *guests.Observer
	peers      *peer.Peers
	jobs       *backend.Jobs
	commands   *command.Manager
	looked     chan struct{} // closed when nothing of the commands runs any more
	host       string        // this host's name among its peers
	booted     atomic.Bool   // lockspaces are started, or were long enough ago
	live       struct {
		mu    sync.Mutex
		names []string
		more  error // why there may be others
		at    time.Time
	}
	site    site // fence_status
	servers []*http.Server
	parts   checkParts
	scratch string // the output of programs goes here where no daemon runs
}

// Run runs the daemon until SIGTERM or SIGINT. Errors: a configuration that is refused,
// sockets that cannot be had, a database of a newer version.
func Run(configPath string) error {
	d := &Daemon{configPath: configPath}
	d.log = newLogger(&d.level)
	cfg, err := config.Load(configPath)
	if err != nil {
		return err
	}
	d.config.Store(cfg)
	d.level.Set(cfg.Log.Level)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := d.start(ctx); err != nil {
		return err
	}
	d.notify(sd.SdNotifyReady)
	d.log.Info("ready", "version", version.Version, "commit", version.Commit, "schema", store.SchemaVersion())
	for s := range signals {
		if s == syscall.SIGHUP {
			d.reload()
			continue
		}
		break
	}
	return d.stop(cancel, stopPatience)
}

// start opens everything in the order that keeps old events from being taken for new
// ones: holds, spool, then the sockets.
func (d *Daemon) start(ctx context.Context) error {
	cfg := d.config.Load()
	for _, dir := range []string{cfg.Paths.StateDir, cfg.Paths.RunDir, d.outDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // sockets in it are for everybody; files in it have their own modes
			// A full or read-only disk must not keep guests from being released.
			d.log.Error("cannot make a directory", "err", err)
		}
	}
	listeners, err := listen(cfg)
	if err != nil {
		return err
	}
	d.store = store.New(store.Options{
		Path:   filepath.Join(cfg.Paths.StateDir, "virtlvm.db"),
		Notice: func(text string) { d.log.Error("database", "notice", text) },
	})
	if err := d.store.Open(ctx); err != nil {
		var newer *store.NewerSchemaError
		if errors.As(err, &newer) {
			return err
		}
		d.log.Error("no database: starts are refused until it works, guests that stop are released", "err", err)
	}
	if d.engine, err = d.newEngine(); err != nil {
		return err
	}
	if err := d.writeHookSettings(); err != nil {
		d.log.Error("cannot tell the hook its settings; it uses its defaults", "err", err)
	}
	d.engine.Load(ctx)
	d.jobs = d.newJobs()
	d.commands = d.newCommands()
	if err := d.commands.Resume(ctx); err != nil {
		d.log.Error("cannot read the commands; none is taken until it works", "err", err)
	}
	d.drainSpool(ctx)
	d.serve(listeners)
	d.background(ctx)
	return nil
}

func (d *Daemon) serve(listeners map[net.Listener]string) {
	srv := server.New(server.Options{
		Engine: meteredEngine{d.engine, d.counters}, Metrics: d.writeMetrics, Commands: d.commands, Journal: d.store, Log: d.log, Spool: d.countSpool,
		Version: api.Version{
			Version: version.Version, Commit: version.Commit, Schema: store.SchemaVersion(),
			ProtocolMajor: api.ProtocolMajor, ProtocolMinor: api.ProtocolMinor, Host: d.host,
		},
		BootID: d.parts.bootID, Handoff: d.engine, Locks: d.locks, Peers: d.listPeers, PeerAllowed: d.peerAllowed, PeerConns: d.peerConns,
		Checker: d.newChecker(false),
	})
	for l, name := range listeners {
		h := srv.HTTP(name == nameReadWrite)
		if name == namePeer {
			h, l = srv.HTTPPeer(), server.PeerListener(l)
		}
		d.servers = append(d.servers, h)
		go func() {
			if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				d.log.Error("cannot serve a socket", "socket", l.Addr(), "err", err)
			}
		}()
	}
}

// background starts what runs beside the server.
func (d *Daemon) background(ctx context.Context) {
	interval := d.config.Load().Reconcile.Interval
	go d.engine.Run(ctx, interval)
	go d.startLockspaces(ctx)
	go d.watchSpool(ctx)
	go d.locks.WatchHosts(ctx)
	go d.watchDevices(ctx)
	go d.watchLibvirt(ctx)
	go d.writeTextfiles(ctx)
	go d.watchdog(ctx)
	d.looked = make(chan struct{})
	go func() {
		defer close(d.looked)
		d.commands.Run(ctx)
	}()
	go d.watchNetwork(ctx)
	go d.sweepJobs(ctx, d.jobs)
	changed := make(chan struct{}, 1)
	go func() {
		if err := d.observer.Watch(ctx, changed); err != nil && ctx.Err() == nil {
			d.log.Error("cannot watch the guests; they are looked at periodically", "err", err)
		}
	}()
	go func() {
		for {
			select {
			case <-changed:
				d.engine.Kick()
			case <-ctx.Done():
				return
			}
		}
	}()
}

// stop ends cleanly: no new calls, running ones get their verdict, LVM commands finish
// or are left recorded, when patience is over.
func (d *Daemon) stop(cancel context.CancelFunc, patience time.Duration) error {
	d.notify(sd.SdNotifyStopping)
	d.log.Info("stopping")
	ctx, done := context.WithTimeout(context.Background(), patience)
	defer done()
	var err error
	for _, s := range d.servers {
		err = errors.Join(err, s.Shutdown(ctx))
	}
	// Hooks have a deadline of their own: what the sockets have used up does not count.
	d.commands.Stop(context.Background())
	cancel()
	select {
	case <-d.looked:
	case <-ctx.Done():
	}
	if d.hostGoesDown() {
		down, done := context.WithTimeout(context.Background(), downPatience)
		defer done()
		d.engine.Shutdown(down)
	}
	d.engine.Drain(ctx)
	d.peers.Close()
	return errors.Join(err, d.store.Close())
}

// reload reads the configuration again. A bad one is refused and the old one stays.
func (d *Daemon) reload() {
	d.notify(reloading())
	defer d.notify(sd.SdNotifyReady)
	cfg, err := config.Load(d.configPath)
	if err != nil {
		d.log.Error("the configuration is refused; the old one stays", "err", err)
		return
	}
	old := d.config.Load()
	if fmt.Sprint(cfg.Paths) != fmt.Sprint(old.Paths) || cfg.Reconcile != old.Reconcile {
		d.log.Warn("changes of [paths] and [reconcile] take effect at the next restart")
		cfg.Paths = old.Paths
	}
	d.config.Store(cfg)
	d.level.Set(cfg.Log.Level)
	if err := d.writeHookSettings(); err != nil {
		d.log.Error("cannot tell the hook its settings", "err", err)
	}
	d.engine.Kick()
	d.log.Info("configuration reloaded", "file", d.configPath)
}

func (d *Daemon) countSpool() api.SpoolSummary {
	l, err := spool.List(d.spoolDir())
	if err != nil {
		d.log.Warn("cannot list the spool", "err", err)
	}
	return api.SpoolSummary{Waiting: len(l.Waiting), Broken: len(l.Broken)}
}
