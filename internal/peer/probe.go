package peer

import (
	"context"
	"time"

	"virtlvm/internal/api"
)

// Report is what `virtlvm peer test` says of one host.
type Report struct {
	Version api.Version
	// Connect is how long a new connection took, Latency one question on it.
	Connect, Latency time.Duration
}

// Probe opens a new connection to a host, asks once more on it, and closes it.
func (p *Peers) Probe(ctx context.Context, name string) (r Report, err error) {
	began := time.Now()
	defer func() { p.observe(name, began, err) }()
	l, err := p.link(name)
	if err != nil {
		return r, err
	}
	conn, v, err := l.dial(ctx)
	r = Report{Version: v, Connect: time.Since(began)}
	if err != nil {
		return r, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(l.connect)); err != nil {
		return r, l.unreachable(err.Error(), err)
	}
	asked := time.Now()
	if _, err := l.ask(conn); err != nil {
		return r, l.noVersion(ctx, err)
	}
	r.Latency = time.Since(asked)
	return r, nil
}
