package cluster

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// fencedInError makes kvm-a run vm1, unreachable from kvm-b, where it is declared off all
// the same. heal lets them reach each other, cut not.
func fencedInError(t *testing.T) (a, b *Host, heal, cut func()) {
	t.Helper()
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b = hosts[0], hosts[1]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	host := "kvm-a"
	cutOff(c, &host)
	_, err := b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-a"}, "tester")
	require.NoError(t, err)
	return a, b, func() { host = "" }, func() { host = "kvm-a" }
}

// stillCounts: kvm-b takes the silence of kvm-a for what it is again.
func stillCounts(t *testing.T, b *Host, cut func()) {
	t.Helper()
	assert.Empty(t, b.Engine().FencedHosts(), "it was heard of")
	cut()
	startFails(t, b, "kvm-a is a member of vg_plain and does not say")
}

// A refusal is an answer, too: that host is not off.
func TestClaimsOfAFencedHostThatRefuses(t *testing.T) {
	a, b, heal, cut := fencedInError(t)
	a.setMembers("vg_plain", "kvm-a", "kvm-b", "kvm-x")
	heal()
	startFails(t, b, "the members of vg_plain are")
	stillCounts(t, b, cut)
}

// So is that it cannot tell yet: its daemon has just been started.
func TestClaimsOfAFencedHostThatCannotTell(t *testing.T) {
	_, b, heal, cut := fencedInError(t)
	b.c.Tamper = func(path string, answer any) (any, error) {
		if path == api.RoutePeerClaims {
			return nil, api.NewError(api.KindUnknown, "virtlvmd has not finished its first look at this host")
		}
		return answer, nil
	}
	heal()
	startFails(t, b, "kvm-a is a member of vg_plain and refuses: virtlvmd has not finished its first look")
	stillCounts(t, b, cut)
}

// And a question, also one that is refused.
func TestClaimsOfAFencedHostThatAsks(t *testing.T) {
	a, b, heal, cut := fencedInError(t)
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	a.setMembers("vg_plain", "kvm-a", "kvm-b", "kvm-x")
	heal()
	startFails(t, a, "")
	stillCounts(t, b, cut)
}

// Nor is one declared that asks in the moment that it is being declared: what it was told since
// then it may go by.
func TestClaimsOfAHostThatAsksMeanwhile(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	b := hosts[1]
	c.Cut = func(_, to, path string) bool {
		if path == api.RoutePeerHello {
			require.NoError(t, b.Engine().Heard(ctx, "kvm-a"))
		}
		return to == "kvm-a"
	}
	_, err := b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-a"}, "tester")
	require.ErrorContains(t, err, "kvm-a has asked something just now, so that it is not off")
	assert.Empty(t, b.Engine().FencedHosts())
	left, err := b.Store().Fenced(ctx)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// Also where it has asked, and has gone again before that is written down.
func TestClaimsOfAFencedHostThatHangsUp(t *testing.T) {
	_, b, _, cut := fencedInError(t)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, b.Engine().Heard(gone, "kvm-a"))
	stillCounts(t, b, cut)
}

