package runtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/run"
	"virtlvm/internal/run/runtest"
)

// recorder stands in for the test that uses the fake.
type recorder struct {
	testing.TB
	errs     []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errs = append(r.errs, fmt.Sprintf(format, args...))
}

func (r *recorder) finish() {
	for _, f := range r.cleanups {
		f()
	}
}

func TestAnswersAsPlanned(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine("lvs vg_san").Stdout("first")
	f.ExpectLine("lvs vg_san").Stdout("second")
	f.Expect("lvchange", "-aey", "vg_san/lv1").Stderr("  no\n").Exit(5)
	broken := errors.New("broken")
	f.ExpectLine("vgs").Fail(broken)
	f.ExpectLine("true").Always()
	assert.Equal(t, 4, f.Pending())

	ctx := context.Background()
	_, err := f.Run(ctx, run.Cmd{Name: "lvchange", Args: []string{"-aey", "vg_san/lv1"}})
	var exit *run.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 5, exit.ExitCode)
	assert.Equal(t, "  no\n", exit.Stderr)

	for _, want := range []string{"first", "second"} {
		res, err := f.Run(ctx, run.Cmd{Name: "lvs", Args: []string{"vg_san"}})
		require.NoError(t, err)
		assert.Equal(t, want, string(res.Stdout))
	}
	_, err = f.Run(ctx, run.Cmd{Name: "vgs"})
	require.ErrorIs(t, err, broken)
	var pids []int
	for range 2 {
		_, err = f.Run(ctx, run.Cmd{Name: "true", OnStart: func(pid int, start uint64) {
			assert.Equal(t, uint64(pid)*100, start)
			pids = append(pids, pid)
		}})
		require.NoError(t, err)
	}
	assert.Equal(t, []int{runtest.FirstPID + 4, runtest.FirstPID + 5}, pids)
	assert.Zero(t, f.Pending())
	assert.Equal(t, []string{"lvchange -aey vg_san/lv1", "lvs vg_san", "lvs vg_san", "vgs", "true", "true"}, f.Calls())
}

func TestFailsTheTest(t *testing.T) {
	r := &recorder{TB: t}
	f := runtest.New(r)
	f.ExpectLine("lvs vg_san")
	_, err := f.Run(context.Background(), run.Cmd{Name: "lvs", Args: []string{"other"}})
	var missing *run.NotFoundError
	require.ErrorAs(t, err, &missing)
	r.finish()
	assert.Equal(t, []string{"unexpected run of: lvs other", "expected and not run: lvs vg_san"}, r.errs)
}

func TestCancelledBeforeStart(t *testing.T) {
	f := runtest.New(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := f.Run(ctx, run.Cmd{Name: "lvs"})
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, f.Calls())
}
