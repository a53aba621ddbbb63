package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// bench is a folder of scripts that stand in for programs, and a Runner for them.
type bench struct {
	t        *testing.T
	bin, out string
	opts     ExecOptions
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, bin: filepath.Join(dir, "bin"), out: filepath.Join(dir, "out")}
	require.NoError(t, os.Mkdir(b.bin, 0o755))
	require.NoError(t, os.Mkdir(b.out, 0o700))
	b.opts = ExecOptions{Dirs: []string{b.bin}, OutDir: b.out}
	return b
}

// program writes a shell script. It is renamed into place: a script that is still open
// for writing in a child forked meanwhile cannot be executed.
func (b *bench) program(name, script string) {
	b.t.Helper()
	tmp := filepath.Join(b.bin, "."+name)
	require.NoError(b.t, os.WriteFile(tmp, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	require.NoError(b.t, os.Rename(tmp, filepath.Join(b.bin, name)))
}

func (b *bench) run(cmd Cmd) (Result, error) {
	b.t.Helper()
	return NewExec(b.opts).Run(context.Background(), cmd)
}

func (b *bench) leftovers() []string {
	b.t.Helper()
	entries, err := os.ReadDir(b.out)
	require.NoError(b.t, err)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestRunSuccess(t *testing.T) {
	b := newBench(t)
	b.program("tool", `printf '%s|' "$@"; echo warning >&2`)
	var pid int
	var start uint64
	res, err := b.run(Cmd{Name: "tool", Args: []string{"a b", "", "$x", "vg/lv"}, OnStart: func(p int, s uint64) { pid, start = p, s }})
	require.NoError(t, err)
	assert.Equal(t, "a b||$x|vg/lv|", string(res.Stdout))
	assert.Equal(t, "warning\n", string(res.Stderr))
	assert.Zero(t, res.ExitCode)
	assert.Positive(t, res.Duration)
	assert.Positive(t, pid)
	assert.Positive(t, start)
	assert.False(t, ProcessAlive(pid, start))
	assert.Empty(t, b.leftovers())
}

func TestRunSurroundings(t *testing.T) {
	b := newBench(t)
	b.opts.Env = []string{"EXTRA=1"}
	t.Setenv("LANG", "de_DE.UTF-8")
	t.Setenv("SECRET", "x")
	// Not marked close-on-exec, as a descriptor the daemon was started with.
	var pipe [2]int
	require.NoError(t, unix.Pipe(pipe[:]))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	b.program("tool", `
pwd; readlink /proc/self/fd/0; stat -L -c '%a' /proc/self/fd/1 /proc/self/fd/2
cut -d' ' -f1,5,6 /proc/$$/stat
echo "fds:" $(ls /proc/$$/fd)
env | grep -v '^PWD=\|^_=\|^SHLVL=\|^OLDPWD='`)
	var pid int
	res, err := b.run(Cmd{Name: "tool", OnStart: func(p int, _ uint64) { pid = p }})
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")
	require.Greater(t, len(lines), 6)
	assert.Equal(t, []string{"/", "/dev/null", "600", "600"}, lines[:4])
	// Pid, process group and session are one.
	assert.Equal(t, fmt.Sprintf("%d %d %d", pid, pid, pid), lines[4])
	for _, fd := range strings.Fields(strings.TrimPrefix(lines[5], "fds:")) {
		n, err := strconv.Atoi(fd)
		require.NoError(t, err)
		// dash keeps the script itself at 10.
		assert.NotContains(t, pipe[:], n, "an inherited descriptor")
	}
	assert.ElementsMatch(t, []string{
		"LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1", "HOME=/", "EXTRA=1",
		"PATH=" + b.bin + ":/usr/sbin:/usr/bin:/sbin:/bin",
	}, lines[6:])
}

func TestRunFailure(t *testing.T) {
	b := newBench(t)
	b.program("refuse", `echo "  LV locked by other host: vg/lv" >&2; echo out; exit 5`)
	b.program("die", `echo half >&2; kill -KILL $$`)
	tests := map[string]struct {
		exit    int
		stderr  string
		message string
	}{
		"refuse": {exit: 5, stderr: "  LV locked by other host: vg/lv\n", message: "refuse x: exit code 5: LV locked by other host: vg/lv"},
		"die":    {exit: -1, stderr: "half\nended by signal: killed\n", message: "die x: exit code -1: ended by signal: killed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			res, err := b.run(Cmd{Name: name, Args: []string{"x"}})
			var exit *ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, tt.exit, exit.ExitCode)
			assert.Equal(t, tt.stderr, exit.Stderr)
			assert.Equal(t, []string{name, "x"}, exit.Argv)
			assert.Equal(t, tt.message, err.Error())
			assert.Equal(t, tt.exit, res.ExitCode)
			assert.Empty(t, b.leftovers())
		})
	}
}

func TestRunNotFound(t *testing.T) {
	b := newBench(t)
	require.NoError(t, os.WriteFile(filepath.Join(b.bin, "plain"), []byte("x"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(b.bin, "garbage"), []byte("\x00\x01"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(b.bin, "folder"), 0o755))
	for _, name := range []string{"absent", "plain", "garbage", "folder", "", ".", "..", "/bin/true", "../bin/true"} {
		t.Run(name, func(t *testing.T) {
			called := false
			_, err := b.run(Cmd{Name: name, OnStart: func(int, uint64) { called = true }})
			var missing *NotFoundError
			require.ErrorAs(t, err, &missing)
			assert.Equal(t, name, missing.Name)
			assert.False(t, called)
			assert.Empty(t, b.leftovers())
		})
	}
}

func TestLookupOrder(t *testing.T) {
	b, second := newBench(t), newBench(t)
	second.program("tool", "echo second")
	b.opts.Dirs = append(b.opts.Dirs, second.bin)
	res, err := b.run(Cmd{Name: "tool"})
	require.NoError(t, err)
	assert.Equal(t, "second\n", string(res.Stdout))
	b.program("tool", "echo first")
	res, err = b.run(Cmd{Name: "tool"})
	require.NoError(t, err)
	assert.Equal(t, "first\n", string(res.Stdout))
	assert.Equal(t, []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}, NewExec(ExecOptions{}).dirs)
}

func TestRunCancelledBefore(t *testing.T) {
	b := newBench(t)
	b.program("tool", "touch "+b.out+"/ran")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := NewExec(b.opts).Run(ctx, Cmd{Name: "tool"})
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, b.leftovers())
}

func TestRunRefused(t *testing.T) {
	b := newBench(t)
	b.program("tool", "touch "+b.out+"/ran")
	why := errors.New("it names an option")
	_, err := b.run(Cmd{Name: "tool", Err: why})
	require.ErrorIs(t, err, why)
	assert.Empty(t, b.leftovers())
}

func TestRunIgnoresLaterCancel(t *testing.T) {
	b := newBench(t)
	b.program("tool", "sleep 0.2; echo done")
	ctx, cancel := context.WithCancel(context.Background())
	res, err := NewExec(b.opts).Run(ctx, Cmd{Name: "tool", OnStart: func(int, uint64) { cancel() }})
	require.NoError(t, err)
	assert.Equal(t, "done\n", string(res.Stdout))
}

func TestTimeoutEndsOnTerm(t *testing.T) {
	b := newBench(t)
	// The child is in the group: it gets the signal too, and the file says so.
	note := filepath.Join(b.bin, "note")
	b.program("slow", `
(trap 'echo child >> `+note+`; exit 0' TERM; while :; do sleep 0.05; done) &
trap 'wait; echo parent >> `+note+`; echo bye; exit 7' TERM
echo started
while :; do sleep 0.05; done`)
	res, err := b.run(Cmd{Name: "slow", Timeout: time.Second})
	var late *TimeoutError
	require.ErrorAs(t, err, &late)
	require.Equal(t, []string{"slow"}, late.Argv)
	select {
	case <-late.Done:
	default:
		t.Fatal("Done is open though the program has ended")
	}
	assert.Equal(t, 7, res.ExitCode)
	assert.Equal(t, "started\nbye\n", string(res.Stdout))
	said, err := os.ReadFile(note)
	require.NoError(t, err)
	assert.Equal(t, "child\nparent\n", string(said))
	assert.Empty(t, b.leftovers())
}

func TestTimeoutOutlasted(t *testing.T) {
	b := newBench(t)
	b.opts.Grace = 50 * time.Millisecond
	gate := filepath.Join(b.bin, "gate")
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	b.program("stubborn", `trap '' TERM; echo half; while [ -e `+gate+` ]; do sleep 0.02; done`)
	var mu sync.Mutex
	var start uint64
	res, err := b.run(Cmd{Name: "stubborn", Timeout: time.Second, OnStart: func(_ int, s uint64) {
		mu.Lock()
		defer mu.Unlock()
		start = s
	}})
	var late *TimeoutError
	require.ErrorAs(t, err, &late)
	select {
	case <-late.Done:
		t.Fatal("Done is closed though the program runs")
	default:
	}
	assert.Equal(t, -1, res.ExitCode)
	assert.Equal(t, "half\n", string(res.Stdout))
	assert.True(t, ProcessAlive(late.PID, start), "never killed")
	assert.Len(t, b.leftovers(), 2)

	require.NoError(t, os.Remove(gate))
	select {
	case <-late.Done:
	case <-time.After(10 * time.Second):
		t.Fatal("Done is not closed though the program has ended")
	}
	assert.False(t, ProcessAlive(late.PID, start))
	assert.Empty(t, b.leftovers())
}

func TestOutputTooLarge(t *testing.T) {
	b := newBench(t)
	b.program("flood", "head -c 17000000 /dev/zero; exit $1")
	res, err := b.run(Cmd{Name: "flood", Args: []string{"0"}})
	require.ErrorContains(t, err, "more than 16 MiB")
	assert.Zero(t, res.ExitCode)
	assert.Len(t, res.Stdout, maxOutput)
	_, err = b.run(Cmd{Name: "flood", Args: []string{"3"}})
	require.ErrorContains(t, err, "more than 16 MiB")
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	assert.NotContains(t, err.Error(), "\n")
	assert.Empty(t, b.leftovers())
}

func TestOutDirMissing(t *testing.T) {
	b := newBench(t)
	ran := filepath.Join(b.bin, "ran")
	b.program("tool", "touch "+ran)
	b.opts.OutDir = filepath.Join(b.out, "absent")
	_, err := b.run(Cmd{Name: "tool"})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "cannot run tool: no place for its output")
	assert.NoFileExists(t, ran)
}

