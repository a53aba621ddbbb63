package cluster

import (
	"context"

	"virtlvm/internal/lease"
	"virtlvm/internal/run"
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

// leases reads the locks of the host. Names of devices are as on a real one, for commands; which
// there are the SAN knows.
func (h *Host) leases(r run.Runner) *lease.Reader {
	reader := lease.New(r, "/dev", h.uptime)
	reader.Mapper = func() (names []string, err error) {
		devices, err := h.LVM.Devices()
		for _, d := range devices {
			names = append(names, d.Name)
		}
		return names, err
	}
	return reader
}
