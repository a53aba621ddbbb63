package main

import (
	"context"
	"fmt"
)

// Calls of the hook in the life of a guest, by libvirt's own order.
var (
	startCalls = [][3]string{{"prepare", "begin", "-"}, {"start", "begin", "-"}, {"started", "begin", "-"}}
	stopCalls  = [][3]string{{"stopped", "end", "-"}, {"release", "end", "destroyed"}}
)

// life is what the calls of one guest took, round by round.
type life struct{ start, stop costs }

// lives measures all calls of the hook in the life of a guest: three at its start and two
// at its end.
func (b *bench) lives(ctx context.Context) error {
	none, err := b.guestOnFiles()
	if err != nil {
		return err
	}
	eight, err := b.guestOn(8)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name   string
		guest  *guest
		rounds int
	}{{"unmanaged", none, b.plan.unmanaged / 2}, {"managed_8", eight, b.plan.managed}} {
		var ours, bash life
		over := b.plan.enough(c.rounds, 0.6)
		for i := 0; !over(i - 1); i++ {
			var one, other life
			before := b.a.programs()
			one.start, err = b.callAll(ctx, c.guest, startCalls, b.ourHook)
			if err == nil {
				err = b.a.isOn(c.guest)
			}
			middle := b.a.programs()
			if err == nil {
				one.stop, err = b.callAll(ctx, c.guest, stopCalls, b.ourHook)
			}
			if err != nil {
				return err
			}
			end := b.a.programs()
			if other.start, err = b.callAll(ctx, c.guest, startCalls, b.bashHook); err == nil {
				other.stop, err = b.callAll(ctx, c.guest, stopCalls, b.bashHook)
			}
			if err != nil {
				return err
			}
			if i == 0 { // warms up
				if c.guest == eight {
					b.note("hook, start of %s: %s; stop: %s", c.name, ranText(before, middle), ranText(middle, end))
					b.note("bash, start and stop of %s: %s", c.name, ranText(end, b.a.programs()))
				}
				continue
			}
			ours.start, ours.stop = append(ours.start, one.start...), append(ours.stop, one.stop...)
			bash.start, bash.stop = append(bash.start, other.start...), append(bash.stop, other.stop...)
		}
		for _, l := range []struct {
			who string
			life
		}{{"hook", ours}, {"bash", bash}} {
			b.times(fmt.Sprintf("life_%s_%s_start", c.name, l.who), l.start.wall(), 0, 95)
			b.times(fmt.Sprintf("life_%s_%s_stop", c.name, l.who), l.stop.wall(), 0, 95)
		}
		b.value(fmt.Sprintf("life_%s_ratio", c.name), (ours.start.wall().percentile(50)+ours.stop.wall().percentile(50))/
			(bash.start.wall().percentile(50)+bash.stop.wall().percentile(50)), "x", 0)
	}
	return nil
}

// callAll makes some calls one after the other; their sum is one cost.
func (b *bench) callAll(ctx context.Context, g *guest, calls [][3]string, call func(context.Context, *host, *guest, string, string, string) (cost, error)) (costs, error) {
	var sum cost
	for _, c := range calls {
		took, err := call(ctx, b.a, g, c[0], c[1], c[2])
		if err != nil {
			return nil, err
		}
		sum = sum.plus(took)
	}
	return costs{sum}, nil
}

func (b *bench) bashHook(ctx context.Context, h *host, g *guest, op, subOp, extra string) (cost, error) {
	return h.hook(ctx, b.plainHook(), g, op, subOp, extra)
}
