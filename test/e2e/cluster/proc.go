package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// launcher starts child processes that the kernel kills when this process ends, however
// it ends. The kernel ties that to the thread that started the child, and the Go runtime
// may end threads; so one thread that never ends starts them all.
type launcher struct{ jobs chan func() }

func newLauncher() *launcher {
	l := &launcher{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for job := range l.jobs {
			job()
		}
	}()
	return l
}

// child is a process that lives until it ends by itself or is told to.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been reaped
}

// start runs cmd in the background, in a process group of its own: an interrupt typed at
// the terminal must reach only us, we then end the children in order.
func (l *launcher) start(cmd *exec.Cmd) (*child, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	l.jobs <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", cmd.Path, err)
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
		close(c.done)
	}()
	return c, nil
}

// ended reports whether the process is gone.
func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// wait waits up to d for the end of the process and reports whether it came.
func (c *child) wait(d time.Duration) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(d):
		return false
	}
}

// stop ends the process: a signal, then after grace another that cannot be ignored.
func (c *child) stop(grace time.Duration) error {
	if c.ended() {
		return nil
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot signal process %d: %w", c.cmd.Process.Pid, err)
	}
	if c.wait(grace) {
		return nil
	}
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot kill process %d: %w", c.cmd.Process.Pid, err)
	}
	if !c.wait(10 * time.Second) {
		return fmt.Errorf("process %d does not end", c.cmd.Process.Pid)
	}
	return nil
}