// TestOutDirFull needs a filesystem of its own, which a user namespace gives without root.
func TestOutDirFull(t *testing.T) {
	if os.Getenv("VIRTLVM_TEST_FULL") == "" {
		self, err := os.Executable()
		require.NoError(t, err)
		if err := exec.Command("unshare", "-rm", "true").Run(); err != nil {
			t.Skip("no user namespaces here")
		}
		cmd := exec.Command("unshare", "-rm", self, "-test.run=^TestOutDirFull$", "-test.v")
		cmd.Env = append(os.Environ(), "VIRTLVM_TEST_FULL=1")
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, string(said))
		require.Contains(t, string(said), "--- PASS: TestOutDirFull")
		return
	}
	b := newBench(t)
	ran := filepath.Join(b.bin, "ran")
	b.program("tool", "touch "+ran)
	require.NoError(t, unix.Mount("none", b.out, "tmpfs", 0, "size=96k"))
	defer func() { assert.NoError(t, unix.Unmount(b.out, 0)) }()
	// Room for one of the two files.
	_, err := b.run(Cmd{Name: "tool"})
	require.ErrorIs(t, err, unix.ENOSPC)
	assert.NoFileExists(t, ran)
	assert.Empty(t, b.leftovers())
}

func TestFileNamesTaken(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"1.out", "2.err", "note", "x.out", "3.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(b.out, name), []byte("old"), 0o600))
	}
	b.program("tool", "readlink /proc/self/fd/1 /proc/self/fd/2")
	e := NewExec(b.opts)
	res, err := e.Run(context.Background(), Cmd{Name: "tool"})
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(b.out, "3.out")+"\n"+filepath.Join(b.out, "3.err")+"\n", string(res.Stdout))
	assert.ElementsMatch(t, []string{"1.out", "2.err", "note", "x.out", "3.txt"}, b.leftovers())

	n, err := e.Sweep()
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	assert.ElementsMatch(t, []string{"note", "x.out", "3.txt"}, b.leftovers())
}

