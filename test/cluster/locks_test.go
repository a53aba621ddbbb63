package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// text is a lock in a few words: "lease: kvm-a(ex,live,active yes,open yes,guest vm1)".
func text(k api.Lock) string {
	var hosts []string
	for _, h := range k.Hosts {
		s := fmt.Sprintf("%s(%s,%s,active %s,open %s", h.Host, h.Mode, h.State, h.Active, h.Open)
		if h.Use != "" {
			s += "," + strings.TrimSpace(h.Use+" "+strings.Join(h.Guests, " "))
		}
		hosts = append(hosts, s+")")
	}
	all := k.Known + ": " + strings.Join(hosts, " ")
	if len(k.Silent) > 0 {
		all += "silent " + strings.Join(k.Silent, " ")
	}
	return strings.TrimSpace(all)
}

func shown(t *testing.T, h *Host, volume string) string {
	t.Helper()
	k, err := h.Locks().Show(ctx, volume)
	require.NoError(t, err)
	return text(k)
}

func three(t *testing.T, volumes ...string) (c *Cluster, a, b, o *Host) {
	t.Helper()
	c = New(t, "kvm-a", "kvm-b", "kvm-c")
	lvs(t, c, volumes...)
	return c, c.Hosts["kvm-a"], c.Hosts["kvm-b"], c.Hosts["kvm-c"]
}

func move(t *testing.T, on *Host, to string, volumes ...string) []api.Transfer {
	t.Helper()
	r, err := on.Locks().Transfer(ctx, api.TransferRequest{Volumes: volumes, To: to}, "test")
	require.NoError(t, err)
	return r.Volumes
}

// refusedMove must fail with a text and leave everything as it is.
func refusedMove(t *testing.T, on *Host, to, volume string, kind api.Kind, text string) {
	t.Helper()
	r, err := on.Locks().Transfer(ctx, api.TransferRequest{Volumes: []string{volume}, To: to}, "test")
	if err == nil {
		require.Len(t, r.Volumes, 1)
		require.NotNil(t, r.Volumes[0].Error, "%+v", r)
		assert.False(t, r.Volumes[0].Moved)
		err = r.Volumes[0].Error
	}
	assert.Contains(t, err.Error(), text)
	assert.Equal(t, kind, api.KindOf(err), "%v", err)
	assert.NotContains(t, err.Error(), "\n")
}

// The answer from another host is the truth at each step of a migration.
func TestLockShowThroughAMigration(t *testing.T) {
	c, a, b, o := three(t, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	assert.Equal(t, "lease:", shown(t, o, "vg_san/vm1"))
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "lease: kvm-a(ex,live,active yes,open yes,guest vm1)", shown(t, o, "vg_san/vm1"))
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		now := func() map[string]string { return map[string]string{"kvm-a": a.Mode("vm1"), "kvm-b": b.Mode("vm1")} }
		modes := now()
		k, err := o.Locks().Show(ctx, "vg_san/vm1")
		require.NoError(t, err)
		for !maps.Equal(modes, now()) { // it changed while it was asked for
			modes = now()
			k, err = o.Locks().Show(ctx, "vg_san/vm1")
			require.NoError(t, err)
		}
		for _, h := range k.Hosts {
			assert.Equal(t, modes[h.Host], h.Mode, "at %s", s)
			assert.Equal(t, "yes", h.Active, "at %s", s)
			delete(modes, h.Host)
		}
		for host, mode := range modes {
			assert.Contains(t, []string{"", "un"}, mode, "%s at %s", host, s)
		}
		return nil
	}}))
	ends(t, a, "un")
	ends(t, b, "ex")
	assert.Equal(t, "lease: kvm-b(ex,live,active yes,open yes,guest vm1)", shown(t, o, "vg_san/vm1"))

	// The recorded holder was found wrong on the way.
	stale, err := o.Locks().Stale(ctx, "vg_san")
	require.NoError(t, err)
	require.Len(t, stale, 1)
	assert.Equal(t, "kvm-b", stale[0].Host)
	assert.Equal(t, "ex", stale[0].Mode)
	stale, err = o.Locks().Stale(ctx, "vg_other")
	require.NoError(t, err)
	assert.Empty(t, stale)

	b.StopDaemon()
	assert.Equal(t, "lease: kvm-b(ex,live,active unknown,open unknown)silent kvm-b", shown(t, o, "vg_san/vm1"), "what it holds is on disk; what uses it is not known")
	_ = c
}

