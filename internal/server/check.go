package server

import (
	"context"
	"fmt"
	"net/http"

	"virtlvm/internal/api"
)

// Checker judges whether hosts are set up right.
type Checker interface {
	Check(context.Context) (api.CheckReport, error)
	CheckFor(ctx context.Context, peer string) (api.CheckReport, error)
	Cluster(context.Context) ([]api.CheckReport, error)
	Fix(ctx context.Context, id, by string) (api.Command, error)
}

// checkRoutes: a check starts a dozen programs and opens connections as root, which is not
// for everybody to set off.
func (s *Server) checkRoutes() []route {
	if s.Checker == nil {
		return nil
	}
	return []route{
		{"GET " + api.RouteCheck, AccessWrite, s.check},
		{"POST " + api.RouteRepair, AccessWrite, s.fix},
		{"GET " + api.RoutePeerCheck, AccessPeer, func(r *http.Request) (any, error) {
			return s.Checker.CheckFor(r.Context(), callerOf(r.Context()).peerName())
		}},
	}
}

func (s *Server) check(r *http.Request) (any, error) {
	switch q := r.URL.Query().Get("cluster"); q {
	case "true":
		return s.Checker.Cluster(r.Context())
	case "", "false":
		report, err := s.Checker.Check(r.Context())
		return []api.CheckReport{report}, err
	default:
		return nil, api.NewError(api.KindBadRequest, fmt.Sprintf("cluster=%q is neither true nor false", q))
	}
}

func (s *Server) fix(r *http.Request) (any, error) {
	var req api.RepairRequest
	if err := decode(r, maxSmallBody, &req); err != nil {
		return nil, err
	}
	return s.Checker.Fix(r.Context(), req.ID, callerOf(r.Context()).String())
}
