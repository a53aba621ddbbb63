package peer

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"virtlvm/internal/api"
)

// Connections to one host. Each is an ssh and a relay of its own: a few are kept, so that
// a migration need not wait for a login, and a burst of them does not meet sshd's
// MaxStartups.
const (
	keepConnections = 2
	maxConnections  = 8
	// maxHeader bounds the headers of an answer.
	maxHeader = 64 << 10
)

// where is what makes a link the one that is wanted.
type where struct {
	name, self string
	target     api.Target
	sshDir     string
	connect    time.Duration
}

// link is the connections to one host.
type link struct {
	where
	transport *http.Transport
	retired   atomic.Bool
}

func newLink(w where) *link {
	l := &link{where: w}
	l.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, _, err := w.dial(ctx)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn}, nil
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    keepConnections,
		MaxConnsPerHost:        maxConnections,
		MaxResponseHeaderBytes: maxHeader,
	}
	return l
}

// retire closes what is idle now; what is in use is closed by rest.
func (l *link) retire() {
	l.retired.Store(true)
	l.transport.CloseIdleConnections()
}

// rest is called after each request.
func (l *link) rest() {
	if l.retired.Load() {
		l.transport.CloseIdleConnections()
	}
}

// countedConn knows whether a request has left. It carries one request at a time.
type countedConn struct {
	net.Conn

	mu      sync.Mutex
	sealed  bool
	writing bool
	written int64
}

// Write refuses once the connection is sealed.
func (c *countedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.sealed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.writing = true
	c.mu.Unlock()
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = false
	c.written += int64(n)
	return n, err
}

// mark is how much has been written so far.
func (c *countedConn) mark() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written
}

// seal ends the connection and reports whether nothing was written since mark, nor ever
// will be: the other host has surely not got the request.
func (c *countedConn) seal(mark int64) bool {
	c.mu.Lock()
	c.sealed = true
	unsent := !c.writing && c.written == mark
	c.mu.Unlock()
	// It has failed already; this only makes sure.
	_ = c.Close()
	return unsent
}