func TestLocksOfACluster(t *testing.T) {
	c, a, b, o := three(t, "vm1", "base", "free", "hand")
	define(t, a, "vm1", 1, Disk{Path: "vm1"}, Disk{Path: "base", Extra: "<shareable/>"})
	define(t, b, "vm2", 2, Disk{Path: "base", Extra: "<shareable/>"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.NoError(t, b.Virt.Start(ctx, "vm2"))
	_, err := b.Run("lvchange", "-asy", "vg_san/hand")
	require.NoError(t, err)

	list := func(cluster bool) map[string]string {
		all, err := o.Locks().List(ctx, "", cluster)
		require.NoError(t, err)
		found := map[string]string{}
		for _, k := range all {
			found[k.Volume] = text(k)
		}
		return found
	}
	assert.Equal(t, map[string]string{
		"vg_san/vm1":  "lease: kvm-a(ex,live,active unknown,open unknown)",
		"vg_san/base": "lease: kvm-a(sh,live,active unknown,open unknown) kvm-b(sh,live,active unknown,open unknown)",
		"vg_san/free": "lease:",
		"vg_san/hand": "lease: kvm-b(sh,live,active unknown,open unknown)",
	}, list(false), "one look at the leases, nobody is asked")
	whole := map[string]string{
		"vg_san/vm1":  "lease: kvm-a(ex,live,active yes,open yes,guest vm1)",
		"vg_san/base": "lease: kvm-a(sh,live,active yes,open yes,guest vm1) kvm-b(sh,live,active yes,open yes,guest vm2)",
		"vg_san/free": "lease:",
		"vg_san/hand": "lease: kvm-b(sh,live,active yes,open no)",
	}
	assert.Equal(t, whole, list(true))

	// The lease area cannot be read, or understood: the hosts are asked.
	for _, f := range []san.Fault{
		{Kind: san.FaultExit, Host: "kvm-c", Tool: "sanlock", Match: "direct", ExitCode: 1},
		{Kind: san.FaultGarbage, Host: "kvm-c", Tool: "sanlock", Match: "direct", Stdout: "\x00\xfe garbage\n"},
	} {
		id := fault(t, c, f)
		for volume, want := range list(false) {
			assert.Equal(t, strings.Replace(whole[volume], "lease", "peers", 1), want, volume)
		}
		// One who does not answer makes it unknown, never free.
		c.Cut = func(_, to, _ string) bool { return to == "kvm-b" }
		found := list(false)
		assert.Equal(t, "unknown: silent kvm-b", found["vg_san/free"])
		assert.Equal(t, "unknown: silent kvm-b", found["vg_san/hand"])
		assert.Equal(t, "unknown: kvm-a(sh,live,active yes,open yes,guest vm1)silent kvm-b", found["vg_san/base"])
		assert.Equal(t, "peers: kvm-a(ex,live,active yes,open yes,guest vm1)silent kvm-b", found["vg_san/vm1"], "who holds it exclusively holds it alone")
		c.Cut = nil
		require.NoError(t, c.SAN.ClearFaults(id))
	}

	// Of one volume the recorded host is asked first, and is enough.
	id := fault(t, c, san.Fault{Kind: san.FaultExit, Host: "kvm-c", Tool: "sanlock", Match: "direct", ExitCode: 1})
	c.Cut = func(_, to, _ string) bool { return to == "kvm-b" }
	assert.Equal(t, "hint: kvm-a(ex,live,active yes,open yes,guest vm1)", shown(t, o, "vg_san/vm1"))
	k, err := o.Locks().Show(ctx, "vg_san/hand")
	require.NoError(t, err)
	assert.Equal(t, "unknown", k.Known)
	require.NotNil(t, k.Recorded)
	assert.Equal(t, "kvm-b sh", k.Recorded.Host+" "+k.Recorded.Mode)
	assert.NotEmpty(t, k.Problem)
	c.Cut = nil
	require.NoError(t, c.SAN.ClearFaults(id))
}

// A device that is active without its lock shows where everybody is asked.
func TestLocksShowsDeviceWithoutLock(t *testing.T) {
	c, a, _, o := three(t, "vm1")
	_, err := a.Run("lvchange", "-aey", "vg_san/vm1")
	require.NoError(t, err)
	require.NoError(t, a.LVM.LoseLockspace("vg_san"))
	c.Advance(90 * time.Second)
	all, err := o.Locks().List(ctx, "vg_san", true)
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Contains(t, text(all[0]), "kvm-a(off,live,active yes,open no)")
}

func TestLockOfAThinVolumeIsItsPools(t *testing.T) {
	c, a, _, o := three(t)
	_, err := c.SAN.AddLV("vg_san", san.LVSpec{Name: "pool", Type: "thin-pool"})
	require.NoError(t, err)
	_, err = c.SAN.AddLV("vg_san", san.LVSpec{Name: "thin", Type: "thin", Pool: "pool"})
	require.NoError(t, err)
	define(t, a, "vm1", 1, Disk{Path: "thin"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "lease: kvm-a(ex,live,active yes,open yes,guest vm1)", shown(t, o, "vg_san/thin"))
	refusedMove(t, o, "kvm-b", "vg_san/thin", api.KindUnsupported, "has no lock of its own (type thin)")
}

func TestTransferIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, o := three(t, "vm1", "two")
		// From nobody, told by a third host; then from holder to holder, told by each.
		assert.Equal(t, []api.Transfer{{Volume: "vg_san/vm1", Moved: true}}, move(t, o, "kvm-a", "vg_san/vm1"))
		assert.Equal(t, "ex", a.Mode("vm1"))
		assert.Equal(t, []api.Transfer{{Volume: "vg_san/vm1"}}, move(t, o, "kvm-a", "vg_san/vm1"), "it is there already")
		for _, on := range []*Host{o, a, b} {
			assert.Equal(t, []api.Transfer{{Volume: "vg_san/vm1", From: "kvm-a", Moved: true}}, move(t, on, "kvm-b", "vg_san/vm1"))
			assert.Equal(t, "un ex", a.Mode("vm1")+" "+b.Mode("vm1"))
			assert.Equal(t, "lease: kvm-b(ex,live,active yes,open no,retained)", shown(t, o, "vg_san/vm1"))
			assert.Equal(t, []api.Transfer{{Volume: "vg_san/vm1", From: "kvm-b", Moved: true}, {Volume: "vg_san/two", Moved: true}}[:1], move(t, on, "kvm-a", "vg_san/vm1", "/dev/vg_san/vm1"))
		}
		// What an operator activated goes too, where an operator says so.
		_, err := a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/two"}, "test")
		require.NoError(t, err)
		assert.Equal(t, []api.Transfer{{Volume: "vg_san/two", From: "kvm-a", Moved: true}}, move(t, o, "kvm-b", "vg_san/two"))
		settled(t, a)

		// A guest starts there without more ado, and elsewhere too: nobody uses the volume.
		define(t, b, "vm2", 2, Disk{Path: "two"})
		require.NoError(t, b.Virt.Start(ctx, "vm2"))
		refusedMove(t, o, "kvm-a", "vg_san/two", api.KindInUse, "vg_san/two is used on kvm-b by guest vm2")
		require.NoError(t, b.Virt.Destroy(ctx, "vm2"))
		assert.Equal(t, "un", b.Mode("two"), "without the policy a guest's end is the end")
		define(t, b, "vm1", 1, Disk{Path: "vm1"})
		require.NoError(t, b.Virt.Start(ctx, "vm1"), "the holder is asked and lets go")
		assert.Equal(t, "un ex", a.Mode("vm1")+" "+b.Mode("vm1"))

		rows, err := o.Store().Commands(ctx, api.CommandFilter{Limit: 1000})
		require.NoError(t, err)
		last := slices.IndexFunc(rows, func(c api.Command) bool { return c.Kind == "lock transfer" })
		require.GreaterOrEqual(t, last, 0)
		assert.Equal(t, []string{"virtlvm", "lock", "transfer", "vg_san/two", "--to", "kvm-a"}, rows[last].Argv)
		assert.Equal(t, "FAILED", rows[last].State)
		for _, h := range []*Host{a, b, o} {
			ended(t, h)
		}
	})
}

