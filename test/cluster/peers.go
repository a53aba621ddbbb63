package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"virtlvm/internal/api"
)

// peers are the other hosts as one host reaches them: its calls go to their engines, as
// JSON, under its own name.
type peers struct{ from *Host }

// Call implements activation.Peers.
func (p peers) Call(ctx context.Context, host, path string, in, out any) error {
	to, known := p.from.c.Hosts[host]
	cut := p.from.c.Cut
	if !known || cut != nil && cut(p.from.Name, host, path) {
		return api.NewError(api.KindUnreachable, fmt.Sprintf("%s cannot be reached", host))
	}
	to.mu.Lock()
	m := to.engine
	to.mu.Unlock()
	if m == nil {
		return api.NewError(api.KindUnreachable, fmt.Sprintf("virtlvmd on %s cannot be reached", host))
	}
	answer, err := dispatch(ctx, m, p.from.Name, path, in)
	if path == api.RoutePeerHello {
		answer, err = api.Hello{Version: api.Version{Version: "1.2.4", Host: host}, Now: p.from.c.Now().Add(to.ahead)}, nil
	}
	if lost := p.from.c.Lost; lost != nil && lost(p.from.Name, host, path) {
		return api.NewError(api.KindUnknown, host+" may or may not have done it")
	}
	if err == nil && p.from.c.Tamper != nil {
		answer, err = p.from.c.Tamper(path, answer)
	}
	if err != nil {
		return api.NewError(api.KindOf(err), err.Error())
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

// Names implements locks.Peers.
func (p peers) Names(context.Context) ([]string, error) {
	var names []string
	for name := range p.from.c.Hosts {
		if name != p.from.Name {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Each implements locks.Peers.
func (p peers) Each(ctx context.Context, names []string, fn func(context.Context, string) error) map[string]error {
	results := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			err := fn(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			results[name] = err
		})
	}
	all.Wait()
	return results
}

// engine is what peers call.
type engine interface {
	Lend(ctx context.Context, peer string, req api.LendRequest) (api.LendAnswer, error)
	GrantGood(ctx context.Context, peer string, q api.GrantQuery) (api.GrantAnswer, error)
	Writers(ctx context.Context, peer string, q api.WritersQuery) (api.WritersAnswer, error)
	Named(ctx context.Context, peer string, q api.WritersQuery) (api.WritersAnswer, error)
	GuestState(ctx context.Context, peer string, q api.GuestQuery) (api.GuestAnswer, error)
	HandoffSides(ctx context.Context, peer string, q api.HandoffQuery) (api.HandoffAnswer, error)
	Notice(peer string, n api.PeerNotice)
	LocksHere(ctx context.Context, q api.LocksQuery) (api.LocksAnswer, error)
	Release(ctx context.Context, peer string, req api.ReleaseRequest) (api.ReleaseAnswer, error)
	Retain(ctx context.Context, peer string, req api.RetainRequest) (struct{}, error)
}

func dispatch(ctx context.Context, m engine, from, path string, in any) (any, error) {
	switch path {
	case api.RoutePeerLend:
		return m.Lend(ctx, from, in.(api.LendRequest))
	case api.RoutePeerGrant:
		return m.GrantGood(ctx, from, in.(api.GrantQuery))
	case api.RoutePeerWriters:
		return m.Writers(ctx, from, in.(api.WritersQuery))
	case api.RoutePeerNamed:
		return m.Named(ctx, from, in.(api.WritersQuery))
	case api.RoutePeerGuest:
		return m.GuestState(ctx, from, in.(api.GuestQuery))
	case api.RoutePeerHandoff:
		return m.HandoffSides(ctx, from, in.(api.HandoffQuery))
	case api.RoutePeerNotice:
		m.Notice(from, in.(api.PeerNotice))
		return struct{}{}, nil
	case api.RoutePeerLocks:
		return m.LocksHere(ctx, in.(api.LocksQuery))
	case api.RoutePeerRelease:
		return m.Release(ctx, from, in.(api.ReleaseRequest))
	case api.RoutePeerRetain:
		return m.Retain(ctx, from, in.(api.RetainRequest))
	}
	return nil, fmt.Errorf("no route %s", path)
}
