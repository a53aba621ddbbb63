package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/config"
	"virtlvm/internal/metrics"
	"virtlvm/internal/model"
	"virtlvm/internal/server"
	"virtlvm/internal/store"
)

// silent are peers of which none answers.
type silent struct{}

func (silent) Call(_ context.Context, host, _ string, _, _ any) error {
	return api.NewError(api.KindUnreachable, "cannot reach "+host+": it does not answer")
}

// The site's own program, run as virtlvmd runs it: only its clear yes makes a silent member
// count as off.
func TestFenceStatus(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	for name, tt := range map[string]struct {
		command string
		off     bool
		err     string // "": it has told
	}{
		"yes":                 {write("yes", "#!/bin/sh\n[ \"$*\" = kvm-b ]\n", 0o700), true, ""},
		"yes, and talks":      {write("talks", "#!/bin/sh\necho kvm-b is on\necho error >&2\n", 0o700), true, ""},
		"no":                  {write("no", "#!/bin/sh\nexit 1\n", 0o700), false, ""},
		"no, and says yes":    {write("liar", "#!/bin/sh\necho off\nexit 1\n", 0o700), false, ""},
		"does not know":       {write("two", "#!/bin/sh\necho no such plug >&2\nexit 2\n", 0o700), false, "exit code 2: no such plug"},
		"garbage":             {write("bytes", "#!/bin/sh\nhead -c 100000 /dev/urandom\nexit 77\n", 0o700), false, "exit code 77"},
		"a word it lacks":     {write("typo", "#!/bin/sh\nno-such-program-at-all \"$1\"\n", 0o700), false, "exit code 127"},
		"ends by a signal":    {write("killed", "#!/bin/sh\nkill -9 $$\n", 0o700), false, "ended by signal: killed"},
		"ends by SIGHUP (1)":  {write("hangup", "#!/bin/sh\nkill -1 $$\n", 0o700), false, "ended by signal: hangup"},
		"hangs":               {write("hangs", "#!/bin/sh\nexec sleep 60\n", 0o700), false, "has not answered in time"},
		"hangs, says off":     {write("says", "#!/bin/sh\ntrap 'exit 0' TERM\nsleep 60 & wait\n", 0o700), false, "has not answered in time"},
		"hangs, says no":      {write("nope", "#!/bin/sh\ntrap 'exit 1' TERM\nsleep 60 & wait\n", 0o700), false, "has not answered in time"},
		"is missing":          {filepath.Join(dir, "missing"), false, "not installed in " + dir},
		"is not executable":   {write("plain", "#!/bin/sh\nexit 0\n", 0o600), false, "not installed in " + dir},
		"is a folder":         {dir, false, "not installed in"},
		"is no program":       {write("nothing", "\x7fELF", 0o700), false, "exec format error"},
		"wants another shell": {write("shell", "#!/no/such/shell\nexit 0\n", 0o700), false, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			timeout := time.Minute // no answer is late because the machine is slow
			if strings.HasPrefix(name, "hangs") {
				timeout = time.Second
			}
			off, err := new(site).ask(t.Context(), out, tt.command, "kvm-b", timeout)
			assert.Equal(t, tt.off, off)
			if tt.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.err)
			}
			// What the engine makes of it.
			m := activation.New(activation.Deps{
				Host: "kvm-a", Peers: silent{}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
				FenceStatus: func(context.Context, string) (bool, error) { return off, err },
				Settings: func() activation.Settings {
					return activation.Settings{Claims: map[string][]string{"vg_old": {"kvm-a", "kvm-b"}}}
				},
			})
			said := m.AskMembers(t.Context(), "vg_old")["kvm-b"]
			if tt.off {
				require.EqualError(t, said, "it does not answer, and counts as off")
				return
			}
			require.ErrorContains(t, said, "does not say what it has of it (cannot reach kvm-b: it does not answer)")
			assert.Equal(t, api.KindUnknown, api.KindOf(said))
		})
	}
}

// One that does not even end when it is told to is not started again and again.
func TestFenceStatusThatNeverEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command := filepath.Join(dir, "deaf")
	require.NoError(t, os.WriteFile(command, []byte("#!/bin/sh\ntrap '' TERM\necho $1 >>"+dir+"/asked\nwhile [ ! -e "+dir+"/end ]; do sleep 0.1; done\n"), 0o700))
	var s site
	ask := func(host string) error {
		off, err := s.ask(t.Context(), dir, command, host, 3*time.Second)
		assert.False(t, off)
		return err
	}
	asked := func() int {
		data, err := os.ReadFile(filepath.Join(dir, "asked"))
		require.NoError(t, err)
		return strings.Count(string(data), "\n")
	}
	require.ErrorContains(t, ask("kvm-b"), "has not answered in time")
	require.ErrorContains(t, ask("kvm-b"), "kvm-b has been asked before, and has not ended")
	assert.Equal(t, 1, asked())
	require.ErrorContains(t, ask("kvm-c"), "has not answered in time", "about another host")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "end"), nil, 0o600))
	require.Eventually(t, func() bool {
		off, _ := s.ask(t.Context(), dir, command, "kvm-b", time.Minute)
		return off
	}, 10*time.Second, 50*time.Millisecond, "it ends with 0 now")
}

