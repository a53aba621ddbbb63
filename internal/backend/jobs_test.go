package backend_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/backend"
	"virtlvm/internal/backend/backendtest"
)

var ctx = context.Background()

// bench is a host: a folder for jobs and a service manager.
type bench struct {
	t     *testing.T
	o     backend.Options
	units backendtest.Processes
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, units: backendtest.Processes{Dir: filepath.Join(dir, "units")}}
	t.Cleanup(func() { require.NoError(t, b.units.Lose()) })
	b.o = backend.Options{
		Dir: filepath.Join(dir, "it's jobs"), BootID: "boot-1", Path: []string{filepath.Join(dir, "bin")}, Units: b.units, Now: time.Now,
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	return b
}

// jobs are those of a new daemon.
func (b *bench) jobs() *backend.Jobs { return backend.New(b.o) }

func (b *bench) program(name, text string) {
	b.t.Helper()
	path := filepath.Join(b.o.Path[0], name)
	require.NoError(b.t, os.WriteFile(path+".new", []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	require.NoError(b.t, os.Rename(path+".new", path))
}

func (b *bench) start(steps ...[]string) {
	b.t.Helper()
	require.NoError(b.t, b.jobs().Start(ctx, backend.Job{ID: "1", Description: "a job", Steps: steps}))
}

func (b *bench) look() backend.Report {
	b.t.Helper()
	r, err := b.jobs().Look(ctx, "1")
	require.NoError(b.t, err)
	return r
}

func (b *bench) end() backend.Report {
	b.t.Helper()
	var r backend.Report
	require.Eventually(b.t, func() bool { r = b.look(); return r.State != backend.Running }, 20*time.Second, 5*time.Millisecond)
	return r
}

func (b *bench) file(name string) string { return filepath.Join(b.o.Dir, "1", name) }

func (b *bench) await(path string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { _, err := os.Stat(path); return err == nil }, 20*time.Second, 5*time.Millisecond)
}

func TestStepsInOrder(t *testing.T) {
	b := newBench(t)
	b.program("tool", `printf '%s|' "$@"; echo " $LC_ALL"; echo said >&2; readlink /proc/self/fd/0`)
	b.start([]string{"tool", "a b", "it's", "$x", ""}, []string{"tool", "-p"})
	r := b.end()
	assert.True(t, r.OK(), r.String())
	assert.Equal(t, 2, r.Step)
	assert.WithinDuration(t, time.Now(), r.Began, time.Minute)
	assert.WithinDuration(t, time.Now(), r.Ended, time.Minute)
	out, stderr, err := b.jobs().Output("1")
	require.NoError(t, err)
	assert.Equal(t, "a b|it's|$x|| C\n/dev/null\n-p| C\n/dev/null\n", out)
	assert.Equal(t, "said\nsaid\n", stderr)
}

func TestAStepThatFailsIsTheLast(t *testing.T) {
	b := newBench(t)
	b.program("fail", "echo no >&2; exit 3")
	b.start([]string{"true"}, []string{"fail"}, []string{"true"})
	r := b.end()
	assert.Equal(t, backend.Exited, r.State)
	assert.Equal(t, 3, r.Code)
	assert.Equal(t, 2, r.Step)
	assert.Equal(t, "exit code 3", r.String())
}

func TestAProgramThatIsMissing(t *testing.T) {
	b := newBench(t)
	err := b.jobs().Start(ctx, backend.Job{ID: "1", Steps: [][]string{{"true"}, {"no-such-program"}}})
	require.ErrorContains(t, err, "cannot start job 1: cannot run no-such-program: not installed in ")
	assert.Equal(t, backend.Missing, b.look().Why)
}

// A job is started by a daemon that dies at once; the next one, and one more, find it.
func TestAdoptedByTheNextDaemon(t *testing.T) {
	b := newBench(t)
	gate := filepath.Join(t.TempDir(), "gate")
	b.program("wait", "while [ ! -e "+gate+" ]; do sleep 0.01; done; echo done")
	b.start([]string{"wait"})
	assert.Equal(t, backend.Running, b.look().State)
	b.start([]string{"wait"}) // asked again after the crash
	assert.Equal(t, backend.Running, b.look().State)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	assert.True(t, b.end().OK())
	b.start([]string{"wait"})
	assert.True(t, b.look().OK())
	out, _, err := b.jobs().Output("1")
	require.NoError(t, err)
	assert.Equal(t, "done\n", out, "never twice")
}

func TestNeverTwiceEvenIfTheUnitIsForgotten(t *testing.T) {
	b := newBench(t)
	ran := filepath.Join(t.TempDir(), "ran")
	b.program("note", "echo x >>"+ran)
	b.start([]string{"note"})
	b.end()
	require.Eventually(t, func() bool { // the record is there before the unit has ended
		u, err := b.units.State(ctx, backend.UnitName("1"))
		return err == nil && !u.Running
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, b.units.Lose())
	require.NoError(t, os.Remove(b.file("end")))
	b.start([]string{"note"})
	assert.Equal(t, backend.Report{State: backend.Gone, Why: backend.Lost, Step: 1}, b.bare())
	// And systemd itself, asked for the unit once more.
	require.NoError(t, b.units.Start(ctx, backend.Unit{Name: backend.UnitName("1"), Argv: []string{"/bin/sh", b.file("job.sh")}, Env: []string{"PATH=/usr/bin:/bin"}}))
	r := b.end()
	assert.Equal(t, 75, r.Code)
	text, err := os.ReadFile(ran)
	require.NoError(t, err)
	assert.Equal(t, "x\n", string(text))
}

// bare is a look without times.
func (b *bench) bare() backend.Report {
	b.t.Helper()
	r := b.look()
	r.Began, r.Ended = time.Time{}, time.Time{}
	return r
}

func TestStop(t *testing.T) {
	b := newBench(t)
	up := filepath.Join(t.TempDir(), "up")
	b.program("serve", "trap 'echo bye; exit 9' INT; echo >"+up+"; while :; do sleep 0.01; done")
	require.NoError(t, b.jobs().Start(ctx, backend.Job{ID: "1", Steps: [][]string{{"serve"}, {"true"}}, StopSignal: syscall.SIGINT}))
	b.await(up)
	require.NoError(t, b.jobs().Stop(ctx, "1"))
	r := b.end()
	assert.Equal(t, 9, r.Code)
	assert.Equal(t, 1, r.Step, "the next step does not begin")
	out, _, err := b.jobs().Output("1")
	require.NoError(t, err)
	assert.Equal(t, "bye\n", out)
	require.NoError(t, b.jobs().Stop(ctx, "1"), "again")
	require.NoError(t, b.jobs().Stop(ctx, "2"), "there is none")
}

// A program that dies of the signal, and one that does not care and exits with 0: the next
// step does not begin either way.
func TestStopReachesTheNextStep(t *testing.T) {
	for name, tt := range map[string]struct {
		program string
		code    int
		text    string
	}{
		"dies":    {"echo >$UP; while :; do sleep 0.01; done", 143, "ended by signal terminated"},
		"ignores": {"trap 'exit 0' TERM; echo >$UP; while :; do sleep 0.01; done", 143, "ended by signal terminated"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			up := filepath.Join(t.TempDir(), "up")
			b.program("serve", strings.ReplaceAll(tt.program, "$UP", up))
			b.start([]string{"serve"}, []string{"touch", up + "2"})
			b.await(up)
			require.NoError(t, b.jobs().Stop(ctx, "1"))
			r := b.end()
			assert.Equal(t, tt.code, r.Code)
			assert.Equal(t, tt.text, r.String())
			assert.NoFileExists(t, up+"2")
		})
	}
}

// The shell is killed and the program it has started is not: the job runs as long as
// anything of it does.
func TestTheProgramOutlivesItsShell(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	gate, pid := filepath.Join(dir, "gate"), filepath.Join(dir, "pid")
	b.program("wait", "echo $PPID >"+pid+".new; mv "+pid+".new "+pid+"; while [ ! -e "+gate+" ]; do sleep 0.01; done")
	b.start([]string{"wait"})
	b.await(pid)
	text, err := os.ReadFile(pid)
	require.NoError(t, err)
	var shell int
	_, err = fmt.Sscan(string(text), &shell)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(shell, syscall.SIGKILL))
	require.Eventually(t, func() bool {
		u, err := b.units.State(ctx, backend.UnitName("1"))
		return err == nil && !u.Running
	}, 10*time.Second, time.Millisecond)
	assert.Equal(t, backend.Running, b.look().State)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	r := b.end()
	assert.Equal(t, backend.Exited, r.State)
	assert.False(t, r.OK())
	assert.Contains(t, r.String(), "it left no exit record")
}

