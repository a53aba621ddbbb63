package daemon

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/server"
)

func TestHaveIn(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lvs"), nil, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vgs"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "pvs"), 0o700))
	have := haveIn([]string{filepath.Join(dir, "none"), dir})
	for name, want := range map[string]bool{"lvs": true, "vgs": false, "pvs": false, "sanlock": false} {
		assert.Equal(t, want, have(name), name)
	}
	assert.True(t, haveIn(nil)("ls"), "the usual folders")
}

func TestSpace(t *testing.T) {
	dir := t.TempDir()
	s := space(dir)
	require.NoError(t, s.Err)
	assert.Positive(t, s.Free)
	assert.Positive(t, s.Files)
	assert.ErrorContains(t, space(filepath.Join(dir, "none")).Err, "cannot tell the room in")
}

// A peer socket wants the name of a host first, the others do not.
func TestAskSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "v") // short: a socket's path has 107 bytes at most
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	serve := func(name string, status int, wrap func(net.Listener) net.Listener) string {
		path := filepath.Join(dir, name)
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, api.RouteVersion, r.URL.Path)
			w.WriteHeader(status)
		})}
		go func() { _ = srv.Serve(wrap(l)) }()
		t.Cleanup(func() { _ = srv.Close() })
		return path
	}
	plain := func(l net.Listener) net.Listener { return l }
	d := &Daemon{host: "kvm-a"}
	assert.NoError(t, d.askSocket(t.Context(), serve("virtlvm.sock", 200, plain)))
	assert.NoError(t, d.askSocket(t.Context(), serve("peer.sock", 200, server.PeerListener)))
	assert.ErrorContains(t, d.askSocket(t.Context(), serve("bad.sock", 500, plain)), "500")
	assert.Error(t, d.askSocket(t.Context(), filepath.Join(dir, "none.sock")))
	d.host = ""
	assert.Error(t, d.askSocket(t.Context(), filepath.Join(dir, "peer.sock")), "a host without a name is no peer")
}
