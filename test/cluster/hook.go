package cluster

import (
	"context"
	"os"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/test/fakevirt"
)

// hook is what hooks/qemu does, without the process: verdicts, spooling, break-glass.
func (h *Host) hook(ctx context.Context, fc fakevirt.HookCall) fakevirt.HookResult {
	if h.c.Spy != nil {
		h.c.Spy(h.Name, fc)
	}
	call := api.HookCall{Guest: fc.Guest, Op: fc.Op, SubOp: fc.SubOp, Extra: fc.Extra, XML: fc.XML, Bypassed: h.glass.Load(), Stamp: h.stamp()}
	if h.c.o.Tamper != nil {
		h.c.o.Tamper(h, &call)
	}
	verdict, told := h.tell(ctx, call)
	switch {
	case told && !verdict.Allow && api.Verdicting(fc.Op) && !call.Bypassed:
		return fakevirt.HookResult{Code: 1, Stderr: "virtlvm: " + verdict.Message + "\n"}
	case told:
		if h.c.Granted != nil && len(verdict.XML) > 0 {
			h.c.Granted(h.Name, fc.Guest, verdict.XML)
		}
		return fakevirt.HookResult{Stdout: string(verdict.XML)}
	case api.Verdicting(fc.Op) && !call.Bypassed:
		return fakevirt.HookResult{Code: 1, Stderr: "virtlvm: cannot start " + fc.Guest + ": virtlvmd cannot be reached\n"}
	case api.Verdicting(fc.Op):
		return fakevirt.HookResult{}
	}
	if d, err := domain.Parse(call.XML); err == nil {
		call.UUID = d.UUID
	}
	call.XML = nil
	h.mu.Lock()
	h.spool = append(h.spool, call)
	h.mu.Unlock()
	return fakevirt.HookResult{}
}

// tell takes a call to the daemon and waits for its verdict; false: there was none.
func (h *Host) tell(ctx context.Context, call api.HookCall) (_ api.HookVerdict, told bool) {
	if h.c.o.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.c.o.Patience)
		defer cancel()
	}
	d := h.reach(ctx)
	if d == nil {
		return api.HookVerdict{}, false
	}
	work, back := h.c.child(ctx, "hook "+call.Op)
	answer := make(chan api.HookVerdict, 1)
	go func() {
		verdict := d.engine.Hook(work, call)
		d.at(work, Point{Kind: "answer", What: call.Op})
		answer <- verdict
	}()
	select {
	case verdict := <-answer:
		back()
		return verdict, true
	case <-d.dead:
	case <-ctx.Done():
	}
	h.c.pause(ctx, "hook "+call.Op+" gives up")
	return api.HookVerdict{}, false
}

func (c *Cluster) pause(ctx context.Context, what string) {
	if c.Pause != nil {
		c.Pause(ctx, what)
	}
}

// reach waits for a daemon that takes calls, as one does who connects to a socket that
// systemd keeps open.
func (h *Host) reach(ctx context.Context) *Daemon {
	for {
		h.mu.Lock()
		d, up := h.daemon, h.up
		h.mu.Unlock()
		if d == nil && h.c.o.Patience == 0 {
			return nil
		}
		var dead, serving <-chan struct{}
		if d != nil {
			up, dead, serving = nil, d.dead, d.serving
		}
		select {
		case <-serving:
			h.c.pause(ctx, "hook reaches the daemon")
			return d
		case <-dead:
		case <-up:
		case <-ctx.Done():
			h.c.pause(ctx, "hook finds no daemon")
			return nil
		}
	}
}

func (h *Host) stamp() api.Stamp {
	return api.Stamp{
		BootID: h.bootID(), UptimeMillis: h.uptime().Milliseconds() / 10 * 10,
		LibvirtdPID: os.Getpid(), LibvirtdStart: h.libvirtdStart(),
	}
}
