package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"virtlvm/test/san"
)

// startHook calls our hook for a guest that starts, and endHook for one that has ended.
// The processors' time includes the daemon's.
func (b *bench) startHook(ctx context.Context, h *host, g *guest) (cost, error) {
	return b.ourHook(ctx, h, g, "prepare", "begin", "-")
}

func (b *bench) endHook(ctx context.Context, h *host, g *guest) (cost, error) {
	return b.ourHook(ctx, h, g, "release", "end", "destroyed")
}

func (b *bench) ourHook(ctx context.Context, h *host, g *guest, op, subOp, extra string) (cost, error) {
	b.calls++
	before, err := h.daemon.cpu()
	if err != nil {
		return cost{}, err
	}
	c, err := h.hook(ctx, b.program("hook/qemu"), g, op, subOp, extra)
	if err != nil {
		return cost{}, err
	}
	after, err := h.daemon.cpu()
	return c.plus(cost{cpu: after - before}), err
}

// unmanagedGuests measures guests that virtlvm has nothing to do for: one without a
// logical volume, and one in a volume group that is not shared.
func (b *bench) unmanagedGuests(ctx context.Context) error {
	if err := os.WriteFile(b.a.path("images/disk.raw"), make([]byte, 1<<20), 0o600); err != nil {
		return err
	}
	if _, err := b.san.AddLV(plainVG, san.LVSpec{Name: "lv1", Size: 4 << 20}); err != nil {
		return err
	}
	none, err := b.guestOnFiles()
	if err != nil {
		return err
	}
	local, err := b.newGuest("local", 2, disk("block", "/dev/"+plainVG+"/lv1", 0))
	if err != nil {
		return err
	}
	var bash costs
	processes := b.bareProcesses()
	total, _, err := b.rounds(ctx, none, b.plan.unmanaged, 0.8, func(ctx context.Context) error {
		took, err := b.bashHook(ctx, b.a, none, "prepare", "begin", "-")
		bash = append(bash, took)
		for _, p := range processes {
			err = errors.Join(err, p.run(ctx))
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, p := range processes {
		b.times(p.name, p.took[1:].wall(), 0)
		b.value(p.name+"_cpu_ms", p.took[1:].cpu().mean(), "ms", 0)
	}
	empty := processes[1].took[1:]
	b.times("hook_unmanaged", total.wall(), 5, 95)
	b.times("bash_unmanaged", bash[1:].wall(), 0, 95)
	b.value("hook_unmanaged_ratio", total.wall().ratio(bash[1:].wall()), "x", 0)
	b.value("hook_unmanaged_cpu_ms", total.cpu().mean(), "ms", 0)
	b.value("bash_unmanaged_cpu_ms", bash[1:].cpu().mean(), "ms", 0)
	b.times("hook_unmanaged_beyond_empty_go", total.minus(empty).wall(), 0)
	b.value("hook_unmanaged_per_empty_go_ratio", total.wall().ratio(empty.wall()), "x", 0)
	total, tools, err := b.rounds(ctx, local, b.plan.managed, 0.5, nil)
	if err != nil {
		return err
	}
	b.times("hook_unshared_vg_tools", tools.wall(), 0)
	b.times("hook_unshared_vg_overhead", total.minus(tools).wall(), 0, 95)
	return nil
}

func (b *bench) plainHook() string { return filepath.Join(b.repo, "test/bench/plain-hook.sh") }

func (b *bench) guestOnFiles() (*guest, error) {
	return b.newGuest("files", 1, disk("file", "/images/disk.raw", 0))
}

// rounds calls our hook on host a for the start and the end of a guest, again and again,
// and then other, which may be nil. It returns what the start took, and what the tools
// took that were run for it. The first round is not counted, it warms up.
func (b *bench) rounds(ctx context.Context, g *guest, n int, share float64, other func(context.Context) error) (total, tools costs, err error) {
	var lines [][]string
	done := b.plan.enough(n, share)
	for i := 0; !done(i - 1); i++ {
		took, err := b.startHook(ctx, b.a, g)
		if err == nil {
			err = b.a.isOn(g)
		}
		if err == nil && i == 0 {
			lines, err = b.a.ranFor(ctx)
			b.ran = len(lines)
		}
		if err == nil {
			_, err = b.endHook(ctx, b.a, g)
		}
		if err != nil {
			return nil, nil, err
		}
		own, err := b.alone(ctx, lines, g)
		if err != nil {
			return nil, nil, err
		}
		if other != nil {
			if err := other(ctx); err != nil {
				return nil, nil, err
			}
		}
		if i > 0 {
			total, tools = append(total, took), append(tools, own)
		}
	}
	return total, tools, nil
}

// alone runs command lines without any hook, and then deactivates the guest's volumes.
func (b *bench) alone(ctx context.Context, lines [][]string, g *guest) (cost, error) {
	own, err := b.a.direct(ctx, lines)
	if err == nil {
		err = b.a.off(ctx, g)
	}
	return own, err
}

// managedGuests measures guests with volumes, beside the bash hook.
func (b *bench) managedGuests(ctx context.Context) error {
	for i := range slices.Max(b.plan.sizes) {
		if _, err := b.san.AddLV(sharedVG, san.LVSpec{Name: fmt.Sprintf("lv%d", i), Size: 4 << 20}); err != nil {
			return err
		}
	}
	for _, size := range b.plan.sizes {
		g, err := b.guestOn(size)
		if err != nil {
			return err
		}
		c, err := b.sideBySide(ctx, g)
		if err != nil {
			return err
		}
		b.compared(fmt.Sprint("managed_", size), size == 8, c)
	}
	return nil
}

// guestOn makes a guest with that many volumes.
func (b *bench) guestOn(size int) (*guest, error) {
	var disks, lvs []string
	for i := range size {
		lv := fmt.Sprintf("%s/lv%d", sharedVG, i)
		disks, lvs = append(disks, disk("block", "/dev/"+lv, i)), append(lvs, lv)
	}
	g, err := b.newGuest(fmt.Sprintf("guest%d", size), 100+size, disks...)
	if err == nil {
		g.lvs = lvs
	}
	return g, err
}

// comparison is what was measured of the two hooks, round by round.
type comparison struct {
	total, tools         costs // our hook
	bashTotal, bashTools costs
	least                costs // one lvchange of all volumes
	ran, bashRan         int   // programs of LVM that each has run
}

// sideBySide runs both hooks for a guest in each round.
func (b *bench) sideBySide(ctx context.Context, g *guest) (comparison, error) {
	once := [][]string{append([]string{"lvchange", "-aey"}, g.lvs...)}
	var each [][]string
	for _, lv := range g.lvs {
		each = append(each, []string{"lvchange", "-aey", lv})
	}
	var c comparison
	var err error
	c.total, c.tools, err = b.rounds(ctx, g, b.plan.managed, 1, func(ctx context.Context) error {
		before := b.a.programs()
		took, err := b.bashHook(ctx, b.a, g, "prepare", "begin", "-")
		c.bashRan = since(before, b.a.programs())
		if err == nil {
			err = b.a.isOn(g)
		}
		if err == nil {
			err = b.a.off(ctx, g)
		}
		if err != nil {
			return err
		}
		tools, err := b.alone(ctx, each, g)
		if err != nil {
			return err
		}
		least, err := b.alone(ctx, once, g)
		c.ran = b.ran
		c.bashTotal, c.bashTools, c.least = append(c.bashTotal, took), append(c.bashTools, tools), append(c.least, least)
		return err
	})
	if err != nil {
		return c, err
	}
	c.ran = b.ran
	c.bashTotal, c.bashTools, c.least = c.bashTotal[1:], c.bashTools[1:], c.least[1:]
	return c, nil
}

// compared prints a comparison; binding: there are targets for it.
func (b *bench) compared(name string, binding bool, c comparison) {
	var most, ratio target
	if binding {
		most, ratio = 25, 0.25
	}
	b.value("hook_"+name+"_programs", float64(c.ran), "", 0)
	b.value("bash_"+name+"_programs", float64(c.bashRan), "", 0)
	overhead, bashOverhead := c.total.minus(c.tools), c.bashTotal.minus(c.bashTools)
	beyond, bashBeyond := c.total.minus(c.least).wall(), c.bashTotal.minus(c.least).wall()
	b.times("lvchange_"+name, c.least.wall(), 0)
	b.times("hook_"+name+"_total", c.total.wall(), 0, 95)
	b.times("bash_"+name+"_total", c.bashTotal.wall(), 0, 95)
	b.value("hook_"+name+"_total_ratio", c.total.wall().ratio(c.bashTotal.wall()), "x", 0)
	b.times("hook_"+name+"_tools", c.tools.wall(), 0)
	b.times("bash_"+name+"_tools", c.bashTools.wall(), 0)
	b.times("hook_"+name+"_overhead", overhead.wall(), most, 95)
	b.times("bash_"+name+"_overhead", bashOverhead.wall(), 0, 95)
	b.value("hook_"+name+"_overhead_ratio", overhead.wall().ratio(bashOverhead.wall()), "x", ratio)
	b.value("hook_"+name+"_overhead_cpu_ms", c.total.cpu().mean(), "ms", 0) // its tools are virtlvmd's children
	b.value("bash_"+name+"_overhead_cpu_ms", bashOverhead.cpu().mean(), "ms", 0)
	b.times("hook_"+name+"_beyond", beyond, 0)
	b.times("bash_"+name+"_beyond", bashBeyond, 0)
	b.value("hook_"+name+"_beyond_ratio", beyond.ratio(bashBeyond), "x", ratio)
}
