package relay

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// over starts this test binary as a relay to a socket.
func over(socket string) Command {
	return Command{Name: os.Args[0], Env: append(os.Environ(), socketVariable+"="+socket, "GORACE=atexit_sleep_ms=0")}
}

func shell(script string) Command { return Command{Name: "sh", Args: []string{"-c", script}} }

func dial(t *testing.T, cmd Command) *Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, err := Dial(ctx, cmd)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func gone(t *testing.T, c *Conn) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(limit):
		t.Fatal("the command has not ended")
	}
}

func TestConnCarriesBytesAndEnds(t *testing.T) {
	socket := serve(t, func(c *net.UnixConn) {
		data, err := io.ReadAll(c)
		assert.NoError(t, err)
		_, err = c.Write([]byte(strings.ToUpper(string(data))))
		assert.NoError(t, err)
	})
	c := dial(t, over(socket))
	text := strings.Repeat("bytes ", 50_000)
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, strings.ToUpper(text), string(answer))
	gone(t, c)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "closing twice is harmless")
	_, err = c.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestConnHasDeadlines(t *testing.T) {
	c := dial(t, shell("echo virtlvm-relay 1.0; exec sleep 60"))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	assert.True(t, timeout.Timeout())

	// Nobody reads the other end: the pipe fills, and then writes wait.
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(30*time.Millisecond)))
	_, err = c.Write(make([]byte, 8<<20))
	require.ErrorAs(t, err, &timeout)
	assert.True(t, timeout.Timeout())

	require.NoError(t, c.SetDeadline(time.Time{}))
	assert.Equal(t, "relay", c.RemoteAddr().Network())
	assert.Equal(t, "sh", c.RemoteAddr().String())
	assert.Equal(t, "here", c.LocalAddr().String())
}

func TestCloseEndsTheCommand(t *testing.T) {
	for name, script := range map[string]string{
		"by itself":        "cat >/dev/null",
		"by SIGTERM":       "exec sleep 600",
		"with its child":   "sleep 600; true",
		"while it writes":  "sleep 1; yes",
		"and its children": "sleep 600 & sleep 600 & wait",
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, shell("echo virtlvm-relay 1.0; "+script))
			read := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, c)
				read <- err
			}()
			require.NoError(t, c.Close())
			require.ErrorIs(t, <-read, os.ErrClosed)
			gone(t, c)
		})
	}
}

func TestEndOfTheCommandIsTheEndOfTheConnection(t *testing.T) {
	c := dial(t, shell("echo virtlvm-relay 1.0; echo why >&2; read x; exit 7"))
	_, err := io.WriteString(c, "go\n")
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	gone(t, c)
	assert.Equal(t, 7, c.ExitCode())
	assert.Equal(t, "why\n", c.stderr.String())
	_, err = io.WriteString(c, "more\n")
	require.Error(t, err)
}

// A master connection that ssh leaves in the background keeps standard error open.
func TestLeftBehindProcessDoesNotHoldUp(t *testing.T) {
	c := dial(t, shell("echo virtlvm-relay 1.0; (sleep 30 >/dev/null </dev/null) & exit 0"))
	began := time.Now()
	gone(t, c)
	assert.Less(t, time.Since(began), limit)
}

func TestCommandHasNoTerminal(t *testing.T) {
	// It speaks only when asked: what comes with the greeting is refused.
	c := dial(t, shell(`echo virtlvm-relay 1.0; read x; if (: </dev/tty) 2>/dev/null; then echo terminal; else echo none; fi`))
	_, err := io.WriteString(c, "go\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, "none\n", string(answer))
}

func TestTailKeepsTheEnd(t *testing.T) {
	var s tail
	for range 100 {
		_, err := s.Write([]byte(strings.Repeat("x", 1000)))
		require.NoError(t, err)
	}
	_, err := s.Write([]byte("end"))
	require.NoError(t, err)
	assert.Len(t, s.String(), tailSize)
	assert.True(t, strings.HasSuffix(s.String(), "xend"))
	_, err = s.Write([]byte(strings.Repeat("y", 3*tailSize)))
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("y", tailSize), s.String())
}
