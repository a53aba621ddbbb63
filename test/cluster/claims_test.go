package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// claiming makes hosts that claim the volumes of vg_plain, which has no lvmlockd, and vm1
// defined on each, which writes vg_plain/vm1.
func claiming(t *testing.T, names ...string) (*Cluster, []*Host) {
	t.Helper()
	c := New(t, names...)
	_, err := c.SAN.AddLV("vg_plain", san.LVSpec{Name: "vm1"})
	require.NoError(t, err)
	c.Members("vg_plain")
	var hosts []*Host
	for _, name := range names {
		h := c.Hosts[name]
		define(t, h, "vm1", 1, Disk{Path: "/dev/vg_plain/vm1"})
		hosts = append(hosts, h)
	}
	return c, hosts
}

func active(hosts []*Host) (names []string) {
	for _, h := range hosts {
		if h.LVM.Active("vg_plain", "vm1") {
			names = append(names, h.Name)
		}
	}
	return names
}

func startFails(t *testing.T, h *Host, why string) {
	t.Helper()
	err := h.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), why)
	assert.False(t, h.LVM.Active("vg_plain", "vm1"), "nothing is left of it")
}

// cutOff makes calls to and from a host fail, until mended.
func cutOff(c *Cluster, host *string) {
	c.Cut = func(from, to, _ string) bool { return from == *host || to == *host }
}

func TestClaimsKeepOthersAway(t *testing.T) {
	_, hosts := claiming(t, "kvm-a", "kvm-b", "kvm-c")
	a, b := hosts[0], hosts[1]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	assert.Equal(t, []string{"kvm-a"}, active(hosts))
	startFails(t, b, "vg_plain/vm1 is claimed exclusively by kvm-a for guest vm1; stop the guest that uses it there, or migrate it")
	assert.Equal(t, []string{"kvm-a"}, active(hosts))
	settled(t, a)
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	assert.Empty(t, active(hosts), "released when virsh returns")
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	assert.Equal(t, []string{"kvm-b"}, active(hosts))
	settled(t, b)

	rows, err := b.Store().Commands(ctx, api.CommandFilter{Limit: 100})
	require.NoError(t, err)
	assert.True(t, slices.ContainsFunc(rows, func(c api.Command) bool { return slices.Equal(c.Argv, []string{"lvchange", "-ay", "vg_plain/vm1"}) }), "no lock is asked of LVM")
}

func TestClaimsNotOptedIn(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	for _, h := range c.Hosts {
		h.members = nil
	}
	a := hosts[0]
	_, err := a.Run("lvchange", "-ay", "vg_plain/vm1")
	require.NoError(t, err)
	require.NoError(t, a.Virt.Start(ctx, "vm1"), "out of scope")
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, []string{"kvm-a"}, active(hosts), "and left alone")
}

// Activated by hand, or by the boot of that host.
func TestClaimsSeeWhatIsActive(t *testing.T) {
	_, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	_, err := b.Run("lvchange", "-ay", "vg_plain/vm1")
	require.NoError(t, err)
	startFails(t, a, "vg_plain/vm1 is active on kvm-b, and virtlvm has not activated it there; whoever did can run 'lvchange -an vg_plain/vm1' on kvm-b")

	// There it may be used; its device is refreshed, it may be old.
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	rows, err := b.Store().Commands(ctx, api.CommandFilter{Limit: 100})
	require.NoError(t, err)
	assert.True(t, slices.ContainsFunc(rows, func(c api.Command) bool {
		return slices.Equal(c.Argv, []string{"lvchange", "--refresh", "vg_plain/vm1"})
	}))
}

func TestClaimsNeedTheSameMembers(t *testing.T) {
	_, hosts := claiming(t, "kvm-a", "kvm-b", "kvm-c")
	a, b := hosts[0], hosts[1]
	b.setMembers("vg_plain", "kvm-a", "kvm-b")
	startFails(t, a, "the members of vg_plain are kvm-a, kvm-b, kvm-c on kvm-a, and kvm-a, kvm-b on kvm-b; make them the same in virtlvm.toml on all hosts")
	startFails(t, b, "the members of vg_plain are")
	startFails(t, hosts[2], "the members of vg_plain are")
	b.setMembers("vg_plain", "kvm-a", "kvm-b", "kvm-c")
	require.NoError(t, a.Virt.Start(ctx, "vm1"))

	a.setMembers("vg_plain", "kvm-b", "kvm-c")
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"), "a stop never needs the others")
	assert.Empty(t, active(hosts))
	startFails(t, a, "this host (kvm-a) is not among the members of vg_plain in virtlvm.toml (kvm-b, kvm-c)")
}

