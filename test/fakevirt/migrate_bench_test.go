package fakevirt

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// pair are two hosts with vm1 running on the first, and what happens on both in order.
type pair struct {
	t    *testing.T
	a, b *bench

	mu     sync.Mutex
	events []string // "kvm-b migrate begin -", or "step begun"
}

// newPair makes the hosts, which see the same disks, and starts vm1.
func newPair(t *testing.T, change ...func(*Options)) *pair {
	t.Helper()
	p := &pair{t: t}
	p.a = newBench(t, append(change, func(o *Options) { o.Hook = p.hooked(&p.a, o.Name) })...)
	p.b = newBench(t, append(change, func(o *Options) {
		o.Name, o.Root = "kvm-b", p.a.dir
		o.Hook = p.hooked(&p.b, o.Name)
	})...)
	p.a.disk("/dev/vg_san/lv1", nil)
	definition, err := os.ReadFile(fixtures + "kvm-a/01-vm1-prepare-begin.xml")
	require.NoError(t, err)
	p.a.define(string(definition))
	p.a.start("vm1")
	t.Cleanup(func() {
		for _, b := range []*bench{p.a, p.b} {
			for _, name := range []string{"vm1", "vm2"} {
				_ = b.KillQEMU(ctx, name)
			}
		}
	})
	p.take()
	return p
}

func (p *pair) hooked(b **bench, host string) HookFunc {
	return func(ctx context.Context, call HookCall) HookResult {
		p.event(host + " " + strings.Join([]string{call.Op, call.SubOp, call.Extra}, " "))
		return (*b).hooked(ctx, call)
	}
}

func (p *pair) event(e string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

// take gives the events so far, which it forgets, and the calls.
func (p *pair) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.events
	p.events = nil
	p.a.args()
	p.b.args()
	return events
}

// migrate moves vm1 from a to b; at a step it does something, nil for nothing.
func (p *pair) migrate(o MigrateOptions, at Step, do func() error) error {
	o.Step = func(s Step) error {
		if s != at || do == nil {
			return nil
		}
		return do()
	}
	return Migrate(ctx, p.a.Host, p.b.Host, "vm1", o)
}

// states are what the status files of both hosts say of vm1.
func (p *pair) states() string { return p.state(p.a) + " | " + p.state(p.b) }

// state is one host's: "running booted, migration out begin3"; "-" where it is not.
func (p *pair) state(b *bench) string {
	p.t.Helper()
	s, found, err := b.readStatus("vm1")
	require.NoError(p.t, err)
	if !found {
		return "-"
	}
	state := s.State + " " + s.Reason
	if s.Job == jobNone {
		return state
	}
	kind, phase := s.async()
	return state + ", " + strings.TrimSpace(kind+" "+phase)
}

// powerCut takes a host's power, as a test of the whole does.
func (p *pair) powerCut(b *bench) error {
	b.launcher.(*InProcess).EndAll()
	require.NoError(p.t, os.RemoveAll(b.RunDir()))
	return nil
}

// disk is the text that guests have written to lv1.
func (p *pair) disk() string {
	p.t.Helper()
	data, err := os.ReadFile(p.a.dir + "/dev/vg_san/lv1")
	require.NoError(p.t, err)
	text, _, _ := strings.Cut(string(data), "\x00")
	return text
}

// Hook calls of a live migration on the destination, and of an end as a failed one.
var (
	arrives = []string{"kvm-b migrate begin -", "kvm-b prepare begin -", "kvm-b start begin -", "kvm-b started begin -"}
	fails   = []string{"kvm-b stopped end -", "kvm-b release end failed"}
	leaves  = []string{"kvm-a stopped end -", "kvm-a release end migrated"}
)

// definition is vm1's.
func (p *pair) definition() []byte {
	p.t.Helper()
	def, err := p.a.definition("vm1")
	require.NoError(p.t, err)
	return new(Host).xmlOf(def)
}
