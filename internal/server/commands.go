package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"virtlvm/internal/api"
)

// Commands runs and finds out commands, and lists the journal; peer is the caller's name.
type Commands interface {
	List(context.Context, api.CommandFilter) ([]api.Command, error)
	View(ctx context.Context, id int64, fresh bool) (api.Command, error)
	Summary(context.Context) (summary api.CommandSummary, problems []string, err error)

	Request(ctx context.Context, req api.CommandRequest, by string) (api.Command, error)
	Preview(ctx context.Context, req api.CommandRequest) (api.CommandPlan, error)
	Cancel(ctx context.Context, id int64, req api.CancelRequest, by string) (api.Command, error)
	Resolve(ctx context.Context, id int64, req api.ResolveRequest, by string) (api.Command, error)

	PeerRun(ctx context.Context, peer string, q api.PeerCommand) (api.PeerReport, error)
	PeerPlan(ctx context.Context, peer string, q api.PeerPlan) (api.CommandPlan, error)
	PeerAsk(ctx context.Context, peer string, q api.PeerCommand) (api.PeerReport, error)
	PeerAck(ctx context.Context, peer string, q api.PeerAck) error
	PeerNotice(ctx context.Context, peer string, q api.PeerCommandNotice) (api.PeerCommandNoticeAnswer, error)
}

// peerCommandRoutes are the requests that an origin and an executor make of each other.
func (s *Server) peerCommandRoutes() []route {
	c := s.Commands
	if c == nil {
		return nil
	}
	return []route{
		{"POST " + api.RoutePeerCommand, AccessPeer, asked(c.PeerRun)},
		{"POST " + api.RoutePeerCommandPlan, AccessPeer, asked(c.PeerPlan)},
		{"POST " + api.RoutePeerCommandAsk, AccessPeer, asked(c.PeerAsk)},
		{"POST " + api.RoutePeerCommandAck, AccessPeer, asked(func(ctx context.Context, peer string, q api.PeerAck) (struct{}, error) {
			return struct{}{}, c.PeerAck(ctx, peer, q)
		})},
		{"POST " + api.RoutePeerCommandNotice, AccessPeer, asked(c.PeerNotice)},
	}
}

func (s *Server) commands(r *http.Request) (any, error) {
	limit, err := number(r, "limit", defaultLimit, maxLimit)
	if err != nil {
		return nil, err
	}
	before, err := number(r, "before", 0, 1<<62)
	if err != nil {
		return nil, err
	}
	query := r.URL.Query()
	f := api.CommandFilter{Limit: int(limit), Before: before, States: slices.DeleteFunc(query["state"], func(s string) bool { return s == "" })}
	if text := query.Get("since"); text != "" {
		if f.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, api.NewError(api.KindBadRequest, fmt.Sprintf("since=%q is not a time such as 2006-01-02T15:04:05Z", text))
		}
	}
	return s.Commands.List(r.Context(), f)
}

func (s *Server) command(r *http.Request) (any, error) {
	id, err := commandID(r)
	if err != nil {
		return nil, err
	}
	return s.Commands.View(r.Context(), id, r.URL.Query().Get("fresh") != "")
}

func (s *Server) runCommand(r *http.Request) (any, error) {
	var req api.CommandRequest
	if err := decode(r, maxSmallBody, &req); err != nil {
		return nil, err
	}
	c, err := s.Commands.Request(r.Context(), req, callerOf(r.Context()).String())
	return accepted{c}, err
}

func (s *Server) planCommand(r *http.Request) (any, error) {
	var req api.CommandRequest
	if err := decode(r, maxSmallBody, &req); err != nil {
		return nil, err
	}
	return s.Commands.Preview(r.Context(), req)
}

func (s *Server) cancelCommand(r *http.Request) (any, error) {
	id, err := commandID(r)
	if err != nil {
		return nil, err
	}
	var req api.CancelRequest
	if err := decode(r, maxSmallBody, &req); err != nil {
		return nil, err
	}
	return s.Commands.Cancel(r.Context(), id, req, callerOf(r.Context()).String())
}

func (s *Server) resolveCommand(r *http.Request) (any, error) {
	id, err := commandID(r)
	if err != nil {
		return nil, err
	}
	var req api.ResolveRequest
	if err := decode(r, maxSmallBody, &req); err != nil {
		return nil, err
	}
	return s.Commands.Resolve(r.Context(), id, req, callerOf(r.Context()).String())
}

func commandID(r *http.Request) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		return 0, api.NewError(api.KindBadRequest, fmt.Sprintf("%q is not a command id", r.PathValue("id")))
	}
	return id, nil
}
