package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
)

// Point is a place where a daemon touches the world, just before it does so or just after.
type Point struct {
	// Kind is "journal", "change" or "look" (a program that does so), "call" (of another
	// host), or "answer" (to a hook or to another host).
	Kind  string
	What  string
	After bool
}

func (p Point) String() string {
	if p.After {
		return p.Kind + " " + p.What + ", done"
	}
	return p.Kind + " " + p.What
}

// at tells the test, and ends the goroutine if the daemon is dead by then.
func (d *Daemon) at(ctx context.Context, p Point) {
	d.alive()
	if d.c.At != nil {
		d.c.At(ctx, d, p)
		d.alive()
	}
}

// around is at before and after something is done.
func around[A any](ctx context.Context, d *Daemon, kind, what string, do func() A) A {
	d.at(ctx, Point{Kind: kind, What: what})
	a := do()
	d.at(ctx, Point{Kind: kind, What: what, After: true})
	return a
}

// journal is a Journal of one life of a daemon. Each method that writes is one
// transaction.
type journal struct {
	activation.Journal
	d *Daemon
}

func (j journal) write(ctx context.Context, what string, do func() error) error {
	return around(ctx, j.d, "journal", what, do)
}

func (j journal) Begin(ctx context.Context, in store.Intent, holds store.HoldChange) (id int64, err error) {
	err = j.write(ctx, "begin "+strings.Join(in.Argv, " "), func() error {
		id, err = j.Journal.Begin(ctx, in, holds)
		return err
	})
	return id, err
}

func (j journal) Running(ctx context.Context, id int64, pid int, start uint64) error {
	return j.write(ctx, "running", func() error { return j.Journal.Running(ctx, id, pid, start) })
}

func (j journal) Finish(ctx context.Context, id int64, r store.Result, holds store.HoldChange, queries ...store.Query) error {
	return j.write(ctx, "finish", func() error { return j.Journal.Finish(ctx, id, r, holds, queries...) })
}

func (j journal) AddQueries(ctx context.Context, queries []store.Query) error {
	return j.write(ctx, "queries", func() error { return j.Journal.AddQueries(ctx, queries) })
}

func (j journal) ChangeHolds(ctx context.Context, change store.HoldChange) error {
	return j.write(ctx, "holds", func() error { return j.Journal.ChangeHolds(ctx, change) })
}

func (j journal) PutFenced(ctx context.Context, f model.Fenced) error {
	return j.write(ctx, "fenced "+f.Host, func() error { return j.Journal.PutFenced(ctx, f) })
}

func (j journal) DropFenced(ctx context.Context, host string) error {
	return j.write(ctx, "not fenced "+host, func() error { return j.Journal.DropFenced(ctx, host) })
}

func (j journal) Fenced(ctx context.Context) ([]model.Fenced, error) {
	j.d.alive()
	return j.Journal.Fenced(ctx)
}

// ReplaceHolds is no point: the engine has its lock meanwhile.
func (j journal) ReplaceHolds(ctx context.Context, all []model.Hold) error {
	j.d.alive()
	return j.Journal.ReplaceHolds(ctx, all)
}

func (j journal) AddHookCall(ctx context.Context, call api.HookCall) (id int64, err error) {
	err = j.write(ctx, "hook "+call.Op, func() error {
		id, err = j.Journal.AddHookCall(ctx, call)
		return err
	})
	return id, err
}

func (j journal) FinishHookCall(ctx context.Context, id int64, v store.HookVerdict, queries []store.Query, holds store.HoldChange) error {
	return j.write(ctx, "verdict "+v.Verdict, func() error { return j.Journal.FinishHookCall(ctx, id, v, queries, holds) })
}

func (j journal) InterruptHookCalls(ctx context.Context) error {
	return j.write(ctx, "interrupt hooks", func() error { return j.Journal.InterruptHookCalls(ctx) })
}

func (j journal) OpenCommands(ctx context.Context) ([]store.OpenCommand, error) {
	j.d.alive()
	return j.Journal.OpenCommands(ctx)
}

func (j journal) Holds(ctx context.Context) ([]model.Hold, error) {
	j.d.alive()
	return j.Journal.Holds(ctx)
}

// Health writes, but nothing that was not there.
func (j journal) Health(ctx context.Context) error {
	j.d.alive()
	return j.Journal.Health(ctx)
}

// runner runs the programs of one life of a daemon; they outlive it.
type runner struct {
	d    *Daemon
	kind string
}

func (r runner) Run(ctx context.Context, cmd run.Cmd) (res run.Result, err error) {
	what := strings.Join(cmd.Argv(), " ")
	err = around(ctx, r.d, r.kind, what, func() error {
		work, back := r.d.c.child(ctx, what)
		res, err = r.d.Host.programs.noting(r.d.Host.LVM.Runner()).Run(work, cmd)
		var late *run.TimeoutError
		if !errors.As(err, &late) {
			back()
		}
		return err
	})
	return res, err
}

// observer looks at the guests for one life of a daemon.
type observer struct {
	*guests.Observer
	d *Daemon
}

func (o observer) Observe() (guests.Snapshot, error) {
	o.d.alive()
	return o.Observer.Observe()
}

func equal(a, b []string) bool { return slices.Equal(a, b) }
