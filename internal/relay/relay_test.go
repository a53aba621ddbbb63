package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

// limit ends a test that hangs.
const limit = 20 * time.Second

// serve answers one connection on a socket.
func serve(t *testing.T, handle func(*net.UnixConn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(limit))
		handle(conn.(*net.UnixConn))
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return path
}

// relayed is a Run between two pipes.
type relayed struct {
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
}

func runRelay(ctx context.Context, t *testing.T, o Options) *relayed {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	r := &relayed{in: inW, out: bufio.NewReader(outR), done: make(chan error, 1)}
	go func() { r.done <- Run(ctx, inR, outW, o) }()
	t.Cleanup(func() {
		_ = inW.Close()
		_ = outR.Close()
	})
	return r
}

func (r *relayed) line(t *testing.T) string {
	t.Helper()
	line, err := r.out.ReadString('\n')
	require.NoError(t, err)
	return line
}

func (r *relayed) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(limit):
		t.Fatal("the relay has not ended")
		return nil
	}
}

func TestRunHalfCloses(t *testing.T) {
	socket := serve(t, func(c *net.UnixConn) {
		// It answers only after the whole question, so the end of input must come through.
		data, err := io.ReadAll(c)
		assert.NoError(t, err)
		_, err = c.Write(bytes.ToUpper(data))
		assert.NoError(t, err)
	})
	r := runRelay(t.Context(), t, Options{Socket: socket})
	assert.Equal(t, "virtlvm-relay 1.0\n", r.line(t))
	big := strings.Repeat("question ", 100_000)
	_, err := io.WriteString(r.in, big)
	require.NoError(t, err)
	require.NoError(t, r.in.Close())
	answer, err := io.ReadAll(r.out)
	require.NoError(t, err, "the end of the socket closes standard output")
	assert.Equal(t, strings.ToUpper(big), string(answer))
	require.NoError(t, r.wait(t))
}

func TestRunEndsWithTheSocket(t *testing.T) {
	for name, readFirst := range map[string]bool{"after reading": true, "with bytes unread": false} {
		t.Run(name, func(t *testing.T) {
			socket := serve(t, func(c *net.UnixConn) {
				if readFirst {
					_, err := io.ReadFull(c, make([]byte, 5))
					assert.NoError(t, err)
				}
				_, err := io.WriteString(c, "bye")
				assert.NoError(t, err)
			})
			r := runRelay(t.Context(), t, Options{Socket: socket})
			r.line(t)
			go func() { _, _ = io.WriteString(r.in, "hello") }()
			answer, err := io.ReadAll(r.out)
			require.NoError(t, err)
			assert.Equal(t, "bye", string(answer))
			require.NoError(t, r.wait(t), "though standard input is still open")
		})
	}
}

func TestRunTellsThePeer(t *testing.T) {
	got := make(chan string, 1)
	socket := serve(t, func(c *net.UnixConn) {
		line, err := bufio.NewReader(c).ReadString('\n')
		assert.NoError(t, err)
		got <- line
	})
	r := runRelay(t.Context(), t, Options{Socket: socket, Peer: "kvm-a"})
	r.line(t)
	assert.Equal(t, "PEER kvm-a\n", <-got)
	require.NoError(t, r.wait(t))
}

func TestRunIsEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	socket := serve(t, func(c *net.UnixConn) { _, _ = io.ReadAll(c) })
	r := runRelay(ctx, t, Options{Socket: socket})
	r.line(t)
	cancel()
	require.ErrorIs(t, r.wait(t), context.Canceled)
}

func TestRunWithoutDaemon(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	l, err := net.Listen("unix", dead)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	none := filepath.Join(dir, "none")
	for _, tt := range []struct {
		name string
		o    Options
		kind api.Kind
		want string
	}{
		{"no socket", Options{Socket: none}, api.KindUnreachable, "virtlvmd does not run: there is no " + none},
		{"nobody listens", Options{Socket: dead}, api.KindUnreachable, "virtlvmd does not run: nobody listens on " + dead},
		{"bad name", Options{Socket: none, Peer: "a\nGET /"}, api.KindBadRequest, `"a\nGET /" is not a name of a host`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := Run(t.Context(), strings.NewReader(""), &out, tt.o)
			assert.Equal(t, tt.kind, api.KindOf(err))
			require.EqualError(t, err, tt.want)
			assert.Equal(t, "virtlvm-relay-error "+string(tt.kind)+" "+tt.want+"\n", out.String())
		})
	}
}

func TestRunFallsBackToReadOnly(t *testing.T) {
	if os.Geteuid() == 0 {
		// Root may open everything; see explain below for the message.
		t.Skip("root may open every socket")
	}
	socket := serve(t, func(*net.UnixConn) {})
	require.NoError(t, os.Chmod(socket, 0))
	other := serve(t, func(c *net.UnixConn) { _, _ = io.WriteString(c, "read-only") })
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), strings.NewReader(""), &out, Options{Socket: socket, ReadOnly: other}))
	assert.Equal(t, "virtlvm-relay 1.0\nread-only", out.String())
}

func TestExplainIsOneLineWithAKind(t *testing.T) {
	for _, tt := range []struct {
		err  error
		kind api.Kind
		want string
	}{
		{os.ErrPermission, api.KindForbidden, "may not open /s"},
		{context.DeadlineExceeded, api.KindUnreachable, "virtlvmd does not answer on /s"},
		{errors.New("odd"), api.KindUnreachable, "cannot connect to /s: odd"},
	} {
		e := explain("/s", tt.err)
		assert.Equal(t, tt.kind, e.Kind)
		assert.Equal(t, tt.want, e.Message)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestRunWithoutAReader(t *testing.T) {
	socket := serve(t, func(c *net.UnixConn) { _, _ = io.ReadAll(c) })
	err := Run(t.Context(), strings.NewReader(""), brokenWriter{}, Options{Socket: socket})
	require.ErrorContains(t, err, "cannot write to standard output")
}
