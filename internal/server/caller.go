package server

import (
	"context"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"virtlvm/internal/api"
)

// caller is the process at the other end of a connection, as the kernel names it
// (SO_PEERCRED, unix(7)).
type caller struct {
	known    bool
	uid      uint32
	pid      int32
	writable bool      // it came by the read-write socket
	peer     *peerConn // it came by the peer socket; see peer.go
}

type callerKey struct{}

func connContext(writable bool) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, conn net.Conn) context.Context {
		c := caller{writable: writable}
		if cred, err := peerCredentials(conn); err == nil {
			c.known, c.uid, c.pid = true, cred.Uid, cred.Pid
		}
		return context.WithValue(ctx, callerKey{}, c)
	}
}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

func peerCredentials(conn net.Conn) (*unix.Ucred, error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("cannot tell who calls over %s", conn.RemoteAddr().Network())
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, credErr
}

// may is nil if the caller has the access. Who may open the read-write socket at all is
// the mode of the socket file: root and the group virtlvm.
func (c caller) may(need Access) error {
	switch {
	case need == AccessAny, need == AccessRead:
		return nil
	case need == AccessPeer:
		return api.NewError(api.KindForbidden, "only another host may ask this, by its relay to "+api.PeerSocketPath)
	case !c.writable:
		return api.NewError(api.KindForbidden, "this socket only answers questions; use "+api.SocketPath+" as root or as a member of the group virtlvm")
	case !c.known:
		return api.NewError(api.KindForbidden, "the kernel does not say who calls; refused")
	case need == AccessRoot && !c.isRoot():
		return api.NewError(api.KindForbidden, fmt.Sprintf("only root may do this, you are uid %d", c.uid))
	}
	return nil
}

// isRoot reports whether the caller is root. The daemon's own user differs from root only
// where it is tried out unprivileged.
func (c caller) isRoot() bool {
	return c.known && (c.uid == 0 || int(c.uid) == os.Geteuid())
}

// String names the caller in the journal.
func (c caller) String() string {
	if c.peer != nil {
		return "host " + c.peerName()
	}
	if !c.known {
		return "operator"
	}
	return fmt.Sprintf("operator uid %d", c.uid)
}
