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

// fakeLocks notes what it was asked.
type fakeLocks struct{ asked []string }

func (f *fakeLocks) note(words ...string) { f.asked = append(f.asked, strings.Join(words, " ")) }

func (f *fakeLocks) Show(_ context.Context, volume string) (api.Lock, error) {
	f.note("show", volume)
	return api.Lock{Volume: volume}, nil
}

func (f *fakeLocks) List(_ context.Context, vg string, cluster bool) ([]api.Lock, error) {
	f.note("list", vg, map[bool]string{true: "everybody", false: "alone"}[cluster])
	return []api.Lock{}, nil
}

func (f *fakeLocks) Stale(_ context.Context, vg string) ([]api.StaleHint, error) {
	f.note("stale", vg)
	return []api.StaleHint{}, nil
}

func (f *fakeLocks) Where(_ context.Context, volume, op, on string) (api.Endpoint, error) {
	f.note("where", volume, op, on)
	return api.Endpoint{Host: "kvm-b"}, nil
}

func (f *fakeLocks) Transfer(_ context.Context, req api.TransferRequest, by string) (api.TransferResult, error) {
	f.note("transfer", req.Volumes[0], req.To, strings.Fields(by)[0])
	return api.TransferResult{Command: 7}, nil
}

func (f *fakeLocks) HostList(context.Context) ([]api.Host, error) {
	f.note("hosts")
	return []api.Host{}, nil
}

// lockHandoff answers what other hosts ask about locks.
type lockHandoff struct {
	Handoff
	asked []string
}

func (f *lockHandoff) PeerLocks(_ context.Context, peer string, q api.LocksQuery) (api.LocksAnswer, error) {
	f.asked = append(f.asked, "locks "+peer+" "+q.VG)
	return api.LocksAnswer{HostID: 2, Volumes: []api.LocalLock{}}, nil
}

func (f *lockHandoff) Release(_ context.Context, peer string, req api.ReleaseRequest) (api.ReleaseAnswer, error) {
	f.asked = append(f.asked, "release "+peer+" "+req.Volume)
	return api.ReleaseAnswer{}, api.NewError(api.KindInUse, "no: "+req.Volume)
}

func (f *lockHandoff) Retain(_ context.Context, peer string, req api.RetainRequest) (struct{}, error) {
	f.asked = append(f.asked, "retain "+peer+" "+req.Volume)
	return struct{}{}, nil
}

func (f *lockHandoff) Heard(context.Context, string) error { return nil }

func lockServer() (*Server, *fakeLocks, *lockHandoff) {
	l, h := &fakeLocks{}, &lockHandoff{}
	return New(Options{
		Engine: &fakeEngine{}, Journal: &fakeJournal{}, Log: slog.New(slog.DiscardHandler), Version: api.Version{Version: "1.2.3", Host: "kvm-b"},
		Spool: func() api.SpoolSummary { return api.SpoolSummary{} }, Locks: l, Handoff: h,
	}), l, h
}

func TestLockRoutes(t *testing.T) {
	for _, c := range []struct {
		method, path, body string
		status             int
		contains, asked    string
	}{
		{"GET", "/v1/locks", "", 200, `[]`, "list  alone"},
		{"GET", "/v1/locks?vg=vg_san&cluster=true", "", 200, `[]`, "list vg_san everybody"},
		{"GET", "/v1/locks?cluster=perhaps", "", 400, `cluster=\"perhaps\" is neither true nor false`, ""},
		{"GET", "/v1/locks/show?volume=vg_san/vm1", "", 200, `"volume":"vg_san/vm1"`, "show vg_san/vm1"},
		{"GET", "/v1/locks/stale?vg=vg_san", "", 200, `[]`, "stale vg_san"},
		{"GET", "/v1/locks/where?volume=vg_san/vm1&op=read&on=kvm-b", "", 200, `"host":"kvm-b"`, "where vg_san/vm1 read kvm-b"},
		{"GET", "/v1/hosts", "", 200, `[]`, "hosts"},
		{"POST", "/v1/locks/transfer", `{"volumes":["vg_san/vm1"],"to":"kvm-b"}`, 200, `"command":7`, "transfer vg_san/vm1 kvm-b operator"},
		{"POST", "/v1/locks/transfer", `{`, 400, "cannot read the request", ""},
	} {
		for _, writable := range []bool{true, false} {
			s, locks, _ := lockServer()
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			require.NoError(t, err)
			srv := s.HTTP(writable)
			go func() { _ = srv.Serve(l) }()
			client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", path)
			}}}
			status, body := ask(t, client, c.method, c.path, c.body)
			if c.method == "POST" && !writable {
				assert.Equal(t, http.StatusForbidden, status, "everybody may look, and nobody but operators may move")
				assert.Empty(t, locks.asked)
			} else {
				assert.Equal(t, c.status, status, "%s %s: %s", c.method, c.path, body)
				assert.Contains(t, body, c.contains)
				assert.Equal(t, c.asked, strings.Join(locks.asked, ","))
			}
			client.CloseIdleConnections()
			require.NoError(t, srv.Close())
		}
	}
}

// Another host may ask what it needs, and no more.
func TestLockRoutesOfPeers(t *testing.T) {
	s, locks, handoff := lockServer()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	srv := s.HTTPPeer()
	go func() { _ = srv.Serve(PeerListener(l)) }()
	t.Cleanup(func() { _ = srv.Close() })
	conn := open(t, path, "PEER kvm-a\n")
	r := bufio.NewReader(conn)
	post := func(path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://virtlvm"+path, strings.NewReader(body))
		require.NoError(t, err)
		require.NoError(t, req.Write(conn))
		return response(t, r)
	}
	status, body := post(api.RoutePeerHello, "{}")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, `"host":"kvm-b"`)
	assert.Contains(t, body, `"now":"20`)
	status, body = post(api.RoutePeerLocks, `{"vg":"vg_san"}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, `"host_id":2`)
	status, body = post(api.RoutePeerRelease, `{"volume":"vg_san/vm1"}`)
	assert.Equal(t, http.StatusConflict, status)
	assert.Contains(t, body, "no: vg_san/vm1")
	status, _ = post(api.RoutePeerRetain, `{"volume":"vg_san/vm1"}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, []string{"locks kvm-a vg_san", "release kvm-a vg_san/vm1", "retain kvm-a vg_san/vm1"}, handoff.asked, "by the name of its key")
	for _, path := range []string{api.RouteTransfer} {
		status, _ = post(path, `{"volumes":["vg_san/vm1"],"to":"kvm-a"}`)
		assert.Equal(t, http.StatusForbidden, status)
	}
	for _, path := range []string{api.RouteLocks, api.RouteLock, api.RouteWhere, api.RouteStale, api.RouteHosts} {
		status, _ = request(t, conn, r, "GET", path)
		assert.Equal(t, http.StatusForbidden, status)
	}
	assert.Empty(t, locks.asked)
}
