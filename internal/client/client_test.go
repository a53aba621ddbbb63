package client

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

// serve answers on a unix socket until the test ends.
func serve(t *testing.T, socket string, h http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, srv.Close())
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
}

func sockets(t *testing.T) (rw, ro string) {
	t.Helper()
	dir := t.TempDir()
	return filepath.Join(dir, "rw"), filepath.Join(dir, "ro")
}

func answer(t *testing.T, w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	assert.NoError(t, json.NewEncoder(w).Encode(body))
}

func TestRequests(t *testing.T) {
	type call struct {
		method, url, body string
	}
	tests := []struct {
		name   string
		do     func(context.Context, *Client) (any, error)
		status int
		answer any
		want   call
	}{
		{"version", func(ctx context.Context, c *Client) (any, error) { return c.Version(ctx) }, 200, api.Version{Version: "1"}, call{"GET", "/v1/version", ""}},
		{"status", func(ctx context.Context, c *Client) (any, error) { return c.Status(ctx) }, 200, api.Status{Host: "kvm-a"}, call{"GET", "/v1/status", ""}},
		{"volumes", func(ctx context.Context, c *Client) (any, error) { return c.Volumes(ctx, "") }, 200, []api.Volume{{Name: "vg/a"}}, call{"GET", "/v1/volumes", ""}},
		{"volumes of a group", func(ctx context.Context, c *Client) (any, error) { return c.Volumes(ctx, "v+g&x=1") }, 200, []api.Volume{}, call{"GET", "/v1/volumes?vg=v%2Bg%26x%3D1", ""}},
		{"volume", func(ctx context.Context, c *Client) (any, error) { return c.Volume(ctx, "vg/a") }, 200, api.Volume{Name: "vg/a"}, call{"GET", "/v1/volumes/show?volume=vg%2Fa", ""}},
		{"guests", func(ctx context.Context, c *Client) (any, error) { return c.Guests(ctx) }, 200, []api.Guest{{Name: "vm1"}}, call{"GET", "/v1/guests", ""}},
		{"commands", func(ctx context.Context, c *Client) (any, error) { return c.Commands(ctx, api.CommandFilter{}) }, 200, []api.Command{{ID: 1}}, call{"GET", "/v1/commands", ""}},
		{"commands before", func(ctx context.Context, c *Client) (any, error) {
			return c.Commands(ctx, api.CommandFilter{Limit: 5, Before: 7})
		}, 200, []api.Command{}, call{"GET", "/v1/commands?before=7&limit=5", ""}},
		{"command", func(ctx context.Context, c *Client) (any, error) { return c.Command(ctx, 12) }, 200, api.Command{ID: 12}, call{"GET", "/v1/commands/12", ""}},
		{
			"commands by state and time", func(ctx context.Context, c *Client) (any, error) {
				return c.Commands(ctx, api.CommandFilter{States: []string{"FAILED", "open"}, Since: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("x", 3600))})
			}, 200, []api.Command{}, call{"GET", "/v1/commands?since=2026-01-02T02%3A04%3A05Z&state=FAILED&state=open", ""},
		},
		{"fresh command", func(ctx context.Context, c *Client) (any, error) { return c.FreshCommand(ctx, 12) }, 200, api.Command{ID: 12}, call{"GET", "/v1/commands/12?fresh=1", ""}},
		{
			"run", func(ctx context.Context, c *Client) (any, error) {
				return c.Run(ctx, api.CommandRequest{Kind: "copy", Args: json.RawMessage(`{"a":1}`), Executor: "kvm-b"})
			}, 202, api.Command{ID: 4}, call{"POST", "/v1/commands", `{"kind":"copy","args":{"a":1},"executor":"kvm-b"}`},
		},
		{"cancel", func(ctx context.Context, c *Client) (any, error) {
			return c.Cancel(ctx, 4, api.CancelRequest{Why: "x"})
		}, 200, api.Command{ID: 4}, call{"POST", "/v1/commands/4/cancel", `{"why":"x"}`}},
		{
			"resolve", func(ctx context.Context, c *Client) (any, error) {
				return c.Resolve(ctx, 4, api.ResolveRequest{As: "failed", Why: "x"})
			}, 200, api.Command{ID: 4}, call{"POST", "/v1/commands/4/resolve", `{"as":"failed","why":"x"}`},
		},
		{"events", func(ctx context.Context, c *Client) (any, error) { return c.Events(ctx, -1, 3) }, 200, []api.Event{{ID: 1}}, call{"GET", "/v1/events?limit=3", ""}},
		{"events after", func(ctx context.Context, c *Client) (any, error) { return c.Events(ctx, 0, 0) }, 200, []api.Event{}, call{"GET", "/v1/events?after=0", ""}},
		{"hooks", func(ctx context.Context, c *Client) (any, error) { return c.Hooks(ctx, 3, "vm\n1") }, 200, []api.HookRecord{{ID: 1}}, call{"GET", "/v1/hooks?guest=vm%0A1&limit=3", ""}},
		{"peers", func(ctx context.Context, c *Client) (any, error) { return c.Peers(ctx) }, 200, api.Peers{Host: "kvm-a"}, call{"GET", "/v1/peers", ""}},
		{
			"activate", func(ctx context.Context, c *Client) (any, error) {
				return c.Activate(ctx, api.VolumeRequest{Volume: "vg/a", Mode: "sh"})
			}, 200, api.Command{ID: 2}, call{"POST", "/v1/volumes/activate", `{"volume":"vg/a","mode":"sh"}`},
		},
		{
			"deactivate, accepted only", func(ctx context.Context, c *Client) (any, error) {
				return c.Deactivate(ctx, api.VolumeRequest{Volume: "vg/a"})
			}, 202, api.Command{ID: 3}, call{"POST", "/v1/volumes/deactivate", `{"volume":"vg/a"}`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rw, ro := sockets(t)
			var got call
			serve(t, rw, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				got = call{r.Method, r.URL.String(), string(body)}
				answer(t, w, tt.status, tt.answer)
			})
			c := New(Options{Socket: rw, ReadOnlySocket: ro})
			t.Cleanup(c.Close)
			out, err := tt.do(t.Context(), c)
			require.NoError(t, err)
			assert.Equal(t, tt.answer, out)
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestDefaultsAndPoolsOfSockets(t *testing.T) {
	c := New(Options{})
	assert.Equal(t, []string{api.SocketPath, api.ReadOnlySocketPath}, c.look.sockets)
	assert.Equal(t, []string{api.SocketPath}, c.change.sockets)
	c = New(Options{Socket: "/x"})
	assert.Equal(t, []string{"/x"}, c.look.sockets, "an explicit socket has no fallback")
}

func TestFallbackToReadOnlySocket(t *testing.T) {
	rw, ro := sockets(t)
	asked := 0
	serve(t, ro, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		answer(t, w, http.StatusOK, api.Status{Host: "kvm-a"})
	})
	c := New(Options{Socket: rw, ReadOnlySocket: ro})
	t.Cleanup(c.Close)

	status, err := c.Status(t.Context())
	require.NoError(t, err, "absent read-write socket")
	assert.Equal(t, "kvm-a", status.Host)
	require.Equal(t, 1, asked)

	_, err = c.Activate(t.Context(), api.VolumeRequest{Volume: "vg/a"})
	assert.Equal(t, api.KindUnreachable, api.KindOf(err))
	assert.Equal(t, 1, asked, "a change never goes to the read-only socket")

	if os.Getuid() == 0 {
		return // root may open every socket, so the case below cannot arise
	}
	serve(t, rw, func(http.ResponseWriter, *http.Request) { t.Error("may not be reached") })
	require.NoError(t, os.Chmod(rw, 0))
	_, err = c.Status(t.Context())
	require.NoError(t, err, "read-write socket not permitted")
	_, err = c.Deactivate(t.Context(), api.VolumeRequest{Volume: "vg/a"})
	assert.Equal(t, api.KindForbidden, api.KindOf(err))
}

func TestErrorsOfTheDaemonArriveTyped(t *testing.T) {
	rw, _ := sockets(t)
	serve(t, rw, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case api.RouteActivate:
			answer(t, w, api.KindHeld.HTTPStatus(), api.NewError(api.KindHeld, "vg/a is held by kvm-b"))
		case api.RouteStatus:
			http.NotFound(w, r)
		case api.RouteGuests:
			http.Error(w, "boom", http.StatusInternalServerError)
		case api.RouteVolumes:
			_, err := io.WriteString(w, `[{"name": 5}]`)
			assert.NoError(t, err)
		case api.RouteCommands:
			http.Redirect(w, r, api.RouteHooks, http.StatusFound)
		default:
			t.Errorf("unexpected %s", r.URL.Path)
		}
	})
	c := New(Options{Socket: rw})
	t.Cleanup(c.Close)

	_, err := c.Activate(t.Context(), api.VolumeRequest{Volume: "vg/a"})
	assert.Equal(t, api.NewError(api.KindHeld, "vg/a is held by kvm-b"), err)
	_, err = c.Status(t.Context())
	assert.EqualError(t, err, "virtlvmd answered 404 Not Found to GET /v1/status: another version runs there; compare `virtlvm version`")
	_, err = c.Guests(t.Context())
	assert.EqualError(t, err, "virtlvmd answered 500 Internal Server Error to GET /v1/guests without a reason; see `journalctl -u virtlvmd`")
	_, err = c.Volumes(t.Context(), "")
	assert.ErrorContains(t, err, "cannot understand the answer of virtlvmd to GET /v1/volumes")
	_, err = c.Commands(t.Context(), api.CommandFilter{})
	assert.ErrorContains(t, err, "302 Found")
	assert.Equal(t, api.KindInternal, api.KindOf(err))
}

