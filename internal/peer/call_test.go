package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

// The HTTP transport gives up a connection whose writer is not scheduled for 50 ms after
// the answer: on a busy machine there may be more than one.
func TestCallsShareAConnection(t *testing.T) {
	h := newHost(t, echo)
	p := knowing(t, h)
	for i := range 5 {
		var out message
		text := strings.Repeat("x", i*50_000)
		require.NoError(t, p.Do(t.Context(), "kvm-b", http.MethodPost, "/v1/peer/x", message{Text: text}, &out))
		assert.JSONEq(t, `{"text":"`+text+`"}`, out.Got)
		require.NoError(t, p.Do(t.Context(), "kvm-b", http.MethodGet, "/v1/peer/x", nil, &out))
		assert.Empty(t, out.Got)
	}
	assert.Less(t, h.opened.Load(), int32(5))
}

// Between two calls the connection dies: the next one is sent once, on a new one.
func TestBrokenConnectionIsReopened(t *testing.T) {
	var served atomic.Int32
	h := newHost(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		requests(conn, r, func(string, string) (int, any) {
			served.Add(1)
			return 200, message{}
		})
	})
	p := knowing(t, h)
	for i := range 4 {
		require.NoError(t, post(t, p), i)
		h.cut()
	}
	assert.EqualValues(t, 4, served.Load(), "each request was served once")
	assert.EqualValues(t, 4, h.opened.Load())
}

// What may have been received is never sent again.
func TestCutConnections(t *testing.T) {
	type act func(conn net.Conn, r *bufio.Reader)
	readAll := func(r *bufio.Reader) {
		if req, err := http.ReadRequest(r); err == nil {
			_, _ = io.Copy(io.Discard, req.Body)
		}
	}
	for name, tt := range map[string]struct {
		act  act
		text string
	}{
		"in the headers": {func(_ net.Conn, r *bufio.Reader) { _, _ = r.ReadString('\n') }, "the connection broke off"},
		"in the body": {func(_ net.Conn, r *bufio.Reader) {
			if req, err := http.ReadRequest(r); err == nil {
				_, _ = req.Body.Read(make([]byte, 100))
			}
		}, "the connection broke off"},
		"after the request": {func(_ net.Conn, r *bufio.Reader) { readAll(r) }, "the connection broke off"},
		"in the answer's headers": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Le")
		}, "the connection broke off"},
		"in the answer's body": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"tex")
		}, "the connection broke off"},
		"in a chunk": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"tex\r\n")
		}, "the connection broke off"},
		"by garbage": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "kvm-b login: \r\n")
		}, "what answers is not virtlvmd"},
		"by a second relay's line": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "virtlvm-relay 1.0\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		}, "what answers is not virtlvmd"},
		"by an answer without JSON": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
		}, "its answer to /v1/peer/x cannot be understood"},
		"by a refusal without a reason": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\n<html")
		}, "it answers 502 without a reason"},
		"by a huge answer": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n{", 1<<40)
		}, "its answer is larger than 4 MiB"},
		"by an endless answer": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
			block := make([]byte, 1<<20)
			for {
				if _, err := conn.Write(block); err != nil {
					return
				}
			}
		}, "its answer is larger than 4 MiB"},
		"by endless headers": {func(conn net.Conn, r *bufio.Reader) {
			readAll(r)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			for {
				if _, err := io.WriteString(conn, "X: "+strings.Repeat("x", 1000)+"\r\n"); err != nil {
					return
				}
			}
		}, "the connection broke off"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, func(_ int, conn net.Conn, r *bufio.Reader) { tt.act(conn, r) })
			p := knowing(t, h)
			err := p.Do(t.Context(), "kvm-b", http.MethodPost, "/v1/peer/x", message{Text: strings.Repeat("x", 1<<20)}, &message{})
			refusal(t, err, api.KindUnknown, "kvm-b may or may not have done it: "+tt.text)
			assert.EqualValues(t, 1, h.opened.Load(), "it is not tried again")

			err = p.Do(t.Context(), "kvm-b", http.MethodGet, "/v1/peer/x", nil, &message{})
			refusal(t, err, api.KindUnreachable, "kvm-b cannot be asked: "+tt.text)
		})
	}
}

func TestNoAnswerInTime(t *testing.T) {
	release := make(chan struct{})
	h := newHost(t, func(n int, conn net.Conn, r *bufio.Reader) {
		if n == 0 {
			_, _ = http.ReadRequest(r)
			<-release
			return
		}
		echo(n, conn, r)
	})
	defer close(release)
	p := knowing(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	err := p.Do(ctx, "kvm-b", http.MethodPost, "/v1/peer/x", message{}, nil)
	refusal(t, err, api.KindUnknown, "kvm-b may or may not have done it: no answer in time")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(began), patience)
	require.NoError(t, post(t, p), "the next call has a connection of its own")

	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	err = p.Do(ctx, "kvm-b", http.MethodPost, "/v1/peer/x", message{}, nil)
	refusal(t, err, api.KindUnreachable, "cannot reach kvm-b: the answer was not waited for")
}

