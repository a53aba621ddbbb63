package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

// fakeHost is another host, kvm-b unless told otherwise: it answers the question for the
// version by itself and leaves the rest of a connection to the test.
type fakeHost struct {
	socket string
	opened atomic.Int32

	mu      sync.Mutex
	version api.Version
	conns   []net.Conn
}

func goodVersion() api.Version {
	return api.Version{Version: "1.2.3", ProtocolMajor: api.ProtocolMajor, ProtocolMinor: api.ProtocolMinor, Host: "kvm-b", Peer: "kvm-a"}
}

// newHost starts a host. serve handles the n-th connection, from 0, after the version.
func newHost(t *testing.T, serve func(n int, conn net.Conn, r *bufio.Reader)) *fakeHost {
	t.Helper()
	h := &fakeHost{socket: filepath.Join(t.TempDir(), "s"), version: goodVersion()}
	l, err := net.Listen("unix", h.socket)
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := int(h.opened.Add(1)) - 1
			h.mu.Lock()
			h.conns = append(h.conns, conn)
			h.mu.Unlock()
			all.Go(func() {
				defer func() { _ = conn.Close() }()
				r := bufio.NewReader(conn)
				if h.introduce(t, conn, r) && serve != nil {
					serve(n, conn, r)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		h.cut()
		all.Wait()
	})
	return h
}

// cut closes every connection.
func (h *fakeHost) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		_ = c.Close()
	}
}

func (h *fakeHost) introduce(t *testing.T, conn net.Conn, r *bufio.Reader) bool {
	line, err := r.ReadString('\n')
	if err != nil {
		return false
	}
	assert.Equal(t, "PEER kvm-a\n", line)
	if _, err := http.ReadRequest(r); err != nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return reply(conn, 200, h.version) == nil
}

// reply writes an answer.
func reply(w io.Writer, status int, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(data), data)
	return err
}

// requests reads requests until the connection ends, and lets answer deal with each.
func requests(conn io.Writer, r *bufio.Reader, answer func(path, body string) (int, any)) {
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		status, a := answer(req.Method+" "+req.URL.Path, string(body))
		if reply(conn, status, a) != nil {
			return
		}
	}
}

// echo answers each request with its own body.
func echo(_ int, conn net.Conn, r *bufio.Reader) {
	requests(conn, r, func(_, body string) (int, any) { return 200, map[string]string{"got": body} })
}

// patience is for what must not wait for the deadlines of settings.
const patience = 25 * time.Second

// settings have deadlines that only a test which hangs meets.
func settings(hosts map[string]string) Config {
	return Config{
		Discover: true, Hosts: hosts, SSHDir: "/nonexistent/ssh",
		ConnectTimeout: 30 * time.Second, CallTimeout: time.Minute, Parallel: 4,
	}
}

