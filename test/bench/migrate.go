package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// settleLimit bounds the wait for the destination's exclusive locks.
const settleLimit = 20 * time.Second

// move is what one live migration took.
type move struct {
	hooks  time.Duration            // all hook calls on both hosts
	byOp   map[string]time.Duration // each of them
	settle time.Duration            // from the return of the last one to the exclusive locks
	bare   time.Duration            // the four lvchanges that no migration can do without
	looks  time.Duration            // in which programs that only look ran, and none that changes anything
	ran    int                      // programs on both hosts, the four included
}

// overhead is what a migration takes on top of the bare lvchanges.
func (m move) overhead() time.Duration { return m.hooks + m.settle - m.bare }

// memoryMoves is how long the memory of a guest takes to move, which nobody is charged with: so
// long that both hosts have come to rest by then, as where it is a real guest's.
const memoryMoves = 150 * time.Millisecond

// migrations measures live migrations between two hosts, there and back again. The daemons
// reach each other by a socket: what is measured is what libvirt waits for, and the way to the
// exclusive locks on the destination.
func (b *bench) migrations(ctx context.Context) error {
	if _, err := b.start(ctx, b.b); err != nil {
		return err
	}
	for i := range slices.Max(b.plan.sizes) {
		if _, err := b.san.AddLV(sharedVG, san.LVSpec{Name: fmt.Sprintf("bare%d", i), Size: 4 << 20}); err != nil {
			return err
		}
	}
	for _, size := range b.plan.sizes {
		if err := b.moves(ctx, size); err != nil {
			return fmt.Errorf("migration of a guest with %d volumes: %w", size, err)
		}
	}
	if err := b.b.daemon.stop(); err != nil {
		return err
	}
	return b.newState(b.b)
}

// moves migrates a guest of a size again and again.
func (b *bench) moves(ctx context.Context, size int) error {
	g, err := b.guestOn(size)
	if err != nil {
		return err
	}
	virt := map[*host]*fakevirt.Host{}
	var calls []hookTime
	for _, h := range []*host{b.a, b.b} {
		if virt[h], err = b.libvirt(h, &calls); err == nil {
			_, err = virt[h].Define(ctx, g.xml)
		}
		if err != nil {
			return err
		}
	}
	from, to := b.a, b.b
	if err := virt[from].Start(ctx, g.name); err != nil {
		return err
	}
	var all []move
	over := b.plan.enough(b.plan.migrations, 0.6)
	for i := 0; !over(i - 1); i++ {
		if err := b.quiet(ctx, from, to, size); err != nil {
			return err
		}
		m, err := b.moveOnce(ctx, virt, from, to, g, &calls)
		if err != nil {
			return err
		}
		if m.bare, err = b.bareMove(ctx, from, to, size); err != nil {
			return err
		}
		if i > 0 { // the first warms up, and connects the hosts
			all = append(all, m)
		}
		from, to = to, from
	}
	b.moved(fmt.Sprintf("migrate_%d_", size), all)
	return virt[from].Destroy(ctx, g.name)
}

// hookTime is one call of the hook by the fake libvirt.
type hookTime struct {
	op   string
	took time.Duration
	end  time.Time
}

// libvirt makes a host's fake libvirt, which notes how long the hook takes.
func (s *stage) libvirt(h *host, calls *[]hookTime) (*fakevirt.Host, error) {
	hook := fakevirt.ExecHook(s.program("hook/qemu"), h.env...)
	return fakevirt.New(fakevirt.Options{
		Name: h.san.Name(), Dir: h.dir, Launcher: fakevirt.Processes{Exe: s.program("fakevirt"), Life: limit},
		Hook: func(ctx context.Context, call fakevirt.HookCall) fakevirt.HookResult {
			began := time.Now()
			r := hook(ctx, call)
			end := time.Now()
			*calls = append(*calls, hookTime{call.Op, end.Sub(began), end})
			return r
		},
	})
}

// quiet waits until a guest's host holds all and nothing is on its way on either.
func (b *bench) quiet(ctx context.Context, from, to *host, size int) error {
	for end := time.Now().Add(settleLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		one, err := from.api.Status(ctx)
		if err != nil {
			return err
		}
		other, err := to.api.Status(ctx)
		if err != nil {
			return err
		}
		if one.Holds == (api.HoldCounts{Exclusive: size}) && other.Holds == (api.HoldCounts{}) && len(one.Pending)+len(other.Pending) == 0 {
			time.Sleep(100 * time.Millisecond) // looks that hints have caused
			return nil
		}
	}
	return fmt.Errorf("%s and %s do not come to rest", from.san.Name(), to.san.Name())
}