func TestTransferRefused(t *testing.T) {
	c, a, b, o := three(t, "vm1", "hand", "open", "tagged")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	refusedMove(t, o, "kvm-b", "vg_san/vm1", api.KindInUse, "vg_san/vm1 is used on kvm-a by guest vm1; stop or migrate that guest")
	assert.Equal(t, "ex", a.Mode("vm1"))

	_, err := a.Run("lvchange", "-aey", "vg_san/hand")
	require.NoError(t, err)
	refusedMove(t, o, "kvm-b", "vg_san/hand", api.KindInUse, "was not activated by virtlvm on kvm-a (ex); whoever did can run 'lvchange -an vg_san/hand' there")
	assert.Equal(t, "ex", a.Mode("hand"))

	move(t, o, "kvm-a", "vg_san/open")
	require.NoError(t, a.LVM.Open("vg_san", "open", 4711))
	refusedMove(t, o, "kvm-b", "vg_san/open", api.KindInUse, "vg_san/open is open on kvm-a")
	require.NoError(t, a.LVM.CloseVolume("vg_san", "open", 0))
	assert.True(t, move(t, o, "kvm-b", "vg_san/open")[0].Moved)

	_, err = a.Run("lvchange", "--addtag", "virtlvm.shared", "vg_san/tagged")
	require.NoError(t, err)
	refusedMove(t, o, "kvm-b", "vg_san/tagged", api.KindUnsupported, "is tagged virtlvm.shared")

	refusedMove(t, o, "kvm-x", "vg_san/open", api.KindNotFound, "there is no host kvm-x in the lockspace of vg_san; those that are up: kvm-a, kvm-b, kvm-c")
	refusedMove(t, o, "kvm-a", "vg_san/none", api.KindNotFound, "there is no volume none")
	refusedMove(t, o, "kvm-a", "vg_none/x", api.KindNotFound, "there is no volume group vg_none")
	refusedMove(t, o, "kvm-a", "vg_plain/x", api.KindOutOfScope, "not managed by virtlvm")
	refusedMove(t, o, "-oProxyCommand=x", "vg_san/open", api.KindBadRequest, "is not a name of a host")
	refusedMove(t, o, "kvm-a", "../x", api.KindBadRequest, "cannot be a logical volume")
	for _, req := range []api.TransferRequest{{To: "kvm-a"}, {To: "kvm-a", Guest: "vm1", Volumes: []string{"vg_san/open"}}} {
		_, err = o.Locks().Transfer(ctx, req, "test")
		assert.Equal(t, api.KindBadRequest, api.KindOf(err))
	}

	// To a host whose daemon does not answer, whose lockspace is not started, or that is
	// not the one it says: refused before anything changes.
	a.StopDaemon()
	refusedMove(t, o, "kvm-a", "vg_san/open", api.KindUnreachable, "vg_san/open stays where it is: cannot reach kvm-a: no answer")
	a.StartDaemon()
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	_, err = a.Run("lvchange", "-an", "vg_san/hand")
	require.NoError(t, err)
	require.NoError(t, a.LVM.LockStop("vg_san"))
	refusedMove(t, o, "kvm-a", "vg_san/open", api.KindLocking, "kvm-a is not up in the lockspace of vg_san: it is down, or the lockspace is not started there ('vgchange --lockstart vg_san')")
	assert.Equal(t, "ex", b.Mode("open"))
	_ = c
}

