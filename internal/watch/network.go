package watch

import (
	"context"
	"log/slog"
	"net/netip"
	"time"
)

// Pace of the watch.
const (
	// learnPause is how old the known way to a host may be: routes change without a link or
	// an address going away.
	learnPause = 30 * time.Second
	retryPause = 10 * time.Second // between two tries to listen to the kernel
)

// Network watches the ways to some hosts.
type Network struct {
	// Hosts are those whose ways are watched now, with their addresses.
	Hosts func(context.Context) map[string][]netip.Addr
	// Lost is told that a link or an address on the way to a host has gone.
	Lost func(host string)
	// Back is told that a link or an address has come.
	Back  func()
	Log   *slog.Logger
	After func(time.Duration) <-chan time.Time // default time.After

	kernel kernel           // default the kernel of this host
	ways   map[string][]way // by host
}

// way is how this host sends to another: by a link, from an address.
type way struct {
	link   int
	source netip.Addr
}

// change is what the kernel has told.
type change struct {
	link int
	addr netip.Addr // invalid: the link as a whole
	gone bool
}

// touches reports whether a change is on the way.
func (w way) touches(c change) bool {
	return w.link == c.link && (!c.addr.IsValid() || c.addr == w.source)
}

// kernel is what is needed of one.
type kernel interface {
	// subscribe tells changes until done is closed. The channel is closed when some may have
	// been missed.
	subscribe(done <-chan struct{}) (<-chan change, error)
	route(to netip.Addr) (way, error)
	// whole reports whether the way's link and address are there.
	whole(way) (bool, error)
}

// Run watches until ctx ends.
func (n *Network) Run(ctx context.Context) {
	if n.After == nil {
		n.After = time.After
	}
	if n.kernel == nil {
		n.kernel = rtnetlink{}
	}
	n.ways = map[string][]way{}
	for ctx.Err() == nil {
		if err := n.listen(ctx); err != nil {
			n.Log.Warn("cannot listen to changes of the network; tried again", "err", err)
			select {
			case <-n.After(retryPause):
			case <-ctx.Done():
			}
		}
	}
}

// listen listens until the kernel may have dropped something.
func (n *Network) listen(ctx context.Context) error {
	done := make(chan struct{})
	defer close(done)
	changes, err := n.kernel.subscribe(done)
	// What happened while nobody listened.
	n.rescan()
	if err != nil {
		return err
	}
	n.learn(ctx)
	for {
		select {
		case c, open := <-changes:
			if !open {
				n.Log.Debug("changes of the network may have been missed; looked at again")
				return nil
			}
			n.take(c)
		case <-n.After(learnPause):
			n.learn(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

func (n *Network) take(c change) {
	if !c.gone {
		n.Back()
		return
	}
	for host, ways := range n.ways {
		for _, w := range ways {
			if w.touches(c) {
				n.Lost(host)
				break
			}
		}
	}
}

// rescan looks whether the known ways are whole.
func (n *Network) rescan() {
	for host, ways := range n.ways {
		for _, w := range ways {
			if whole, err := n.kernel.whole(w); err == nil && !whole {
				n.Lost(host)
				break
			}
		}
	}
}

// learn finds the ways anew. A host that cannot be routed to just now keeps its old ones.
func (n *Network) learn(ctx context.Context) {
	hosts := n.Hosts(ctx)
	for host := range n.ways {
		if _, wanted := hosts[host]; !wanted {
			delete(n.ways, host)
		}
	}
	for host, addrs := range hosts {
		var ways []way
		for _, addr := range addrs {
			if w, err := n.kernel.route(addr); err == nil {
				ways = append(ways, w)
			}
		}
		if len(ways) > 0 {
			n.ways[host] = ways
		}
	}
}
