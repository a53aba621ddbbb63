package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/spool"
)

const (
	uuid1     = "11111111-2222-3333-4444-555555555555"
	domainXML = "<domain type='kvm'>\n  <name>vm1</name>\n  <uuid>" + uuid1 + "</uuid>\n  <graphics passwd='geheim'/>\n</domain>\n"
)

// verdicting and others are the operations by what a failure means.
var (
	verdicting = []string{"prepare", "start", "started", "migrate", "restore", "attach"}
	others     = []string{"reconnect", "stopped", "release", "-", "", "frobnicate", "-x"}
)

// bench is a hook with a virtlvmd of its own.
type bench struct {
	t     *testing.T
	env   Env
	out   bytes.Buffer
	errs  bytes.Buffer
	mu    sync.Mutex
	calls []api.HookCall
}

// newBench makes a hook whose socket does not exist yet, with the default deadline.
func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t}
	b.env = Env{
		Stdin: strings.NewReader(domainXML), Stdout: &b.out, Stderr: &b.errs,
		Paths: Paths{
			Socket:     filepath.Join(dir, "s"),
			Spool:      filepath.Join(dir, "spool"),
			Settings:   filepath.Join(dir, "hook.json"),
			BreakGlass: filepath.Join(dir, "break-glass"),
			Proc:       "/proc",
		},
		Parent: os.Getppid(),
		// On a busy machine a disk can take longer than the short deadlines of some tests;
		// TestWatchdogEndsAHookThatBlocks is about what happens then.
		Abort:   func(int) {},
		Signals: func(chan<- os.Signal) {},
	}
	return b
}

// hurry sets the deadline to 1 s.
func (b *bench) hurry() {
	data, err := json.Marshal(api.HookSettings{DeadlineSeconds: 1})
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(b.env.Paths.Settings, data, 0o600))
}

// serve answers on the socket until the test ends.
func (b *bench) serve(handle http.HandlerFunc) {
	b.t.Helper()
	l, err := net.Listen("unix", b.env.Paths.Socket)
	require.NoError(b.t, err)
	srv := &http.Server{Handler: handle}
	go func() { _ = srv.Serve(l) }()
	b.t.Cleanup(func() { _ = srv.Close() })
}

// answer serves one fixed answer and notes the calls.
func (b *bench) answer(status int, body any) {
	b.serve(func(w http.ResponseWriter, r *http.Request) {
		var call api.HookCall
		assert.Equal(b.t, http.MethodPost, r.Method)
		assert.Equal(b.t, api.RouteHook, r.URL.Path)
		assert.NoError(b.t, json.NewDecoder(r.Body).Decode(&call))
		b.mu.Lock()
		b.calls = append(b.calls, call)
		b.mu.Unlock()
		w.WriteHeader(status)
		if raw, ok := body.(string); ok {
			_, _ = io.WriteString(w, raw)
			return
		}
		assert.NoError(b.t, json.NewEncoder(w).Encode(body))
	})
}

// run runs the hook to its end, by itself or by what cuts it short, as os.Exit does: what
// blocks is left behind.
func (b *bench) run(args ...string) int {
	b.env.Args = args
	code := make(chan int, 2)
	b.env.Exit = func(c int) {
		code <- c
		runtime.Goexit()
	}
	go func() { code <- Run(b.env) }()
	return <-code
}

