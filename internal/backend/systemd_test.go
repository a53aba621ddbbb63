package backend_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/backend"
)

// The tests below need a systemd: its own socket, such as /run/systemd/private, is given in
// VIRTLVM_TEST_SYSTEMD. test/systemd/run.sh makes one that is nobody else's.
func newSystemdBench(t *testing.T) *bench {
	t.Helper()
	socket := os.Getenv("VIRTLVM_TEST_SYSTEMD")
	if socket == "" {
		t.Skip("no systemd; see test/systemd/run.sh")
	}
	b := newBench(t)
	units := backend.Systemd{Dial: func(ctx context.Context) (*dbus.Conn, error) {
		return dbus.NewConnection(func() (*godbus.Conn, error) {
			conn, err := godbus.Dial("unix:path="+socket, godbus.WithContext(context.WithoutCancel(ctx)))
			if err != nil {
				return nil, err
			}
			return conn, conn.Auth([]godbus.Auth{godbus.AuthExternal("0")})
		})
	}}
	b.o.Units = units
	t.Cleanup(func() { _ = units.Forget(ctx, backend.UnitName("1")) })
	require.NoError(t, units.Forget(ctx, backend.UnitName("1")), "left by an earlier run")
	return b
}

func (b *bench) unit() backend.UnitState {
	b.t.Helper()
	u, err := b.o.Units.State(ctx, backend.UnitName("1"))
	require.NoError(b.t, err)
	return u
}

func TestSystemdKeepsTheExitRecord(t *testing.T) {
	for name, tt := range map[string]struct {
		program string
		code    int
	}{"success": {"exit 0", 0}, "failure": {"echo no >&2; exit 3", 3}} {
		t.Run(name, func(t *testing.T) {
			b := newSystemdBench(t)
			assert.Equal(t, backend.UnitState{}, b.unit())
			b.program("tool", `printf '%s|' "$@"; pwd; umask; `+tt.program)
			b.start([]string{"tool", "a b", "it's"})
			b.start([]string{"tool", "a b", "it's"})
			r := b.end()
			assert.Equal(t, tt.code, r.Code)
			require.Eventually(t, func() bool { return !b.unit().Running }, 10*time.Second, 5*time.Millisecond)
			// Without its record, systemd tells.
			require.NoError(t, os.Remove(b.file("end")))
			r = b.look()
			assert.Equal(t, backend.Exited, r.State)
			assert.Equal(t, tt.code, r.Code)
			assert.WithinDuration(t, time.Now(), r.Ended, time.Minute)
			out, _, err := b.jobs().Output("1")
			require.NoError(t, err)
			assert.Equal(t, "a b|it's|/\n0077\n", out)
			require.NoError(t, b.jobs().Collect(ctx, "1"))
			assert.Equal(t, backend.UnitState{}, b.unit())
			assert.Equal(t, backend.Missing, b.look().Why)
		})
	}
}

func TestSystemdUnitThatExists(t *testing.T) {
	b := newSystemdBench(t)
	gate := filepath.Join(t.TempDir(), "gate")
	b.program("hold", "while [ ! -e "+gate+" ]; do sleep 0.01; done")
	b.start([]string{"hold"})
	assert.Equal(t, backend.Running, b.look().State)
	assert.True(t, b.unit().Running)
	u := backend.Unit{Name: backend.UnitName("1"), Argv: []string{"/bin/sh", b.file("job.sh")}, StopSignal: syscall.SIGTERM}
	require.NoError(t, b.o.Units.Start(ctx, u), "it is there already")
	require.ErrorContains(t, b.o.Units.Forget(ctx, u.Name), "runs")
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	assert.True(t, b.end().OK())
}

func TestSystemdStop(t *testing.T) {
	b := newSystemdBench(t)
	up := filepath.Join(t.TempDir(), "up")
	b.program("serve", "trap 'echo bye; exit 9' INT; trap '' TERM; echo >"+up+"; while :; do sleep 0.01; done")
	require.NoError(t, b.jobs().Start(ctx, backend.Job{ID: "1", Steps: [][]string{{"serve"}, {"true"}}, StopSignal: syscall.SIGINT}))
	b.await(up)
	require.NoError(t, b.jobs().Stop(ctx, "1"))
	r := b.end()
	assert.Equal(t, 9, r.Code)
	assert.Equal(t, 1, r.Step)
	require.NoError(t, b.jobs().Stop(ctx, "1"))
	require.NoError(t, b.jobs().Stop(ctx, "2"), "there is none")
	require.Eventually(t, func() bool { return b.jobs().Collect(ctx, "1") == nil }, 10*time.Second, 20*time.Millisecond)
}

func TestSystemdKilledWhole(t *testing.T) {
	b := newSystemdBench(t)
	up := filepath.Join(t.TempDir(), "up")
	b.program("serve", "echo $PPID >"+up+".new; mv "+up+".new "+up+"; exec sleep 60")
	b.start([]string{"serve"})
	b.await(up)
	text, err := os.ReadFile(up)
	require.NoError(t, err)
	require.NoError(t, killAll(string(text)))
	r := b.end()
	assert.Equal(t, backend.Exited, r.State)
	assert.Equal(t, "killed by signal killed (signal)", r.String())
}

func TestSystemdCannotExecute(t *testing.T) {
	b := newSystemdBench(t)
	err := b.o.Units.Start(ctx, backend.Unit{Name: backend.UnitName("1"), Argv: []string{"/nonexistent"}, StopSignal: syscall.SIGTERM})
	require.ErrorContains(t, err, "systemd could not start virtlvm-job-1.service: failed")
}
