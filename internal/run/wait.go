package run

import (
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errSearch is what the kernel says when a process vanishes while its stat file is read.
const errSearch = syscall.ESRCH

// process is a started program whose end somebody waits for.
type process struct {
	pid   int
	start uint64
	ended chan struct{} // closed once it has been reaped

	mu     sync.Mutex
	reaped bool
	child  *exec.Cmd
}

// watch starts waiting for child, which must have been started.
func watch(child *exec.Cmd) *process {
	p := &process{pid: child.Process.Pid, child: child, ended: make(chan struct{})}
	p.start, _ = ProcessStart(p.pid)
	go p.reap()
	return p
}

// reap waits for the end without taking the pid away, and takes it away under the lock:
// until then a signal to the group cannot reach a stranger with the same number.
func (p *process) reap() {
	defer close(p.ended)
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The outcome is read from ProcessState; Wait's error says the same.
	_ = p.child.Wait()
	p.reaped = true
}

// endsWithin waits for the end, at most for d.
func (p *process) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		return false
	}
}

// terminate sends SIGTERM to the program and what it has started: its process group,
// which bears its pid since it leads its own session.
func (p *process) terminate() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return nil
	}
	if err := unix.Kill(-p.pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot send SIGTERM to process group %d: %w", p.pid, err)
	}
	return nil
}

// exitCode is valid after ended is closed; -1 when a signal ended the program.
func (p *process) exitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child.ProcessState == nil {
		return -1
	}
	return p.child.ProcessState.ExitCode()
}

// signal names the signal that ended the program, "" when it exited.
func (p *process) signal() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child.ProcessState == nil {
		return ""
	}
	status, ok := p.child.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return ""
	}
	return status.Signal().String()
}
