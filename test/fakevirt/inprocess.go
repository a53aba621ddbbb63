package fakevirt

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// firstPID lies above every pid that Linux gives (PID_MAX_LIMIT, 4194304).
const firstPID = 5_000_000

// InProcess launches QEMUs that are no processes: their pids exist in a /proc of its own
// only, as PID/cmdline, PID/stat and PID/task/PID/stat.
type InProcess struct {
	proc string

	mu    sync.Mutex
	last  int
	disks map[int]*opened // by pid; nil until Run
}

// NewInProcess makes a launcher that writes its processes into the folder procRoot.
func NewInProcess(procRoot string) *InProcess {
	return &InProcess{proc: procRoot, last: firstPID, disks: map[int]*opened{}}
}

type inProcess struct {
	launcher *InProcess
	pid      int
	spec     Spec
}

// Launch makes the process's files.
func (p *InProcess) Launch(spec Spec) (QEMU, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	pid := p.last
	task := filepath.Join(p.dir(pid), "task", strconv.Itoa(pid))
	if err := os.MkdirAll(task, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make a process: %w", err)
	}
	// Each starts at a time of its own: its pid.
	stat := fmt.Sprintf("%d (qemu-system-x86) S 1 %d %d 0 -1 4194624 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, pid, pid, pid)
	cmdline := strings.Join(append([]string{"/usr/bin/qemu-system-x86_64"}, spec.args()...), "\x00") + "\x00"
	for path, text := range map[string]string{
		filepath.Join(task, "stat"):          stat,
		filepath.Join(p.dir(pid), "cmdline"): cmdline,
		filepath.Join(p.dir(pid), "stat"):    stat,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("cannot make a process: %w", err)
		}
	}
	p.disks[pid] = nil
	return &inProcess{launcher: p, pid: pid, spec: spec}, nil
}

func (q *inProcess) PID() int { return q.pid }

func (q *inProcess) Run() error {
	// Without a start time: to the fake SAN such a process is always alive.
	disks, err := openDisks(q.spec, q.pid, "")
	q.launcher.mu.Lock()
	defer q.launcher.mu.Unlock()
	if err != nil {
		q.launcher.remove(q.pid)
		return err
	}
	if _, alive := q.launcher.disks[q.pid]; !alive {
		disks.close()
		return fmt.Errorf("process has ended")
	}
	q.launcher.disks[q.pid] = disks
	return nil
}

func (q *inProcess) Continue(cpus bool) error {
	q.launcher.mu.Lock()
	defer q.launcher.mu.Unlock()
	disks := q.launcher.disks[q.pid]
	if disks == nil {
		return fmt.Errorf("process has ended")
	}
	if !cpus {
		return nil
	}
	return disks.write(q.spec, q.pid)
}

// Alive reports whether the process has not ended.
func (p *InProcess) Alive(pid int, _ string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, alive := p.disks[pid]
	return alive
}

// HasOpen reports whether the process has opened its disks and not ended.
func (p *InProcess) HasOpen(pid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disks[pid] != nil
}

// End ends the process at once.
func (p *InProcess) End(pid int, _ string, _ bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(pid)
	return nil
}

// EndAll ends all processes, as a power failure does.
func (p *InProcess) EndAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pid := range p.disks {
		p.remove(pid)
	}
}

// remove closes the disks first: a process that is seen to be gone has nothing open.
func (p *InProcess) remove(pid int) {
	if d := p.disks[pid]; d != nil {
		d.close()
	}
	delete(p.disks, pid)
	_ = os.RemoveAll(p.dir(pid))
}

func (p *InProcess) dir(pid int) string { return filepath.Join(p.proc, strconv.Itoa(pid)) }
