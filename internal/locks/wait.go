package locks

import (
	"context"
	"slices"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// Pauses between two looks at a lease.
const (
	convertPause = 300 * time.Millisecond
	convertTries = 10
	silentPause  = 5 * time.Second
)

// reliable reads who holds a volume until that can be acted on: no lock is just changing
// its mode, and no holder is silent. A silent holder is waited for only if wait says so.
func (l *Locks) reliable(ctx context.Context, v model.Volume, wait bool) ([]model.Holder, error) {
	for try := 1; ; {
		holders, err := l.Leases.Holders(ctx, v.VG, v.LeaseOffset, v.LockLV)
		if err != nil {
			return nil, refused(api.KindLocking, "%s stays where it is, since it cannot be told who holds it: %v", v.Name(), err)
		}
		silent := slices.IndexFunc(holders, func(h model.Holder) bool { return h.State != model.HostLive })
		pause := convertPause
		switch {
		case silent < 0 && !converting(holders):
			return holders, nil
		case silent >= 0:
			h := holders[silent]
			text := v.Name() + " is held " + h.Text(l.Now())
			if !wait {
				return nil, refused(api.KindHeld, "%s; '--wait' waits for that, and nothing forces it", text)
			}
			if pause = silentPause; h.FreeIn > 0 {
				pause = min(pause, time.Duration(h.FreeIn)*time.Second)
			}
			if l.pause(ctx, pause) != nil {
				return nil, refused(api.KindHeld, "%s; it was not waited for any longer", text)
			}
			continue
		}
		if try++; try > convertTries || l.pause(ctx, pause) != nil {
			return nil, refused(api.KindHeld, "%s is being taken exclusively at this moment by one of %s: try again", v.Name(), labels(holders))
		}
	}
}

// holds reports whether a lease names a host, or cannot be read.
func (l *Locks) holds(ctx context.Context, v model.Volume, hostID int) bool {
	holders, err := l.Leases.Holders(ctx, v.VG, v.LeaseOffset, v.LockLV)
	return err != nil || slices.ContainsFunc(holders, func(h model.Holder) bool { return h.HostID == hostID })
}
