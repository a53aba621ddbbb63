// Package server answers the API on the daemon's sockets: a declarative table says which
// route needs which access; handlers only translate. No decision is made here.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"virtlvm/internal/api"
)

// Engine is what the server serves.
type Engine interface {
	Hook(context.Context, api.HookCall) api.HookVerdict
	Status(context.Context) api.Status
	Volumes(ctx context.Context, vg string) ([]api.Volume, error)
	ShowVolume(ctx context.Context, name string) (api.Volume, error)
	ListGuests(context.Context) ([]api.Guest, error)
	Handoff(ctx context.Context, guest string) (api.GuestHandoff, error)
	Activate(ctx context.Context, req api.VolumeRequest, by string) (api.Command, error)
	Deactivate(ctx context.Context, req api.VolumeRequest, by string) (api.Command, error)
	DeclareFenced(ctx context.Context, req api.FencedRequest, by string) (api.Command, error)
}

// Journal lists what happened.
type Journal interface {
	Events(ctx context.Context, after int64, limit int) ([]api.Event, error)
	HookCalls(ctx context.Context, limit int, guest string) ([]api.HookRecord, error)
}

// Options are what a Server is given.
type Options struct {
	Engine   Engine
	Commands Commands
	Journal  Journal
	Version  api.Version
	BootID   string // of this host; "": it is not told
	// Spool counts the waiting and the broken events on disk.
	Spool func() api.SpoolSummary
	// Peers lists the other hosts. nil: there are none.
	Peers func(context.Context) (api.Peers, error)
	// PeerAllowed is nil for a host that may make requests on the peer socket now, or
	// says why not. nil: each that its key lets in.
	PeerAllowed func(ctx context.Context, name string) error
	// PeerConns is told how many connections of another host are open now; may be nil.
	PeerConns func(host string, open int)
	// Handoff answers other hosts; nil: none is answered.
	Handoff Handoff
	// Locks is the cluster lock manager; nil: there is none.
	Locks Locks
	// Metrics writes them in Prometheus' text format; nil: there are none.
	Metrics func(context.Context, io.Writer) error
	// Checker runs the checks; nil: there are none.
	Checker Checker
	Log     *slog.Logger
}

// Limits of one request.
const (
	maxBody       = 64 << 20 // a domain XML of 32 MiB in base64, and room
	maxSmallBody  = 64 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = time.Minute // a client that says nothing more frees its descriptor
	defaultLimit  = 100
	maxLimit      = 10000
)

// Access is what a caller must be for a route.
type Access int

// Access levels, weakest first.
const (
	AccessAny   Access = iota // anyone who reaches a socket, other hosts as well
	AccessRead                // anyone on this host
	AccessWrite               // root or the group virtlvm, on the read-write socket
	AccessRoot                // uid 0, on the read-write socket
	AccessPeer                // another host, on the peer socket
)

// Server makes the HTTP servers of the sockets.
type Server struct {
	Options
	mux      *http.ServeMux
	follow   chan struct{} // places for those who follow the events
	stopping chan struct{} // closed when the first socket is shut down
	stopOnce sync.Once
	conns    peerConns
}

// route is a row of the access table.
type route struct {
	pattern string
	access  Access
	handle  func(*http.Request) (any, error)
}