func (b *bench) received() []api.HookCall {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

func (b *bench) spooled() []api.HookCall {
	b.t.Helper()
	l, err := spool.List(b.env.Paths.Spool)
	require.NoError(b.t, err)
	var calls []api.HookCall
	for _, p := range l.Waiting {
		c, err := spool.Read(p)
		require.NoError(b.t, err)
		calls = append(calls, c)
	}
	return calls
}

// line asserts that standard error holds exactly one line of ours and returns it.
func (b *bench) line() string {
	b.t.Helper()
	s := b.errs.String()
	require.True(b.t, strings.HasSuffix(s, "\n"), "%q", s)
	require.Equal(b.t, 1, strings.Count(s, "\n"), "%q", s)
	require.True(b.t, strings.HasPrefix(s, "virtlvm: "), "%q", s)
	return strings.TrimSuffix(s, "\n")
}

func TestAllowed(t *testing.T) {
	for _, op := range verdicting {
		t.Run(op, func(t *testing.T) {
			b := newBench(t)
			b.answer(http.StatusOK, api.HookVerdict{Allow: true})
			assert.Equal(t, 0, b.run("vm1", op, "begin", "-"))
			assert.Empty(t, b.out.String())
			assert.Empty(t, b.errs.String())
			assert.Empty(t, b.spooled())

			calls := b.received()
			require.Len(t, calls, 1)
			c := calls[0]
			assert.Equal(t, []string{"vm1", op, "begin", "-"}, []string{c.Guest, c.Op, c.SubOp, c.Extra})
			assert.Equal(t, domainXML, string(c.XML))
			assert.Equal(t, uuid1, c.UUID)
			assert.False(t, c.Bypassed)
			assert.False(t, c.Spooled)
		})
	}
}

func TestStampIsThisBootAndThisParent(t *testing.T) {
	b := newBench(t)
	b.answer(http.StatusOK, api.HookVerdict{Allow: true})
	require.Equal(t, 0, b.run("vm1", "prepare", "begin", "-"))
	s := b.received()[0].Stamp
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	assert.Equal(t, strings.TrimSpace(string(boot)), s.BootID)
	assert.Equal(t, os.Getppid(), s.LibvirtdPID)
	assert.NotZero(t, s.LibvirtdStart)
	now, err := os.ReadFile("/proc/uptime")
	require.NoError(t, err)
	assert.InDelta(t, uptimeMillis(string(now)), s.UptimeMillis, 60_000)
}

// New XML goes to libvirt only where it reads it: elsewhere standard output stays empty.
func TestNewXMLOnStdout(t *testing.T) {
	const changed = "<domain><metadata/></domain>\n"
	for _, op := range append(verdicting, others...) {
		t.Run(op, func(t *testing.T) {
			b := newBench(t)
			b.answer(http.StatusOK, api.HookVerdict{Allow: true, XML: []byte(changed)})
			assert.Equal(t, 0, b.run("vm1", op, "begin", "-"))
			want := ""
			if op == "migrate" || op == "restore" {
				want = changed
			}
			assert.Equal(t, want, b.out.String())
			assert.Empty(t, b.errs.String())
		})
	}
}

// A refusal's XML, or one that cannot be written, never reaches libvirt as a success.
func TestNoXMLBesideARefusal(t *testing.T) {
	b := newBench(t)
	b.answer(http.StatusOK, api.HookVerdict{Allow: false, Message: "no", XML: []byte("<domain/>")})
	assert.Equal(t, 1, b.run("vm1", "migrate", "begin", "-"))
	assert.Empty(t, b.out.String())

	b = newBench(t)
	b.answer(http.StatusOK, api.HookVerdict{Allow: true, XML: []byte("<domain/>")})
	b.env.Stdout = writerFunc(func([]byte) (int, error) { return 0, errors.New("broken pipe") })
	assert.Equal(t, 1, b.run("vm1", "migrate", "begin", "-"))
	assert.Contains(t, b.line(), "cannot pass the domain XML to libvirt")
}

func TestRefused(t *testing.T) {
	tests := map[string]struct{ message, want string }{
		"plain": {
			"cannot start vm1: vg_san/vm1 is held by kvm-a (guest vm1 running)",
			"virtlvm: cannot start vm1: vg_san/vm1 is held by kvm-a (guest vm1 running)",
		},
		"several lines":     {"one\ntwo\r\nthree\t\x1b[31mred\x00", "virtlvm: one two three [31mred"},
		"unicode line ends": {"one\u2028two\u202ethree", "virtlvm: one two three"},
		"no reason": {
			"", "virtlvm: cannot start vm1: virtlvmd refused without a reason; see 'journalctl -u virtlvmd'",
		},
		"blank": {
			" \n", "virtlvm: cannot start vm1: virtlvmd refused without a reason; see 'journalctl -u virtlvmd'",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.answer(http.StatusOK, api.HookVerdict{Allow: false, Message: tt.message})
			assert.Equal(t, 1, b.run("vm1", "prepare", "begin", "-"))
			assert.Equal(t, tt.want, b.line())
			assert.Empty(t, b.out.String())
			assert.Empty(t, b.spooled(), "a refused start is no event to keep")
		})
	}
}

func TestLongMessageIsCut(t *testing.T) {
	b := newBench(t)
	b.answer(http.StatusOK, api.HookVerdict{Message: strings.Repeat("ä ", 10_000)})
	assert.Equal(t, 1, b.run("vm1", "prepare", "begin", "-"))
	assert.Less(t, len(b.line()), maxLine+100)
}

