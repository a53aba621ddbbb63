//go:build e2e

package scenario

import (
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// exclusiveStart: where a guest runs its volume is exclusive, and it starts nowhere else
// until it has ended.
func exclusiveStart(e *env) {
	v := e.one
	e.define(disk("vm1", v), e.a, e.b)

	begun := time.Now()
	e.start(e.a, "vm1")
	took := time.Since(begun)
	e.holds(e.a, v, cluster.ModeEX)
	e.counts(e.a, v)

	r := e.refused(e.b, "vm1", "kvm-a", "vg_san/vm1")
	// Nothing is waited for where the holder lives; how fast that is depends on the machine.
	assert.Less(e, r.Duration, 3*took)
	e.holds(e.b, v, cluster.ModeOff)
	e.holds(e.a, v, cluster.ModeEX)
	e.counts(e.a, v)

	e.destroy(e.a, "vm1")
	e.released(v)

	e.start(e.b, "vm1")
	e.holds(e.b, v, cluster.ModeEX)
	e.counts(e.b, v)
	e.destroy(e.b, "vm1")
	e.released(v)
}

// bothAtOnce: the same guest started on both hosts at the same moment runs on exactly one.
func bothAtOnce(e *env) {
	v := e.one
	e.define(disk("race", v), e.a, e.b)
	for round := range 5 {
		var wg sync.WaitGroup
		results, errs := make([]cluster.Result, 2), make([]error, 2)
		gun := make(chan struct{})
		for i, h := range e.hosts {
			wg.Go(func() {
				<-gun
				results[i], errs[i] = h.Virsh(e.ctx, "start", "race")
			})
		}
		close(gun)
		wg.Wait()
		require.NoError(e, errs[0])
		require.NoError(e, errs[1])
		winner := 0
		if results[0].Exit != 0 {
			winner = 1
		}
		first, second := e.hosts[winner], e.hosts[1-winner]
		require.Zero(e, results[winner].Exit, "nobody won: %s; %s", results[0].Output(), results[1].Output())
		require.NotZero(e, results[1-winner].Exit, "the guest runs on both hosts")
		require.Contains(e, results[1-winner].Stderr, first.Name)
		e.holds(first, v, cluster.ModeEX)
		e.holds(second, v, cluster.ModeOff)
		e.Logf("round %d: %s won after %.1f s; %s after %.1f s: %s", round+1, first.Name, results[winner].Duration.Seconds(),
			second.Name, results[1-winner].Duration.Seconds(), results[1-winner].Output())
		e.destroy(first, "race")
		e.released(v)
	}
}

// noManagedDisks: a guest without a volume of ours is none of our business.
func noManagedDisks(e *env) {
	e.must(e.a, "truncate -s 16M /var/lib/libvirt/images/plain.img")
	e.define(cluster.Guest{Name: "plain", Disks: []cluster.Disk{{Type: "file", Source: "/var/lib/libvirt/images/plain.img"}}}, e.a)
	e.start(e.a, "plain")
	state, err := e.a.State(e.ctx)
	require.NoError(e, err)
	require.Empty(e, state.LVs)
	require.Empty(e, state.Devices)
	e.destroy(e.a, "plain")
	e.must(e.a, "rm /var/lib/libvirt/images/plain.img")
}

// twoGuestsOneVolume: on one host, too, a volume belongs to one guest.
func twoGuestsOneVolume(e *env) {
	v := e.one
	e.define(disk("first", v), e.a)
	e.define(disk("second", v), e.a)
	e.start(e.a, "first")
	e.refused(e.a, "second", "guest first", "vg_san/vm1")
	e.holds(e.a, v, cluster.ModeEX)
	e.destroy(e.a, "first")
	e.released(v)
	e.start(e.a, "second")
	e.holds(e.a, v, cluster.ModeEX)
	e.destroy(e.a, "second")
	e.released(v)
}