func TestTransferDeadHolderAndTarget(t *testing.T) {
	c, a, b, o := three(t, "vm1")
	move(t, o, "kvm-a", "vg_san/vm1")
	a.PowerCut()
	c.Advance(20 * time.Second)
	refusedMove(t, o, "kvm-b", "vg_san/vm1", api.KindHeld, "vg_san/vm1 is held exclusively by kvm-a, a host that is not renewing its leases (sanlock: fail); sanlock frees it in about ")
	refusedMove(t, o, "kvm-a", "vg_san/vm1", api.KindLocking, "kvm-a does not renew its leases")
	assert.Contains(t, shown(t, o, "vg_san/vm1"), "lease: kvm-a(ex,fail,active unknown,open unknown)")

	done := make(chan api.TransferResult, 1)
	go func() {
		r, err := o.Locks().Transfer(ctx, api.TransferRequest{Volumes: []string{"vg_san/vm1"}, To: "kvm-b", Wait: true}, "test")
		assert.NoError(t, err)
		done <- r
	}()
	select {
	case r := <-done:
		t.Fatalf("not forced: %+v", r)
	case <-time.After(100 * time.Millisecond):
	}
	assert.NotEqual(t, "ex", b.Mode("vm1"))
	c.Advance(90 * time.Second)
	select {
	case r := <-done:
		assert.Equal(t, []api.Transfer{{Volume: "vg_san/vm1", Moved: true}}, r.Volumes, "sanlock has freed it")
	case <-time.After(15 * time.Second):
		t.Fatal("--wait goes on for ever")
	}
	assert.Equal(t, "ex", b.Mode("vm1"))
}

