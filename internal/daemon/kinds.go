package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/kinds"
)

// newJobs makes what runs programs outside of the daemon.
func (d *Daemon) newJobs() *backend.Jobs {
	cfg := d.config.Load()
	return backend.New(backend.Options{
		Dir: filepath.Join(cfg.Paths.StateDir, "jobs"), BootID: d.engine.BootID,
		Path: cfg.Paths.Tools, Units: backend.Systemd{}, Now: time.Now,
	})
}

// newKinds wires the kinds of long-running commands to this host. The engine must be there.
func (d *Daemon) newKinds(jobs *backend.Jobs) map[string]command.Kind {
	cfg := d.config.Load()
	runner := meteredRunner{d.exec, d.counters}
	return kinds.All(kinds.Deps{
		Engine:      d.engine,
		Jobs:        jobs,
		Virt:        d.newVirt(),
		Guests:      d.observer,
		Definitions: d.definitions,
		Resolver:    &domain.Resolver{Root: cfg.Paths.Root, PoolDirs: cfg.Paths.PoolDirs},
		Images:      kinds.QemuImg{Inspector: &domain.Inspector{Runner: runner}, Runner: runner},
		Peers:       caller{d},
		Locks:       d.locks,
		Host:        d.host,
		URI:         d.libvirtURI,
		ZeroFirst:   func(vg string) bool { return d.config.Load().Volumes.ZeroFirst(vg) },
		Now:         time.Now,
		Writable:    writable,
		Log:         d.log,
	})
}

// writable is nil if a file that is made in a folder by this daemon, or by a job of its, is
// there for the other, too: systemd keeps some from the daemon.
func writable(dir string) error {
	for _, private := range []string{"/tmp", "/var/tmp"} {
		if dir == private || strings.HasPrefix(dir, private+"/") {
			return fmt.Errorf("virtlvmd has a %s of its own", private)
		}
	}
	return unix.Access(dir, unix.W_OK)
}

func (d *Daemon) definitions() ([]*domain.Domain, error) {
	paths := d.config.Load().Paths
	all, err := domain.ReadDefinitions(paths.Definitions)
	if err != nil {
		return nil, err
	}
	return all, domain.MarkSaved(all, paths.ManagedSave)
}

// libvirtURI is where libvirt on another host is reached: by ssh, as this host's libvirt
// does it for `virsh migrate`, at the address that the daemon has for the host. ssh must
// not ask for anything: nobody would answer.
func (d *Daemon) libvirtURI(ctx context.Context, host string) (string, error) {
	all, err := d.peers.List(ctx)
	for _, p := range all {
		if p.Name != host {
			continue
		}
		t, err := api.ParseTarget(p.URL)
		if err != nil || t.Socket != "" {
			return "", api.NewError(api.KindBadRequest, fmt.Sprintf("host %s is reached by %s, which is nothing to libvirt; name its libvirt with --uri", host, p.URL))
		}
		return "qemu+" + t.String() + "/system?no_tty=1", nil
	}
	if err != nil {
		return "", api.NewError(api.KindLocking, fmt.Sprintf("cannot tell whether %s is a host of the cluster: %v", host, err))
	}
	return "", api.NewError(api.KindNotFound, fmt.Sprintf("%s is no host that this one knows; 'virtlvm peer list' lists them", host))
}

// sweepJobs removes what is left of jobs whose command has ended and is known to have, from
// time to time.
func (d *Daemon) sweepJobs(ctx context.Context, jobs *backend.Jobs) {
	const pause = 10 * time.Minute
	for {
		if err := d.collectJobs(ctx, jobs); err != nil && ctx.Err() == nil {
			d.log.Warn("cannot remove what jobs have left; tried again", "err", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

func (d *Daemon) collectJobs(ctx context.Context, jobs *backend.Jobs) error {
	ids, err := jobs.List()
	for _, id := range ids {
		dash := strings.LastIndexByte(id, '-')
		sequence, numErr := strconv.ParseInt(id[dash+1:], 10, 64)
		if dash < 0 || numErr != nil {
			continue // not ours
		}
		// A job without a row belongs to a journal that was begun anew: it is kept.
		e, found, entryErr := d.store.EntryOf(ctx, id[:dash], sequence)
		if entryErr != nil || !found || !e.State.Final() {
			err = errors.Join(err, entryErr)
			continue
		}
		err = errors.Join(err, jobs.Collect(ctx, id))
	}
	return err
}
