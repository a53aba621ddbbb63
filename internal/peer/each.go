package peer

import (
	"context"
	"sync"
	"time"
)

// Each calls fn for every host of names, at most [peers] parallel at the same time, each
// with a deadline of call_timeout of its own, and returns when all are done. The result
// has an entry for every name; nil where fn succeeded. A host that was not begun when ctx
// ended has the error of ctx.
func (p *Peers) Each(ctx context.Context, names []string, fn func(ctx context.Context, name string) error) map[string]error {
	return p.EachWithin(ctx, p.Config().CallTimeout, names, fn)
}

// EachWithin is Each with another deadline for each host.
func (p *Peers) EachWithin(ctx context.Context, limit time.Duration, names []string, fn func(ctx context.Context, name string) error) map[string]error {
	cfg := p.Config()
	turns := make(chan struct{}, max(1, cfg.Parallel))
	results := make(map[string]error, len(names))
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			err := turn(ctx, turns, func() error {
				ctx, cancel := context.WithTimeout(ctx, limit)
				defer cancel()
				return fn(ctx, name)
			})
			mu.Lock()
			defer mu.Unlock()
			results[name] = err
		})
	}
	all.Wait()
	return results
}

// turn runs f when there is room.
func turn(ctx context.Context, turns chan struct{}, f func() error) error {
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return f()
}
