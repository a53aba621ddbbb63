package relay

import (
	"errors"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pipeGrace is how long the standard error of an ended command is waited for: a master
// connection of ssh that stays in the background keeps it open.
const pipeGrace = time.Second

// process is a started command whose end somebody waits for.
type process struct {
	name   string
	stderr tail
	ended  chan struct{} // closed once it has been reaped

	mu     sync.Mutex
	reaped bool
	child  *exec.Cmd
}

func start(child *exec.Cmd) (*process, error) {
	p := &process{name: child.Args[0], child: child, ended: make(chan struct{})}
	child.Stderr = &p.stderr
	child.WaitDelay = pipeGrace
	if err := child.Start(); err != nil {
		return nil, err
	}
	go p.reap(child.Process.Pid)
	return p, nil
}

// reap waits for the end without taking the pid away, and takes it away under the lock:
// until then a signal to the group cannot reach a stranger with the same number.
func (p *process) reap(pid int) {
	defer close(p.ended)
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The outcome is read from ProcessState; Wait's error says the same.
	_ = p.child.Wait()
	p.reaped = true
}

// end lets the command end by itself for a while, then ends it.
func (p *process) end(grace time.Duration) {
	if p.endsWithin(grace) {
		return
	}
	p.signal(unix.SIGTERM)
	if !p.endsWithin(termGrace) {
		p.signal(unix.SIGKILL)
	}
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

// signal reaches the command and what it has started: its process group, which bears its
// pid since it leads its own session.
func (p *process) signal(s unix.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		// It may have ended this moment.
		_ = unix.Kill(-p.child.Process.Pid, s)
	}
}

// exitCode is valid after ended is closed; -1 when a signal ended the command.
func (p *process) exitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child.ProcessState == nil {
		return -1
	}
	return p.child.ProcessState.ExitCode()
}

// tailSize is how much of the end of standard error is kept, in bytes.
const tailSize = 4 << 10

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b[max(0, len(b)-tailSize):]...)
	t.data = t.data[max(0, len(t.data)-tailSize):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}