// New makes a server.
func New(o Options) *Server {
	s := &Server{Options: o, mux: http.NewServeMux(), follow: make(chan struct{}, maxFollowers), stopping: make(chan struct{})}
	routes := []route{
		{"GET " + api.RouteVersion, AccessAny, s.version},
		{"GET " + api.RouteStatus, AccessRead, s.status},
		{"GET " + api.RouteVolumes, AccessRead, s.volumes},
		{"GET " + api.RouteVolume, AccessRead, s.volume},
		{"GET " + api.RouteGuests, AccessRead, s.guests},
		{"GET " + api.RouteHandoff, AccessRead, s.handoff},
		{"GET " + api.RouteCommands, AccessRead, s.commands},
		{"GET " + api.RouteCommand, AccessRead, s.command},
		{"POST " + api.RouteCommands, AccessWrite, s.runCommand},
		{"POST " + api.RouteCommandPlan, AccessWrite, s.planCommand},
		{"POST " + api.RouteCommandCancel, AccessWrite, s.cancelCommand},
		{"POST " + api.RouteCommandResolve, AccessWrite, s.resolveCommand},
		{"GET " + api.RouteEvents, AccessRead, s.events},
		{"GET " + api.RouteHooks, AccessRead, s.hooks},
		{"GET " + api.RouteMetrics, AccessRead, s.metrics},
		{"GET " + api.RoutePeers, AccessRead, s.peers},
		{"POST " + api.RouteHook, AccessRoot, s.hook},
		{"POST " + api.RouteActivate, AccessWrite, s.activate},
		{"POST " + api.RouteDeactivate, AccessWrite, s.deactivate},
		{"POST " + api.RouteFenced, AccessRoot, s.fenced},
	}
	for _, r := range slices.Concat(routes, s.handoffRoutes(), s.lockRoutes(), s.peerCommandRoutes(), s.checkRoutes()) {
		s.mux.HandleFunc(r.pattern, s.guard(r.access, s.heard(r)))
	}
	s.mux.HandleFunc("/", s.guard(AccessAny, func(r *http.Request) (any, error) {
		return nil, api.NewError(api.KindNotFound, fmt.Sprintf("this virtlvmd does not know %s %q (protocol %d.%d)", r.Method, r.URL.Path, api.ProtocolMajor, api.ProtocolMinor))
	}))
	return s
}

// HTTP makes the HTTP server of one socket; writable: the read-write socket.
func (s *Server) HTTP(writable bool) *http.Server {
	srv := &http.Server{
		Handler:           s.mux,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ConnContext:       connContext(writable),
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	// Else a clean stop would wait for those who follow the events.
	srv.RegisterOnShutdown(func() { s.stopOnce.Do(func() { close(s.stopping) }) })
	return srv
}

// may is nil if the caller of ctx has the access.
func (s *Server) may(ctx context.Context, need Access) error {
	c := callerOf(ctx)
	if c.peer != nil {
		return s.mayPeer(ctx, c, need)
	}
	return c.may(need)
}

// guard checks the caller, runs a handler and writes its answer.
func (s *Server) guard(need Access, handle func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := any(nil), s.may(r.Context(), need)
		if err == nil {
			answer, err = handle(r)
		}
		status := http.StatusOK
		if err != nil {
			var typed *api.Error
			if !errors.As(err, &typed) {
				typed = api.NewError(api.KindInternal, err.Error())
				s.Log.Error("cannot answer a request", "method", r.Method, "path", r.URL.Path, "err", err)
			}
			status, answer = typed.Kind.HTTPStatus(), typed
		}
		switch a := answer.(type) {
		case accepted:
			status, answer = http.StatusAccepted, a.what
		case stream:
			a(w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			s.Log.Debug("cannot write an answer", "path", r.URL.Path, "err", err)
		}
	}
}

// accepted is an answer to a request whose work goes on.
type accepted struct{ what any }

// stream is an answer that writes itself.
type stream func(http.ResponseWriter)

// decode reads a JSON body strictly.
func decode(r *http.Request, limit int64, into any) error {
	body := http.MaxBytesReader(nil, r.Body, limit)
	dec := json.NewDecoder(body)
	if err := dec.Decode(into); err != nil {
		var tooBig *http.MaxBytesError
		if errors.As(err, &tooBig) {
			return api.NewError(api.KindBadRequest, fmt.Sprintf("the request is larger than %d bytes", limit))
		}
		return api.NewError(api.KindBadRequest, fmt.Sprintf("cannot read the request: %v", err))
	}
	return nil
}
