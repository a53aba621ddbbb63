package kinds

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// zeroBench runs zeroScript with a blkdiscard that does to a file what the real one does to a
// device, or fails at one offset.
func zeroBench(t *testing.T, size int64, failAt string) (dev string, run func(argv []string) (stdout, stderr string, code int)) {
	t.Helper()
	dir := t.TempDir()
	dev = filepath.Join(dir, "dev")
	require.NoError(t, os.WriteFile(dev, bytes.Repeat([]byte{'x'}, int(size)), 0o600))
	fake := `#!/bin/sh
echo "$*" >>` + dir + `/calls
[ "$1 $2 $4" = "--zeroout --offset --length" ] || exit 9
[ "$3" != "` + failAt + `" ] || { echo "blkdiscard: $6: BLKZEROOUT ioctl failed: Input/output error" >&2; exit 1; }
exec dd if=/dev/zero of="$6" bs=1024 seek=$(($3 / 1024)) count=$(($5 / 1024)) conv=notrunc status=none
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "blkdiscard"), []byte(fake), 0o755))
	return dev, func(argv []string) (string, string, int) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
		var out, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &stderr
		err := cmd.Run()
		if err != nil {
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
		}
		return out.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
}

func TestZeroScript(t *testing.T) {
	const size = 5 << 20
	for name, tt := range map[string]struct {
		from   int64
		failAt string
		code   int
		zeros  int64 // up to here, and that is printed last
	}{
		"all of it":                {0, "", 0, size},
		"from an offset on":        {3 << 20, "", 0, size},
		"an error ends it":         {0, "2097152", 1, 2 << 20},
		"an error in its last one": {1 << 20, "3145728", 1, 3 << 20},
		"an error at once":         {1 << 20, "1048576", 1, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			dev, run := zeroBench(t, size, tt.failAt)
			argv := zeroSteps(dev, "", tt.from, size, 0, false)[0]
			require.Equal(t, []string{"268435456", "8589934592", "0"}, argv[7:10])
			argv[7], argv[8] = "2097152", "2097152"
			out, stderr, code := run(argv)
			assert.Equal(t, tt.code, code, stderr)
			assert.Equal(t, tt.code != 0, strings.Contains(stderr, "Input/output error"))
			content, err := os.ReadFile(dev)
			require.NoError(t, err)
			assert.Equal(t, strings.Repeat("x", int(tt.from))+strings.Repeat("\x00", int(tt.zeros-tt.from))+strings.Repeat("x", int(size-tt.zeros)), string(content))
			assert.Equal(t, tt.zeros, lastOffset(out, size), out)
		})
	}
}

// A device is only written to if it is the one that was meant, and is discarded after the
// last zero.
func TestZeroScriptOfAnother(t *testing.T) {
	dev, run := zeroBench(t, 1<<20, "")
	out, stderr, code := run(zeroSteps(dev, "LVM-x", 0, 1<<20, 0, true)[0])
	assert.NotZero(t, code, "a file is no device: %s", stderr)
	assert.Empty(t, out)
	content, err := os.ReadFile(dev)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("x", 1<<20), string(content))
	_, stderr, code = run(zeroSteps(dev+"-none", "", 0, 1<<20, 0, false)[0])
	assert.Equal(t, 1, code)
	assert.Equal(t, dev+"-none is not there\n", stderr)
	assert.NoFileExists(t, dev+"-none")

	_, _, code = run(zeroSteps(dev, "", 0, 1<<20, 0, true)[0])
	assert.Equal(t, 9, code, "this blkdiscard knows no other call")
	calls, err := os.ReadFile(filepath.Join(filepath.Dir(dev), "calls"))
	require.NoError(t, err)
	assert.Equal(t, "--zeroout --offset 0 --length 1048576 /dev/fd/8\n/dev/fd/8\n", string(calls))
}

// With a throttle each second does so much and no more.
func TestZeroScriptThrottled(t *testing.T) {
	dev, run := zeroBench(t, 2<<20, "")
	began := time.Now()
	out, stderr, code := run(zeroSteps(dev, "", 0, 2<<20, 1, false)[0])
	assert.Zero(t, code, stderr)
	assert.Equal(t, "1048576\n2097152\n", out)
	assert.GreaterOrEqual(t, time.Since(began), 2*time.Second)
}

// A step that is soon over is followed by a larger one, up to the largest.
func TestZeroScriptGrows(t *testing.T) {
	const size = 4 << 20
	dev, run := zeroBench(t, size, "")
	argv := zeroSteps(dev, "", 0, size, 0, false)[0]
	argv[7], argv[8] = "65536", "1048576"
	out, stderr, code := run(argv)
	require.Zero(t, code, stderr)
	assert.Equal(t, int64(size), lastOffset(out, size))
	calls, err := os.ReadFile(filepath.Join(filepath.Dir(dev), "calls"))
	require.NoError(t, err)
	var sizes []int64
	for line := range strings.Lines(string(calls)) {
		var at, n int64
		_, err := fmt.Sscanf(line, "--zeroout --offset %d --length %d", &at, &n)
		require.NoError(t, err, line)
		sizes = append(sizes, n)
	}
	assert.Equal(t, int64(65536), sizes[0])
	assert.LessOrEqual(t, slices.Max(sizes), int64(1<<20))
	assert.Less(t, len(sizes), size/65536, "%v", sizes)
}

func TestZeroSteps(t *testing.T) {
	assert.Equal(t, []string{"/dev/x", "8", "8", "268435456", "8589934592", "0", "LVM-x", "1"}, zeroSteps("/dev/x", "LVM-x", 8, 8, 0, true)[0][4:], "zeroed before")
	assert.Empty(t, zeroSteps("/dev/x", "LVM-x", 8, 8, 0, false))
	assert.Equal(t, "0", zeroSteps("/dev/x", "LVM-x", 0, 8, 0, false)[0][11])
	for throttle, want := range map[int64][]string{
		0: {"268435456", "8589934592", "0"}, 1: {"1048576", "1048576", "1.000"}, 1024: {"268435456", "268435456", "0.250"},
	} {
		assert.Equal(t, want, zeroSteps("/dev/x", "LVM-x", 0, 8, throttle, false)[0][7:10], throttle)
	}
}

func TestLastOffset(t *testing.T) {
	for out, want := range map[string]int64{
		"": 0, "4096": 0, "4096\n": 4096, "4096\n8192\n": 8192, "4096\n81": 4096, "4096\n\x00\x00\n": 0, "99999999\n": 0, "-1\n": 0,
	} {
		assert.Equal(t, want, lastOffset(out, 10000), fmt.Sprintf("%q", out))
	}
}