func TestConcurrentRuns(t *testing.T) {
	b := newBench(t)
	b.program("tool", `echo "$1"`)
	e := NewExec(b.opts)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			want := strconv.Itoa(i)
			res, err := e.Run(context.Background(), Cmd{Name: "tool", Args: []string{want}})
			assert.NoError(t, err)
			assert.Equal(t, want+"\n", string(res.Stdout))
		})
	}
	wg.Wait()
	assert.Empty(t, b.leftovers())
}

func TestObserve(t *testing.T) {
	b := newBench(t)
	b.program("tool", "exit 5")
	var argvs [][]string
	var errs []error
	b.opts.Observe = func(argv []string, d time.Duration, err error) {
		argvs, errs = append(argvs, argv), append(errs, err)
		assert.Positive(t, d)
	}
	_, first := b.run(Cmd{Name: "tool", Args: []string{"x"}})
	_, second := b.run(Cmd{Name: "absent"})
	assert.Equal(t, [][]string{{"tool", "x"}, {"absent"}}, argvs)
	assert.Equal(t, []error{first, second}, errs)
}

// TestOutlivesUs kills the process that runs the program and sees the program finish,
// with more output than a pipe holds.
func TestOutlivesUs(t *testing.T) {
	if dir := os.Getenv("VIRTLVM_TEST_DAEMON"); dir != "" {
		opts := ExecOptions{Dirs: []string{filepath.Join(dir, "bin")}, OutDir: filepath.Join(dir, "out")}
		_, err := NewExec(opts).Run(context.Background(), Cmd{Name: "tool"})
		t.Fatalf("should have been killed: %v", err)
	}
	b := newBench(t)
	dir := filepath.Dir(b.bin)
	begun, gate, done := filepath.Join(dir, "begun"), filepath.Join(dir, "gate"), filepath.Join(dir, "done")
	b.program("tool", `touch `+begun+`; while [ ! -e `+gate+` ]; do sleep 0.02; done; head -c 200000 /dev/zero && touch `+done)
	self, err := os.Executable()
	require.NoError(t, err)
	daemon := exec.Command(self, "-test.run=^TestOutlivesUs$")
	daemon.Env = append(os.Environ(), "VIRTLVM_TEST_DAEMON="+dir)
	require.NoError(t, daemon.Start())
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(name); return err == nil }
	}
	assert.Eventually(t, exists(begun), 10*time.Second, 10*time.Millisecond)
	require.NoError(t, daemon.Process.Kill())
	var exit *exec.ExitError
	require.True(t, errors.As(daemon.Wait(), &exit))
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	assert.Eventually(t, exists(done), 10*time.Second, 10*time.Millisecond)
	info, err := os.Stat(filepath.Join(b.out, "1.out"))
	require.NoError(t, err)
	assert.Equal(t, int64(200000), info.Size())
}