func TestKilledWhole(t *testing.T) {
	b := newBench(t)
	up := filepath.Join(t.TempDir(), "up")
	b.program("serve", "echo >"+up+"; while :; do sleep 0.01; done")
	b.start([]string{"serve"})
	b.await(up)
	require.NoError(t, b.units.Kill(backend.UnitName("1")))
	r := b.end()
	assert.Equal(t, backend.Exited, r.State)
	assert.Equal(t, -1, r.Code)
	assert.Equal(t, "killed by signal killed (signal)", r.String())
}

func TestGone(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	running := func(b *bench) {
		b.program("wait", "while [ ! -e "+gate+" ]; do sleep 0.01; done")
		b.start([]string{"wait"})
		require.Eventually(t, func() bool { return b.look().Step == 1 }, 10*time.Second, time.Millisecond)
	}
	for name, tt := range map[string]struct {
		do   func(*bench)
		want backend.Why
	}{
		"nothing was made": {func(*bench) {}, backend.Missing},
		"systemd was down": {func(b *bench) {
			b.o.Units = broken{}
			require.Error(t, b.jobs().Start(ctx, backend.Job{ID: "1", Steps: [][]string{{"true"}}}))
			b.o.Units = b.units
		}, backend.NeverRan},
		"never begun before the reboot": {func(b *bench) {
			b.o.Units = broken{}
			require.Error(t, b.jobs().Start(ctx, backend.Job{ID: "1", Steps: [][]string{{"true"}}}))
			b.o.Units, b.o.BootID = b.units, "boot-2"
		}, backend.NeverRan},
		"rebooted": {func(b *bench) {
			running(b)
			require.NoError(t, b.units.Lose())
			b.o.BootID = "boot-2"
		}, backend.Rebooted},
		"lost": {func(b *bench) {
			running(b)
			require.NoError(t, b.units.Lose())
		}, backend.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tt.do(b)
			r := b.end()
			assert.Equal(t, backend.Gone, r.State)
			assert.Equal(t, tt.want, r.Why)
		})
	}
}