// The target fails: the old holder takes it back, as what it was.
func TestTransferTakenBack(t *testing.T) {
	for name, operator := range map[string]bool{"retained": false, "an operator's": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a, b, o := three(t, "vm1")
			use := "retained"
			if operator {
				_, err := a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/vm1", Mode: "sh"}, "test")
				require.NoError(t, err)
				use = "operator"
			} else {
				move(t, o, "kvm-a", "vg_san/vm1")
			}
			before := shown(t, o, "vg_san/vm1")
			assert.Contains(t, before, use)
			id := fault(t, c, san.Fault{Kind: san.FaultExit, Host: "kvm-b", Tool: "lvchange", Match: "-aey", Stderr: "  device-mapper: reload ioctl failed"})
			refusedMove(t, o, "kvm-b", "vg_san/vm1", api.KindInternal, "kvm-a has taken it back")
			assert.Equal(t, before, shown(t, o, "vg_san/vm1"))
			assert.NotEqual(t, "ex", b.Mode("vm1"))
			require.NoError(t, c.SAN.ClearFaults(id))
			assert.True(t, move(t, o, "kvm-b", "vg_san/vm1")[0].Moved)
			for _, h := range []*Host{a, b, o} {
				ended(t, h)
			}
		})
	}
}

// An answer that is lost on its way is looked up in the lease.
func TestTransferAnswerLost(t *testing.T) {
	for _, route := range []string{api.RoutePeerRelease, api.RoutePeerRetain} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, a, b, o := three(t, "vm1")
				move(t, o, "kvm-a", "vg_san/vm1")
				c.Lost = func(_, _, path string) bool { return path == route }
				assert.True(t, move(t, o, "kvm-b", "vg_san/vm1")[0].Moved)
				assert.Equal(t, "un ex", a.Mode("vm1")+" "+b.Mode("vm1"))
			})
		})
	}
}