func TestUnreachable(t *testing.T) {
	rw, ro := sockets(t)
	c := New(Options{Socket: rw, ReadOnlySocket: ro})
	_, err := c.Status(t.Context())
	assert.Equal(t, api.KindUnreachable, api.KindOf(err))
	assert.EqualError(t, err, "virtlvmd cannot be reached: there is no "+rw+"; run `systemctl start virtlvmd.socket virtlvmd.service`")

	// A socket whose listener has gone without removing it.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: rw, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	_, err = c.Activate(t.Context(), api.VolumeRequest{})
	assert.Equal(t, api.KindUnreachable, api.KindOf(err))
	assert.ErrorContains(t, err, "nobody listens on "+rw)

	c = New(Options{Socket: filepath.Join(t.TempDir(), strings.Repeat("x", 120))})
	_, err = c.Status(t.Context())
	assert.Equal(t, api.KindUnreachable, api.KindOf(err))
}

func TestPermissionDeniedIsForbidden(t *testing.T) {
	err := (&dialError{"/run/x.sock", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", os.ErrPermission)}}).explain()
	assert.Equal(t, api.KindForbidden, api.KindOf(err))
	assert.EqualError(t, err, "may not open /run/x.sock: run as root or as a member of its group")
}

func TestSilentDaemon(t *testing.T) {
	rw, _ := sockets(t)
	release := make(chan struct{})
	serve(t, rw, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	c := New(Options{Socket: rw})
	t.Cleanup(c.Close)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Status(ctx)
	assert.Equal(t, api.KindUnreachable, api.KindOf(err))
	assert.EqualError(t, err, "virtlvmd did not answer in time; see `systemctl status virtlvmd`")

	_, err = c.Status(ctx)
	assert.Equal(t, api.KindUnreachable, api.KindOf(err), "deadline passed before the connection")

	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Activate(ctx, api.VolumeRequest{Volume: "vg/a"})
	assert.Equal(t, api.KindUnknown, api.KindOf(err))
	assert.ErrorContains(t, err, "virtlvmd did not answer in time, so the outcome is not known")

	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = c.Deactivate(ctx, api.VolumeRequest{Volume: "vg/a"})
	assert.Equal(t, api.KindUnknown, api.KindOf(err))
	assert.ErrorContains(t, err, "was not waited for")
}

func TestDaemonKilledMidCall(t *testing.T) {
	rw, _ := sockets(t)
	serve(t, rw, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			// Half an answer.
			w.Header().Set("Content-Length", "100")
			_, err := io.WriteString(w, "[")
			assert.NoError(t, err)
			assert.NoError(t, http.NewResponseController(w).Flush())
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			assert.NoError(t, conn.Close())
		}
	})
	c := New(Options{Socket: rw})
	t.Cleanup(c.Close)
	_, err := c.Guests(t.Context())
	assert.Equal(t, api.KindUnreachable, api.KindOf(err))
	assert.ErrorContains(t, err, "broke off the connection")
	_, err = c.Activate(t.Context(), api.VolumeRequest{Volume: "vg/a"})
	assert.Equal(t, api.KindUnknown, api.KindOf(err))
}

func TestFollow(t *testing.T) {
	rw, _ := sockets(t)
	var asked string
	serve(t, rw, func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		w.Header().Set("Content-Type", "text/event-stream")
		_, err := io.WriteString(w, ":\n\nid: 8\ndata: {\"id\":8,\"to\":\"FAILED\"}\n\n:\n\nid: 9\ndata: {\"id\":9}\n\n")
		assert.NoError(t, err)
	})
	c := New(Options{Socket: rw})
	t.Cleanup(c.Close)
	var got []api.Event
	err := c.Follow(t.Context(), 7, func(e api.Event) error { got = append(got, e); return nil })
	assert.ErrorContains(t, err, "broke off the connection")
	assert.Equal(t, api.KindUnreachable, api.KindOf(err))
	assert.Equal(t, []api.Event{{ID: 8, To: "FAILED"}, {ID: 9}}, got)
	assert.Equal(t, "/v1/events?after=7&follow=1", asked)
	err = c.Follow(t.Context(), -1, func(api.Event) error { return io.ErrClosedPipe })
	assert.Equal(t, io.ErrClosedPipe, err)
	assert.Equal(t, "/v1/events?follow=1", asked)
}

func TestFollowRefused(t *testing.T) {
	rw, _ := sockets(t)
	serve(t, rw, func(w http.ResponseWriter, _ *http.Request) {
		answer(t, w, 503, api.NewError(api.KindStuck, "64 clients follow the events already"))
	})
	c := New(Options{Socket: rw})
	t.Cleanup(c.Close)
	assert.Equal(t, api.KindStuck, api.KindOf(c.Follow(t.Context(), -1, nil)))
}
