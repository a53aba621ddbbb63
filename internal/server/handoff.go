package server

import (
	"context"
	"net/http"
	"time"

	"virtlvm/internal/api"
)

// Handoff is what other hosts may ask of the engine; peer is the caller's name.
type Handoff interface {
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
	// Heard notes that a host has asked something; with an error it is not answered.
	Heard(ctx context.Context, peer string) error
}

// handoffRoutes are the requests that hosts make of each other.
func (s *Server) handoffRoutes() []route {
	h := s.Handoff
	if h == nil {
		return nil
	}
	return []route{
		{"POST " + api.RoutePeerLend, AccessPeer, asked(h.Lend)},
		{"POST " + api.RoutePeerGrant, AccessPeer, asked(h.GrantGood)},
		{"POST " + api.RoutePeerWriters, AccessPeer, asked(h.Writers)},
		{"POST " + api.RoutePeerNamed, AccessPeer, asked(h.Named)},
		{"POST " + api.RoutePeerGuest, AccessPeer, asked(h.GuestState)},
		{"POST " + api.RoutePeerHandoff, AccessPeer, asked(h.HandoffSides)},
		{"POST " + api.RoutePeerNotice, AccessPeer, asked(func(_ context.Context, peer string, n api.PeerNotice) (struct{}, error) {
			h.Notice(peer, n)
			return struct{}{}, nil
		})},
		{"POST " + api.RoutePeerHello, AccessPeer, asked(func(context.Context, string, struct{}) (api.Hello, error) {
			return api.Hello{Version: s.Version, Now: time.Now(), BootID: s.BootID}, nil
		})},
		{"POST " + api.RoutePeerLocks, AccessPeer, asked(h.PeerLocks)},
		{"POST " + api.RoutePeerRelease, AccessPeer, asked(h.Release)},
		{"POST " + api.RoutePeerRetain, AccessPeer, asked(h.Retain)},
		{routeClaims, AccessPeer, asked(h.Claims)},
	}
}

// routeClaims is the one whose handler hears by itself who asks, with the boot it comes from.
const routeClaims = "POST " + api.RoutePeerClaims

// heard is the handler of a route before which the engine is told which host asks, whatever it
// asks, a version included.
func (s *Server) heard(r route) func(*http.Request) (any, error) {
	if s.Handoff == nil || r.pattern == routeClaims {
		return r.handle
	}
	return func(req *http.Request) (any, error) {
		if peer := callerOf(req.Context()).peerName(); peer != "" {
			if err := s.Handoff.Heard(req.Context(), peer); err != nil {
				return nil, err
			}
		}
		return r.handle(req)
	}
}

// asked makes a handler of a request from another host.
func asked[Q, A any](answer func(context.Context, string, Q) (A, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var q Q
		if err := decode(r, maxSmallBody, &q); err != nil {
			return nil, err
		}
		return answer(r.Context(), callerOf(r.Context()).peerName(), q)
	}
}
