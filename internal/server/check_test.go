package server

import (
	"bufio"
	"context"
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

// fakeChecker notes what it is asked.
type fakeChecker struct{ asked []string }

func (f *fakeChecker) Check(context.Context) (api.CheckReport, error) {
	f.asked = append(f.asked, "check")
	return api.CheckReport{Host: "kvm-a"}, nil
}

func (f *fakeChecker) CheckFor(_ context.Context, peer string) (api.CheckReport, error) {
	f.asked = append(f.asked, "for "+peer)
	return api.CheckReport{Host: "kvm-a"}, nil
}

func (f *fakeChecker) Cluster(context.Context) ([]api.CheckReport, error) {
	f.asked = append(f.asked, "cluster")
	return []api.CheckReport{{Host: "kvm-a"}, {Host: "kvm-b"}}, nil
}

func (f *fakeChecker) Fix(_ context.Context, id, by string) (api.Command, error) {
	f.asked = append(f.asked, "fix "+id+" "+by)
	return api.Command{}, api.NewError(api.KindNotFound, "not needed")
}

// checkServer serves a fake checker on a socket of each kind.
func checkServer(t *testing.T) (f *fakeChecker, rw, ro *http.Client, peer string) {
	t.Helper()
	f = &fakeChecker{}
	s := New(Options{Engine: &fakeEngine{}, Journal: &fakeJournal{}, Log: slog.New(slog.DiscardHandler), Checker: f})
	serve := func(srv *http.Server, wrap func(net.Listener) net.Listener) string {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		go func() { _ = srv.Serve(wrap(l)) }()
		t.Cleanup(func() { _ = srv.Close() })
		return path
	}
	client := func(path string) *http.Client {
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	plain := func(l net.Listener) net.Listener { return l }
	return f, client(serve(s.HTTP(true), plain)), client(serve(s.HTTP(false), plain)), serve(s.HTTPPeer(), PeerListener)
}

func TestCheckRoutes(t *testing.T) {
	f, rw, ro, peer := checkServer(t)
	for _, c := range []struct {
		client             *http.Client
		method, path, body string
		status             int
		contains           string
	}{
		{rw, "GET", "/v1/check", "", 200, `[{"host":"kvm-a"`},
		{rw, "GET", "/v1/check?cluster=true", "", 200, `"host":"kvm-b"`},
		{rw, "GET", "/v1/check?cluster=maybe", "", 400, "neither true nor false"},
		{rw, "POST", "/v1/repair", `{"id":"lvm.x:vg"}`, 404, "not needed"},
		{rw, "POST", "/v1/repair", `{`, 400, "cannot read"},
		{rw, "GET", "/v1/peer/check", "", 403, "only another host"},
		{ro, "GET", "/v1/check", "", 403, "forbidden"},
		{ro, "POST", "/v1/repair", `{"id":"lvm.x:vg"}`, 403, "forbidden"},
	} {
		status, body := ask(t, c.client, c.method, c.path, c.body)
		assert.Equal(t, c.status, status, "%s %s: %s", c.method, c.path, body)
		assert.Contains(t, body, c.contains, "%s %s", c.method, c.path)
	}
	conn := open(t, peer, "PEER kvm-b\n")
	r := bufio.NewReader(conn)
	status, _ := request(t, conn, r, "GET", "/v1/peer/check")
	assert.Equal(t, 200, status)
	for _, route := range []string{"GET /v1/check", "POST /v1/repair"} {
		method, path, _ := strings.Cut(route, " ")
		status, body := request(t, conn, r, method, path)
		assert.Equal(t, 403, status, body)
	}
	require.Len(t, f.asked, 4)
	assert.Equal(t, []string{"check", "cluster"}, f.asked[:2])
	assert.Regexp(t, `^fix lvm\.x:vg operator uid \d+$`, f.asked[2])
	assert.Equal(t, "for kvm-b", f.asked[3])
}