func TestClaimsSilenceAndFencing(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b", "kvm-c")
	a, b, other := hosts[0], hosts[1], hosts[2]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	_, err := b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-a"}, "tester")
	require.ErrorContains(t, err, "kvm-a answers, so that it is not off")
	_, err = b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-x"}, "tester")
	require.ErrorContains(t, err, "kvm-x is no member")
	_, err = b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-b"}, "tester")
	require.ErrorContains(t, err, "kvm-b is this host, which is not off")
	_, err = b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-a", Withdraw: true}, "tester")
	require.ErrorContains(t, err, "kvm-a is not declared fenced on kvm-b; those that are: none")

	a.PowerCut()
	startFails(t, b, "kvm-a is a member of vg_plain and does not say what it has of it (cannot reach kvm-a: no answer), so that nothing of it is activated here; bring that host back or, if it is surely off, run 'virtlvm host fenced kvm-a' on kvm-b")
	_, err = b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-a"}, "tester")
	require.NoError(t, err)
	startFails(t, other, "kvm-a is a member of vg_plain and does not say") // it has not been told
	_, err = b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-aa", Withdraw: true}, "tester")
	require.ErrorContains(t, err, "kvm-aa is not declared fenced on kvm-b; those that are: kvm-a")
	_, err = b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-a", Withdraw: true}, "tester")
	require.NoError(t, err)
	startFails(t, b, "kvm-a is a member of vg_plain and does not say")
	_, err = b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-a"}, "tester")
	require.NoError(t, err)
	b.StopDaemon()
	b.StartDaemon()
	require.NoError(t, b.Virt.Start(ctx, "vm1"), "written down")
	assert.Equal(t, []string{"kvm-b"}, active(hosts))

	// It is back, with another boot: its silence counts again, at once.
	a.Boot()
	startFails(t, a, "is claimed exclusively by kvm-b for guest vm1")
	assert.Empty(t, b.Engine().FencedHosts())
	require.NoError(t, b.Virt.Destroy(ctx, "vm1"))
	host := "kvm-a"
	cutOff(c, &host)
	startFails(t, b, "kvm-a is a member of vg_plain and does not say")
	startFails(t, a, "kvm-b is a member of vg_plain and does not say")

	// The site's own word.
	b.fenceStatus = func(string) (bool, error) { return false, errors.New("no answer from the power switch") }
	startFails(t, b, "kvm-a is a member of vg_plain and does not say")
	b.fenceStatus = func(host string) (bool, error) { return host == "kvm-a", nil }
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	startFails(t, a, "kvm-b is a member of vg_plain and does not say")
}

// Declared off by mistake: that it is heard of is enough.
func TestClaimsOfAHostFencedInError(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	startFails(t, b, "is claimed exclusively by kvm-a")
	host := "kvm-a"
	cutOff(c, &host)
	_, err := b.Engine().DeclareFenced(ctx, api.FencedRequest{Host: "kvm-a"}, "tester")
	require.NoError(t, err)
	host = "" // before anything was started
	startFails(t, b, "is claimed exclusively by kvm-a")
	host = "kvm-a"
	startFails(t, b, "kvm-a is a member of vg_plain and does not say")
	assert.Contains(t, b.Engine().Status(ctx).Events[0].Text, "kvm-a was declared fenced (by tester, at ")
}

func TestClaimsBothAtOnce(t *testing.T) {
	rounds := 200
	if testing.Short() || raceOn {
		rounds = 20 // make test runs them all without the race detector
	}
	_, hosts := claiming(t, "kvm-a", "kvm-b", "kvm-c")
	won := map[string]int{}
	for i := range rounds {
		errs := make([]error, len(hosts))
		var wg sync.WaitGroup
		for n, h := range hosts {
			wg.Go(func() { errs[n] = h.Virt.Start(ctx, "vm1") })
		}
		wg.Wait()
		var winner *Host
		for n, h := range hosts {
			if errs[n] == nil {
				require.Nil(t, winner, "round %d: two run: %v", i, errs)
				winner = h
			}
		}
		require.NotNil(t, winner, "round %d: nobody runs: %v", i, errs)
		require.Equal(t, []string{winner.Name}, active(hosts))
		won[winner.Name]++
		require.NoError(t, winner.Virt.Destroy(ctx, "vm1"))
		require.Empty(t, active(hosts))
	}
	t.Logf("%d rounds, won by %v", rounds, won)
}

func TestClaimsMigrate(t *testing.T) {
	_, hosts := claiming(t, "kvm-a", "kvm-b", "kvm-c")
	a, b, other := hosts[0], hosts[1], hosts[2]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	mode := func(h *Host) string {
		vols, err := h.Engine().Volumes(ctx, "vg_plain")
		require.NoError(t, err)
		require.Len(t, vols, 1)
		return vols[0].Actual
	}
	during := ""
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s == fakevirt.StepPerforming {
			during = mode(a) + " " + mode(b)
			startFails(t, other, "vg_plain/vm1 is claimed shared by kvm-a for guest vm1")
		}
		return nil
	}}))
	assert.Equal(t, "sh sh", during)
	require.Eventually(t, func() bool {
		b.Engine().Kick()
		return mode(a) == "off" && mode(b) == "ex"
	}, 20*time.Second, 50*time.Millisecond)
	settled(t, a)
	settled(t, b)
	assert.Equal(t, []string{"kvm-b"}, active(hosts))
	startFails(t, a, "is claimed exclusively by kvm-b")

	// It fails: the source has it alone again.
	require.Error(t, fakevirt.Migrate(ctx, b.Virt, a.Virt, "vm1", fakevirt.MigrateOptions{Step: failAt(fakevirt.StepPerforming, fakevirt.ErrAborted)}))
	require.Eventually(t, func() bool {
		a.Engine().Kick()
		b.Engine().Kick()
		return mode(a) == "off" && mode(b) == "ex"
	}, 20*time.Second, 50*time.Millisecond)
}