// What ended before the reboot has its record all the same.
func TestTheRecordSurvivesAReboot(t *testing.T) {
	b := newBench(t)
	b.start([]string{"true"})
	b.end()
	require.NoError(t, b.units.Lose())
	b.o.BootID = "boot-2"
	assert.True(t, b.look().OK())
}

func TestStartedAnewAfterARebootBeforeItBegan(t *testing.T) {
	b := newBench(t)
	b.o.Units = broken{}
	require.Error(t, b.jobs().Start(ctx, backend.Job{ID: "1", Steps: [][]string{{"true"}}}))
	b.o.Units, b.o.BootID = b.units, "boot-2"
	b.start([]string{"true"})
	assert.True(t, b.end().OK())
}

// An unreachable systemd is no answer, and a record is one without it.
func TestNoBus(t *testing.T) {
	b := newBench(t)
	b.program("wait", "sleep 0.05")
	b.start([]string{"wait"})
	b.end()
	require.Eventually(t, func() bool { // the record is there before the unit has ended
		u, err := b.units.State(ctx, backend.UnitName("1"))
		return err == nil && !u.Running
	}, 10*time.Second, time.Millisecond)
	b.o.Units = broken{}
	assert.True(t, b.look().OK())
	require.NoError(t, os.Remove(b.file("end")))
	_, err := b.jobs().Look(ctx, "1")
	require.ErrorContains(t, err, "cannot tell how job 1 stands: no bus")
}

