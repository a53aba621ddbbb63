package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"virtlvm/internal/api"
)

// Net carries a request from one host to another and back. The error is an *api.Error.
type Net interface {
	Call(ctx context.Context, from, to, path string, body []byte) (answer []byte, err error)
}

// peers are the other hosts as one life of a daemon reaches them, under its host's name.
type peers struct{ d *Daemon }

// Call implements activation.Peers.
func (p peers) Call(ctx context.Context, host, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	var answer []byte
	err = around(ctx, p.d, "call", host+" "+path, func() error {
		answer, err = p.d.c.net().Call(ctx, p.d.Host.Name, host, path, body)
		return err
	})
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

func (c *Cluster) net() Net {
	if c.Net != nil {
		return c.Net
	}
	return direct{c}
}

// direct is a network without delay.
type direct struct{ c *Cluster }

func (n direct) Call(ctx context.Context, from, to, path string, body []byte) ([]byte, error) {
	host, known := n.c.Hosts[to]
	if !known || n.c.Cut != nil && n.c.Cut(from, to, path) {
		return nil, unreachable(to)
	}
	work, back := n.c.child(ctx, path+" on "+to)
	answer, err := host.serve(work, from, path, body)
	back()
	if n.c.Lost != nil && n.c.Lost(from, to, path) {
		return nil, brokenOff(to)
	}
	return answer, err
}

func unreachable(host string) error {
	return api.NewError(api.KindUnreachable, fmt.Sprintf("cannot reach %s: no answer", host))
}

// brokenOff is a request that has left and whose answer did not come.
func brokenOff(host string) error {
	return api.NewError(api.KindUnknown, fmt.Sprintf("%s may or may not have done it: the connection broke off", host))
}

// serve takes a request of another host, as virtlvmd does on its peer socket.
func (h *Host) serve(ctx context.Context, from, path string, body []byte) ([]byte, error) {
	d := h.Daemon()
	if d == nil {
		return nil, unreachable(h.Name)
	}
	type result struct {
		data []byte
		err  error
	}
	answered := make(chan result, 1)
	ctx, end := context.WithCancel(ctx)
	defer end() // whoever waits in a daemon that has been killed waits no longer
	go func() {
		select {
		case <-d.serving:
		case <-d.dead:
		}
		d.alive()
		var r result
		if path == api.RoutePeerHello {
			r.data, r.err = h.c.answer(path)(api.Hello{Version: api.Version{Version: "1.2.4", Host: h.Name}, Now: h.c.Now().Add(h.ahead), BootID: h.bootID()}, nil)
		} else {
			r.data, r.err = h.c.answer(path)(dispatch(ctx, d.engine, from, path, body))
		}
		d.at(ctx, Point{Kind: "answer", What: path})
		answered <- r
	}()
	select {
	case r := <-answered:
		return r.data, r.err
	case <-d.dead:
	case <-ctx.Done():
	}
	return nil, brokenOff(h.Name)
}

// answer makes what goes back of what the engine said.
func (c *Cluster) answer(path string) func(any, error) ([]byte, error) {
	return func(answer any, err error) ([]byte, error) {
		if err == nil && c.Tamper != nil {
			answer, err = c.Tamper(path, answer)
		}
		if err != nil {
			return nil, said{api.NewError(api.KindOf(err), err.Error())}
		}
		return json.Marshal(answer)
	}
}

// said is a peer.RemoteError without the host's name before it.
type said struct{ err *api.Error }

func (s said) Error() string { return s.err.Message }

// Unwrap returns the answer.
func (s said) Unwrap() error { return s.err }

// Answered tells it from a host that is silent.
func (said) Answered() {}

// Names implements locks.Peers.
func (p peers) Names(context.Context) ([]string, error) {
	var names []string
	for name := range p.d.c.Hosts {
		if name != p.d.Host.Name {
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
	PeerLocks(ctx context.Context, peer string, q api.LocksQuery) (api.LocksAnswer, error)
	Release(ctx context.Context, peer string, req api.ReleaseRequest) (api.ReleaseAnswer, error)
	Retain(ctx context.Context, peer string, req api.RetainRequest) (struct{}, error)
	Claims(ctx context.Context, peer string, q api.ClaimsQuery) (api.ClaimsAnswer, error)
}

func dispatch(ctx context.Context, m engine, from, path string, body []byte) (any, error) {
	switch path {
	case api.RoutePeerLend:
		return handle(ctx, from, body, m.Lend)
	case api.RoutePeerGrant:
		return handle(ctx, from, body, m.GrantGood)
	case api.RoutePeerWriters:
		return handle(ctx, from, body, m.Writers)
	case api.RoutePeerNamed:
		return handle(ctx, from, body, m.Named)
	case api.RoutePeerGuest:
		return handle(ctx, from, body, m.GuestState)
	case api.RoutePeerHandoff:
		return handle(ctx, from, body, m.HandoffSides)
	case api.RoutePeerNotice:
		return handle(ctx, from, body, func(_ context.Context, peer string, n api.PeerNotice) (struct{}, error) {
			m.Notice(peer, n)
			return struct{}{}, nil
		})
	case api.RoutePeerLocks:
		return handle(ctx, from, body, m.PeerLocks)
	case api.RoutePeerRelease:
		return handle(ctx, from, body, m.Release)
	case api.RoutePeerRetain:
		return handle(ctx, from, body, m.Retain)
	case api.RoutePeerClaims:
		return handle(ctx, from, body, m.Claims)
	}
	return nil, api.NewError(api.KindNotFound, "no route "+path)
}

// handle answers as the server does: an error arrives as its kind and message.
func handle[Q, A any](ctx context.Context, from string, body []byte, do func(context.Context, string, Q) (A, error)) (any, error) {
	var q Q
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, api.NewError(api.KindBadRequest, err.Error())
	}
	answer, err := do(ctx, from, q)
	if err != nil {
		return nil, api.NewError(api.KindOf(err), err.Error())
	}
	return answer, nil
}