// peersOf are the peers of kvm-a.
func peersOf(t *testing.T, cfg Config) *Peers {
	t.Helper()
	p := New(Options{
		Self: func() string { return "kvm-a" }, Config: func() Config { return cfg },
		Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(p.Close)
	return p
}

// knowing are the peers of kvm-a that know one host.
func knowing(t *testing.T, h *fakeHost) *Peers {
	t.Helper()
	return peersOf(t, settings(map[string]string{"kvm-b": "unix://" + h.socket}))
}

type message struct {
	Text string `json:"text"`
	Got  string `json:"got,omitempty"`
}

func post(t *testing.T, p *Peers) error {
	t.Helper()
	return p.Do(t.Context(), "kvm-b", http.MethodPost, "/v1/peer/x", message{Text: "hi"}, nil)
}

// refusal is an error of a kind on one line.
func refusal(t *testing.T, err error, kind api.Kind, text string) {
	t.Helper()
	require.Error(t, err)
	assert.Equal(t, kind, api.KindOf(err), err)
	assert.Contains(t, err.Error(), text)
	assert.NotContains(t, err.Error(), "\n")
	assert.Less(t, len(err.Error()), 1200)
}

func discovering(t *testing.T, cfg Config, names []string, err error) *Peers {
	t.Helper()
	p := peersOf(t, cfg)
	p.Discover = func(context.Context) ([]string, error) { return names, err }
	return p
}

func TestListsPeers(t *testing.T) {
	cfg := settings(map[string]string{"kvm-c": "ssh://root@10.0.0.3:2222", "kvm-a": "ssh://kvm-a"})
	p := discovering(t, cfg, []string{"kvm-d", "kvm-a", "kvm-c", "kvm-b", "-oProxyCommand=id", "", "a b", "kvm-b"}, nil)
	got, err := p.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []api.Peer{
		{Name: "kvm-b", URL: "ssh://root@kvm-b", From: FromSanlock},
		{Name: "kvm-c", URL: "ssh://root@10.0.0.3:2222", From: FromConfig},
		{Name: "kvm-d", URL: "ssh://root@kvm-d", From: FromSanlock},
	}, got)
	assert.Equal(t, []string{"kvm-b", "kvm-c", "kvm-d"}, p.Names(t.Context()))

	p = discovering(t, cfg, nil, api.NewError(api.KindLocking, "sanlock does not run"))
	got, err = p.List(t.Context())
	refusal(t, err, api.KindLocking, "cannot list the hosts of the lockspaces: sanlock does not run")
	assert.Len(t, got, 1, "those of the configuration are known all the same")
	assert.Equal(t, []string{"kvm-c"}, p.Names(t.Context()))

	cfg.Discover = false
	assert.Equal(t, []string{"kvm-c"}, discovering(t, cfg, []string{"kvm-b"}, nil).Names(t.Context()))
	assert.Empty(t, peersOf(t, settings(nil)).Names(t.Context()))
}

func TestNamesThatCannotBePeers(t *testing.T) {
	cfg := settings(map[string]string{"bad": "ssh://-oProxyCommand=id"})
	for name, want := range map[string]struct {
		kind api.Kind
		text string
	}{
		"-oProxyCommand=id": {api.KindBadRequest, `"-oProxyCommand=id" is not a name of a host`},
		"kvm-b\n-l":         {api.KindBadRequest, "is not a name of a host"},
		"":                  {api.KindBadRequest, "is not a name of a host"},
		"kvm-a":             {api.KindBadRequest, "it is this host"},
		"bad":               {api.KindBadRequest, "correct [peers] hosts"},
	} {
		err := peersOf(t, cfg).Do(t.Context(), name, http.MethodPost, "/x", nil, nil)
		refusal(t, err, want.kind, want.text)
	}
	cfg.Discover = false
	refusal(t, post(t, peersOf(t, cfg)), api.KindNotFound, "kvm-b is no peer: list it in [peers] hosts")

	p := peersOf(t, settings(nil))
	for _, self := range []string{"", "a b"} {
		p.Self = func() string { return self }
		refusal(t, post(t, p), api.KindUnreachable, "this host has no name of its own")
	}
}

func TestChangedAddressAndClose(t *testing.T) {
	first, second := newHost(t, echo), newHost(t, echo)
	cfg := settings(map[string]string{"kvm-b": "unix://" + first.socket})
	p := peersOf(t, cfg)
	require.NoError(t, post(t, p))
	cfg.Hosts["kvm-b"] = "unix://" + second.socket
	require.NoError(t, post(t, p))
	assert.EqualValues(t, 1, first.opened.Load())
	assert.EqualValues(t, 1, second.opened.Load())
	p.Close()
	refusal(t, post(t, p), api.KindUnreachable, "virtlvmd is stopping")
}

func TestTidy(t *testing.T) {
	assert.Equal(t, "a b c ?", tidy(" a\nb\r\n\tc\x1b \xff"))
	assert.Len(t, []rune(tidy(strings.Repeat("ü", 5000))), 1003)
}
