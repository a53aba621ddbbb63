package backendtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"virtlvm/internal/backend"
)

// InProcess does what backend.Jobs does, with functions in place of programs. It outlives
// the daemons of a test as systemd does.
type InProcess struct {
	// Run runs a command line and returns its exit code. Ending ctx is the stop signal.
	Run func(ctx context.Context, argv []string, stdout, stderr io.Writer) int
	// Gate, where not nil, is called before each step.
	Gate func(id string, step int)
	// StartError, where not nil, may fail a start; late: the job begins all the same, when
	// the function that is returned is called.
	StartError func(id string) (late bool, err error)

	mu   sync.Mutex
	jobs map[string]*inProcess
	late []func()
	wait sync.WaitGroup
}

type inProcess struct {
	job      backend.Job
	report   backend.Report
	begun    bool
	revoked  bool
	out, err bytes.Buffer
	stop     context.CancelFunc
	lost     bool
}

// Start does what backend.Jobs.Start does.
func (p *InProcess) Start(_ context.Context, job backend.Job) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.jobs == nil {
		p.jobs = map[string]*inProcess{}
	}
	j := p.jobs[job.ID]
	if j == nil {
		j = &inProcess{job: job, report: backend.Report{State: backend.Gone, Why: backend.NeverRan, Began: time.Now()}}
		p.jobs[job.ID] = j
	}
	if j.begun {
		return nil
	}
	if p.StartError != nil {
		if late, err := p.StartError(job.ID); err != nil {
			if late {
				p.late = append(p.late, func() { p.begin(j) })
			}
			return err
		}
	}
	p.begin(j)
	return nil
}

// Late begins the jobs whose start was said to have failed.
func (p *InProcess) Late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, begin := range p.late {
		begin()
	}
	p.late = nil
}

// begin must be called with the lock held.
func (p *InProcess) begin(j *inProcess) {
	if j.begun || j.revoked {
		return
	}
	j.begun, j.report.State, j.report.Why = true, backend.Running, ""
	var ctx context.Context
	ctx, j.stop = context.WithCancel(context.Background())
	p.wait.Go(func() { p.steps(ctx, j) })
}

// live is the output of a job, which is read while it is written.
type live struct {
	mu *sync.Mutex
	io.Writer
}

func (l live) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Writer.Write(b)
}

func (p *InProcess) steps(ctx context.Context, j *inProcess) {
	code := 0
	for i, argv := range j.job.Steps {
		if p.Gate != nil {
			p.Gate(j.job.ID, i+1)
		}
		if ctx.Err() != nil {
			code = 143
			break
		}
		p.mu.Lock()
		j.report.Step = i + 1
		p.mu.Unlock()
		code = p.Run(ctx, argv, live{&p.mu, &j.out}, live{&p.mu, &j.err})
		if code != 0 {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !j.lost {
		j.report.State, j.report.Code, j.report.Ended = backend.Exited, code, time.Now()
	}
}

// Look does what backend.Jobs.Look does.
func (p *InProcess) Look(_ context.Context, id string) (backend.Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j := p.jobs[id]; j != nil {
		return j.report, nil
	}
	return backend.Report{State: backend.Gone, Why: backend.Missing}, nil
}

// Output does what backend.Jobs.Output does.
func (p *InProcess) Output(id string) (stdout, stderr string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j := p.jobs[id]; j != nil {
		return j.out.String(), j.err.String(), nil
	}
	return "", "", errors.New("no such job")
}

// Revoke does what backend.Jobs.Revoke does.
func (p *InProcess) Revoke(id string) (begun bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[id]
	if j == nil {
		return false, nil
	}
	j.revoked = j.revoked || !j.begun
	return j.begun, nil
}

// Stop does what backend.Jobs.Stop does.
func (p *InProcess) Stop(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j := p.jobs[id]; j != nil && j.stop != nil {
		j.stop()
	}
	return nil
}

// Lose ends a job that runs, its record with it; why says how.
func (p *InProcess) Lose(id string, why backend.Why) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[id]
	if j == nil || j.report.State != backend.Running {
		return
	}
	j.lost = true
	j.report.State, j.report.Why = backend.Gone, why
	j.stop()
}

// Wait returns when no job runs any more.
func (p *InProcess) Wait() { p.wait.Wait() }

// Begun counts the jobs that have begun.
func (p *InProcess) Begun() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, j := range p.jobs {
		if j.begun {
			n++
		}
	}
	return n
}