// A daemon that has no fence_status asks nobody; one that cannot run it takes no yes for it.
func TestFenceStatusOfTheConfiguration(t *testing.T) {
	d := host(t, false, nil)
	off, err := d.fenceStatus(t.Context(), "kvm-b")
	require.NoError(t, err)
	assert.False(t, off)
	cfg := config.Default()
	cfg.Paths.RunDir = t.TempDir()
	cfg.Peers.FenceStatus = filepath.Join(t.TempDir(), "off")
	require.NoError(t, os.WriteFile(cfg.Peers.FenceStatus, []byte("#!/bin/sh\nexit 0\n"), 0o700))
	d.config.Store(cfg)
	require.NoError(t, os.Mkdir(d.outDir(), 0o700))
	off, err = d.fenceStatus(t.Context(), "kvm-b")
	require.NoError(t, err)
	assert.True(t, off)
	require.NoError(t, os.Remove(d.outDir())) // as a full /run would be
	off, err = d.fenceStatus(t.Context(), "kvm-b")
	require.ErrorContains(t, err, "no place for its output")
	assert.False(t, off)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	off, err = d.fenceStatus(ctx, "kvm-b")
	require.Error(t, err)
	assert.False(t, off)
}

// Requests of all kinds are counted, those of `virtlvm check` as well.
func TestRequestsToHostsAreCounted(t *testing.T) {
	d := host(t, false, nil)
	d.config.Load().Peers.Hosts["kvm-b"] = "unix://" + filepath.Join(t.TempDir(), "none.sock")
	d.counters = newCounters()
	d.peers = d.newPeers()
	t.Cleanup(d.peers.Close)
	_, err := d.peers.Probe(t.Context(), "kvm-b") // check
	require.Error(t, err)
	require.Error(t, d.peers.Do(t.Context(), "kvm-b", "GET", api.RoutePeerCheck, nil, nil)) // check --cluster
	require.Error(t, caller{d}.Call(t.Context(), "kvm-b", api.RoutePeerHello, struct{}{}, nil))
	var b strings.Builder
	require.NoError(t, d.counters.set.Write(&b, func(*metrics.Scrape) {}))
	assert.Contains(t, b.String(), `virtlvm_peer_errors_total{host="kvm-b",kind="unreachable"} 3`+"\n")
	assert.Contains(t, b.String(), `virtlvm_peer_call_duration_seconds_count{host="kvm-b"} 3`+"\n")
}

// What another host answers shows that it is not off, whatever it is about.
func TestAnswersEndADeclaration(t *testing.T) {
	dir, err := os.MkdirTemp("", "v") // short: a socket's path has 107 bytes at most
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "peer.sock"))
	require.NoError(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := any(api.Version{Host: "kvm-b", Peer: "kvm-a", ProtocolMajor: api.ProtocolMajor, ProtocolMinor: api.ProtocolMinor})
		if r.URL.Path != api.RouteVersion {
			w.WriteHeader(http.StatusNotFound)
			answer = api.NewError(api.KindNotFound, "no such route")
		}
		assert.NoError(t, json.NewEncoder(w).Encode(answer))
	})}
	go func() { _ = srv.Serve(server.PeerListener(l)) }()
	t.Cleanup(func() { _ = srv.Close() })

	d := host(t, false, nil)
	d.config.Load().Peers.Hosts["kvm-b"] = "unix://" + l.Addr().String()
	d.counters, d.store = newCounters(), store.New(store.Options{Path: filepath.Join(dir, "virtlvm.db")})
	d.peers = d.newPeers()
	t.Cleanup(d.peers.Close)
	require.NoError(t, d.store.Open(t.Context()))
	t.Cleanup(func() { _ = d.store.Close() })
	require.NoError(t, d.store.PutFenced(t.Context(), model.Fenced{Host: "kvm-b", Here: "boot", By: "tester", At: 1}))
	d.engine = activation.New(activation.Deps{
		Journal: d.store, BootID: "boot", Now: time.Now, Log: d.log, Settings: func() activation.Settings { return activation.Settings{} },
	})
	d.engine.Load(t.Context())
	require.Len(t, d.engine.FencedHosts(), 1)
	require.ErrorContains(t, caller{d}.Call(t.Context(), "kvm-b", api.RoutePeerHello, struct{}{}, nil), "no such route")
	assert.Empty(t, d.engine.FencedHosts())
	left, err := d.store.Fenced(t.Context())
	require.NoError(t, err)
	assert.Empty(t, left)
}
