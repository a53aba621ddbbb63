package cluster

import "context"

// task is what a goroutine works on: an operator's command, a request of another host, the
// loop of a daemon. It goes with the context, across hosts and programs, and only a
// simulation looks at it.
type task struct {
	name string
	// budget is how many points it may still pass without asking. It belongs to the one
	// goroutine that works on the task, or to the simulation while that waits.
	budget int
	// free: the simulation itself, which waits nowhere.
	free bool
	// looked is when it last read the leases, in steps of the simulation.
	looked int
}

type taskKey struct{}

func taskOf(ctx context.Context) *task {
	t, _ := ctx.Value(taskKey{}).(*task)
	return t
}

func withTask(ctx context.Context, t *task) context.Context {
	return context.WithValue(ctx, taskKey{}, t)
}

// named begins a task.
func (c *Cluster) named(ctx context.Context, name string) context.Context {
	return withTask(ctx, &task{name: name})
}

// child is a task that another waits for: it has the other's budget until back is called,
// by the one that waits and once the child has ended.
func (c *Cluster) child(ctx context.Context, what string) (_ context.Context, back func()) {
	t := taskOf(ctx)
	if t == nil {
		return ctx, func() {}
	}
	k := &task{name: t.name + " > " + what, budget: t.budget, looked: t.looked}
	t.budget = 0
	return withTask(ctx, k), func() { t.budget, t.looked = k.budget, k.looked }
}