// failures are ways for virtlvmd not to answer, with a part of the line each gives.
func failures() map[string]struct {
	set  func(b *bench)
	want string
} {
	type failure = struct {
		set  func(b *bench)
		want string
	}
	return map[string]failure{
		"no socket": {func(*bench) {}, "virtlvmd cannot be reached on SOCKET (no such file or directory)"},
		"connection refused": {func(b *bench) {
			l, err := net.Listen("unix", b.env.Paths.Socket)
			require.NoError(b.t, err)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			require.NoError(b.t, l.Close())
		}, "virtlvmd cannot be reached on SOCKET (connection refused); see 'systemctl status virtlvmd.socket virtlvmd.service'"},
		"hangs before it answers": {func(b *bench) {
			b.hurry()
			b.serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		}, "virtlvmd has not answered within 1s"},
		"hangs while it answers": {func(b *bench) {
			b.hurry()
			b.serve(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, `{"allow":`)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			})
		}, "virtlvmd has not answered within 1s"},
		"never accepts": {func(b *bench) {
			b.hurry()
			l, err := net.Listen("unix", b.env.Paths.Socket)
			require.NoError(b.t, err)
			b.t.Cleanup(func() { _ = l.Close() })
		}, "virtlvmd has not answered within 1s"},
		"killed mid-call": {func(b *bench) {
			b.serve(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				conn, _, err := w.(http.Hijacker).Hijack()
				assert.NoError(b.t, err)
				_ = conn.Close()
			})
		}, "virtlvmd ended before it answered"},
		"killed while it answers": {func(b *bench) {
			b.serve(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Length", "100")
				_, _ = io.WriteString(w, `{"allow":true`)
				panic(http.ErrAbortHandler)
			})
		}, "virtlvmd ended before it answered"},
		"no HTTP": {func(b *bench) {
			l, err := net.Listen("unix", b.env.Paths.Socket)
			require.NoError(b.t, err)
			b.t.Cleanup(func() { _ = l.Close() })
			go func() {
				if conn, err := l.Accept(); err == nil {
					_, _ = io.WriteString(conn, "220 smtp ready\r\n\r\n")
					_, _ = io.Copy(io.Discard, conn)
				}
			}()
		}, "virtlvmd gave no answer that can be understood"},
		"garbage":    {func(b *bench) { b.answer(http.StatusOK, "<html>hello") }, "cannot be understood"},
		"wrong type": {func(b *bench) { b.answer(http.StatusOK, `{"allow":"yes"}`) }, "cannot be understood"},
		"trailing":   {func(b *bench) { b.answer(http.StatusOK, `{"allow":true}{"allow":false}`) }, "cannot be understood"},
		"empty":      {func(b *bench) { b.answer(http.StatusOK, "") }, "cannot be understood"},
		"status 500 without words": {
			func(b *bench) { b.answer(http.StatusInternalServerError, "oops") }, "virtlvmd answered HTTP status 500",
		},
		"status 503 with words": {func(b *bench) {
			b.answer(http.StatusServiceUnavailable, api.NewError(api.KindDatabase, "the journal cannot be written:\ndisk full"))
		}, "the journal cannot be written: disk full"},
		"redirect": {func(b *bench) { b.answer(http.StatusFound, `{"allow":true}`) }, "virtlvmd answered HTTP status 302"},
	}
}

func TestNoVerdictIsARefusal(t *testing.T) {
	verb := map[string]string{"migrate": "migrate", "restore": "restore", "attach": "attach"}
	for name, f := range failures() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Every operation once over all, without waiting for each deadline again.
			for _, op := range verdicting {
				if strings.Contains(f.want, "within") && op != "prepare" && op != "migrate" {
					continue
				}
				b := newBench(t)
				f.set(b)
				began := time.Now()
				assert.Equal(t, 1, b.run("vm1", op, "begin", "-"))
				assert.Less(t, time.Since(began), 20*time.Second)
				line := b.line()
				want := verb[op]
				if want == "" {
					want = "start"
				}
				assert.True(t, strings.HasPrefix(line, "virtlvm: cannot "+want+" vm1: "), line)
				assert.Contains(t, line, strings.ReplaceAll(f.want, "SOCKET", b.env.Paths.Socket))
				assert.Empty(t, b.out.String())
				assert.Empty(t, b.spooled())
			}
		})
	}
}

func TestOtherOperationsAreSpooledAndNeverFail(t *testing.T) {
	for name, f := range failures() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, op := range []string{"release", "reconnect"} {
				b := newBench(t)
				f.set(b)
				assert.Equal(t, 0, b.run("vm1", op, "end", "shutdown"))
				assert.Empty(t, b.out.String())
				assert.Empty(t, b.errs.String())
				events := b.spooled()
				require.Len(t, events, 1)
				e := events[0]
				assert.Equal(t, []string{"vm1", op, "end", "shutdown"}, []string{e.Guest, e.Op, e.SubOp, e.Extra})
				assert.Equal(t, uuid1, e.UUID)
				assert.Empty(t, e.XML)
				assert.NotEmpty(t, e.Stamp.BootID)
				assert.NotZero(t, e.Stamp.UptimeMillis)
			}
		})
	}
}

func TestOtherOperationsTellAndAreNotSpooled(t *testing.T) {
	for _, op := range others {
		t.Run(op, func(t *testing.T) {
			b := newBench(t)
			b.answer(http.StatusOK, api.HookVerdict{Allow: false, Message: "whatever"})
			assert.Equal(t, 0, b.run("vm1", op, "end", "-"))
			assert.Empty(t, b.out.String())
			assert.Empty(t, b.errs.String())
			assert.Empty(t, b.spooled())
			require.Len(t, b.received(), 1)
			assert.Equal(t, op, b.received()[0].Op)
		})
	}
}

func TestSpoolThatFailsIsSaidAndStillNoFailure(t *testing.T) {
	b := newBench(t)
	require.NoError(t, os.WriteFile(b.env.Paths.Spool, nil, 0o600)) // a file where the directory should be
	assert.Equal(t, 0, b.run("vm1", "release", "end", "-"))
	assert.Contains(t, b.line(), "release of vm1 is lost: no such file or directory; and cannot")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