func TestClaimsOutliveTheDaemon(t *testing.T) {
	_, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	settled(t, a)
	a.StopDaemon()
	startFails(t, b, "kvm-a is a member of vg_plain and does not say")
	a.StartDaemon()
	startFails(t, b, "is claimed exclusively by kvm-a for guest vm1")
	settled(t, a)
}

// A guest that ran before virtlvm did claims what it has, if nobody else has it.
func TestClaimsOfAnAdoptedGuest(t *testing.T) {
	_, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	a.glass.Store(true)
	_, err := a.Run("lvchange", "-ay", "vg_plain/vm1")
	require.NoError(t, err)
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	a.glass.Store(false)
	a.Engine().Kick()
	require.Eventually(t, func() bool { return a.Engine().Status(ctx).Holds.Exclusive == 1 }, 5*time.Second, 10*time.Millisecond)
	settled(t, a)
	startFails(t, b, "is claimed exclusively by kvm-a for guest vm1")
}

func TestClaimsChangeNoMetadata(t *testing.T) {
	_, hosts := claiming(t, "kvm-a", "kvm-b")
	a := hosts[0]
	_, err := a.Engine().Create(ctx, activation.Work{Key: "one"}, "vg_plain/new", 4<<20)
	require.ErrorContains(t, err, "volume group vg_plain has no lvmlockd, so that no volume in it is made")
}

// measured is a network that notes how many volumes one question is about.
type measured struct {
	direct
	most *atomic.Int64
}

func (n measured) Call(ctx context.Context, from, to, path string, body []byte) ([]byte, error) {
	if path == api.RoutePeerClaims {
		var q api.ClaimsQuery
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		n.most.Store(max(n.most.Load(), int64(len(q.LVs))))
	}
	return n.direct.Call(ctx, from, to, path, body)
}

// A volume group of hundreds of volumes is asked about in parts: what is larger than the
// server takes would be refused each time.
func TestClaimsOfManyVolumes(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	for i := range 600 {
		_, err := c.SAN.AddLV("vg_plain", san.LVSpec{Name: fmt.Sprintf("d%d", i)})
		require.NoError(t, err)
	}
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	var most atomic.Int64
	c.Net = measured{direct{c}, &most}
	vols, err := a.Engine().Volumes(ctx, "vg_plain")
	require.NoError(t, err)
	assert.Len(t, vols, 601)
	held := 0
	for _, v := range vols {
		for _, h := range v.Holders {
			held++
			assert.Equal(t, "vg_plain/vm1 kvm-b", v.Name+" "+h.Host)
		}
	}
	assert.Equal(t, 1, held)
	assert.EqualValues(t, 500, most.Load())
}

// Hosts that have neither lvmlockd nor sanlock need none of them for it.
func TestClaimsWithoutLvmlockd(t *testing.T) {
	_, hosts := claiming(t, "kvm-a", "kvm-b")
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		require.NoError(t, h.LVM.LockStop("vg_san"))
		require.NoError(t, h.LVM.StopLvmlockd())
		require.NoError(t, h.LVM.KillSanlock())
		h.StopDaemon()
		h.StartDaemon()
	}
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	startFails(t, b, "vg_plain/vm1 is claimed exclusively by kvm-a for guest vm1")
	lock, err := b.Locks().Show(ctx, "vg_plain/vm1")
	require.NoError(t, err)
	require.Len(t, lock.Hosts, 1)
	assert.Equal(t, api.KnownPeers, lock.Known)
	assert.Equal(t, "kvm-a", lock.Hosts[0].Host)
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
	require.Eventually(t, func() bool {
		b.Engine().Kick()
		return b.Engine().Status(ctx).Holds.Exclusive == 1 && len(b.Engine().Status(ctx).Pending) == 0 && slices.Equal(active(hosts), []string{"kvm-b"})
	}, 20*time.Second, 50*time.Millisecond)
	settled(t, b)
}

// A third member that is silent keeps the destination from claiming what would be lent: so
// nothing is lent, and the source keeps it to itself.
func TestClaimsMigrateBesideASilentMember(t *testing.T) {
	c, hosts := claiming(t, "kvm-a", "kvm-b", "kvm-c")
	a, b := hosts[0], hosts[1]
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	settled(t, a)
	host := "kvm-c"
	cutOff(c, &host)
	err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{})
	require.ErrorContains(t, err, "kvm-c is a member of vg_plain and does not say")
	assert.Equal(t, []string{"kvm-a"}, active(hosts))
	settled(t, a)
	assert.Equal(t, 1, a.Engine().Status(ctx).Holds.Exclusive)
	host = ""
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
}
