package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"virtlvm/internal/api"
)

// Locks is the cluster lock manager.
type Locks interface {
	Show(ctx context.Context, volume string) (api.Lock, error)
	List(ctx context.Context, vg string, cluster bool) ([]api.Lock, error)
	Stale(ctx context.Context, vg string) ([]api.StaleHint, error)
	Where(ctx context.Context, volume, op, on string) (api.Endpoint, error)
	Transfer(ctx context.Context, req api.TransferRequest, by string) (api.TransferResult, error)
	HostList(context.Context) ([]api.Host, error)
}

func (s *Server) lockRoutes() []route {
	l := s.Locks
	if l == nil {
		return nil
	}
	return []route{
		{"GET " + api.RouteLock, AccessRead, func(r *http.Request) (any, error) {
			return l.Show(r.Context(), r.URL.Query().Get("volume"))
		}},
		{"GET " + api.RouteLocks, AccessRead, func(r *http.Request) (any, error) {
			cluster, err := boolean(r, "cluster")
			if err != nil {
				return nil, err
			}
			return l.List(r.Context(), r.URL.Query().Get("vg"), cluster)
		}},
		{"GET " + api.RouteStale, AccessRead, func(r *http.Request) (any, error) {
			return l.Stale(r.Context(), r.URL.Query().Get("vg"))
		}},
		{"GET " + api.RouteWhere, AccessRead, func(r *http.Request) (any, error) {
			q := r.URL.Query()
			return l.Where(r.Context(), q.Get("volume"), q.Get("op"), q.Get("on"))
		}},
		{"GET " + api.RouteHosts, AccessRead, func(r *http.Request) (any, error) { return l.HostList(r.Context()) }},
		{"POST " + api.RouteTransfer, AccessWrite, func(r *http.Request) (any, error) {
			var req api.TransferRequest
			if err := decode(r, maxSmallBody, &req); err != nil {
				return nil, err
			}
			return l.Transfer(r.Context(), req, callerOf(r.Context()).String())
		}},
	}
}

func boolean(r *http.Request, key string) (bool, error) {
	text := r.URL.Query().Get(key)
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, api.NewError(api.KindBadRequest, fmt.Sprintf("%s=%q is neither true nor false", key, text))
	}
	return b, nil
}