func TestCollect(t *testing.T) {
	b := newBench(t)
	gate := filepath.Join(t.TempDir(), "gate")
	b.program("wait", "while [ ! -e "+gate+" ]; do sleep 0.01; done")
	b.start([]string{"wait"})
	require.ErrorContains(t, b.jobs().Collect(ctx, "1"), "it runs")
	ids, err := b.jobs().List()
	require.NoError(t, err)
	assert.Equal(t, []string{"1"}, ids)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	b.end()
	require.Eventually(t, func() bool { // the record is there before the unit has ended
		u, err := b.units.State(ctx, backend.UnitName("1"))
		return err == nil && !u.Running
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, b.jobs().Collect(ctx, "1"))
	require.NoError(t, b.jobs().Collect(ctx, "1"), "again")
	assert.Equal(t, backend.Missing, b.look().Why)
	ids, err = b.jobs().List()
	require.NoError(t, err)
	assert.Empty(t, ids)
}

func TestRefuses(t *testing.T) {
	b := newBench(t)
	for _, id := range []string{"", "../x", "a/b", "-1", "a b", strings.Repeat("1", 81), ".."} {
		require.ErrorContains(t, b.jobs().Start(ctx, backend.Job{ID: id, Steps: [][]string{{"true"}}}), "is not an id of a job", id)
		_, err := b.jobs().Look(ctx, id)
		require.Error(t, err, id)
	}
	for _, steps := range [][][]string{nil, {{}}, {{"/bin/true"}}, {{"X=1"}}, {{""}}, {{"true", "a\x00b"}}} {
		require.Error(t, b.jobs().Start(ctx, backend.Job{ID: "1", Steps: steps}), "%q", steps)
	}
	b.start([]string{"true"})
	require.ErrorContains(t, b.jobs().Start(ctx, backend.Job{ID: "1", Steps: [][]string{{"false"}}}), "another job of that name")
}

// A crash at any file of the folder leaves either no job or a whole one.
func TestHalfMadeFolder(t *testing.T) {
	b := newBench(t)
	require.NoError(t, os.MkdirAll(filepath.Join(b.o.Dir, "1.new", "ready"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(b.o.Dir, "1.new", "job.json"), []byte("{"), 0o600))
	assert.Equal(t, backend.Missing, b.look().Why)
	b.start([]string{"true"})
	assert.True(t, b.end().OK())
}

// What systemd starts late does nothing any more.
func TestRevoke(t *testing.T) {
	b := newBench(t)
	b.o.Units = broken{}
	require.Error(t, b.jobs().Start(ctx, backend.Job{ID: "1", Steps: [][]string{{"true"}}}))
	b.o.Units = b.units
	for range 2 {
		begun, err := b.jobs().Revoke("1")
		require.NoError(t, err)
		assert.False(t, begun)
	}
	assert.Equal(t, backend.NeverRan, b.look().Why)
	require.NoError(t, b.units.Start(ctx, backend.Unit{Name: backend.UnitName("1"), Argv: []string{"/bin/sh", b.file("job.sh")}, Env: []string{"PATH=/usr/bin:/bin"}}))
	r := b.end()
	assert.Equal(t, 75, r.Code)
	assert.Zero(t, r.Step)
	require.NoError(t, b.jobs().Collect(ctx, "1"))
	begun, err := b.jobs().Revoke("1")
	require.NoError(t, err)
	assert.False(t, begun, "there is none")

	b.start([]string{"true"})
	b.end()
	begun, err = b.jobs().Revoke("1")
	require.NoError(t, err)
	assert.True(t, begun)
}

// before is a service manager with something that happens before it starts a unit.
type before struct {
	backend.Units
	do func()
}

func (b before) Start(ctx context.Context, u backend.Unit) error {
	b.do()
	return b.Units.Start(ctx, u)
}

// That a step has begun must be told: where the disk is full it does not begin, or what it has
// written would be taken for untouched.
func TestNoStepWithoutItsRecord(t *testing.T) {
	b := newBench(t)
	ran := filepath.Join(t.TempDir(), "ran")
	b.program("note", "echo x >>"+ran)
	b.o.Units = before{b.units, func() {
		info, err := os.Stat(b.file("step"))
		require.NoError(t, err)
		assert.Positive(t, info.Size(), "it has its place on the disk before")
		require.NoError(t, os.Remove(b.file("step")))
		require.NoError(t, os.Mkdir(b.file("step"), 0o700)) // stands for a disk that takes nothing
	}}
	b.start([]string{"note"})
	r := b.end()
	assert.Equal(t, backend.Exited, r.State)
	assert.Equal(t, 74, r.Code)
	assert.Zero(t, r.Step)
	assert.NoFileExists(t, ran)
}

// Whoever looks at a job holds its lock for a moment, shared. The job waits for that.
func TestBeginsWhileSomebodyLooks(t *testing.T) {
	b := newBench(t)
	b.o.Units = before{b.units, func() {
		f, err := os.Open(b.file("lock"))
		require.NoError(t, err)
		require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_SH))
		time.AfterFunc(300*time.Millisecond, func() { _ = f.Close() })
	}}
	b.start([]string{"true"})
	r := b.end()
	assert.True(t, r.OK(), r.String())
}
