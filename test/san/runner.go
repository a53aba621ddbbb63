package san

import (
	"bytes"
	"context"
	"os/exec"
	"time"

	"virtlvm/internal/run"
)

// firstPID is beyond what a kernel gives out, so that a fake pid is never a real one's.
const firstPID = 5_000_000

// Runner runs the host's programs for the product's code, in this process and with the
// errors of the real Runner. A Cmd's time-out ends the program as SIGTERM does; one that
// hangs in a stuck fault goes on behind its TimeoutError.
func (h *Host) Runner() run.Runner { return &runner{host: h} }

type runner struct{ host *Host }

// Run is run.Runner's.
func (r *runner) Run(ctx context.Context, cmd run.Cmd) (run.Result, error) {
	if err := ctx.Err(); err != nil {
		return run.Result{ExitCode: -1}, err
	}
	began := time.Now()
	term, sigterm := context.WithCancel(context.WithoutCancel(ctx))
	defer sigterm()
	pid, start := r.host.san.nextPID()
	if cmd.OnStart != nil {
		cmd.OnStart(pid, start)
	}
	var stdout, stderr bytes.Buffer
	code, done := -1, make(chan struct{})
	go func() {
		defer close(done)
		code = r.host.Exec(term, cmd.Argv(), &stdout, &stderr)
	}()
	limit := cmd.Timeout
	if limit == 0 {
		limit = run.DefaultTimeout
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	late := false
	select {
	case <-done:
	case <-timer.C:
		late = true
		sigterm()
		select {
		case <-done:
		case <-time.After(r.host.san.grace()):
		}
	}
	if late {
		return run.Result{ExitCode: -1, Duration: time.Since(began)}, &run.TimeoutError{Argv: cmd.Argv(), PID: pid, Done: done}
	}
	res := run.Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: code, Duration: time.Since(began)}
	switch code {
	case exitOK:
		return res, nil
	case exitMissing:
		return res, &run.NotFoundError{Name: cmd.Name, Err: exec.ErrNotFound}
	}
	return res, &run.ExitError{Argv: cmd.Argv(), ExitCode: code, Stderr: stderr.String()}
}

func (s *SAN) grace() time.Duration {
	if s.Grace > 0 {
		return s.Grace
	}
	return 20 * time.Millisecond
}

func (s *SAN) nextPID() (pid int, start uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids++
	return firstPID + s.pids, uint64(s.pids)
}
