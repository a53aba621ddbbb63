package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"virtlvm/internal/api"
)

// preambleTimeout bounds the wait for the first line on a peer connection; a relay writes
// it at once.
const preambleTimeout = 5 * time.Second

// maxPreamble is "PEER ", the longest name of a host, and a newline.
const maxPreamble = len(api.PeerPreamble) + 63 + 1

// PeerListener wraps the listener of the peer socket: the first line of each connection
// names the host that calls. HTTPPeer serves it.
//
// The name is only as good as who may write it. The socket is root's alone, and where a
// host is let in by `command="virtlvm relay --peer NAME",restrict` in authorized_keys, the
// name belongs to its key and not to what it says.
func PeerListener(l net.Listener) net.Listener { return peerListener{l} }

type peerListener struct{ net.Listener }

func (l peerListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &peerConn{Conn: conn}, nil
}

// peerConn reads the first line before the first byte of HTTP, on the goroutine of its
// connection: one that stays silent holds up nobody else.
type peerConn struct {
	net.Conn
	once sync.Once
	name string // valid once a read has returned without error
	bad  error
	read deadline
}

// deadline is the read deadline that the HTTP server has set, put back after the first
// line.
type deadline struct {
	mu sync.Mutex
	at time.Time
}

// Read reads what follows the first line.
func (c *peerConn) Read(b []byte) (int, error) {
	c.once.Do(c.introduce)
	if c.bad != nil {
		// Not c.bad itself: the HTTP server would answer it a second time.
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

// SetReadDeadline bounds reads.
func (c *peerConn) SetReadDeadline(t time.Time) error {
	c.read.mu.Lock()
	defer c.read.mu.Unlock()
	c.read.at = t
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline bounds reads and writes.
func (c *peerConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// introduce reads the first line. What is wrong with it is told as HTTP, so that the
// relay's other end, or an administrator with curl, can read it.
func (c *peerConn) introduce() {
	if c.bad = c.Conn.SetReadDeadline(time.Now().Add(preambleTimeout)); c.bad != nil {
		return
	}
	c.name, c.bad = readPreamble(c.Conn)
	if c.bad != nil {
		refuse(c.Conn, c.bad)
		return
	}
	c.read.mu.Lock()
	defer c.read.mu.Unlock()
	c.bad = c.Conn.SetReadDeadline(c.read.at)
}

// readPreamble reads byte by byte: what comes after the line is HTTP.
func readPreamble(conn net.Conn) (string, error) {
	line := make([]byte, 0, maxPreamble)
	for len(line) < maxPreamble {
		var b [1]byte
		if _, err := conn.Read(b[:]); err != nil {
			return "", fmt.Errorf("cannot read the name of the host that calls: %w", err)
		}
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	name, ok := strings.CutPrefix(string(line), api.PeerPreamble)
	if !ok {
		return "", fmt.Errorf("%s is for the relays of other hosts alone; use %s", api.PeerSocketPath, api.SocketPath)
	}
	return name, api.CheckHostName(name)
}

func refuse(conn net.Conn, why error) {
	body, err := json.Marshal(api.NewError(api.KindBadRequest, why.Error()))
	if err != nil {
		return
	}
	// The connection is given up either way.
	_ = conn.SetWriteDeadline(time.Now().Add(preambleTimeout))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		http.StatusBadRequest, http.StatusText(http.StatusBadRequest), len(body), body)
}

// HTTPPeer makes the HTTP server of the peer socket; serve a PeerListener with it.
func (s *Server) HTTPPeer() *http.Server {
	return &http.Server{
		Handler:           s.mux,
		ReadHeaderTimeout: headerTimeout,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			c := caller{}
			if p, ok := conn.(*peerConn); ok {
				c.peer = p
				if cred, err := peerCredentials(p.Conn); err == nil {
					c.known, c.uid, c.pid = true, cred.Uid, cred.Pid
				}
			}
			return context.WithValue(ctx, callerKey{}, c)
		},
		ConnState: s.peerConnState,
		ErrorLog:  slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
}

// peerConns counts the open connections by the host that has introduced itself on them.
type peerConns struct {
	mu   sync.Mutex
	by   map[net.Conn]string
	open map[string]int
}

// peerConnState notes that a host has introduced itself, or that its connection has ended.
func (s *Server) peerConnState(conn net.Conn, state http.ConnState) {
	p, ok := conn.(*peerConn)
	if !ok || s.PeerConns == nil || state != http.StateActive && state != http.StateClosed {
		return
	}
	c := &s.conns
	c.mu.Lock()
	defer c.mu.Unlock() // held while it is told, so that the last word is the latest
	if c.by == nil {
		c.by, c.open = map[net.Conn]string{}, map[string]int{}
	}
	name, known := c.by[conn]
	switch {
	case state == http.StateActive && !known && p.name != "":
		// The name was read before the request that makes the connection active.
		name, c.by[conn] = p.name, p.name
		c.open[name]++
	case state == http.StateClosed && known:
		delete(c.by, conn)
		c.open[name]--
	default:
		return
	}
	s.PeerConns(name, c.open[name])
}

// peerName is the name of the host that calls; "" where it is no other host.
func (c caller) peerName() string {
	if c.peer == nil {
		return ""
	}
	return c.peer.name
}

// mayPeer decides for callers on the peer socket: they take no other route than those made
// for them.
func (s *Server) mayPeer(ctx context.Context, c caller, need Access) error {
	switch {
	case need == AccessAny:
		return nil
	case need != AccessPeer:
		return api.NewError(api.KindForbidden, "this is no request that hosts make of each other; use "+api.SocketPath+" here, or `virtlvm --host` from elsewhere")
	case !c.isRoot():
		return api.NewError(api.KindForbidden, "the peer socket is root's alone")
	case s.PeerAllowed == nil:
		return nil
	}
	return s.PeerAllowed(ctx, c.peerName())
}

func (s *Server) peers(r *http.Request) (any, error) {
	if s.Peers == nil {
		return api.Peers{Host: s.Version.Host, Peers: []api.Peer{}}, nil
	}
	return s.Peers(r.Context())
}