// Two transfers of one volume at once, told by several hosts: one holder in the end, never
// two, and each answer true when it is given.
func TestTransfersAtOnce(t *testing.T) {
	_, a, b, o := three(t, "vm1", "d1", "d2", "d3")
	hosts := []*Host{a, b, o}
	move(t, o, "kvm-a", "vg_san/vm1")
	for round := range 5 {
		var all sync.WaitGroup
		for i, on := range hosts {
			all.Go(func() {
				to := hosts[(i+round)%3].Name
				r, err := on.Locks().Transfer(ctx, api.TransferRequest{Volumes: []string{"vg_san/vm1"}, To: to}, "test")
				assert.NoError(t, err)
				if e := r.Volumes[0].Error; e != nil {
					assert.Contains(t, []api.Kind{api.KindHeld, api.KindInUse, api.KindLocking}, e.Kind, e.Message)
				}
			})
		}
		all.Wait()
		held := 0
		for _, h := range hosts {
			if h.Mode("vm1") == "ex" {
				held++
			}
		}
		assert.LessOrEqual(t, held, 1)
	}
	// Different ones run in parallel.
	moved := move(t, o, "kvm-b", "vg_san/d1", "vg_san/d2", "vg_san/d3")
	require.Len(t, moved, 3)
	for _, m := range moved {
		assert.True(t, m.Moved, "%+v", m)
	}
	for _, h := range hosts {
		ended(t, h)
	}
}

// A transfer while a guest starts: the guest has the volume, or the transfer; never both.
func TestTransferWhileAGuestStarts(t *testing.T) {
	_, a, b, o := three(t, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	for range 10 {
		move(t, o, "kvm-a", "vg_san/vm1")
		var all sync.WaitGroup
		var startErr error
		var result api.TransferResult
		all.Go(func() { startErr = a.Virt.Start(ctx, "vm1") })
		all.Go(func() {
			result, _ = o.Locks().Transfer(ctx, api.TransferRequest{Volumes: []string{"vg_san/vm1"}, To: "kvm-b"}, "test")
		})
		all.Wait()
		if startErr == nil {
			assert.Equal(t, "ex", a.Mode("vm1"))
			assert.NotEqual(t, "ex", b.Mode("vm1"))
			require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
			continue
		}
		assert.True(t, result.Volumes[0].Moved, "%v %+v", startErr, result)
		assert.Equal(t, "ex", b.Mode("vm1"))
	}
}

func TestTransferOfAGuest(t *testing.T) {
	c, a, b, o := three(t, "vm1", "data", "other")
	a.retain.Store(true)
	define(t, a, "vm1", 1, Disk{Path: "vm1"}, Disk{Path: "data"})
	_, err := o.Locks().Transfer(ctx, api.TransferRequest{Guest: "vm1", To: "kvm-b"}, "test")
	assert.Equal(t, api.KindNotFound, api.KindOf(err))
	runAndStop(t, a)
	c.Cut = func(_, to, _ string) bool { return to == "kvm-b" }
	_, err = o.Locks().Transfer(ctx, api.TransferRequest{Guest: "vm1", To: "kvm-b"}, "test")
	assert.Equal(t, api.KindUnknown, api.KindOf(err), "who knows what kvm-b has of it")
	c.Cut = nil
	for _, to := range []*Host{b, a, o} { // it goes on being the guest's
		r, err := o.Locks().Transfer(ctx, api.TransferRequest{Guest: "vm1", To: to.Name}, "test")
		require.NoError(t, err)
		require.Len(t, r.Volumes, 2)
		assert.Equal(t, "exex", to.Mode("vm1")+to.Mode("data"))
	}
}
