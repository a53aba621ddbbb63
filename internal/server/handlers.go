package server

import (
	"fmt"
	"net/http"
	"strconv"

	"virtlvm/internal/api"
)

func (s *Server) version(r *http.Request) (any, error) {
	v := s.Version
	v.Peer = callerOf(r.Context()).peerName()
	return v, nil
}

func (s *Server) status(r *http.Request) (any, error) {
	st := s.Engine.Status(r.Context())
	st.Version, st.Spool = s.Version, s.Spool()
	summary, problems, err := s.Commands.Summary(r.Context())
	if err != nil { // the database's own line says why
		s.Log.Debug("cannot count the commands", "err", err)
	}
	st.Commands, st.Problems = summary, append(st.Problems, problems...)
	return st, nil
}

func (s *Server) volumes(r *http.Request) (any, error) {
	return s.Engine.Volumes(r.Context(), r.URL.Query().Get("vg"))
}

func (s *Server) volume(r *http.Request) (any, error) {
	return s.Engine.ShowVolume(r.Context(), r.URL.Query().Get("volume"))
}

func (s *Server) guests(r *http.Request) (any, error) { return s.Engine.ListGuests(r.Context()) }

func (s *Server) handoff(r *http.Request) (any, error) {
	guest := r.URL.Query().Get("guest")
	if guest == "" {
		return nil, api.NewError(api.KindBadRequest, "no guest is named: ?guest=NAME or UUID")
	}
	return s.Engine.Handoff(r.Context(), guest)
}

func (s *Server) hooks(r *http.Request) (any, error) {
	limit, err := number(r, "limit", defaultLimit, maxLimit)
	if err != nil {
		return nil, err
	}
	return s.Journal.HookCalls(r.Context(), int(limit), r.URL.Query().Get("guest"))
}

func (s *Server) hook(r *http.Request) (any, error) {
	var call api.HookCall
	if err := decode(r, maxBody, &call); err != nil {
		return nil, err
	}
	call.Spooled = false // only the daemon itself reads the spool
	return s.Engine.Hook(r.Context(), call), nil
}

func (s *Server) activate(r *http.Request) (any, error) {
	var req api.VolumeRequest
	if err := decode(r, maxSmallBody, &req); err != nil {
		return nil, err
	}
	return s.Engine.Activate(r.Context(), req, callerOf(r.Context()).String())
}

func (s *Server) deactivate(r *http.Request) (any, error) {
	var req api.VolumeRequest
	if err := decode(r, maxSmallBody, &req); err != nil {
		return nil, err
	}
	return s.Engine.Deactivate(r.Context(), req, callerOf(r.Context()).String())
}

func (s *Server) fenced(r *http.Request) (any, error) {
	var req api.FencedRequest
	if err := decode(r, maxSmallBody, &req); err != nil {
		return nil, err
	}
	return s.Engine.DeclareFenced(r.Context(), req, callerOf(r.Context()).String())
}

// number reads a query parameter between 0 and most.
func number(r *http.Request, key string, otherwise, most int64) (int64, error) {
	text := r.URL.Query().Get(key)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, api.NewError(api.KindBadRequest, fmt.Sprintf("%s=%q is not a number from 0 to %d", key, text, most))
	}
	return n, nil
}