// A host that was down itself does not know what became of the one that it had declared off:
// both declarations were true, one after the other.
func TestClaimsDeclaredBeforeAReboot(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	declare := func(on *Host, off string) {
		_, err := on.Engine().DeclareFenced(ctx, api.FencedRequest{Host: off}, "tester")
		require.NoError(t, err)
	}
	b.PowerCut()
	declare(a, "kvm-b")
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	a.StopDaemon()
	a.StartDaemon()
	assert.Len(t, a.Engine().FencedHosts(), 1, "a restart of the daemon changes nothing")
	a.PowerCut()
	b.Boot()
	startFails(t, b, "kvm-a is a member of vg_plain and does not say")
	declare(b, "kvm-a")
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	host := "kvm-b"
	cutOff(c, &host)
	a.Boot()
	startFails(t, a, "kvm-b is a member of vg_plain and does not say")
	assert.Equal(t, []string{"kvm-b"}, active(hosts))
	assert.Contains(t, a.Engine().Status(ctx).Events[0].Text, "kvm-b was declared fenced (by tester, at ")
	left, err := a.Store().Fenced(ctx)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// What is no answer says nothing, least of all that a volume is free.
func TestClaimsThatMakeNoSense(t *testing.T) {
	for name, garbage := range map[string]any{
		"empty":           struct{}{},
		"null":            nil,
		"another's":       api.LocksAnswer{},
		"an unknown mode": api.ClaimsAnswer{BootID: "b", Claims: []api.Claim{{LV: "x", Wanted: "px", Claimed: "off"}}},
		"no mode":         api.ClaimsAnswer{BootID: "b", Claims: []api.Claim{{LV: "x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c, hosts := claiming(t, "kvm-a", "kvm-b")
			require.NoError(t, hosts[0].Virt.Start(ctx, "vm1"))
			c.Tamper = func(path string, answer any) (any, error) {
				if path == api.RoutePeerClaims {
					return garbage, nil
				}
				return answer, nil
			}
			startFails(t, hosts[1], "kvm-a is a member of vg_plain, and what it says it has of it makes no sense")
			assert.Equal(t, []string{"kvm-a"}, active(hosts))
		})
	}
}

// A host that was installed as a copy of another one bears its name: neither asks the other.
func TestClaimsOfTwoHostsWithOneName(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	q := api.ClaimsQuery{VG: "vg_plain", Members: []string{"kvm-a", "kvm-b"}, BootID: "copy-boot-1", LVs: []string{}}
	_, err := b.Engine().Claims(ctx, "kvm-a", q)
	require.ErrorContains(t, err, "two hosts are called kvm-a: one asks kvm-b, and another one is reached from there under that name")
	require.NoError(t, a.Virt.Start(ctx, "vm1"), "the one that is meant is still answered")
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))

	nameless := q
	nameless.BootID = ""
	_, err = b.Engine().Claims(ctx, "kvm-a", nameless)
	require.ErrorContains(t, err, "kvm-a does not say from which boot it asks")

	host := "kvm-a"
	cutOff(c, &host)
	_, err = b.Engine().Claims(ctx, "kvm-a", q)
	require.ErrorContains(t, err, "kvm-b cannot ask kvm-a back whether there is one host of that name alone")
	assert.Equal(t, api.KindUnknown, api.KindOf(err))

	host = ""
	a.PowerCut()
	a.Boot()
	require.NoError(t, a.Virt.Start(ctx, "vm1"), "another boot of it")
}

// Two requests of operators at once, both refused, leave nothing: each would take the
// other's intent for one that was there before.
func TestClaimsOfTwoOperatorsAtOnce(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	asking := make(chan chan struct{}, 2)
	var calls atomic.Int32
	c.Cut = func(from, _, path string) bool {
		if from == "kvm-b" && path == api.RoutePeerClaims && calls.Add(1) <= 2 {
			goOn := make(chan struct{})
			asking <- goOn
			<-goOn
		}
		return false
	}
	failed := make(chan error, 2)
	activate := func() {
		_, err := b.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_plain/vm1"}, "tester")
		failed <- err
	}
	go activate()
	first := <-asking
	go activate()
	var errs []error
	select {
	case second := <-asking: // it asks as well, and is refused after the first
		close(first)
		errs = append(errs, <-failed)
		close(second)
		errs = append(errs, <-failed)
	case err := <-failed:
		close(first)
		errs = append(errs, err, <-failed)
	}
	for _, err := range errs {
		require.Error(t, err)
	}
	assert.Empty(t, b.Engine().HoldsBy(model.OwnerOperator), "of what was refused nothing is left")
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	require.NoError(t, a.Virt.Start(ctx, "vm1"), "and nothing is in the way of others")
}

// Both daemons die with an operator's intent written and nothing granted: when they are
// back neither refuses the other for ever.
func TestClaimsLeftByDeadDaemons(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	var mu sync.Mutex
	dying := map[string]bool{"kvm-a": true, "kvm-b": true}
	var died sync.WaitGroup
	died.Add(2)
	c.At = func(_ context.Context, d *Daemon, p Point) {
		if p.Kind != "call" || p.After {
			return
		}
		mu.Lock()
		now := dying[d.Host.Name]
		delete(dying, d.Host.Name)
		mu.Unlock()
		if now {
			d.Kill()
			died.Done()
		}
	}
	for _, h := range hosts {
		go func() { _, _ = h.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_plain/vm1"}, "tester") }()
	}
	died.Wait()
	for _, h := range hosts {
		h.StartDaemon()
	}
	require.Eventually(t, func() bool {
		for _, h := range hosts {
			h.Engine().Kick()
		}
		// One of them may have got it, if it asked when the other had withdrawn.
		left := 0
		for _, h := range hosts {
			for _, hold := range h.Engine().HoldsBy(model.OwnerOperator) {
				if hold.Claim == "" {
					left++
				}
			}
		}
		return left == 0
	}, 20*time.Second, 20*time.Millisecond)
	assert.LessOrEqual(t, len(active(hosts)), 1)
}
