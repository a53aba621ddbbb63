package san

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
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
	p := r.host.san.launch(r.host.name, cmd.Argv())
	var stdout, stderr bytes.Buffer
	code, begin, done := -1, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer sigterm() // frees the context
		<-begin
		code = r.host.Exec(term, cmd.Argv(), &stdout, &stderr)
		r.host.san.ended(p.pid)
	}()
	func() {
		defer close(begin) // also where the caller dies in OnStart: the program is there
		if cmd.OnStart != nil {
			cmd.OnStart(p.pid, p.start)
		}
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
		return run.Result{ExitCode: -1, Duration: time.Since(began)}, &run.TimeoutError{Argv: cmd.Argv(), PID: p.pid, Done: done}
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

// process is a program that a Runner has started.
type process struct {
	pid   int
	start uint64
	host  string
	argv  []string
}

func (s *SAN) launch(host string, argv []string) process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids++
	p := process{pid: firstPID + s.pids, start: uint64(s.pids), host: host, argv: argv}
	if s.running == nil {
		s.running = map[int]process{}
	}
	s.running[p.pid] = p
	return p
}

// nextPID is the pid of a program that nobody looks for.
func (s *SAN) nextPID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids++
	return firstPID + s.pids
}

func (s *SAN) ended(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, pid)
}

// Alive reports whether a program that a Runner of this host has started still runs. It
// may have outlived who ran it.
func (h *Host) Alive(pid int, start uint64) bool {
	h.san.mu.Lock()
	defer h.san.mu.Unlock()
	p, ok := h.san.running[pid]
	return ok && p.start == start && p.host == h.name
}

// Find lists those of its running programs that were started with this command line.
func (h *Host) Find(argv []string) []run.Process {
	h.san.mu.Lock()
	defer h.san.mu.Unlock()
	var found []run.Process
	for _, p := range h.san.running {
		if p.host == h.name && slices.Equal(p.argv, argv) {
			found = append(found, run.Process{PID: p.pid, Start: p.start})
		}
	}
	return found
}
