package daemon

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
	"virtlvm/internal/watch"
)

// kinds are the commands that go on by themselves, by the names under which they are asked
// for. A host runs and finds out only what it knows.
func (d *Daemon) kinds() map[string]command.Kind {
	return d.newKinds(d.jobs)
}

func (d *Daemon) newCommands() *command.Manager {
	return command.New(command.Options{
		Journal: d.store, Peers: caller{d}, Hosts: lockspaces{d.engine}, Kinds: d.kinds(),
		Host: d.host, BootID: d.engine.BootID, Log: d.log, Now: time.Now, Interval: d.config.Load().Reconcile.Interval,
	})
}

// lockspaces tells from sanlock whether another host is dead.
type lockspaces struct{ engine *activation.Manager }

// Generation implements command.Hosts: "VG=GENERATION" of each lockspace that the host is in.
func (l lockspaces) Generation(ctx context.Context, host string) string {
	// A lockspace that cannot be read says nothing, now and later.
	hosts, _ := l.engine.Hosts(ctx)
	var all []string
	for _, vg := range slices.Sorted(maps.Keys(hosts[host])) {
		if h := hosts[host][vg]; h.State != model.HostDead {
			all = append(all, fmt.Sprintf("%s=%d", vg, h.Gen))
		}
	}
	return strings.Join(all, ",")
}

// Dead implements command.Hosts: sanlock calls the host dead in each lockspace that it was in,
// and it has not joined one again. One that was in none is dead when it counts as fenced.
func (l lockspaces) Dead(ctx context.Context, host, generation string) bool {
	if generation == "" {
		return l.engine.Off(ctx, host)
	}
	hosts, err := l.engine.Hosts(ctx)
	if err != nil {
		return false
	}
	for _, was := range strings.Split(generation, ",") {
		vg, gen, _ := strings.Cut(was, "=")
		h, listed := hosts[host][vg]
		if !listed || fmt.Sprint(h.Gen) != gen || h.State != model.HostDead {
			return false
		}
	}
	return true
}

// peerConns is told how many relays of another host are connected.
func (d *Daemon) peerConns(host string, open int) {
	if open == 0 {
		d.commands.OriginMayBeLost(host, false)
		return
	}
	if open == 1 {
		d.commands.HintHost(host)
	}
}

// watchNetwork looks after links and addresses on the way to origins.
func (d *Daemon) watchNetwork(ctx context.Context) {
	n := watch.Network{
		Hosts: d.originAddresses,
		Lost:  func(host string) { d.commands.OriginMayBeLost(host, true) },
		Back:  d.commands.HintAll,
		Log:   d.log,
	}
	n.Run(ctx)
}

// originAddresses are the addresses of the hosts whose loss would cancel a command here. One
// that cannot be resolved is left out: asking the host tells as well, only later.
func (d *Daemon) originAddresses(ctx context.Context) map[string][]netip.Addr {
	const patience = 3 * time.Second
	all := map[string][]netip.Addr{}
	for _, host := range d.commands.Origins() {
		name := d.peers.Address(host)
		if name == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		cancel()
		if err == nil {
			all[host] = addrs
		}
	}
	return all
}
