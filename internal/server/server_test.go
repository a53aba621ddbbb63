package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

type fakeEngine struct {
	calls        []api.HookCall
	called, gone chan struct{} // closed when a hook called, and when it has gone
	asked        []string
}

func (f *fakeEngine) Hook(ctx context.Context, c api.HookCall) api.HookVerdict {
	f.calls = append(f.calls, c)
	if c.Op == "started" {
		close(f.called)
		<-ctx.Done()
		close(f.gone)
	}
	return api.HookVerdict{Message: "no: " + c.Guest}
}
func (f *fakeEngine) Status(context.Context) api.Status { return api.Status{Host: "kvm-a"} }
func (f *fakeEngine) Volumes(_ context.Context, vg string) ([]api.Volume, error) {
	return nil, api.NewError(api.KindOutOfScope, "not ours: "+vg)
}

func (*fakeEngine) ShowVolume(_ context.Context, name string) (api.Volume, error) {
	return api.Volume{Name: name}, nil
}
func (f *fakeEngine) ListGuests(context.Context) ([]api.Guest, error) { return []api.Guest{}, nil }
func (*fakeEngine) Handoff(_ context.Context, guest string) (api.GuestHandoff, error) {
	return api.GuestHandoff{Guest: guest, Migrations: []api.Migration{}}, nil
}

func (f *fakeEngine) Activate(_ context.Context, r api.VolumeRequest, by string) (api.Command, error) {
	f.asked = append(f.asked, "activate "+r.Volume+" "+by)
	return api.Command{ID: 7}, nil
}

func (f *fakeEngine) Deactivate(context.Context, api.VolumeRequest, string) (api.Command, error) {
	return api.Command{}, io.ErrUnexpectedEOF
}

func (f *fakeEngine) DeclareFenced(_ context.Context, r api.FencedRequest, by string) (api.Command, error) {
	f.asked = append(f.asked, "fenced "+r.Host+" "+by)
	return api.Command{ID: 8}, nil
}

type fakeJournal struct {
	mu     sync.Mutex
	events []api.Event
}

func (j *fakeJournal) Events(_ context.Context, after int64, limit int) ([]api.Event, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := []api.Event{}
	for _, e := range j.events {
		if e.ID > after && len(all) < limit {
			all = append(all, e)
		}
	}
	if after < 0 && len(j.events) > limit {
		return j.events[len(j.events)-limit:], nil
	}
	return all, nil
}

func (*fakeJournal) HookCalls(context.Context, int, string) ([]api.HookRecord, error) {
	return []api.HookRecord{}, nil
}

// dial serves a fake engine on a socket and returns a client for it.
func dial(t *testing.T, writable bool) (*http.Client, *fakeEngine, *fakeCommands) {
	t.Helper()
	e, c := &fakeEngine{called: make(chan struct{}), gone: make(chan struct{})}, &fakeCommands{}
	srv := New(Options{
		Engine: e, Commands: c, Journal: &fakeJournal{}, Log: slog.New(slog.DiscardHandler), Version: api.Version{Version: "1.2.3"},
		Spool: func() api.SpoolSummary { return api.SpoolSummary{Waiting: 2} },
	}).HTTP(writable)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, e, c
}

func ask(t *testing.T, c *http.Client, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://virtlvm"+path, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := c.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(data)
}

