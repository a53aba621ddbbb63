package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary serve as the program itself, under whatever name it is
// called.
func TestMain(m *testing.M) {
	if os.Getenv("SANFAKE_TEST_RUN") != "" {
		os.Exit(run(os.Args, os.Getenv, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// cli is a SAN and the program's links. run calls it in this process, command makes one
// of its own.
type cli struct {
	*testing.T
	dir, bin string
}

func newCLI(t *testing.T) *cli {
	t.Helper()
	parent, err := os.MkdirTemp("/dev/shm", "sanfake-")
	if err != nil {
		parent = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	c := &cli{T: t, dir: filepath.Join(parent, "san"), bin: filepath.Join(parent, "bin")}
	c.must("", "sanfake install "+c.bin)
	c.must("", "sanfake init "+c.dir+" kvm-a kvm-b")
	c.must("", "sanfake lv vg_san/lv1 linear 16")
	return c
}

func (c *cli) command(host, line string) *exec.Cmd {
	f := strings.Fields(line)
	cmd := exec.Command(filepath.Join(c.bin, f[0]), f[1:]...)
	cmd.Env = []string{"SANFAKE_TEST_RUN=1", "SAN_DIR=" + c.dir, "SAN_HOST=" + host}
	return cmd
}

func (c *cli) run(host, line string) (stdout, stderr string, code int) {
	var out, errOut bytes.Buffer
	env := map[string]string{"SAN_DIR": c.dir, "SAN_HOST": host}
	f := strings.Fields(line)
	code = run(append([]string{filepath.Join(c.bin, f[0])}, f[1:]...), func(name string) string { return env[name] }, &out, &errOut)
	return out.String(), errOut.String(), code
}

func (c *cli) must(host, line string) string {
	c.Helper()
	out, err, code := c.run(host, line)
	require.Equal(c, 0, code, "%s: %s%s", line, out, err)
	return out
}

func TestTools(t *testing.T) {
	c := newCLI(t)
	c.must("kvm-a", "lvchange -aey vg_san/lv1")
	_, stderr, code := c.run("kvm-b", "lvchange -aey vg_san/lv1")
	require.Equal(t, 5, code)
	require.Equal(t, "  LV locked by other host: vg_san/lv1\n  Failed to lock logical volume vg_san/lv1.\n", stderr)
	require.Equal(t, "VOLUME       HOST    MODE   HOST STATE\nvg_san/lv1   kvm-a   ex     live\n", c.must("", "sanfake locks"))
	require.Equal(t, "  16777216\n", c.must("kvm-b", "sanfake lvs --noheadings --units b --nosuffix -o lv_size vg_san/lv1"))
	require.Contains(t, c.must("kvm-b", "prlimit --as=1000000000 lvs"), "lv1")
	require.FileExists(t, filepath.Join(c.dir, "hosts/kvm-a/dev/vg_san/lv1"))

	_, stderr, code = c.run("", "lvs")
	require.Equal(t, 70, code)
	require.Equal(t, "sanfake: SAN_HOST is not set\n", stderr)
	_, stderr, code = c.run("nobody", "lvs")
	require.Equal(t, 70, code)
	require.Contains(t, stderr, `no host "nobody" on this SAN`)
}

func TestHostCommands(t *testing.T) {
	c := newCLI(t)
	c.must("kvm-a", "lvchange -aey vg_san/lv1")
	c.must("kvm-a", "sanfake open vg_san/lv1 1")
	_, stderr, code := c.run("kvm-a", "lvchange -an vg_san/lv1")
	require.Equal(t, 5, code)
	require.Equal(t, "  Logical volume vg_san/lv1 in use.\n", stderr)
	// A process that has ended has nothing open.
	c.must("kvm-a", "sanfake close vg_san/lv1 0")
	sleeper := exec.Command("sleep", "100")
	require.NoError(t, sleeper.Start())
	pid := sleeper.Process.Pid
	c.must("kvm-a", "sanfake open vg_san/lv1 "+strconv.Itoa(pid))
	_, _, code = c.run("kvm-a", "lvchange -an vg_san/lv1")
	require.Equal(t, 5, code)
	require.NoError(t, sleeper.Process.Kill())
	_ = sleeper.Wait()
	c.must("kvm-a", "lvchange -an vg_san/lv1")

	c.must("kvm-a", "lvchange -aey vg_san/lv1")
	c.must("kvm-a", "sanfake crash")
	require.Contains(t, c.must("", "sanfake locks"), "vg_san/lv1   kvm-a   ex     live\n")
	c.must("kvm-a", "sanfake reboot")
	c.must("kvm-a", "sanfake lockstart vg_san")
	require.Contains(t, c.must("", "sanfake locks"), "live, lease no longer counts\n")
	c.must("kvm-b", "lvchange -aey vg_san/lv1")
	c.must("kvm-b", "sanfake lockd-stop")
	_, stderr, _ = c.run("kvm-b", "lvs")
	require.Contains(t, stderr, "WARNING: lvmlockd process is not running.")
	for _, cmd := range []string{"lockd-adopt", "lose vg_san", "lockstop vg_san", "lockstart vg_san", "stall", "resume", "sanlock-kill", "lockd-start", "lockstop vg_plain"} {
		c.must("kvm-b", "sanfake "+cmd)
	}
	c.must("", "sanfake vg vg_plain none")
	require.Contains(t, c.must("kvm-a", "vgs"), "vg_plain")
	for _, bad := range []string{"", "nosuch", "init x", "install", "lv x", "vg", "fault", "fault add", "fault add nosuch", "fault clear x", "open vg_san/lv1"} {
		_, _, code := c.run("kvm-a", "sanfake "+bad)
		require.NotZero(t, code, bad)
	}
	require.Contains(t, c.must("", "sanfake locks"), "VOLUME")
}

func TestFaultsAndSIGTERM(t *testing.T) {
	c := newCLI(t)
	require.Equal(t, "1\n", c.must("kvm-a", "sanfake fault add -tool lvchange -nth 1 hang"))
	hung := c.command("kvm-a", "lvchange -aey vg_san/lv1")
	require.NoError(t, hung.Start())
	require.Eventually(t, func() bool {
		return strings.Contains(c.must("", "sanfake fault list"), "hit 1 of 1")
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, hung.Process.Signal(syscall.SIGTERM))
	_ = hung.Wait()
	require.Equal(t, 143, hung.ProcessState.ExitCode())
	c.must("kvm-b", "lvchange -aey vg_san/lv1")
	c.must("kvm-b", "sanfake fault clear 1")
	require.Empty(t, c.must("kvm-b", "sanfake fault list"))
	c.must("kvm-b", "sanfake fault add -tool lvs -exit 4 -stderr odd exit")
	_, stderr, code := c.run("kvm-b", "lvs")
	require.Equal(t, 4, code)
	require.Equal(t, "odd", stderr)
}

// TestProcesses races processes, as two hosts on a real SAN do.
func TestProcesses(t *testing.T) {
	c := newCLI(t)
	first, second := c.command("kvm-a", "lvchange -aey vg_san/lv1"), c.command("kvm-b", "lvchange -aey vg_san/lv1")
	require.NoError(t, first.Start())
	require.NoError(t, second.Start())
	_, _ = first.Process.Wait()
	_, _ = second.Process.Wait()
	require.Equal(t, 1, strings.Count(c.must("", "sanfake locks"), " ex "))
	out, err := c.command("kvm-b", "lvs --noheadings -o lv_name vg_san").Output()
	require.NoError(t, err)
	require.Equal(t, "  lv1\n", string(out))
}
