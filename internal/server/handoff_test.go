package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

// fakeHandoff notes who asks.
type fakeHandoff struct {
	Handoff
	asked []string
	heard int
	deaf  bool // what is heard cannot be written
}

func (f *fakeHandoff) note(peer, what string) { f.asked = append(f.asked, peer+" "+what) }

func (f *fakeHandoff) Lend(_ context.Context, peer string, req api.LendRequest) (api.LendAnswer, error) {
	f.note(peer, "lend "+req.UUID)
	return api.LendAnswer{Migrating: true, Grant: "G"}, nil
}

func (f *fakeHandoff) GrantGood(_ context.Context, peer string, q api.GrantQuery) (api.GrantAnswer, error) {
	f.note(peer, "grant "+q.Grant)
	return api.GrantAnswer{}, api.NewError(api.KindUnknown, "cannot tell")
}

func (f *fakeHandoff) Writers(_ context.Context, peer string, q api.WritersQuery) (api.WritersAnswer, error) {
	f.note(peer, fmt.Sprintf("writers %d", len(q.Volumes)))
	return api.WritersAnswer{}, nil
}

func (f *fakeHandoff) Named(_ context.Context, peer string, q api.WritersQuery) (api.WritersAnswer, error) {
	f.note(peer, fmt.Sprintf("named %d", len(q.Volumes)))
	return api.WritersAnswer{}, nil
}

func (f *fakeHandoff) GuestState(_ context.Context, peer string, q api.GuestQuery) (api.GuestAnswer, error) {
	f.note(peer, "guest "+q.UUID)
	return api.GuestAnswer{}, nil
}

func (f *fakeHandoff) HandoffSides(_ context.Context, peer string, q api.HandoffQuery) (api.HandoffAnswer, error) {
	f.note(peer, "handoff "+q.UUID)
	return api.HandoffAnswer{}, nil
}

func (f *fakeHandoff) Heard(_ context.Context, peer string) error {
	f.heard++
	if f.deaf {
		return api.NewError(api.KindDatabase, peer+" was declared fenced and is back, which cannot be written down")
	}
	return nil
}

func (f *fakeHandoff) Notice(peer string, n api.PeerNotice) { f.note(peer, "notice "+n.UUID) }

var handoffRoutes = []string{
	api.RoutePeerLend, api.RoutePeerGrant, api.RoutePeerWriters, api.RoutePeerNamed, api.RoutePeerGuest, api.RoutePeerHandoff, api.RoutePeerNotice,
}

// handoffSocket serves a peer socket with all routes between hosts.
func handoffSocket(t *testing.T) (string, *fakeHandoff) {
	t.Helper()
	f := &fakeHandoff{}
	s := New(Options{Engine: &fakeEngine{}, Commands: &fakeCommands{}, Journal: &fakeJournal{}, Log: slog.New(slog.DiscardHandler), Handoff: f})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	srv := s.HTTPPeer()
	go func() { _ = srv.Serve(PeerListener(l)) }()
	t.Cleanup(func() { _ = srv.Close() })
	return path, f
}

func send(t *testing.T, path, route, body string) (int, string) {
	t.Helper()
	conn := open(t, path, "PEER kvm-b\n")
	go func() { // the other end may answer before it has read all
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", route, len(body))
		_, _ = io.WriteString(conn, body)
	}()
	return response(t, bufio.NewReader(conn))
}

func TestHandoffRoutes(t *testing.T) {
	path, f := handoffSocket(t)
	for route, want := range map[string]string{
		api.RoutePeerLend:    "kvm-b lend u1",
		api.RoutePeerGrant:   "kvm-b grant G",
		api.RoutePeerWriters: "kvm-b writers 2",
		api.RoutePeerNamed:   "kvm-b named 2",
		api.RoutePeerGuest:   "kvm-b guest u1",
		api.RoutePeerHandoff: "kvm-b handoff u1",
		api.RoutePeerNotice:  "kvm-b notice u1",
	} {
		f.asked = nil
		// What a later release says besides is no matter, whoever it says it is.
		status, body := send(t, path, route, `{"uuid":"u1","grant":"G","volumes":[{},{}],"peer":"kvm-x","of_the_next_release":{"a":[1]}}`)
		assert.Equal(t, []string{want}, f.asked)
		if route == api.RoutePeerGrant {
			assert.Equal(t, http.StatusGatewayTimeout, status)
			assert.Contains(t, body, `"kind":"unknown"`)
			continue
		}
		assert.Equal(t, http.StatusOK, status, body)
	}
	// They are for hosts alone.
	for _, route := range handoffRoutes {
		client, _, _ := dial(t, true)
		status, _ := ask(t, client, "POST", route, "{}")
		assert.Contains(t, []int{http.StatusForbidden, http.StatusNotFound}, status)
	}
}

// A host that asks anything is there: the engine is told before it is answered.
func TestHostsThatAskAreHeardOf(t *testing.T) {
	path, f := handoffSocket(t)
	for i, route := range append([]string{
		api.RoutePeerCommand, api.RoutePeerCommandPlan, api.RoutePeerCommandAsk, api.RoutePeerCommandAck, api.RoutePeerCommandNotice,
	}, handoffRoutes...) {
		status, _ := send(t, path, route, `{"sequences":[1]}`)
		assert.NotEqual(t, http.StatusServiceUnavailable, status)
		assert.Equal(t, i+1, f.heard, route)
	}
	heard := f.heard
	conn := open(t, path, "PEER kvm-b\n")
	_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", api.RouteVersion)
	require.NoError(t, err)
	status, _ := response(t, bufio.NewReader(conn))
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, heard+1, f.heard, "it has connected")
	f.deaf, f.asked = true, nil
	status, body := send(t, path, api.RoutePeerHello, "{}")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, body, "cannot be written down")
	status, _ = send(t, path, api.RoutePeerCommand, "{}")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	status, _ = send(t, path, api.RoutePeerLend, `{"uuid":"u1"}`)
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Empty(t, f.asked, "nothing comes of it")
}

func TestGarbageFromAPeer(t *testing.T) {
	path, f := handoffSocket(t)
	for name, tt := range map[string]struct{ body, want string }{
		"nothing":      {"", "cannot read the request"},
		"binary":       {"\x00\xff\xfe", "cannot read the request"},
		"no JSON":      {"lend me vm1", "cannot read the request"},
		"cut off":      {`{"uuid":"u1`, "cannot read the request"},
		"a list":       {`[1,2]`, "cannot read the request"},
		"wrong types":  {`{"uuid":7,"grant":[],"volumes":"x"}`, "cannot read the request"},
		"oversized":    {`{"uuid":"` + strings.Repeat("x", maxSmallBody) + `"}`, "larger than 65536 bytes"},
		"never closes": {strings.Repeat("[", maxSmallBody+1), "cannot read the request"},
	} {
		for _, route := range handoffRoutes {
			status, body := send(t, path, route, tt.body)
			assert.Equal(t, http.StatusBadRequest, status, "%s %s", name, route)
			assert.Contains(t, body, `"kind":"bad_request"`, name)
			if name != "never closes" {
				assert.Contains(t, body, tt.want, name)
			}
		}
	}
	assert.Empty(t, f.asked)
	status, _ := send(t, path, api.RoutePeerGuest, `{"uuid":"u1"}`)
	assert.Equal(t, http.StatusOK, status, "and the next one is answered")
}
