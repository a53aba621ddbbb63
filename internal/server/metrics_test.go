package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMetricsRoute(t *testing.T) {
	var fail error
	s := New(Options{
		Engine: &fakeEngine{}, Journal: &fakeJournal{}, Log: slog.New(slog.DiscardHandler),
		Metrics: func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, "virtlvm_ready 1\n")
			return errors.Join(err, fail)
		},
	})
	for _, writable := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		srv := s.HTTP(writable)
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(func() { _ = srv.Close() })
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}}
		resp, err := client.Get("http://virtlvm/metrics")
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, "virtlvm_ready 1\n", string(body))
		assert.Equal(t, "text/plain; version=0.0.4; charset=utf-8", resp.Header.Get("Content-Type"))
		fail = errors.New("no")
		status, _ := ask(t, client, "GET", "/metrics", "")
		assert.Equal(t, http.StatusInternalServerError, status)
		fail = nil
		client.CloseIdleConnections()
	}
}