func TestRoutes(t *testing.T) {
	for _, c := range []struct {
		method, path, body string
		status             int
		contains           string
	}{
		{"GET", "/v1/version", "", 200, `"version":"1.2.3"`},
		{"GET", "/v1/status", "", 200, `"waiting":2`},
		{"GET", "/v1/volumes/show?volume=vg/lv", "", 200, `"name":"vg/lv"`},
		{"GET", "/v1/volumes?vg=vg0", "", 404, `"kind":"out_of_scope","message":"not ours: vg0"`},
		{"GET", "/v1/guests", "", 200, `[]`},
		{"GET", "/v1/handoff?guest=a%20b", "", 200, `{"guest":"a b"`},
		{"GET", "/v1/handoff", "", 400, "no guest is named"},
		{"GET", "/v1/commands/12", "", 200, `"id":12`},
		{"GET", "/v1/commands/12?fresh=1", "", 200, `"why":"asked"`},
		{"GET", "/v1/commands?since=yesterday", "", 400, "is not a time such as"},
		{"POST", "/v1/commands", `{"kind":"copy","args":{"volume":"v"},"executor":"kvm-b"}`, 202, `"id":8`},
		{"POST", "/v1/commands", `{"kind":"refused"}`, 400, "no such kind"},
		{"POST", "/v1/commands", `{`, 400, "cannot read the request"},
		{"POST", "/v1/commands/8/cancel", `{"why":"x"}`, 200, `"cancelled":"x by operator uid`},
		{"POST", "/v1/commands/0/cancel", `{}`, 400, "is not a command id"},
		{"POST", "/v1/commands/8/resolve", `{"as":"failed","why":"x"}`, 200, `"state":"failed"`},
		{"POST", "/v1/commands/x/resolve", `{}`, 400, "is not a command id"},
		{"GET", "/v1/events", "", 200, `[]`},
		{"GET", "/v1/events?after=x", "", 400, "is not a number"},
		{"GET", "/v1/status", "", 200, `"problems":["command 12 needs you"]`},
		{"GET", "/v1/commands/x", "", 400, "is not a command id"},
		{"GET", "/v1/commands/-1", "", 400, "is not a command id"},
		{"GET", "/v1/commands?limit=many", "", 400, "is not a number"},
		{"GET", "/v1/hooks?guest=vm1", "", 200, `[]`},
		{"POST", "/v1/volumes/activate", `{"volume":"vg/lv"}`, 200, `"id":7`},
		{"POST", "/v1/volumes/activate", `{`, 400, "cannot read the request"},
		{"POST", "/v1/volumes/activate", `{"volume":"` + strings.Repeat("x", 70000) + `"}`, 400, "larger than"},
		{"POST", "/v1/volumes/deactivate", `{}`, 500, `"kind":"internal"`},
		{"POST", "/v1/hook", `garbage`, 400, "cannot read the request"},
		{"POST", "/v1/hook", `{"guest":"vm1","op":"prepare"}`, 200, `{"allow":false,"message":"no: vm1"}`},
		{"GET", "/v9/other", "", 404, "does not know GET"},
		{"DELETE", "/v1/guests", "", 404, "does not know DELETE"},
	} {
		client, _, _ := dial(t, true)
		status, body := ask(t, client, c.method, c.path, c.body)
		assert.Equal(t, c.status, status, "%s %s: %s", c.method, c.path, body)
		assert.Contains(t, body, c.contains, "%s %s", c.method, c.path)
	}
}

func TestReadOnlySocketChangesNothing(t *testing.T) {
	client, e, _ := dial(t, false)
	for _, path := range []string{"/v1/hook", "/v1/volumes/activate", "/v1/volumes/deactivate", "/v1/commands", "/v1/commands/1/cancel", "/v1/commands/1/resolve"} {
		status, body := ask(t, client, "POST", path, `{}`)
		assert.Equal(t, http.StatusForbidden, status)
		assert.Contains(t, body, `"kind":"forbidden"`)
	}
	assert.Empty(t, e.calls)
	assert.Empty(t, e.asked)
	status, _ := ask(t, client, "GET", "/v1/status", "")
	assert.Equal(t, http.StatusOK, status)
}

func TestAccess(t *testing.T) {
	for _, c := range []struct {
		who  caller
		need Access
		ok   bool
	}{
		{caller{}, AccessRead, true},
		{caller{known: true, uid: 0}, AccessWrite, false},
		{caller{writable: true}, AccessWrite, false},
		{caller{known: true, uid: 1 << 20, writable: true}, AccessWrite, true},
		{caller{known: true, uid: 1 << 20, writable: true}, AccessRoot, false},
		{caller{known: true, uid: 0, writable: true}, AccessRoot, true},
	} {
		assert.Equal(t, c.ok, c.who.may(c.need) == nil, "%+v %v", c.who, c.need)
	}
}

func TestCallerIsJournalled(t *testing.T) {
	client, e, _ := dial(t, true)
	ask(t, client, "POST", "/v1/volumes/activate", `{"volume":"vg/lv"}`)
	require.Len(t, e.asked, 1)
	assert.Regexp(t, `^activate vg/lv operator uid \d+$`, e.asked[0])
}

func TestSpooledFlagCannotBeSent(t *testing.T) {
	client, e, _ := dial(t, true)
	ask(t, client, "POST", "/v1/hook", `{"guest":"vm1","op":"release","spooled":true}`)
	require.Len(t, e.calls, 1)
	assert.False(t, e.calls[0].Spooled)
}

func TestEngineLearnsThatTheHookHasGone(t *testing.T) {
	client, e, _ := dial(t, true)
	body, err := json.Marshal(api.HookCall{Guest: "vm1", Op: "started", XML: bytes.Repeat([]byte("x"), 1<<20)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", "http://virtlvm/v1/hook", bytes.NewReader(body))
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-e.called
	cancel()
	<-done
	select {
	case <-e.gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the engine was not told")
	}
}

func TestLimits(t *testing.T) {
	client, _, c := dial(t, true)
	ask(t, client, "GET", "/v1/commands", "")
	assert.Equal(t, defaultLimit, c.filter.Limit)
	ask(t, client, "GET", "/v1/commands?limit=3", "")
	assert.Equal(t, 3, c.filter.Limit)
	status, _ := ask(t, client, "GET", "/v1/commands?limit=1000000", "")
	assert.Equal(t, http.StatusBadRequest, status)
}
