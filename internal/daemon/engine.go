package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/lease"
	"virtlvm/internal/locks"
	"virtlvm/internal/lvm"
	"virtlvm/internal/run"
	"virtlvm/internal/spool"
	"virtlvm/internal/version"
)

// newEngine wires the engine to this host.
func (d *Daemon) newEngine() (*activation.Manager, error) {
	cfg := d.config.Load()
	bootID, err := os.ReadFile(filepath.Join(cfg.Paths.Proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return nil, fmt.Errorf("cannot tell this boot from the last: %w", err)
	}
	if d.host, err = hostName(); err != nil {
		return nil, err
	}
	d.counters = newCounters()
	d.peers = d.newPeers()
	d.exec = run.NewExec(run.ExecOptions{Dirs: cfg.Paths.Tools, OutDir: d.outDir()})
	if _, err := d.exec.Sweep(); err != nil {
		d.log.Warn("cannot remove old output files of LVM commands", "err", err)
	}
	boot := strings.TrimSpace(string(bootID))
	runner := meteredRunner{d.exec, d.counters}
	looks := activation.Recorder{
		Runner: runner, Now: time.Now, BootID: boot,
		Timeout: func() time.Duration { return d.config.Load().LVM.Timeout },
	}
	d.observer = guests.New(cfg.Paths.LibvirtRun, cfg.Paths.Proc)
	resolver := &domain.Resolver{Root: cfg.Paths.Root, PoolDirs: cfg.Paths.PoolDirs}
	// lvmlockctl takes turns inside one Reader.
	leases := lease.New(looks, cfg.Paths.Dev, monotonic)
	volumes := lvm.New(looks, cfg.Paths.Sys)
	d.parts = checkParts{volumes, leases, resolver, looks, boot}
	engine := activation.New(activation.Deps{
		Journal: d.store,
		LVM:     volumes,
		Leases:  leases,
		Guests:  d.observer,
		Disks: &domain.Walker{
			Resolver:  resolver,
			Inspector: &domain.Inspector{Runner: looks},
		},
		Definitions: d.definitions,

		Runner: runner,
		Log:    d.log,
		Host:   d.host,
		Peers:  caller{d},

		OtherHosts: d.otherHosts,
		BootID:     boot,
		Now:        time.Now,
		Uptime:     uptime,
		Alive:      run.ProcessAlive,
		Find:       run.FindProcesses,
		Settings:   d.settings,

		Unopened:    d.unopened,
		FenceStatus: d.fenceStatus,
	})
	d.locks = locks.New(locks.Options{
		Engine: engine, Leases: engine.Leases, Peers: caller{d}, Hints: d.store, Attr: volumes.Attr,
		Log: d.log, Host: d.host, Version: version.Version, Now: time.Now, Monotonic: monotonic,
	})
	return engine, nil
}

func (d *Daemon) settings() activation.Settings {
	cfg := d.config.Load()
	return activation.Settings{
		Scope:            cfg.Scope.Includes,
		CommandTimeout:   cfg.LVM.Timeout,
		BootWait:         cfg.Boot.Wait,
		LockstartRetry:   cfg.LVM.LockstartRetry,
		JournalKeep:      cfg.Journal.Keep,
		IsolateLeftovers: cfg.Migration.Isolate,
		Retain:           cfg.Locks.Retain,
		Claims:           cfg.Claims(),
		BreakGlass: func() bool {
			_, err := os.Stat(cfg.Paths.BreakGlass)
			return err == nil
		},
	}
}

func (d *Daemon) outDir() string {
	if d.scratch != "" {
		return d.scratch
	}
	return filepath.Join(d.config.Load().Paths.RunDir, "cmd")
}

func (d *Daemon) spoolDir() string { return filepath.Join(d.config.Load().Paths.StateDir, "spool") }

// drainSpool takes the events that waited on disk.
func (d *Daemon) drainSpool(ctx context.Context) {
	taken, broken, err := spool.Drain(d.spoolDir(), func(call api.HookCall) error {
		d.engine.ReplaySpool(ctx, call)
		return nil
	})
	if err != nil {
		d.log.Error("cannot read all spooled hook events", "err", err)
	}
	if taken+broken > 0 {
		d.log.Info("took spooled hook events", "taken", taken, "set_aside_as_broken", broken)
		d.engine.Kick()
	}
}

// watchSpool takes events spooled while the daemon runs: a hook may give up on a daemon
// that was only slow.
func (d *Daemon) watchSpool(ctx context.Context) {
	const pause = 5 * time.Second
	ticks := time.NewTicker(pause)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			d.drainSpool(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// uptime is the time since boot, as the hook stamps it from /proc/uptime (proc_uptime(5)).
func uptime() time.Duration { return clock(unix.CLOCK_BOOTTIME) }

// monotonic is the clock sanlock counts in, from boot without suspend.
func monotonic() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(err) // these clocks are part of every Linux
	}
	return time.Duration(ts.Nano())
}
