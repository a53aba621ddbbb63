package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseStat(t *testing.T) {
	const tail = " S 1 1 1 0 -1 4194560 100 200 3 4 5 6 7 8 20 0 1 0 123456 1 2 3"
	tests := map[string]struct {
		stat  string
		state byte
		start uint64
		err   string
	}{
		"plain":                {stat: "42 (lvchange)" + tail, state: 'S', start: 123456},
		"spaces, parentheses":  {stat: "42 (a) R 1 (b" + ") c)" + tail, state: 'S', start: 123456},
		"newline at the end":   {stat: "42 (x)" + tail + "\n", state: 'S', start: 123456},
		"start time of a year": {stat: "42 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 18446744073709551615", state: 'Z', start: 1<<64 - 1},
		"no name":              {stat: "42", err: "no name"},
		"empty":                {stat: "", err: "no name"},
		"cut short":            {stat: "42 (x) S 1 1", err: "cut short"},
		"not a number":         {stat: "42 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 soon", err: "no start time"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			state, start, err := parseStat([]byte(tt.stat))
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.state, state)
			assert.Equal(t, tt.start, start)
		})
	}
}

func TestProcessAlive(t *testing.T) {
	// The kernel's name for the process is the file's: this one tries to look like the
	// end of the name and a state.
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	data, err := os.ReadFile(sleep)
	require.NoError(t, err)
	odd := filepath.Join(t.TempDir(), "a) Z 1 (b")
	require.NoError(t, os.WriteFile(odd, data, 0o755))
	child := exec.Command(odd, "60")
	require.NoError(t, child.Start())
	pid := child.Process.Pid
	start, err := ProcessStart(pid)
	require.NoError(t, err)
	assert.NotZero(t, start)
	assert.True(t, ProcessAlive(pid, start))
	assert.False(t, ProcessAlive(pid, start+1), "another process had this pid")

	// Not waited for yet: a zombie.
	require.NoError(t, child.Process.Kill())
	assert.Eventually(t, func() bool { return !ProcessAlive(pid, start) }, 5*time.Second, 5*time.Millisecond)
	_, err = ProcessStart(pid)
	require.NoError(t, err, "the zombie is still there")
	require.Error(t, child.Wait())
	assert.False(t, ProcessAlive(pid, start))
	_, err = ProcessStart(pid)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestProcessNever(t *testing.T) {
	for _, pid := range []int{0, -1} {
		_, err := ProcessStart(pid)
		require.ErrorContains(t, err, "not a process id")
		assert.False(t, ProcessAlive(pid, 0))
	}
}
