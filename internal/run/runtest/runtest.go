// Package runtest is a scripted Runner for unit tests: it answers the command lines it
// was told to expect and fails the test on any other.
package runtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"virtlvm/internal/run"
)

// Fake is a run.Runner. It is safe for concurrent use. Expected command lines may come
// in any order; the same one expected twice is answered in the order of expectation.
// Order, where it matters, is asserted on Calls.
type Fake struct {
	t testing.TB

	mu    sync.Mutex
	plans []*Plan
	calls []run.Cmd
}

// Plan is the answer to one command line: exit code 0 and no output until told
// otherwise.
type Plan struct {
	fake   *Fake
	argv   []string
	stdout string
	stderr string
	exit   int
	err    error
	do     func(run.Cmd)
	every  bool // answers any number of calls, also none
	used   bool
}

// New makes a Fake. When the test ends, command lines that were expected and never came
// fail it.
func New(t testing.TB) *Fake {
	t.Helper()
	f := &Fake{t: t}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range f.plans {
			if !p.used && !p.every {
				t.Errorf("expected and not run: %s", strings.Join(p.argv, " "))
			}
		}
	})
	return f
}

// Expect plans one run of a command line, given word by word.
func (f *Fake) Expect(argv ...string) *Plan {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &Plan{fake: f, argv: argv}
	f.plans = append(f.plans, p)
	return p
}

// ExpectLine is Expect for a command line without spaces in its words.
func (f *Fake) ExpectLine(line string) *Plan { return f.Expect(strings.Fields(line)...) }

// Stdout sets what the program prints.
func (p *Plan) Stdout(s string) *Plan { return p.set(func() { p.stdout = s }) }

// Stderr sets what the program says on standard error.
func (p *Plan) Stderr(s string) *Plan { return p.set(func() { p.stderr = s }) }

// Exit sets the exit code; anything but 0 makes Run return *run.ExitError.
func (p *Plan) Exit(code int) *Plan { return p.set(func() { p.exit = code }) }

// Fail makes Run return err instead of what the exit code says.
func (p *Plan) Fail(err error) *Plan { return p.set(func() { p.err = err }) }

// Do is called while the program "runs".
func (p *Plan) Do(do func(run.Cmd)) *Plan { return p.set(func() { p.do = do }) }

// Always answers every further call of the command line, and does not miss a call.
func (p *Plan) Always() *Plan { return p.set(func() { p.every = true }) }

func (p *Plan) set(change func()) *Plan {
	p.fake.mu.Lock()
	defer p.fake.mu.Unlock()
	change()
	return p
}

// FirstPID is the pid that OnStart of the first call is given; later calls count up.
// The start time is the pid times 100.
const FirstPID = 1000

// Run implements run.Runner.
func (f *Fake) Run(ctx context.Context, cmd run.Cmd) (run.Result, error) {
	if cmd.Err != nil {
		return run.Result{ExitCode: -1}, cmd.Err
	}
	if err := ctx.Err(); err != nil {
		return run.Result{ExitCode: -1}, fmt.Errorf("cannot run %s: %w", cmd.Name, err)
	}
	p, pid := f.take(cmd)
	if p == nil {
		f.t.Errorf("unexpected run of: %s", strings.Join(cmd.Argv(), " "))
		return run.Result{ExitCode: -1}, &run.NotFoundError{Name: cmd.Name, Err: errUnexpected}
	}
	if cmd.OnStart != nil {
		cmd.OnStart(pid, uint64(pid)*100) //nolint:gosec // counted up from FirstPID
	}
	if p.do != nil {
		p.do(cmd)
	}
	res := run.Result{Stdout: []byte(p.stdout), Stderr: []byte(p.stderr), ExitCode: p.exit}
	switch {
	case p.err != nil:
		return res, p.err
	case p.exit != 0:
		return res, &run.ExitError{Argv: cmd.Argv(), ExitCode: p.exit, Stderr: p.stderr}
	}
	return res, nil
}

// errUnexpected makes the code under test see a program that is not there.
var errUnexpected = errors.New("not expected by the test")

// take records the call and finds its answer.
func (f *Fake) take(cmd run.Cmd) (*Plan, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pid := FirstPID + len(f.calls)
	f.calls = append(f.calls, cmd)
	for _, p := range f.plans {
		if (!p.used || p.every) && slices.Equal(p.argv, cmd.Argv()) {
			p.used = true
			copied := *p
			return &copied, pid
		}
	}
	return nil, pid
}

// Calls lists the command lines run so far, in order, words joined by spaces.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := make([]string, 0, len(f.calls))
	for _, c := range f.calls {
		lines = append(lines, strings.Join(c.Argv(), " "))
	}
	return lines
}

// Commands lists the commands run so far, in order.
func (f *Fake) Commands() []run.Cmd {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Pending reports how many expected runs have not come yet.
func (f *Fake) Pending() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, p := range f.plans {
		if !p.used && !p.every {
			n++
		}
	}
	return n
}