func TestDeadlineOfTheConfiguration(t *testing.T) {
	h := newHost(t, func(_ int, _ net.Conn, r *bufio.Reader) { _, _ = io.Copy(io.Discard, r) })
	cfg := settings(map[string]string{"kvm-b": "unix://" + h.socket})
	cfg.CallTimeout = time.Second
	refusal(t, post(t, peersOf(t, cfg)), api.KindUnknown, "no answer in time")
}

func TestTheOtherHostRefuses(t *testing.T) {
	var answer atomic.Value
	h := newHost(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		requests(conn, r, func(string, string) (int, any) {
			e := answer.Load().(api.Error)
			return e.Kind.HTTPStatus(), e
		})
	})
	p := knowing(t, h)
	for _, tt := range []struct {
		sent api.Error
		kind api.Kind
		text string
	}{
		{api.Error{Kind: api.KindHeld, Message: "vg/lv is held by vm1"}, api.KindHeld, "kvm-b: vg/lv is held by vm1"},
		{api.Error{Kind: api.KindUnknown, Message: "not known"}, api.KindUnknown, "kvm-b: not known"},
		{api.Error{Kind: "of_the_next_release", Message: "x"}, "of_the_next_release", "kvm-b: x"},
		{api.Error{Kind: "Bad Kind\n", Message: "a\nb\x1b[31m"}, api.KindInternal, "kvm-b: a b [31m"},
		{api.Error{Kind: api.KindInternal, Message: strings.Repeat("x", 100_000)}, api.KindInternal, "kvm-b: xxx"},
	} {
		answer.Store(tt.sent)
		err := post(t, p)
		refusal(t, err, tt.kind, tt.text)
		var remote *RemoteError
		require.ErrorAs(t, err, &remote)
		assert.Equal(t, "kvm-b", remote.Peer)
	}
	assert.Less(t, h.opened.Load(), int32(5), "a refusal is no broken connection")
}

func TestManyCallsAtOnce(t *testing.T) {
	var now, most atomic.Int32
	h := newHost(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		requests(conn, r, func(string, string) (int, any) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(2 * time.Millisecond)
			now.Add(-1)
			return 200, message{}
		})
	})
	p := knowing(t, h)
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() { assert.NoError(t, post(t, p)) })
	}
	all.Wait()
	assert.LessOrEqual(t, most.Load(), int32(maxConnections))
	assert.Greater(t, most.Load(), int32(1))
}

// A connection that dies before the request leaves costs one try, not the request.
func TestUnsentIsTriedOnce(t *testing.T) {
	for _, dead := range []int{1, 2} {
		h := newHost(t, echo)
		p := knowing(t, h)
		l, err := p.link("kvm-b")
		require.NoError(t, err)
		dial := l.transport.DialContext
		dials := 0
		l.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if dials++; err == nil && dials <= dead {
				// As if the host had gone between the version and the request.
				_ = conn.Close()
			}
			return conn, err
		}
		err = post(t, p)
		assert.Equal(t, 2, dials)
		if dead == 1 {
			require.NoError(t, err)
		} else {
			refusal(t, err, api.KindUnreachable, "cannot reach kvm-b: the connection broke off; try `virtlvm peer test kvm-b`")
		}
	}
}

// stubborn is a connection whose writes wait until they are let go.
type stubborn struct {
	net.Conn
	started, release chan struct{}
	err              error
}

func (s *stubborn) Write(b []byte) (int, error) {
	close(s.started)
	<-s.release
	if s.err != nil {
		return 0, s.err
	}
	return len(b), nil
}

func (*stubborn) Close() error { return nil }

func TestSealedConnections(t *testing.T) {
	c := &countedConn{Conn: &stubborn{}}
	assert.True(t, c.seal(c.mark()), "nothing was written")
	_, err := c.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed, "and nothing will be")

	for _, fails := range []error{nil, io.ErrClosedPipe} {
		s := &stubborn{started: make(chan struct{}), release: make(chan struct{}), err: fails}
		c = &countedConn{Conn: s}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := c.Write([]byte("x"))
			assert.True(t, errors.Is(err, fails))
		}()
		<-s.started
		assert.False(t, c.seal(0), "a write under way may arrive")
		close(s.release)
		<-done
		assert.Equal(t, fails != nil, c.seal(0))
	}
}
