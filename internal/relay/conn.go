package relay

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Patience with a command whose Conn is closed: until it is asked to end, and then until
// it is made to. It is a way to talk, not an LVM command: nothing is lost with it.
const (
	closeGrace = 500 * time.Millisecond
	termGrace  = 5 * time.Second
)

// Command is a program that speaks to a relay on its standard input and output.
type Command struct {
	Name string   // looked up in PATH
	Args []string // without the name
	Env  []string // NAME=VALUE; nil: this process's own
}

// Conn is a connection over a command's standard input and output. It has deadlines as
// any net.Conn. The command has a session of its own, so that it can ask nothing on our
// terminal and gets no signal meant for us.
type Conn struct {
	*process
	in  *os.File // the command's standard input
	out *os.File // its standard output
	buf *bufio.Reader

	closeOnce, writeOnce sync.Once
}

// Start starts a command. Most callers want Dial, which also shakes hands.
func Start(cmd Command) (*Conn, error) {
	path, err := exec.LookPath(cmd.Name)
	if err != nil {
		return nil, fmt.Errorf("cannot run %s: %w", cmd.Name, err)
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a pipe: %w", err), theirIn.Close(), in.Close())
	}
	child := &exec.Cmd{
		Path: path, Args: append([]string{cmd.Name}, cmd.Args...), Env: cmd.Env,
		Stdin: theirIn, Stdout: theirOut,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	p, err := start(child)
	// The command has them now, or nobody needs them.
	err = errors.Join(err, theirIn.Close(), theirOut.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot run %s: %w", cmd.Name, err), in.Close(), out.Close())
	}
	return &Conn{process: p, in: in, out: out, buf: bufio.NewReader(out)}, nil
}

// Read reads from the command's standard output; io.EOF after its end.
func (c *Conn) Read(b []byte) (int, error) { return c.buf.Read(b) }

// Write writes to the command's standard input. What it has taken may be lost all the
// same if the command or the network dies.
func (c *Conn) Write(b []byte) (int, error) { return c.in.Write(b) }

// CloseWrite ends the command's standard input.
func (c *Conn) CloseWrite() error {
	var err error
	c.writeOnce.Do(func() { err = c.in.Close() })
	return err
}

// Close closes both directions at once and lets the command end in the background: by
// itself, then by SIGTERM, at last by SIGKILL. Done tells when it has.
func (c *Conn) Close() error {
	var err error
	c.closeOnce.Do(func() {
		err = errors.Join(c.CloseWrite(), c.out.Close())
		go c.end(closeGrace)
	})
	return err
}

// abort closes and does not wait for the command to end by itself.
func (c *Conn) abort() {
	c.closeOnce.Do(func() {
		// What is being closed is of no use to anybody any more.
		_ = errors.Join(c.CloseWrite(), c.out.Close())
		go c.end(0)
	})
}

// Done is closed when the command has ended.
func (c *Conn) Done() <-chan struct{} { return c.Ended }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.out.SetReadDeadline(t) }

// SetWriteDeadline bounds writes, which wait where the command takes nothing.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.in.SetWriteDeadline(t) }

// LocalAddr names this end.
func (c *Conn) LocalAddr() net.Addr { return addr("here") }

// RemoteAddr names the command.
func (c *Conn) RemoteAddr() net.Addr { return addr(c.name) }

type addr string

func (addr) Network() string  { return "relay" }
func (a addr) String() string { return string(a) }
