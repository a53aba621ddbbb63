package cluster

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// The checks themselves can fail: a rule is broken, and what follows from that is seen. The
// random schedules are tested so by make mutants.

// alwaysGood answers every question for a grant with yes.
type alwaysGood struct{ activation.Peers }

func (p alwaysGood) Call(ctx context.Context, host, path string, in, out any) error {
	if answer, ok := out.(*api.GrantAnswer); ok {
		answer.Good = true
		return nil
	}
	return p.Peers.Call(ctx, host, path, in, out)
}

// blind sees no guests.
type blind struct{}

func (blind) Observe() (guests.Snapshot, error) {
	return guests.Snapshot{ByUUID: map[string]guests.Guest{}}, nil
}

// whenBroken runs a test of vm1 on kvm-a with rules broken, and returns what is unsettled at
// last.
func whenBroken(t *testing.T, o Options, test func(c *Cluster)) (unsettled []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.Hosts, o.Memory, o.Timeout = pair(), true, 20*time.Second
		c := NewWith(t, o)
		for _, host := range o.Hosts {
			c.Hosts[host].StartDaemon()
		}
		vm1Runs(t, c)
		test(c)
		c.awaitSettled(5 * time.Minute)
		unsettled = c.Unsettled(ctx)
	})
	return unsettled
}

func TestSharedForEverIsSeen(t *testing.T) {
	o := Options{Break: func(_ *Daemon, deps *activation.Deps) { deps.Peers = alwaysGood{deps.Peers} }}
	bad := whenBroken(t, o, func(c *Cluster) {
		require.Error(t, migrate(c, "kvm-a", "kvm-b", fakevirt.MigrateOptions{Step: failAt(fakevirt.StepMigrateHook, errors.New("refused"))}))
	})
	require.NotEmpty(t, bad)
	assert.Contains(t, bad[0], "kvm-a: vg_san/vm1 is sh (active true), wanted \"ex\"")
}

func TestLockLostUnderAGuestIsSeen(t *testing.T) {
	bad := ""
	whenBroken(t, Options{}, func(c *Cluster) {
		a := c.Hosts["kvm-a"]
		require.NoError(t, a.LVM.LoseLockspace("vg_san"))
		bad = c.Unsafe(nobody)
		require.NoError(t, a.Virt.Destroy(ctx, vm1))
		a.PowerCut() // nothing else ends that state
	})
	assert.Contains(t, bad, "guest vm1 has vg_san/vm1 open on kvm-a, which is not active and locked there")
}

func TestGuestThatIsNotSeenIsSeenToBeMissing(t *testing.T) {
	o := Options{Break: func(_ *Daemon, deps *activation.Deps) { deps.Guests = blind{} }}
	bad := whenBroken(t, o, func(*Cluster) { time.Sleep(2 * time.Minute) })
	require.NotEmpty(t, bad)
	assert.Contains(t, bad[0], "pending: vg_san/vm1 wanted off is ex: it is open on this host")
}

func TestExclusiveIsAlone(t *testing.T) {
	ex, sh := san.Held{Volume: "v/l", Lock: "ex", Active: true}, san.Held{Volume: "v/l", Lock: "sh", Active: true}
	orphan := san.Held{Volume: "v/l", Lock: "orphan ex"}
	for _, tt := range []struct {
		table map[string][]san.Held
		bad   bool
	}{
		{map[string][]san.Held{"a": {ex}, "b": {ex}}, true},
		{map[string][]san.Held{"a": {ex}, "b": {sh}}, true},
		{map[string][]san.Held{"a": {sh}, "b": {orphan}}, true},
		{map[string][]san.Held{"a": {sh}, "b": {sh}}, false},
		{map[string][]san.Held{"a": {ex}, "b": {{Volume: "v/other", Lock: "ex"}}}, false},
	} {
		assert.Equal(t, tt.bad, beside(tt.table) != "", "%v", tt.table)
	}
}
