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
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

// peerSocket serves a peer socket with one route between hosts, /v1/peer/test.
func peerSocket(t *testing.T, allowed func(context.Context, string) error) (string, *fakeEngine) {
	t.Helper()
	e := &fakeEngine{}
	s := New(Options{
		Engine: e, Commands: &fakeCommands{}, Journal: &fakeJournal{}, Log: slog.New(slog.DiscardHandler), Version: api.Version{Version: "1.2.3", Host: "kvm-b"},
		Spool: func() api.SpoolSummary { return api.SpoolSummary{} }, PeerAllowed: allowed,
	})
	s.mux.HandleFunc("POST /v1/peer/test", s.guard(AccessPeer, func(r *http.Request) (any, error) {
		return map[string]string{"by": callerOf(r.Context()).String()}, nil
	}))
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	srv := s.HTTPPeer()
	go func() { _ = srv.Serve(PeerListener(l)) }()
	t.Cleanup(func() { _ = srv.Close() })
	return path, e
}

func open(t *testing.T, path, preamble string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, preamble)
	require.NoError(t, err)
	return conn
}

func request(t *testing.T, conn net.Conn, r *bufio.Reader, method, path string) (int, string) {
	t.Helper()
	_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", method, path)
	require.NoError(t, err)
	return response(t, r)
}

func response(t *testing.T, r *bufio.Reader) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func TestPeerIsKnownByItsFirstLine(t *testing.T) {
	path, _ := peerSocket(t, nil)
	conn := open(t, path, "PEER kvm-a\n")
	r := bufio.NewReader(conn)
	for range 3 { // one connection takes many requests
		status, body := request(t, conn, r, "POST", "/v1/peer/test")
		assert.Equal(t, http.StatusOK, status)
		assert.JSONEq(t, `{"by":"host kvm-a"}`, body)
	}
	status, body := request(t, conn, r, "GET", "/v1/version")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, `"host":"kvm-b","peer":"kvm-a"`)
}

func TestPeerInPieces(t *testing.T) {
	path, _ := peerSocket(t, nil)
	conn := open(t, path, "PE")
	for _, piece := range []string{"ER k", "vm-a", "\nGET /v1/version HTTP/1.1\r\n", "Host: x\r\n", "\r\n"} {
		_, err := io.WriteString(conn, piece)
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
	}
	status, body := response(t, bufio.NewReader(conn))
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, `"peer":"kvm-a"`)
}

func TestBadFirstLines(t *testing.T) {
	for name, tt := range map[string]struct{ line, want string }{
		"none, as curl":     {"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n", "/run/virtlvm/peer.sock is for the relays of other hosts alone; use /run/virtlvm/virtlvm.sock"},
		"lower case":        {"peer kvm-a\n", "for the relays of other hosts alone"},
		"no name":           {"PEER \n", "is not a name of a host"},
		"option":            {"PEER -oProxyCommand=id\n", "is not a name of a host"},
		"carriage return":   {"PEER kvm-a\r\n", "is not a name of a host"},
		"two words":         {"PEER kvm-a kvm-b\n", "is not a name of a host"},
		"slash":             {"PEER ../kvm-a\n", "is not a name of a host"},
		"too long":          {"PEER " + strings.Repeat("a", 64) + "\n", "is not a name of a host"},
		"endless":           {strings.Repeat("PEER ", 100), "is not a name of a host"},
		"NUL":               {"PEER kvm-a\x00\n", "is not a name of a host"},
		"a proxy's, binary": {"\x16\x03\x01\n", "for the relays of other hosts alone"},
	} {
		t.Run(name, func(t *testing.T) {
			path, _ := peerSocket(t, nil)
			conn := open(t, path, tt.line)
			r := bufio.NewReader(conn)
			status, body := response(t, r)
			assert.Equal(t, http.StatusBadRequest, status)
			assert.Contains(t, body, tt.want)
			_, err := r.ReadByte()
			require.Error(t, err, "and nothing more is answered")
		})
	}
}

