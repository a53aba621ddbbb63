package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// What the source lends is not what the destination has: refused, and nothing is left of it.
func TestLentVolumesThatDoNotMatch(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*api.LendAnswer)
		want   string
	}{
		"another volume of that name": {func(a *api.LendAnswer) { a.Volumes[0].LVUUID = strings.Repeat("x", 32) }, "vg_san/vm1 is another volume on this host than on the source"},
		"another VG of that name":     {func(a *api.LendAnswer) { a.Volumes[0].VGUUID = "" }, "vg_san/vm1 is another volume on this host than on the source"},
		"no such volume here":         {func(a *api.LendAnswer) { a.Volumes[0].Name = "vg_san/none" }, "the source has a volume that this host has not: there is no volume none in volume group vg_san"},
		"no such VG here":             {func(a *api.LendAnswer) { a.Volumes[0].Name = "vg_none/vm1" }, "the source has a volume that this host has not: there is no volume group vg_none"},
		"not shared here":             {func(a *api.LendAnswer) { a.Volumes[0].Name = "vg_plain/vm1" }, "the source has a volume that this host has not"},
		"no name":                     {func(a *api.LendAnswer) { a.Volumes[0].Name = "-an" }, "\"-an\" cannot be a logical volume"},
		"a role of a later release":   {func(a *api.LendAnswer) { a.Volumes[0].Role = "witness" }, `the source uses vg_san/vm1 as "witness", which this version does not know`},
		"not the guest's":             {func(a *api.LendAnswer) { a.Volumes = nil }, "vm1 names vg_san/vm1, but the guest does not have it on kvm-a"},
		"no grant":                    {func(a *api.LendAnswer) { a.Grant = "" }, "kvm-a lends its volumes without a grant that could be used"},
		"a grant that is markup":      {func(a *api.LendAnswer) { a.Grant = "'/><disk/>" }, "kvm-a lends its volumes without a grant that could be used"},
		"a huge grant":                {func(a *api.LendAnswer) { a.Grant = strings.Repeat("A", 65) }, "kvm-a lends its volumes without a grant that could be used"},
		"twice":                       {func(a *api.LendAnswer) { a.Volumes = append(a.Volumes, a.Volumes[0]) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a, b := two(t)
			c.Tamper = func(_ string, answer any) (any, error) {
				if lent, ok := answer.(api.LendAnswer); ok {
					tt.change(&lent)
					return lent, nil
				}
				return answer, nil
			}
			err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: neverTwice(t, a, b)})
			if tt.want == "" {
				require.NoError(t, err)
				ends(t, b, "ex")
				return
			}
			require.Error(t, err)
			assert.Contains(t, err.Error(), tt.want)
			ends(t, b, "un")
			ends(t, a, "ex")
		})
	}
}

// A grant is for the host it was given to, for its guest, and once.
func TestGrantOfAnother(t *testing.T) {
	c, a, b := two(t)
	var grant string
	ask := func(peer, uuid, grant string) api.GrantAnswer {
		answer, err := a.Engine().GrantGood(ctx, peer, api.GrantQuery{UUID: uuid, Grant: grant})
		require.NoError(t, err)
		return answer
	}
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s != fakevirt.StepMigrateHook {
			return nil
		}
		holds, err := a.Store().Holds(ctx)
		require.NoError(t, err)
		grant = holds[0].Grant.ID
		assert.True(t, ask("kvm-b", UUID(1), grant).Good)
		assert.Equal(t, api.GrantAnswer{Reason: "kvm-a has not lent it, or taken it back"}, ask("kvm-c", UUID(1), grant), "a stranger's")
		assert.False(t, ask("kvm-b", UUID(2), grant).Good, "another guest's")
		assert.False(t, ask("kvm-b", UUID(1), grant+"A").Good)
		assert.False(t, ask("kvm-b", UUID(1), "").Good)
		_, err = a.Engine().Lend(ctx, "kvm-c", api.LendRequest{UUID: UUID(1), Guest: "vm1"})
		require.ErrorContains(t, err, "guest vm1 is being migrated to kvm-b already")
		assert.True(t, ask("kvm-b", UUID(1), grant).Good, "and nothing has become of it")
		return nil
	}}))
	ends(t, a, "un")
	assert.False(t, ask("kvm-b", UUID(1), grant).Good, "it is over")
	m := told(t, c, a)
	assert.Equal(t, "kvm-b exclusive, kvm-a released", m.Destination.Host+" "+m.Destination.State+", "+m.Source.Host+" "+m.Source.State, "the stranger's question hides nothing")
}

// No host's clock is compared with another's.
func TestClocksHoursApart(t *testing.T) {
	c, a, b := two(t)
	for h, skew := range map[*Host]time.Duration{a: -3 * time.Hour, b: 5 * time.Hour} {
		h.StopDaemon()
		h.Skew = skew
		h.StartDaemon()
	}
	for range 2 {
		require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: neverTwice(t, a, b)}))
		ends(t, a, "un")
		ends(t, b, "ex")
		m := told(t, c, a)
		assert.InDelta(t, 8*time.Hour, m.Destination.Ahead, float64(time.Minute))
		assert.Equal(t, "exclusive", m.Destination.State)
		require.NoError(t, fakevirt.Migrate(ctx, b.Virt, a.Virt, "vm1", fakevirt.MigrateOptions{Step: neverTwice(t, a, b)}))
		ends(t, b, "un")
		ends(t, a, "ex")
	}
	err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: failAt(fakevirt.StepMigrateHook, fakevirt.ErrAborted)})
	require.Error(t, err)
	ends(t, b, "un")
	ends(t, a, "ex")
}

// Two hosts with one name: the one that holds the volumes cannot be asked by it.
func TestTwoHostsWithOneName(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b", "kvm-c")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	names, err := b.Run("sanlock", "client", "host_status", "-D")
	require.NoError(t, err)
	id := fault(t, c, san.Fault{Kind: san.FaultGarbage, Host: "kvm-b", Tool: "sanlock", Match: "host_status", Stdout: strings.ReplaceAll(names, "owner_name=kvm-c", "owner_name=kvm-a")})
	err = fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{})
	require.Error(t, err)
	assert.Contains(t, err.Error(), "cannot migrate vm1: its volumes are held by kvm-a (host_id 1), and another host has the same name")
	assert.Equal(t, "ex", a.Mode("vm1"))
	c.Advance(61 * time.Second) // a look at everything is due
	problem(t, b, "two hosts have the name kvm-a (host_id 1 and 3): set our_host_name in /etc/sanlock/sanlock.conf of each")
	require.NoError(t, c.SAN.ClearFaults(id))
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
}

// A host of the release before does not know all questions.
func TestOlderPeer(t *testing.T) {
	c, a, b := two(t)
	c.Tamper = func(path string, answer any) (any, error) {
		if path == api.RoutePeerHandoff {
			return nil, api.NewError(api.KindNotFound, "this virtlvmd does not know POST "+path+" (protocol 1.0)")
		}
		return answer, nil
	}
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
	ends(t, b, "ex")
	m := told(t, c, b)
	assert.Equal(t, "exclusive", m.Destination.State)
	assert.Equal(t, api.HandoffUnknown, m.Source.State)
	assert.Contains(t, m.Source.Problem, "does not know POST /v1/peer/handoff")
	// It does not name the migration either.
	answer, err := b.Engine().Lend(ctx, "kvm-a", api.LendRequest{UUID: UUID(1), Guest: "vm1"})
	require.NoError(t, err)
	assert.False(t, answer.Migrating)
}
