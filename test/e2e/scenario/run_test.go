//go:build e2e

package scenario

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"virtlvm/test/e2e/cluster"
)

// scenario is one named thing that an administrator sees happen.
type scenario struct {
	name string
	run  func(e *env)
	// both is set where kvm-b takes part; else the scenario runs on kvm-a alone, and kvm-b
	// may be down meanwhile.
	both bool
}

// turn belongs to the scenario that acts. Others wait for it, or for something else in
// env.meanwhile.
var turn sync.Mutex

// run runs scenarios in their order, each as a subtest.
func run(t *testing.T, scenarios ...scenario) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			turn.Lock()
			defer turn.Unlock()
			begin := time.Now()
			if suite.ctx.Err() != nil {
				t.Fatal(context.Cause(suite.ctx))
			}
			ctx, cancel := context.WithTimeout(suite.ctx, 12*time.Minute)
			defer cancel()
			defer func() {
				tidy(t, s)
				t.Logf("%s took %.0f s", s.name, time.Since(begin).Seconds())
			}()
			c := suite.cluster
			e := &env{T: t, ctx: ctx, c: c, a: c.A, b: c.B, hosts: []*cluster.Host{c.A, c.B}, disks: suite.disks}
			if !s.both {
				e.hosts = e.hosts[:1]
			}
			s.run(e)
		})
	}
}

// beside runs a scenario that mostly waits, and others in its pauses.
func beside(t *testing.T, long scenario, others ...scenario) {
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	inner := long.run
	long.run = func(e *env) {
		begin() // it has the turn
		inner(e)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer begin() // it was not asked for
		run(t, long)
	})
	<-begun
	run(t, others...)
	wg.Wait()
}

// meanwhile lets other scenarios act while this one waits for something.
func (e *env) meanwhile(wait func()) {
	turn.Unlock()
	defer turn.Lock()
	wait()
}

// tidy ends a scenario: evidence if it failed, then its hosts must be clean. What a failed
// one left is taken away for the next.
func tidy(t *testing.T, s scenario) {
	c := suite.cluster
	evidence := func() {
		if err := collect(t.Name()); err != nil {
			t.Log("not all evidence could be kept:", err)
		}
	}
	failed := t.Failed()
	if failed {
		evidence()
	}
	if suite.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(suite.ctx, 4*time.Minute)
	defer cancel()
	hosts := c.Both
	if !s.both {
		hosts = func(do func(h *cluster.Host) error) error { return do(c.A) }
	}
	err := hosts(func(h *cluster.Host) error {
		if !h.Running() {
			if err := h.Boot(ctx); err != nil {
				return err
			}
			if err := h.StartLockspace(ctx); err != nil {
				return err
			}
		}
		return h.Scrub(ctx)
	})
	if err == nil {
		err = hosts(func(h *cluster.Host) error {
			return cluster.Eventually(ctx, 45*time.Second, func() error {
				left, err := h.Residue(ctx)
				if err == nil && left != "" {
					err = fmt.Errorf("left on %s: %s", h.Name, left)
				}
				return err
			})
		})
	}
	if err == nil {
		return
	}
	t.Error(err)
	if !failed {
		evidence()
	}
	if err := hosts(func(h *cluster.Host) error { return h.ReleaseAll(ctx) }); err != nil {
		t.Log("volumes are still active:", err)
	}
}