// moveOnce migrates a guest and waits for its locks.
func (b *bench) moveOnce(ctx context.Context, virt map[*host]*fakevirt.Host, from, to *host, g *guest, calls *[]hookTime) (m move, err error) {
	*calls = nil
	newest := map[*host]int64{}
	before := map[*host]map[string]int{}
	for _, h := range []*host{from, to} {
		commands, err := h.api.Commands(ctx, api.CommandFilter{Limit: 1})
		if err != nil {
			return m, err
		}
		for _, c := range commands {
			newest[h] = c.ID
		}
		before[h] = h.programs()
	}
	options := fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s == fakevirt.StepPerforming {
			time.Sleep(memoryMoves)
		}
		return nil
	}}
	if err := fakevirt.Migrate(ctx, virt[from], virt[to], g.name, options); err != nil {
		return m, err
	}
	vg, last, _ := strings.Cut(g.lvs[len(g.lvs)-1], "/")
	for to.san.LockMode(vg, last) != "ex" {
		if time.Since((*calls)[len(*calls)-1].end) > settleLimit {
			return m, errors.New("the destination does not get its locks exclusively")
		}
		time.Sleep(500 * time.Microsecond)
	}
	m.settle = time.Since((*calls)[len(*calls)-1].end)
	m.byOp = map[string]time.Duration{}
	for _, c := range *calls {
		m.hooks += c.took
		m.byOp[c.op] += c.took
	}
	if err := to.isOn(g); err != nil {
		return m, err
	}
	time.Sleep(50 * time.Millisecond) // the last look is written
	var looks, changes []span
	for _, h := range []*host{from, to} {
		m.ran += since(before[h], h.programs())
		commands, err := h.api.Commands(ctx, api.CommandFilter{Limit: 200})
		if err != nil {
			return m, err
		}
		var here []span
		for _, c := range commands {
			if c.ID > newest[h] && c.Kind == "query" {
				here = append(here, span{c.Created, c.Finished})
			}
		}
		for _, c := range commands {
			if c.ID > newest[h] && c.Argv[0] == "lvchange" {
				changes = append(changes, span{c.Created, c.Finished}.until(here))
			}
		}
		looks = append(looks, here...)
	}
	m.looks = covered(slices.Concat(looks, changes)) - covered(changes)
	return m, nil
}

// span is when something ran.
type span struct{ from, to time.Time }

// until is the span to the first of those that begin in it: a command's row ends when what came
// of it has been looked at.
func (s span) until(others []span) span {
	for _, o := range others {
		if o.from.After(s.from) && o.from.Before(s.to) {
			s.to = o.from
		}
	}
	return s
}

// covered is the time in which at least one ran.
func covered(all []span) (sum time.Duration) {
	slices.SortFunc(all, func(a, b span) int { return a.from.Compare(b.from) })
	var end time.Time
	for _, s := range all {
		if s.from.Before(end) {
			s.from = end
		}
		if s.to.After(s.from) {
			sum += s.to.Sub(s.from)
			end = s.to
		}
	}
	return sum
}

// bareMove runs the lvchanges of a migration on other volumes: shared on the source, shared
// on the destination, off on the source, exclusive on the destination.
func (b *bench) bareMove(ctx context.Context, from, to *host, size int) (time.Duration, error) {
	var lvs []string
	for i := range size {
		lvs = append(lvs, fmt.Sprintf("%s/bare%d", sharedVG, i))
	}
	line := func(action string) [][]string { return [][]string{append([]string{"lvchange", action}, lvs...)} }
	if _, err := from.direct(ctx, line("-aey")); err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, step := range []struct {
		h      *host
		action string
	}{{from, "-asy"}, {to, "-asy"}, {from, "-an"}, {to, "-aey"}} {
		took, err := step.h.direct(ctx, line(step.action))
		if err != nil {
			return 0, err
		}
		sum += took.wall
	}
	_, err := to.direct(ctx, line("-an"))
	return sum, err
}

// moved prints what the migrations of one size took.
func (b *bench) moved(name string, all []move) {
	of := func(f func(move) time.Duration) (s samples) {
		for _, m := range all {
			s = append(s, f(m))
		}
		return s
	}
	b.times(name+"bare", of(func(m move) time.Duration { return m.bare }), 0)
	for _, op := range []string{"migrate", "prepare", "start", "started", "stopped", "release"} {
		b.times(name+"hook_"+op, of(func(m move) time.Duration { return m.byOp[op] }), 0)
	}
	b.times(name+"settle", of(func(m move) time.Duration { return m.settle }), 0, 95)
	b.times(name+"overhead", of(move.overhead), 50, 95)
	b.times(name+"own", of(func(m move) time.Duration { return m.overhead() - m.looks }), 50, 95)
	var ran []int
	for _, m := range all {
		ran = append(ran, m.ran)
	}
	slices.Sort(ran)
	b.value(name+"programs", float64(ran[len(ran)/2]), "", 0)
}
