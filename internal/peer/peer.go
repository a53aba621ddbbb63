// Package peer reaches the daemons of other hosts: by ssh and the relay there, or by a unix
// socket in tests. It knows who there is, keeps connections open, agrees on the version of
// the protocol, makes sure that the host that answers is the one that was meant, and tells
// a request that was never sent from one whose outcome is not known.
//
// Every error is an *api.Error on one line. Its kind is
//
//	unreachable   nothing was asked, or a question got no answer
//	unknown       a request that changes something may have been received: ask again
//	unsupported   the other host speaks another version of the protocol
//	forbidden     the host that answers is another one, or knows us by another name
//
// or, inside a *RemoteError, whatever the daemon there has answered.
package peer

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"virtlvm/internal/api"
)

// How a peer is known.
const (
	FromConfig  = "config"
	FromSanlock = "sanlock"
)

// Config is what may change while the daemon runs; see [peers] in virtlvm.toml(5).
type Config struct {
	Discover       bool
	Hosts          map[string]string // name -> URL, see api.ParseTarget
	SSHDir         string
	ConnectTimeout time.Duration
	CallTimeout    time.Duration
	Parallel       int
}

// Options are what Peers are given.
type Options struct {
	// Self is this host's name among its peers. Empty: not known, and no peer is called.
	Self func() string
	// Config is read anew for each call.
	Config func() Config
	// Discover lists the live hosts of the lockspaces by their names in sanlock; this host
	// may be among them. May be nil.
	Discover func(context.Context) ([]string, error)
	// Observe is told of every request and every Probe when it ends. May be nil.
	Observe func(name string, took time.Duration, err error)
	Log     *slog.Logger
}

// Peers are the other hosts. Safe for concurrent use.
type Peers struct {
	Options

	mu     sync.Mutex
	closed bool
	links  map[string]*link // by name
}

// New makes Peers. It opens no connection.
func New(o Options) *Peers { return &Peers{Options: o, links: map[string]*link{}} }

// List lists the other hosts by name. With an error, of which each is of kind locking or
// whatever Discover returns, it lists those of the configuration.
func (p *Peers) List(ctx context.Context) ([]api.Peer, error) {
	cfg, self := p.Config(), p.Self()
	found := map[string]api.Peer{}
	for name, url := range cfg.Hosts {
		found[name] = api.Peer{Name: name, URL: url, From: FromConfig}
	}
	var err error
	if cfg.Discover && p.Discover != nil {
		var names []string
		names, err = p.Discover(ctx)
		for _, name := range names {
			// sanlock takes any text for a name; one that ssh could not be given is no peer.
			if _, listed := found[name]; !listed && api.CheckHostName(name) == nil {
				found[name] = api.Peer{Name: name, URL: discoveredURL(name), From: FromSanlock}
			}
		}
	}
	delete(found, self)
	peers := make([]api.Peer, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		peers = append(peers, found[name])
	}
	if err != nil {
		err = fmt.Errorf("cannot list the hosts of the lockspaces: %w", err)
	}
	return peers, err
}

// Names lists the names of the other hosts, sorted. Where they cannot all be found out it
// logs why and lists those of the configuration.
func (p *Peers) Names(ctx context.Context) []string {
	peers, err := p.List(ctx)
	if err != nil {
		p.Log.Warn("not all peers are known", "err", err)
	}
	names := make([]string, len(peers))
	for i, peer := range peers {
		names[i] = peer.Name
	}
	return names
}

// Address is the name or address by which a host is reached; "" where it is by a socket of this
// host, or not known.
func (p *Peers) Address(name string) string {
	target, err := p.target(name, p.Config())
	if err != nil {
		return ""
	}
	return target.Host
}

func discoveredURL(name string) string { return api.Target{User: "root", Host: name}.String() }

// target says where a host is reached.
func (p *Peers) target(name string, cfg Config) (api.Target, error) {
	if err := api.CheckHostName(name); err != nil {
		return api.Target{}, api.NewError(api.KindBadRequest, "cannot reach a peer: "+err.Error())
	}
	switch self := p.Self(); {
	case self == "" || api.CheckHostName(self) != nil:
		return api.Target{}, api.NewError(api.KindUnreachable, fmt.Sprintf("cannot reach %s: this host has no name of its own (%q); set our_host_name in /etc/sanlock/sanlock.conf", name, self))
	case self == name:
		return api.Target{}, api.NewError(api.KindBadRequest, "cannot reach "+name+" as a peer: it is this host")
	}
	url, listed := cfg.Hosts[name]
	if !listed {
		if !cfg.Discover {
			return api.Target{}, api.NewError(api.KindNotFound, fmt.Sprintf("%s is no peer: list it in [peers] hosts of virtlvm.toml", name))
		}
		url = discoveredURL(name)
	}
	target, err := api.ParseTarget(url)
	if err != nil {
		return api.Target{}, api.NewError(api.KindBadRequest, fmt.Sprintf("cannot reach %s: %v; correct [peers] hosts in virtlvm.toml", name, err))
	}
	return target, nil
}

// link finds the connections to a host, or makes a place for them. One whose address or
// settings have changed is replaced.
func (p *Peers) link(name string) (*link, error) {
	cfg := p.Config()
	target, err := p.target(name, cfg)
	if err != nil {
		return nil, err
	}
	want := where{
		name: name, self: p.Self(), target: target,
		sshDir: cfg.SSHDir, connect: cfg.ConnectTimeout,
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, api.NewError(api.KindUnreachable, "cannot reach "+name+": virtlvmd is stopping")
	}
	l, ok := p.links[name]
	if ok && l.where == want {
		return l, nil
	}
	if ok {
		l.retire()
	}
	l = newLink(want)
	p.links[name] = l
	return l, nil
}

func (p *Peers) observe(name string, began time.Time, err error) {
	if p.Observe != nil {
		p.Observe(name, time.Since(began), err)
	}
}

// Close ends all connections and refuses further calls. Calls under way go on until they
// end or their deadline; connections end in the background, at the latest after seconds.
func (p *Peers) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, l := range p.links {
		l.retire()
	}
	p.links = map[string]*link{}
}
