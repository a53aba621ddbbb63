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

// Child is a started program whose end somebody waits for. It leads its own session.
type Child struct {
	PID   int
	Ended chan struct{} // closed once it has been reaped

	mu     sync.Mutex
	reaped bool
	cmd    *exec.Cmd
}

// Watch starts waiting for cmd, which must have been started.
func Watch(cmd *exec.Cmd) *Child {
	c := &Child{PID: cmd.Process.Pid, cmd: cmd, Ended: make(chan struct{})}
	go c.reap()
	return c
}

// reap waits for the end without taking the pid away, and takes it away under the lock:
// until then a signal to the group cannot reach a stranger with the same number.
func (c *Child) reap() {
	defer close(c.Ended)
	for errors.Is(unix.Waitid(unix.P_PID, c.PID, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The outcome is read from ProcessState; Wait's error says the same.
	_ = c.cmd.Wait()
	c.reaped = true
}

// EndsWithin waits for the end, at most for d.
func (c *Child) EndsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.Ended:
		return true
	case <-timer.C:
		return false
	}
}

// Signal reaches the program and what it has started: its process group, which bears its
// pid since it leads its own session. One that has ended is no error.
func (c *Child) Signal(s unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return nil
	}
	if err := unix.Kill(-c.PID, s); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot send %s to process group %d: %w", unix.SignalName(s), c.PID, err)
	}
	return nil
}

// ExitCode is valid after Ended is closed; -1 when a signal ended the program.
func (c *Child) ExitCode() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd.ProcessState == nil {
		return -1
	}
	return c.cmd.ProcessState.ExitCode()
}

// signal names the signal that ended the program, "" when it exited.
func (c *Child) signal() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd.ProcessState == nil {
		return ""
	}
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return ""
	}
	return status.Signal().String()
}
