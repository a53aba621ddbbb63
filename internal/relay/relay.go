// Package relay joins two ends of a connection that ssh stands between. Run is what
// `virtlvm relay` does on the host that is called: standard input and output to the
// daemon's socket and back. Conn is a net.Conn over a command such as `ssh HOST virtlvm
// relay` on the host that calls.
//
// Before the first byte of HTTP the relay writes one line to its standard output:
//
//	virtlvm-relay MAJOR.MINOR          connected; the version of the protocol it speaks
//	virtlvm-relay-error KIND MESSAGE   not connected; KIND is one of api.Kind
//
// so that the other end can skip what login scripts print, and tell what is missing.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"time"
	"unicode"

	"virtlvm/internal/api"
)

// What the first line of a relay begins with.
const (
	helloWord = "virtlvm-relay "
	errorWord = "virtlvm-relay-error "
)

// connectTimeout bounds the connection to a socket of this host, which only waits where
// the daemon hangs with a full queue.
const connectTimeout = 5 * time.Second

// Options say what Run connects with.
type Options struct {
	Socket string
	// ReadOnly is tried where this user may not open Socket. Empty: nothing is.
	ReadOnly string
	// Peer, where not empty, is the name of the host that calls, told to the daemon in
	// the first line (api.PeerPreamble). Socket must be the peer socket then.
	Peer string
}

// Run carries bytes between in and out and a socket until the socket's end, or ctx,
// ends it. The end of in is passed on as the end of what the daemon reads; the end of
// the socket closes out, where it can be closed. A read of in that still waits is left
// behind: the program is expected to exit.
//
// The error is an *api.Error where the daemon could not be reached; it has been written
// to out as well then.
func Run(ctx context.Context, in io.Reader, out io.Writer, o Options) error {
	conn, typed := connect(ctx, o)
	if typed != nil {
		// Whether the other end still listens makes no difference to the outcome.
		_, _ = fmt.Fprintf(out, "%s%s %s\n", errorWord, typed.Kind, oneLine(typed.Message))
		return typed
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := fmt.Fprintf(out, "%s%d.%d\n", helloWord, api.ProtocolMajor, api.ProtocolMinor); err != nil {
		return fmt.Errorf("cannot write to standard output: %w", err)
	}
	go func() {
		// Whatever ends it, a broken input or a socket that takes no more: nothing follows.
		_, _ = io.Copy(conn, in)
		_ = conn.CloseWrite()
	}()
	_, err := io.Copy(out, conn)
	if c, ok := out.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the relay was ended: %w", context.Cause(ctx))
	case errors.Is(err, syscall.ECONNRESET):
		// A daemon that closes before it has read everything: all that it said has come.
		return nil
	case err != nil:
		return fmt.Errorf("cannot carry the daemon's answer: %w", err)
	}
	return nil
}

// connect opens the socket and tells the daemon who calls.
func connect(ctx context.Context, o Options) (*net.UnixConn, *api.Error) {
	if o.Peer != "" {
		if err := api.CheckHostName(o.Peer); err != nil {
			return nil, api.WrapError(api.KindBadRequest, err.Error(), err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := dialUnix(ctx, o.Socket)
	if errors.Is(err, fs.ErrPermission) && o.ReadOnly != "" {
		if other, otherErr := dialUnix(ctx, o.ReadOnly); otherErr == nil {
			conn, err = other, nil
		}
	}
	if err == nil && o.Peer != "" {
		if err = Introduce(conn, o.Peer); err != nil {
			err = errors.Join(err, conn.Close())
		}
	}
	if err != nil {
		return nil, explain(o.Socket, err)
	}
	return conn, nil
}

func dialUnix(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Introduce writes the first line that a peer socket expects.
func Introduce(w io.Writer, name string) error {
	if err := api.CheckHostName(name); err != nil {
		return err
	}
	_, err := io.WriteString(w, api.PeerPreamble+name+"\n")
	return err
}

// explain says why the daemon cannot be reached on its own host.
func explain(socket string, err error) *api.Error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return api.WrapError(api.KindForbidden, "may not open "+socket, err)
	case errors.Is(err, fs.ErrNotExist):
		return api.WrapError(api.KindUnreachable, "virtlvmd does not run: there is no "+socket, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return api.WrapError(api.KindUnreachable, "virtlvmd does not run: nobody listens on "+socket, err)
	case errors.Is(err, context.DeadlineExceeded):
		return api.WrapError(api.KindUnreachable, "virtlvmd does not answer on "+socket, err)
	}
	return api.WrapError(api.KindUnreachable, fmt.Sprintf("cannot connect to %s: %v", socket, err), err)
}

// oneLine makes a text one printable line.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool {
		return r == ' ' || !unicode.IsPrint(r)
	}), " ")
}
