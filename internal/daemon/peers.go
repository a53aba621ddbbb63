package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/peer"
)

// sanlockConf names this host for the lockspaces (our_host_name, sanlock(8)), and so for
// its peers: a holder read from a lease has this name.
const sanlockConf = "/etc/sanlock/sanlock.conf"

// hostName is this host's name among its peers.
func hostName() (string, error) {
	// Tests and the demo run several hosts on one machine.
	if name := os.Getenv("VIRTLVM_HOST_NAME"); name != "" {
		return name, nil
	}
	if name := ourHostName(sanlockConf); name != "" {
		return name, nil
	}
	return os.Hostname()
}

// ourHostName reads our_host_name from a sanlock.conf; "" where it is not set.
func ourHostName(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), "=")
		if ok && strings.TrimSpace(key) == "our_host_name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// newPeers makes the connections to other hosts; none is opened yet.
func (d *Daemon) newPeers() *peer.Peers {
	return peer.New(peer.Options{
		Self: func() string { return d.host },
		Discover: func(ctx context.Context) ([]string, error) {
			live, err := d.engine.LiveHosts(ctx)
			if len(live) > 0 {
				err = nil // 'virtlvm status' tells which lockspace cannot be read
			}
			return append(live, members(d.config.Load())...), err
		},
		Observe: d.counters.called,
		Log:     d.log,
		Config: func() peer.Config {
			cfg := d.config.Load().Peers
			return peer.Config{
				Discover: cfg.Discover, Hosts: cfg.Hosts, SSHDir: cfg.SSHDir,
				ConnectTimeout: cfg.ConnectTimeout, CallTimeout: cfg.CallTimeout, Parallel: cfg.Parallel,
			}
		},
	})
}

// caller makes the calls of other hosts, for the engine and the lock manager.
type caller struct{ d *Daemon }

// Names implements locks.Peers.
func (c caller) Names(ctx context.Context) ([]string, error) {
	peers, err := c.d.peers.List(ctx)
	names := make([]string, len(peers))
	for i, p := range peers {
		names[i] = p.Name
	}
	return names, err
}

// Each implements locks.Peers.
func (c caller) Each(ctx context.Context, names []string, fn func(context.Context, string) error) map[string]error {
	return c.d.peers.Each(ctx, names, fn)
}

// Call implements activation.Peers.
func (c caller) Call(ctx context.Context, host, path string, in, out any) error {
	err := c.d.peers.Do(ctx, host, http.MethodPost, path, in, out)
	var said *peer.RemoteError
	// Of claims the engine hears by itself, with the boot that they come from.
	if path != api.RoutePeerClaims && (err == nil || errors.As(err, &said)) {
		if herr := c.d.engine.Heard(ctx, host); herr != nil {
			c.d.log.Error("a host has answered that was declared fenced", "host", host, "err", herr)
		}
	}
	return err
}

// listPeers answers who the other hosts are.
func (d *Daemon) listPeers(ctx context.Context) (api.Peers, error) {
	peers, err := d.peers.List(ctx)
	cfg := d.config.Load().Peers
	answer := api.Peers{
		Host: d.host, Peers: peers, SSHDir: cfg.SSHDir,
		ConnectTimeout: cfg.ConnectTimeout, CallTimeout: cfg.CallTimeout,
	}
	if err != nil {
		answer.Problem = err.Error()
	}
	return answer, nil
}

// peerAllowed is nil for a host that is one of the cluster: listed in the configuration, or
// alive in a lockspace of ours. Its key alone is not enough once it has left.
func (d *Daemon) peerAllowed(ctx context.Context, name string) error {
	if name == d.host {
		return api.NewError(api.KindForbidden, name+" is this host's own name; correct --peer in its authorized_keys, or the name of the host that calls")
	}
	cfg := d.config.Load()
	if _, listed := cfg.Peers.Hosts[name]; listed || slices.Contains(members(cfg), name) {
		return nil
	}
	live, err := d.liveHosts(ctx)
	if err != nil && !slices.Contains(live, name) && d.engine.AwaitReady(ctx) == nil { // this daemon has just been started
		live, err = d.liveHosts(ctx)
	}
	switch {
	case slices.Contains(live, name):
		return nil
	case err != nil:
		return api.NewError(api.KindLocking, fmt.Sprintf("cannot tell whether %s is a host of the cluster: %v", name, err))
	}
	return api.NewError(api.KindForbidden, fmt.Sprintf("%s is no live host of a lockspace of %s (%s)", name, d.host, strings.Join(live, ", ")))
}

// otherHosts are the hosts that can be asked: those of the configuration, and the live ones
// of the lockspaces.
func (d *Daemon) otherHosts(ctx context.Context) []string {
	cfg := d.config.Load()
	names := append(slices.Collect(maps.Keys(cfg.Peers.Hosts)), members(cfg)...)
	if cfg.Peers.Discover {
		live, err := d.liveHosts(ctx)
		if err != nil && len(live) == 0 {
			d.log.Warn("not all peers are known", "err", err)
		}
		names = append(names, live...)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == d.host })
}

// liveFor is how long a list of live hosts is good for: asking sanlock takes a while, and
// a host asks several things in a row.
const liveFor = 10 * time.Second

// liveHosts are the live hosts of the lockspaces; with an error there may be more.
func (d *Daemon) liveHosts(ctx context.Context) ([]string, error) {
	d.live.mu.Lock()
	defer d.live.mu.Unlock()
	if time.Since(d.live.at) < liveFor {
		return d.live.names, d.live.more
	}
	names, err := d.engine.LiveHosts(ctx)
	if err == nil || len(names) > 0 {
		d.live.names, d.live.more, d.live.at = names, err, time.Now()
	}
	return names, err
}
