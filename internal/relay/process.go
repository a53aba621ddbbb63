package relay

import (
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"virtlvm/internal/run"
)

// pipeGrace is how long the standard error of an ended command is waited for: a master
// connection of ssh that stays in the background keeps it open.
const pipeGrace = time.Second

// process is a started command, with the end of what it says on standard error.
type process struct {
	*run.Child
	name   string
	stderr tail
}

func start(child *exec.Cmd) (*process, error) {
	p := &process{name: child.Args[0]}
	child.Stderr = &p.stderr
	child.WaitDelay = pipeGrace
	if err := child.Start(); err != nil {
		return nil, err
	}
	p.Child = run.Watch(child)
	return p, nil
}

// end lets the command end by itself for a while, then ends it. It may have ended the moment
// that it is signalled.
func (p *process) end(grace time.Duration) {
	if p.EndsWithin(grace) {
		return
	}
	_ = p.Signal(unix.SIGTERM)
	if !p.EndsWithin(termGrace) {
		_ = p.Signal(unix.SIGKILL)
	}
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
