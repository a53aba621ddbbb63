package cluster

import (
	"context"

	"virtlvm/internal/lease"
)

// leases reads locks where the schedule says so: two that come to it at the same moment, since
// one has waked the other, would get lvmlockd's turn as the processor pleases.
type leases struct {
	*lease.Reader
	d *Daemon
}

func (l leases) Local(ctx context.Context) (lease.Local, error) {
	l.d.at(ctx, Point{Kind: "look", What: "locks"})
	return l.Reader.Local(ctx)
}
