package cluster

import (
	"context"
	"sync"

	"virtlvm/internal/run"
)

// programs notes what a host runs.
type programs struct {
	mu  sync.Mutex
	ran map[string]int
}

// noting is a Runner that notes what it runs.
func (p *programs) noting(r run.Runner) run.Runner { return notingRunner{p, r} }

type notingRunner struct {
	programs *programs
	run.Runner
}

func (n notingRunner) Run(ctx context.Context, cmd run.Cmd) (run.Result, error) {
	n.programs.mu.Lock()
	if n.programs.ran == nil {
		n.programs.ran = map[string]int{}
	}
	n.programs.ran[cmd.Name]++
	n.programs.mu.Unlock()
	return n.Runner.Run(ctx, cmd)
}

// take returns what has been run since the last time.
func (p *programs) take() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	ran := p.ran
	p.ran = nil
	return ran
}
