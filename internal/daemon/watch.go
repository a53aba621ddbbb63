package daemon

import (
	"context"
	"time"

	"virtlvm/internal/watch"
)

// watchDevices lets the engine look whenever the kernel says that a device-mapper device
// has come, changed or gone. Without the kernel's word it looks periodically.
func (d *Daemon) watchDevices(ctx context.Context) {
	const pause = 10 * time.Second
	changed := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-changed:
				d.engine.DevicesChanged(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		socket, err := watch.Open()
		if err == nil {
			err = watch.Devices(ctx, socket, changed)
		}
		if ctx.Err() != nil {
			return
		}
		d.log.Error("cannot watch devices; they are looked at periodically", "err", err)
		select {
		case <-time.After(pause):
			d.engine.DevicesChanged(ctx) // what was missed
		case <-ctx.Done():
			return
		}
	}
}
