// Package demo tests the demo: it ends well, it leaves nothing, and it tells when the
// programs do not do what its text says.
package demo

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// build makes the programs as `make demo` does, but for virtlvmd, which has the race
// detector where the test has it.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, pkg := range map[string]string{
		"virtlvm": "./cmd/virtlvm", "virtlvmd": "./cmd/virtlvmd", "hook/qemu": "./hooks/qemu",
		"sanfake": "./test/san/sanfake", "fakevirt": "./test/fakevirt/fakevirt",
	} {
		args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, name)}
		env := append(os.Environ(), "CGO_ENABLED=0")
		if name == "virtlvmd" {
			env = append(os.Environ(), "CGO_ENABLED=1")
			if raceDetector() {
				args = append(args, "-race")
			}
		}
		cmd := exec.Command("go", append(args, pkg)...)
		cmd.Dir, cmd.Env = "../..", env
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return dir
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// show is a run of the demo.
type show struct {
	code     int
	out, err string
	stage    string // its folder
}

var stagePattern = regexp.MustCompile(`/tmp/virtlvm-demo\.\w+`)

// play runs the demo; at the line that begins with stopAt, if any, it gets SIGTERM.
func play(t *testing.T, programs, stopAt string) show {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "./demo.sh", programs)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var errs, text bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if !assert.NoError(t, err) || !assert.NoError(t, cmd.Start()) {
		return show{}
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if stopAt != "" && strings.HasPrefix(lines.Text(), stopAt) {
			assert.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		}
	}
	assert.NoError(t, lines.Err())
	_ = cmd.Wait() // the exit code tells
	s := show{code: cmd.ProcessState.ExitCode(), out: text.String(), err: errs.String()}
	s.stage = stagePattern.FindString(s.out + s.err)
	return s
}

// assertGone checks that nothing is left of a run.
func assertGone(t *testing.T, s show) {
	t.Helper()
	if !assert.NotEmpty(t, s.stage, "%s%s", s.out, s.err) {
		return
	}
	assert.NoDirExists(t, s.stage)
	// Programs that are run by a tool may live for a moment longer.
	assert.Eventually(t, func() bool { return len(processes(t, s.stage)) == 0 }, 5*time.Second, 20*time.Millisecond,
		"%v", processes(t, s.stage))
}

// processes are the command lines that name dir.
func processes(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	assert.NoError(t, err)
	var found []string
	for _, path := range paths {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(dir)) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func TestDemo(t *testing.T) {
	programs := build(t)
	for _, name := range []string{"one", "another at the same time"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := play(t, programs, "")
			assert.Equal(t, 0, s.code, "%s%s", s.out, s.err)
			assert.Empty(t, s.err)
			assert.Contains(t, s.out, "demo: all steps went as told")
			assert.Equal(t, 12, strings.Count(s.out, "    | VOLUME "), "the lock table after each step")
			assert.Equal(t, 3, strings.Count(s.out, "    | performing     vg_san/vm1: kvm-a sh, kvm-b sh\n"), "and on the way")
			for line := range strings.Lines(s.out) {
				assert.LessOrEqual(t, len(line), 100, line)
			}
			assertGone(t, s)
		})
	}
	t.Run("stopped on the way", func(t *testing.T) {
		t.Parallel()
		s := play(t, programs, "== 3.")
		assert.Equal(t, 143, s.code, "%s%s", s.out, s.err)
		assert.NotContains(t, s.out, "== 5.")
		assertGone(t, s)
	})
	// Then a lock is on the SAN half a second before virtlvmd knows of it.
	t.Run("LVM tools that linger", func(t *testing.T) {
		t.Parallel()
		s := play(t, wrap(t, programs, "sanfake", `[ "$1" != init ] || {
	"$REAL" "$@" && SAN_DIR=$4 exec "$REAL" fault add -after -for 500ms -tool lvchange hang
}
exec "$REAL" "$@"`), "")
		assert.Equal(t, 0, s.code, "%s%s", s.out, s.err)
		assertGone(t, s)
	})
	t.Run("defects", func(t *testing.T) { defects(t, programs) })
}

const hook, daemon, virsh = "hook/qemu", "virtlvmd", "fakevirt"

// wrap makes a folder of the programs in which one is a bash script; the real one is $REAL
// there.
func wrap(t *testing.T, programs, program, script string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "hook"), 0o755))
	for _, p := range []string{hook, daemon, virsh, "virtlvm", "sanfake"} {
		if p != program {
			require.NoError(t, os.Symlink(filepath.Join(programs, p), filepath.Join(dir, p)))
		}
	}
	text := "#!/bin/bash\nREAL='" + filepath.Join(programs, program) + "'\n" + script + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755))
	return dir
}

// defects of any of the programs are not talked over.
func defects(t *testing.T, programs string) {
	tests := map[string]struct {
		program, script string
		want            string
	}{
		"a hook that does nothing": {
			hook, "cat >/dev/null",
			"FAILED at \"1. vm1 starts on kvm-a: its volume is activated exclusively there\":\nexit code 0 was expected, not 1\n",
		},
		"a hook that does not name the holder": {
			hook, `case $0 in *kvm-b*) echo "virtlvm: cannot start vm1" >&2; exit 1;; esac; exec "$REAL" "$@"`,
			"FAILED at \"2. On kvm-b the same guest is refused, and the message says why\":\n" +
				"'cannot start vm1: vg_san/vm1 is held exclusively by kvm-a;' was expected in the output\n",
		},
		"a hook that lets migrations pass": {
			hook, `[ "$2" != migrate ] || exec cat >/dev/null; exec "$REAL" "$@"`,
			"FAILED at \"8. It moves to kvm-a while it runs: shared only while memory moves\":\nexit code 0 was expected, not 1\n",
		},
		"a daemon that ends at once": {
			daemon, "echo no >&2; exit 1",
			"FAILED at \"start\":\nvirtlvmd on kvm-a is not well: virtlvm: ",
		},
		"a start that is none": {
			virsh, `[ "$1" = start ] || exec "$REAL" "$@"; echo "Domain '$2' started"`,
			"FAILED at \"1. vm1 starts on kvm-a: its volume is activated exclusively there\":\n" +
				"the lock table was expected to be: vg_san/vm1 kvm-a ex live\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := play(t, wrap(t, programs, tt.program, tt.script), "")
			assert.Equal(t, 1, s.code, "%s%s", s.out, s.err)
			assert.Contains(t, s.err, tt.want)
			assert.NotContains(t, s.out, "all steps went as told")
			assertGone(t, s)
		})
	}
}
