package check

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/version"
)

// hostTime is how long another host may take for its checks. LVM's commands may hang for
// 40 s there, one after the other.
const hostTime = 90 * time.Second

// Caller makes requests of other hosts.
type Caller interface {
	Do(ctx context.Context, name, method, path string, in, out any) error
	EachWithin(ctx context.Context, limit time.Duration, names []string, fn func(ctx context.Context, name string) error) map[string]error
}

// Checker runs the checks of one host. Safe for concurrent use: one run at a time, since
// each starts a dozen programs.
type Checker struct {
	sources Sources
	calls   Caller
	turn    chan struct{}
}

// New makes a Checker. calls may be nil where virtlvmd does not run.
func New(s Sources, calls Caller) *Checker {
	return &Checker{s, calls, make(chan struct{}, 1)}
}

// Check judges this host.
func (c *Checker) Check(ctx context.Context) (api.CheckReport, error) {
	return c.report(ctx, peersAsked{all: true})
}

// CheckFor judges this host for another one, and tries the way to that alone: with all
// ways tried from all hosts at once, their ssh servers would turn some away.
func (c *Checker) CheckFor(ctx context.Context, peer string) (api.CheckReport, error) {
	return c.report(ctx, peersAsked{only: peer})
}

func (c *Checker) report(ctx context.Context, ask peersAsked) (api.CheckReport, error) {
	f, err := c.facts(ctx, ask)
	if err != nil {
		return api.CheckReport{}, err
	}
	return api.CheckReport{Host: f.Host, HostID: f.hostID(), Version: version.Version, Alone: f.Alone, Results: Run(f)}, nil
}

func (c *Checker) facts(ctx context.Context, ask peersAsked) (*Facts, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, api.NewError(api.KindUnknown, "another check has not ended in time; try again")
	}
	return c.sources.gather(ctx, ask), nil
}

// Cluster judges all hosts at the same time, this one first. A host that does not answer
// has a report that says so.
func (c *Checker) Cluster(ctx context.Context) ([]api.CheckReport, error) {
	// Not all are known: the check of this host says so.
	peers, _ := c.sources.Peers.List(ctx)
	names := make([]string, len(peers))
	at := map[string]int{}
	for i, p := range peers {
		names[i], at[p.Name] = p.Name, i+1
	}
	reports := make([]api.CheckReport, len(peers)+1)
	var here error
	var all sync.WaitGroup
	all.Go(func() { reports[0], here = c.Check(ctx) })
	var mu sync.Mutex
	failed := c.calls.EachWithin(ctx, hostTime, names, func(ctx context.Context, name string) error {
		var r api.CheckReport
		if err := c.calls.Do(ctx, name, http.MethodGet, api.RoutePeerCheck, nil, &r); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		r.Host = name // whatever it calls itself
		reports[at[name]] = r
		return nil
	})
	all.Wait()
	if here != nil {
		return nil, here
	}
	for name, err := range failed {
		if err != nil {
			reports[at[name]] = Silent(name, err)
		}
	}
	Compare(reports)
	return reports, nil
}

// Fix runs one repair that a check offers, if it still does, and looks whether it has
// helped.
func (c *Checker) Fix(ctx context.Context, id, by string) (api.Command, error) {
	f, err := c.facts(ctx, peersAsked{})
	if err != nil {
		return api.Command{}, err
	}
	r, needed := find(f, id)
	if !needed {
		return api.Command{}, api.NewError(api.KindNotFound, fmt.Sprintf("%q needs no repair now; see 'virtlvm check'", id))
	}
	return c.sources.Engine.Repair(ctx, r.Repair, by, func(ctx context.Context) error {
		f, err := c.facts(ctx, peersAsked{})
		if err != nil {
			return err
		}
		if _, still := find(f, id); still {
			return api.NewError(api.KindLocking, "it ended well, and the check still finds what it found before")
		}
		return nil
	})
}
