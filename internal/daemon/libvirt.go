package daemon

import (
	"context"
	"path/filepath"
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/virt"
)

// watchLibvirt lets the engine look when libvirt says that a running guest's devices have
// changed; the status files, which are watched as well, say how.
func (d *Daemon) watchLibvirt(ctx context.Context) {
	const pause = 5 * time.Second
	d.newVirt().Watch(ctx, d.guestsRun, pause, d.engine.Kick)
}

// newVirt makes the way to libvirt: the status files are in a folder beside its sockets.
func (d *Daemon) newVirt() *virt.Virt {
	return virt.New(virt.Options{Dir: filepath.Dir(d.config.Load().Paths.LibvirtRun)})
}

// guestsRun reports whether libvirt has a guest's status file.
func (d *Daemon) guestsRun() bool {
	files, err := filepath.Glob(filepath.Join(d.config.Load().Paths.LibvirtRun, "*.xml"))
	return err == nil && len(files) > 0
}

// unopened are the paths that libvirt could not open.
func (d *Daemon) unopened(ctx context.Context, since time.Time) ([]activation.Unopened, error) {
	found, err := virt.UnopenedSince(ctx, d.exec, since)
	all := make([]activation.Unopened, 0, len(found))
	for _, u := range found {
		all = append(all, activation.Unopened(u))
	}
	return all, err
}
