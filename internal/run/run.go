// Package run is the one door to external programs: exact argv, C locale, output to
// files, a deadline, SIGTERM and then patience, typed errors.
package run

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Cmd is one run of an external program.
type Cmd struct {
	Name string   // program name, looked up in the Runner's directories
	Args []string // without the name
	// Timeout bounds the run; after it the program gets SIGTERM. 0: DefaultTimeout.
	Timeout time.Duration
	// OnStart is called once the process exists, with its pid and its start time in
	// clock ticks since boot. May be nil.
	OnStart func(pid int, start uint64)
	// Err, when not nil, says why this command line must not be run, as a volume name
	// that LVM would take for an option; Run returns it and runs nothing.
	Err error
}

// DefaultTimeout applies to a Cmd without one.
const DefaultTimeout = 60 * time.Second

// Argv is the command line as it is journalled.
func (c Cmd) Argv() []string { return append([]string{c.Name}, c.Args...) }

// Result is what a program left behind. Stdout and Stderr are complete unless the
// program was still running when Run returned.
type Result struct {
	Stdout, Stderr []byte
	ExitCode       int // -1 when it did not exit by itself
	Duration       time.Duration
}

// Runner runs programs. Run returns a nil error only for exit code 0; otherwise
// *NotFoundError, *ExitError or *TimeoutError, with Result filled as far as known.
//
// Cancelling ctx before the start prevents it; afterwards the program runs to its end:
// an LVM command that is killed half-way leaves metadata and devices out of step.
type Runner interface {
	Run(ctx context.Context, cmd Cmd) (Result, error)
}

// ExitError is a program that ended with a non-zero code or by a signal.
type ExitError struct {
	Argv     []string
	ExitCode int
	Stderr   string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit code %d: %s", strings.Join(e.Argv, " "), e.ExitCode, lastLine(e.Stderr))
}

// NotFoundError is a program that is not installed or cannot be executed.
type NotFoundError struct {
	Name string
	Err  error
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("cannot run %s: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *NotFoundError) Unwrap() error { return e.Err }

// TimeoutError is a program that was still running after its deadline and SIGTERM.
// What it did or will do is unknown: observe once Done is closed.
type TimeoutError struct {
	Argv []string
	PID  int
	// Done is closed when the process has ended at last. Already closed where SIGTERM
	// ended it within the grace time.
	Done <-chan struct{}
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%s (pid %d) has not answered in time", strings.Join(e.Argv, " "), e.PID)
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return strings.TrimSpace(s)
}
