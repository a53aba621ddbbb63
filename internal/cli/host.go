package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/relay"
)

// How long another host may take: to answer at all, and until the relay there speaks.
const (
	connectTimeout = 10 * time.Second
	loginTimeout   = 20 * time.Second
	// partTimeout is how long the end of ssh is waited for.
	partTimeout = 2 * time.Second
)

// hostVariable is the environment's --host.
const hostVariable = "VIRTLVM_HOST"

// connect makes the client of the daemon that a command is for: this host's, or with
// --host another's. done drops its connections.
func connect(c *cli.Context) (conn *client.Client, done func(), err error) {
	host, socket := c.String("host"), c.String("socket")
	if host == "" {
		conn = client.New(client.Options{Socket: socket})
		return conn, conn.Close, nil
	}
	if socket != "" {
		return nil, nil, usageError("--host and --socket (or VIRTLVM_HOST and VIRTLVM_SOCKET) exclude each other")
	}
	target, err := api.ParseTarget(host)
	if err != nil {
		return nil, nil, usageError("--host: %v", err)
	}
	if target.Socket != "" {
		conn = client.New(client.Options{Socket: target.Socket})
		return conn, conn.Close, nil
	}
	r := &remote{target: target}
	conn = client.New(client.Options{Dial: r.dial, Name: target.Host})
	return conn, func() {
		conn.Close()
		r.part()
	}, nil
}

// remote opens connections to the daemon of another host with the user's own ssh: keys,
// agent, known hosts and configuration are the user's, and so are the rights there.
type remote struct {
	target api.Target

	mu    sync.Mutex
	conns []*relay.Conn
}

func (r *remote) dial(ctx context.Context) (net.Conn, error) {
	cmd, err := relay.SSH(r.target, connectTimeout, nil, "virtlvm", "relay")
	if err != nil {
		return nil, usageError("%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	conn, err := relay.Dial(ctx, cmd)
	if err != nil {
		return nil, r.explain(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, conn)
	return conn, nil
}

func (r *remote) explain(err error) error {
	address := strings.TrimPrefix(r.target.String(), "ssh://")
	if r.target.Port != 0 {
		address = r.target.String()
	}
	var failed *relay.DialError
	if !errors.As(err, &failed) {
		return api.NewError(api.KindUnreachable, fmt.Sprintf("cannot reach %s: %v", r.target.Host, err))
	}
	message := fmt.Sprintf("cannot reach %s: %v", r.target.Host, failed)
	if fix := failed.Fix(address); fix != "" {
		message += "; " + fix
	}
	return api.NewError(failed.ErrorKind(), message)
}

// part closes all connections and waits a moment for each ssh to end.
func (r *remote) part() {
	r.mu.Lock()
	defer r.mu.Unlock()
	timeout := time.After(partTimeout)
	for _, c := range r.conns {
		_ = c.Close() // nothing more is read or written
		select {
		case <-c.Done():
		case <-timeout:
			return
		}
	}
}

// argsHere is args for a command that works on files of this host, where --host makes no
// sense. The environment's is meant for the other commands and does not matter here.
func argsHere(c *cli.Context, low, high int) error {
	if host := c.String("host"); host != "" && host != os.Getenv(hostVariable) {
		return usageError("`%s` works on this host alone: run it there, without --host", c.Command.HelpName)
	}
	return args(c, low, high)
}
