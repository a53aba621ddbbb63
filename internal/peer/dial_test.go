package peer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/server"
)

func TestVersionsAndNames(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*api.Version)
		kind   api.Kind // "": works
		text   string
	}{
		"same":           {func(*api.Version) {}, "", ""},
		"one minor on":   {func(v *api.Version) { v.ProtocolMinor = api.ProtocolMinor + 1 }, "", ""},
		"two minor on":   {func(v *api.Version) { v.ProtocolMinor = api.ProtocolMinor + 2 }, api.KindUnsupported, "virtlvmd there (1.2.3) speaks protocol 1.2, this host 1.0; bring both to the same release"},
		"next major":     {func(v *api.Version) { v.ProtocolMajor++ }, api.KindUnsupported, "speaks protocol 2.0, this host 1.0"},
		"no version":     {func(v *api.Version) { *v = api.Version{} }, api.KindUnsupported, "speaks protocol 0.0"},
		"another host":   {func(v *api.Version) { v.Host = "kvm-c" }, api.KindForbidden, "refused: kvm-b (unix://"},
		"says":           {func(v *api.Version) { v.Host = "kvm-c" }, api.KindForbidden, "answers as kvm-c; correct [peers] hosts"},
		"odd host":       {func(v *api.Version) { v.Host = "a\nb" }, api.KindForbidden, `answers as "a b"`},
		"no host":        {func(v *api.Version) { v.Host = "" }, api.KindForbidden, "answers as a host without a name"},
		"case differs":   {func(v *api.Version) { v.Host = "KVM-B" }, api.KindForbidden, "answers as KVM-B"},
		"not as a peer":  {func(v *api.Version) { v.Peer = "" }, api.KindForbidden, `authorized_keys must say command="virtlvm relay --peer kvm-a"`},
		"as another one": {func(v *api.Version) { v.Peer = "kvm-x" }, api.KindForbidden, "kvm-b knows this host, kvm-a, as kvm-x; correct --peer"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, echo)
			tt.change(&h.version)
			err := post(t, knowing(t, h))
			if tt.kind == "" {
				require.NoError(t, err)
				return
			}
			refusal(t, err, tt.kind, tt.text)
		})
	}
}

// raw is a host that answers the question for the version with given bytes.
func raw(t *testing.T, answer string, hold bool) *Peers {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		r := bufio.NewReader(conn)
		_, _ = r.ReadString('\n')
		_, _ = http.ReadRequest(r)
		_, _ = io.WriteString(conn, answer)
		if hold {
			_, _ = r.ReadByte()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	cfg := settings(map[string]string{"kvm-b": "unix://" + socket})
	if hold && answer == "" {
		cfg.ConnectTimeout = 300 * time.Millisecond
	}
	return peersOf(t, cfg)
}

func TestGarbageForAVersion(t *testing.T) {
	for name, tt := range map[string]struct {
		answer string
		hold   bool
		text   string
	}{
		"hangs up":      {"", false, "virtlvmd there does not answer; see `systemctl status virtlvmd` there"},
		"says nothing":  {"", true, "no answer in time"},
		"not HTTP":      {"SSH-2.0-OpenSSH_9.2\r\n", true, "virtlvmd there does not answer"},
		"not JSON":      {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", true, "its version cannot be understood; what answers there is not virtlvmd"},
		"too much":      {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n", true, "it says more than it was asked"},
		"too large":     {fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%070000d", 70_000, 0), true, "virtlvmd there does not answer"},
		"a web server":  {"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nhello", true, "it answers 400 without a reason; what answers there is not virtlvmd"},
		"refuses us":    {"HTTP/1.1 403 x\r\nContent-Length: 46\r\n\r\n" + `{"kind":"forbidden","message":"kvm-a, go\nno"}`, true, "it refuses: kvm-a, go no"},
		"one and close": {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", true, "or hangs up"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			refusal(t, post(t, raw(t, tt.answer, tt.hold)), api.KindUnreachable, "cannot reach kvm-b: ")
			refusal(t, post(t, raw(t, tt.answer, tt.hold)), api.KindUnreachable, tt.text)
			assert.Less(t, time.Since(began), patience)
		})
	}
}

func TestNoDaemonThere(t *testing.T) {
	dir := t.TempDir()
	for name, socket := range map[string]string{"no socket": "/none", "no directory": "/none/x"} {
		t.Run(name, func(t *testing.T) {
			p := peersOf(t, settings(map[string]string{"kvm-b": "unix://" + dir + socket}))
			refusal(t, post(t, p), api.KindUnreachable, "cannot reach kvm-b: virtlvmd does not run there")
		})
	}
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	p := peersOf(t, settings(map[string]string{"kvm-b": "unix://" + plain}))
	refusal(t, post(t, p), api.KindUnreachable, "virtlvmd does not run there")
}

// daemon is the real server of kvm-b on a peer socket.
func daemon(t *testing.T) string {
	t.Helper()
	v := goodVersion()
	v.Peer = ""
	srv := server.New(server.Options{Version: v, Log: slog.New(slog.DiscardHandler)}).HTTPPeer()
	socket := filepath.Join(t.TempDir(), "peer.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	go func() { _ = srv.Serve(server.PeerListener(l)) }()
	t.Cleanup(func() { _ = srv.Close() })
	return socket
}

func TestAgainstTheRealServer(t *testing.T) {
	p := peersOf(t, settings(map[string]string{"kvm-b": "unix://" + daemon(t)}))
	var v api.Version
	require.NoError(t, p.Do(t.Context(), "kvm-b", http.MethodGet, api.RouteVersion, nil, &v))
	assert.Equal(t, goodVersion(), v, "it knows us by our name")
	err := p.Do(t.Context(), "kvm-b", http.MethodPost, api.RouteHook, api.HookCall{}, nil)
	refusal(t, err, api.KindForbidden, "kvm-b: this is no request that hosts make of each other")
	err = p.Do(t.Context(), "kvm-b", http.MethodPost, "/v1/peer/nothing", nil, nil)
	refusal(t, err, api.KindNotFound, "kvm-b: this virtlvmd does not know POST")

	r, err := p.Probe(t.Context(), "kvm-b")
	require.NoError(t, err)
	assert.Equal(t, goodVersion(), r.Version)
	assert.Positive(t, r.Connect)
	assert.Positive(t, r.Latency)
}

func TestProbeFails(t *testing.T) {
	h := newHost(t, func(_ int, _ net.Conn, r *bufio.Reader) { _, _ = http.ReadRequest(r) })
	_, err := knowing(t, h).Probe(t.Context(), "kvm-b")
	refusal(t, err, api.KindUnreachable, "virtlvmd there does not answer")
	_, err = knowing(t, h).Probe(t.Context(), "kvm-a")
	refusal(t, err, api.KindBadRequest, "it is this host")

	hangs := newHost(t, func(_ int, _ net.Conn, r *bufio.Reader) { _, _ = io.Copy(io.Discard, r) })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = knowing(t, hangs).Probe(ctx, "kvm-b")
	refusal(t, err, api.KindUnreachable, "no answer in time")
}