func TestLongestNameIsTaken(t *testing.T) {
	path, _ := peerSocket(t, nil)
	name := strings.Repeat("a", 63)
	conn := open(t, path, "PEER "+name+"\n")
	status, body := request(t, conn, bufio.NewReader(conn), "POST", "/v1/peer/test")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, name)
}

// Requests between hosts are for the peer socket, and nothing else is.
func TestPeerSocketIsApart(t *testing.T) {
	path, e := peerSocket(t, nil)
	conn := open(t, path, "PEER kvm-a\n")
	r := bufio.NewReader(conn)
	for _, route := range []string{"POST /v1/hook", "POST /v1/volumes/activate", "POST /v1/volumes/deactivate", "GET /v1/status", "GET /v1/peers"} {
		method, url, _ := strings.Cut(route, " ")
		status, body := request(t, conn, r, method, url)
		assert.Equal(t, http.StatusForbidden, status, route)
		assert.Contains(t, body, `"kind":"forbidden"`)
	}
	assert.Empty(t, e.calls)
	assert.Empty(t, e.asked)
	status, _ := request(t, conn, r, "POST", "/v1/peer/of-the-next-release")
	assert.Equal(t, http.StatusNotFound, status)

	local := caller{known: true, uid: 0, writable: true}
	assert.Equal(t, api.KindForbidden, api.KindOf(local.may(AccessPeer)))
	require.NoError(t, local.may(AccessAny))
	assert.Empty(t, local.peerName())
}

func TestPeersThatAreNotAllowed(t *testing.T) {
	path, _ := peerSocket(t, func(_ context.Context, name string) error {
		if name == "kvm-a" {
			return nil
		}
		return api.NewError(api.KindForbidden, name+" is not in the lockspace")
	})
	for name, want := range map[string]int{"kvm-a": http.StatusOK, "kvm-x": http.StatusForbidden} {
		conn := open(t, path, "PEER "+name+"\n")
		r := bufio.NewReader(conn)
		status, _ := request(t, conn, r, "POST", "/v1/peer/test")
		assert.Equal(t, want, status, name)
		status, _ = request(t, conn, r, "GET", "/v1/version")
		assert.Equal(t, http.StatusOK, status, "the version is told to everybody")
	}
}

func TestOnlyRootIsAPeer(t *testing.T) {
	s := New(Options{})
	for _, tt := range []struct {
		who caller
		ok  bool
	}{
		{caller{known: true, uid: 0, peer: &peerConn{name: "a"}}, true},
		{caller{known: true, uid: 1 << 20, peer: &peerConn{name: "a"}}, false},
		{caller{peer: &peerConn{name: "a"}}, false},
	} {
		assert.Equal(t, tt.ok, s.mayPeer(t.Context(), tt.who, AccessPeer) == nil, "%+v", tt.who)
	}
}

// The deadline that the HTTP server has set applies again after the first line.
func TestFirstLineKeepsTheDeadline(t *testing.T) {
	here, there := net.Pipe()
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	c := &peerConn{Conn: there}
	require.NoError(t, c.SetDeadline(time.Now().Add(50*time.Millisecond)))
	go func() { _, _ = io.WriteString(here, "PEER kvm-a\n") }()
	began := time.Now()
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	assert.True(t, timeout.Timeout())
	assert.Less(t, time.Since(began), preambleTimeout)
	assert.Equal(t, "kvm-a", c.name)
}

func TestSilentConnectionHoldsUpNobody(t *testing.T) {
	path, _ := peerSocket(t, nil)
	open(t, path, "")
	open(t, path, "PEER half")
	conn := open(t, path, "PEER kvm-a\n")
	status, _ := request(t, conn, bufio.NewReader(conn), "POST", "/v1/peer/test")
	assert.Equal(t, http.StatusOK, status)
}

func TestListsPeers(t *testing.T) {
	client, _, _ := dial(t, true)
	status, body := ask(t, client, "GET", "/v1/peers", "")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, `"peers":[]`)
}
