package guests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const patience = 5 * time.Second

// watching starts Watch with an unbuffered channel and takes its first hint.
func watching(t *testing.T, o *Observer) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changed, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- o.Watch(ctx, changed) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-ended, context.Canceled)
	})
	hint(t, changed)
	return changed
}

func hint(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(patience):
		require.FailNow(t, "no hint")
	}
}

func quiet(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
		require.FailNow(t, "a hint for nothing")
	case <-time.After(100 * time.Millisecond):
	}
}

func TestWatchFiles(t *testing.T) {
	h := newHost(t)
	changed := watching(t, h.Observer)
	quiet(t, changed)
	h.write("vm1", h.status())
	hint(t, changed)
	quiet(t, changed)
	h.write("vm1", h.status())
	hint(t, changed)
	h.remove("vm1")
	hint(t, changed)
	quiet(t, changed)
	require.NoError(t, os.WriteFile(filepath.Join(h.run, "vm1.pid"), nil, 0o600))
	quiet(t, changed)
}

func TestWatchJoinsHints(t *testing.T) {
	h := newHost(t)
	changed := watching(t, h.Observer)
	for range 50 {
		h.write("vm1", h.status())
	}
	time.Sleep(50 * time.Millisecond) // nobody takes the hints meanwhile
	hint(t, changed)
	quiet(t, changed)
}

func TestWatchDirectoryThatComesAndGoes(t *testing.T) {
	h := newHost(t)
	h.fallback = 20 * time.Millisecond
	require.NoError(t, os.Remove(h.run))
	changed := watching(t, h.Observer)
	for range 2 {
		require.NoError(t, os.Mkdir(h.run, 0o755))
		hint(t, changed)
		h.write("vm1", h.status())
		hint(t, changed)
		require.NoError(t, os.RemoveAll(h.run))
		hint(t, changed)
	}
	// Found again by its own events, not only by the regular hint.
	require.NoError(t, os.Mkdir(h.run, 0o755))
	time.Sleep(3 * h.fallback)
	h.write("vm1", h.status())
	hint(t, changed)
	assert.Len(t, h.look().ByUUID, 1)
}

func TestWatchRegularHint(t *testing.T) {
	h := newHost(t)
	h.fallback = 30 * time.Millisecond
	changed := watching(t, h.Observer)
	hint(t, changed)
	hint(t, changed)
}

// A QEMU that is killed is noticed at once, without any file being touched.
func TestWatchEndOfQEMU(t *testing.T) {
	h := newHost(t)
	h.Observer = New(h.run, "/proc")
	qemu := startQEMU(t, "vm1", uuid1)
	h.write("vm1", h.status("pid='3600'", "pid='"+strconv.Itoa(qemu.Process.Pid)+"'"))
	changed := watching(t, h.Observer)
	require.Equal(t, Alive, h.look().Liveness(uuid1, "vm1"))
	quiet(t, changed)
	require.NoError(t, qemu.Process.Kill())
	hint(t, changed)
	_ = qemu.Wait()
	assert.Equal(t, Gone, h.look().Liveness(uuid1, "vm1"))
	quiet(t, changed)

	// The next QEMU of the guest is followed as well.
	qemu = startQEMU(t, "vm1", uuid1)
	h.write("vm1", h.status("pid='3600'", "pid='"+strconv.Itoa(qemu.Process.Pid)+"'"))
	hint(t, changed)
	require.Equal(t, Alive, h.look().Liveness(uuid1, "vm1"))
	require.NoError(t, qemu.Process.Kill())
	hint(t, changed)
}

// startQEMU runs a process with the command line of a guest's QEMU, a zombie once killed
// until it is waited for.
func startQEMU(t *testing.T, name, uuid string) *exec.Cmd {
	t.Helper()
	// A shell keeps the arguments behind its script as they are.
	cmd := exec.Command("sh", append([]string{"-c", "read x", "qemu"}, qemuArgs(name, uuid)...)...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestWatchEndsWithItsContext(t *testing.T) {
	h := newHost(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, h.Watch(ctx, make(chan struct{})), context.Canceled)
	assert.Empty(t, h.watchers)
}
