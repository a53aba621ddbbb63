package locks

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

const ex, sh, off = model.ModeEX, model.ModeSH, model.ModeOff

func brief(k api.Lock) string {
	text := k.Known
	for _, h := range k.Hosts {
		text += fmt.Sprintf(" %s(%s,%s)", h.Host, h.Mode, h.Active)
	}
	return text
}

func TestShowAsksTheHoldersAlone(t *testing.T) {
	w := newWorld(2, 5)
	w.held(0, 2, sh)
	w.held(0, 3, sh)
	k, err := w.locks(t).Show(t.Context(), "vg/lv0")
	require.NoError(t, err)
	assert.Equal(t, "lease kvm-b(sh,yes) kvm-c(sh,yes)", brief(k))
	assert.Equal(t, "-wi-a-----", k.Attr)
	assert.Equal(t, map[string]int{"kvm-b": 1, "kvm-c": 1}, w.asked)
	_, err = w.locks(t).Show(t.Context(), "vg/none")
	assert.Equal(t, api.KindNotFound, api.KindOf(err))
}

// In a VG without lvmlockd the members are asked, and all must have answered.
func TestClaimsAreKnownFromTheMembers(t *testing.T) {
	claiming := func() *world {
		w := newWorld(1, 3)
		w.members, w.leaseOK = []string{"kvm-a", "kvm-b", "kvm-c"}, false
		return w
	}
	answer := func(id int, mode model.LockMode) api.LocksAnswer {
		return api.LocksAnswer{HostID: id, Started: true, Volumes: []api.LocalLock{{UUID: "lv0", Mode: string(mode), Active: true, Guests: []string{"vm1"}, Use: api.UseGuest}}}
	}
	show := func(w *world) api.Lock {
		k, err := w.locks(t).Show(t.Context(), "vg/lv0")
		require.NoError(t, err)
		return k
	}
	w := claiming()
	w.said["kvm-b"] = answer(2, ex)
	k := show(w)
	assert.Equal(t, "peers kvm-b(ex,yes)", brief(k))
	assert.Equal(t, []string{"vm1"}, k.Hosts[0].Guests)
	assert.Empty(t, k.Problem)

	assert.Equal(t, "peers", brief(show(claiming())), "nobody claims it")

	w = claiming()
	w.said["kvm-b"] = answer(2, ex)
	delete(w.said, "kvm-c")
	k = show(w)
	assert.Equal(t, "unknown kvm-b(ex,yes)", brief(k))
	assert.Equal(t, []string{"kvm-c"}, k.Silent)
	assert.Equal(t, "not every member of vg has answered", k.Problem)

	h := w.hosts[3]
	h.State = model.HostDead // declared fenced
	w.hosts[3] = h
	assert.Equal(t, "peers kvm-b(ex,yes)", brief(show(w)))

	w = claiming()
	w.said["kvm-a"], w.said["kvm-b"] = answer(1, ex), answer(2, ex)
	k = show(w)
	assert.Equal(t, api.KnownUnknown, k.Known)
	assert.Contains(t, k.Problem, "ALARM: kvm-a and kvm-b all claim it exclusively")
}

func TestContradictions(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*world)
		want   string
		says   string
	}{
		"the holder does not know of it": {func(w *world) {
			w.held(0, 2, ex)
			w.said["kvm-b"] = api.LocksAnswer{HostID: 2}
		}, "lease kvm-b(ex,no)", "its lease names kvm-b (ex), whose lvmlockd has it off: it has just changed, or the lock is orphaned there"},
		"this host says that it holds it": {func(w *world) {
			w.held(0, 1, ex)
			w.holders = map[string][]model.Holder{}
		}, "lease kvm-a(off,yes)", "kvm-a says that it holds it (ex), which its lease does not say"},
		"a host with two ids": {func(w *world) {
			w.held(0, 2, ex)
			w.hosts[9] = lease.Host{ID: 9, Name: "kvm-b", State: model.HostLive}
		}, "lease kvm-b(ex,unknown)", ""},
		"a host that answers for another": {func(w *world) {
			w.held(0, 2, ex)
			w.said["kvm-b"] = w.said["kvm-c"]
		}, "lease kvm-b(ex,unknown)", ""},
		"a host without a name": {func(w *world) {
			w.hosts[2] = lease.Host{ID: 2, State: model.HostLive}
			w.held(0, 2, ex)
		}, "lease host_id 2(ex,unknown)", ""},
		"a dead host is not asked": {func(w *world) {
			w.hosts[2] = lease.Host{ID: 2, Name: "kvm-b", State: model.HostFail, FreeIn: 40}
			w.held(0, 2, ex)
		}, "lease kvm-b(ex,unknown)", ""},
		"a mode that nobody knows": {func(w *world) {
			w.held(0, 2, ex)
			w.said["kvm-b"] = api.LocksAnswer{HostID: 2, Volumes: []api.LocalLock{{UUID: "lv0", Mode: "sideways"}}}
		}, "lease kvm-b(ex,unknown)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1, 3)
			tt.change(w)
			k, err := w.locks(t).Show(t.Context(), "vg/lv0")
			require.NoError(t, err)
			assert.Equal(t, tt.want, brief(k))
			if tt.says == "" {
				assert.Empty(t, k.Problem)
			} else {
				assert.Contains(t, k.Problem, tt.says)
				assert.Empty(t, w.hints, "nothing is recorded of it")
			}
		})
	}
}

func TestConverting(t *testing.T) {
	w := newWorld(1, 3)
	w.held(0, 2, ex)
	w.held(0, 3, sh)
	k, err := w.locks(t).Show(t.Context(), "vg/lv0")
	require.NoError(t, err)
	assert.True(t, k.Converting)
	assert.Empty(t, w.hints)
	assert.Equal(t, 3, w.asked["kvm-b"], "looked at again")
}

func TestWithoutLease(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*world)
		want   string
		asked  int
	}{
		"recorded, and right":       {func(w *world) { w.held(0, 3, ex); w.record(0, "kvm-c", ex) }, "hint kvm-c(ex,yes)", 1},
		"recorded, and wrong":       {func(w *world) { w.held(0, 3, ex); w.record(0, "kvm-b", ex) }, "peers kvm-c(ex,yes)", 3},
		"recorded as shared":        {func(w *world) { w.held(0, 3, sh); w.record(0, "kvm-c", sh) }, "peers kvm-c(sh,yes)", 3},
		"never seen":                {func(w *world) { w.held(0, 3, ex) }, "peers kvm-c(ex,yes)", 3},
		"held here":                 {func(w *world) { w.held(0, 1, ex) }, "hint kvm-a(ex,yes)", 0},
		"free":                      {func(*world) {}, "peers", 3},
		"free, but one is silent":   {func(w *world) { delete(w.said, "kvm-d") }, "unknown", 3},
		"shared, and one is silent": {func(w *world) { w.held(0, 3, sh); delete(w.said, "kvm-d") }, "unknown kvm-c(sh,yes)", 3},
		"held, and one is silent":   {func(w *world) { w.held(0, 3, ex); delete(w.said, "kvm-d") }, "peers kvm-c(ex,yes)", 3},
		"two say they hold it":      {func(w *world) { w.held(0, 2, ex); w.held(0, 3, ex) }, "unknown kvm-b(ex,yes) kvm-c(ex,yes)", 3},
		"a host that is no peer":    {func(w *world) { w.hosts[9] = lease.Host{ID: 9, Name: "kvm-z", State: model.HostLive} }, "unknown", 3},
		"a dead host that is none":  {func(w *world) { w.hosts[9] = lease.Host{ID: 9, Name: "kvm-z", State: model.HostDead} }, "peers", 3},
		"a host without a name":     {func(w *world) { w.hosts[9] = lease.Host{ID: 9, State: model.HostFail} }, "unknown", 3},
		"which hosts is not known":  {func(w *world) { w.hostErr = api.NewError(api.KindLocking, "no sanlock") }, "unknown", 3},
		"a liar is silent":          {func(w *world) { w.said["kvm-b"] = w.said["kvm-c"] }, "unknown", 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1, 4)
			w.leaseOK = false
			tt.change(w)
			recorded := len(w.hints) > 0
			k, err := w.locks(t).Show(t.Context(), "vg/lv0")
			require.NoError(t, err)
			assert.Equal(t, tt.want, brief(k))
			assert.Len(t, w.asked, tt.asked)
			if k.Known == api.KnownUnknown {
				assert.NotEmpty(t, k.Problem)
				assert.Len(t, w.hints, map[bool]int{true: 1, false: 0}[recorded], "nothing is recorded of what is not known")
			}
		})
	}
}

func (w *world) record(lv int, host string, mode model.LockMode) {
	v := w.vols[lv]
	w.hints[v.ID] = model.LockHint{Volume: v.ID, Name: v.Name(), Host: host, Mode: mode, Since: 5}
}

func TestHints(t *testing.T) {
	w := newWorld(4, 3)
	w.held(0, 2, ex)
	w.held(1, 2, sh)
	w.held(1, 3, sh)
	w.held(2, 3, ex)
	w.record(2, "kvm-b", ex)
	gone := model.LockHint{Volume: model.VolumeID{VG: "vg-uuid", LV: "gone"}, Name: "vg/gone", Host: "kvm-b", Mode: ex, Since: 5}
	w.hints[gone.Volume] = gone
	l := w.locks(t)
	list := func() []api.Lock {
		all, err := l.List(t.Context(), "vg", false)
		require.NoError(t, err)
		return all
	}
	all := list()
	assert.Equal(t, w.now, all[0].Hosts[0].Since)
	assert.Empty(t, w.asked, "nobody is asked")
	assert.Len(t, w.hints, 3, "what was removed is forgotten, and what nobody ever held is not written down")
	assert.Equal(t, "", w.hints[w.vols[1].ID].Host, "several")
	stale, err := l.Stale(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, []api.StaleHint{{Volume: "vg/lv2", Was: "kvm-b(ex)", Host: "kvm-c", Mode: "ex", At: w.now}}, stale)

	before := w.writes
	w.now = w.now.Add(time.Minute)
	assert.True(t, list()[0].Hosts[0].Since.Equal(w.now.Add(-time.Minute)))
	assert.Equal(t, before, w.writes, "a look that finds nothing new writes nothing")

	w.holders, w.said["kvm-b"] = map[string][]model.Holder{}, api.LocksAnswer{HostID: 2}
	list()
	assert.Equal(t, off, w.hints[w.vols[0].ID].Mode)
	stale, err = l.Stale(t.Context(), "vg")
	require.NoError(t, err)
	require.Len(t, stale, 3)
	assert.Equal(t, "several(sh)", stale[1].Was)
}

func TestHostNames(t *testing.T) {
	w := newWorld(1, 3)
	w.hosts[3] = lease.Host{ID: 3, Name: "kvm-b", State: model.HostLive}
	all, err := w.locks(t).HostList(t.Context())
	require.NoError(t, err)
	var problems []string
	for _, h := range all {
		if h.Problem != "" {
			problems = append(problems, fmt.Sprintf("%d %s", h.HostID, h.Problem))
		}
	}
	clash := "host_id 2 and 3 have this name; give each its own our_host_name in /etc/sanlock/sanlock.conf"
	assert.Equal(t, []string{"2 " + clash, "3 " + clash}, problems)
	assert.Equal(t, "kvm-c", all[0].Name, "a peer of the configuration alone")

	r, err := w.locks(t).Transfer(t.Context(), api.TransferRequest{Volumes: []string{"vg/lv0"}, To: "kvm-b"}, "test")
	require.NoError(t, err)
	require.NotNil(t, r.Volumes[0].Error)
	assert.Contains(t, r.Volumes[0].Error.Message, "two hosts in the lockspace of vg are called kvm-b (host_id 2 and 3)")
	assert.EqualValues(t, 7, r.Command)
}

// Of members of a VG without lvmlockd no lease tells what they hold: they do.
func TestHostsThatClaim(t *testing.T) {
	w := newWorld(3, 3)
	w.members = []string{"kvm-a", "kvm-b", "kvm-c"}
	w.held(0, 1, ex)
	w.held(1, 2, ex)
	w.held(2, 2, sh)
	delete(w.said, "kvm-c")
	w.holders, w.leaseOK = nil, false
	all, err := w.locks(t).HostList(t.Context())
	require.NoError(t, err)
	var said []string
	for _, h := range all {
		said = append(said, fmt.Sprintf("%s %v %d %d", h.Name, h.VGs, h.Exclusive, h.Shared))
	}
	assert.Equal(t, []string{"kvm-a [vg] 1 0", "kvm-b [vg] 1 1", "kvm-c [vg] -1 -1"}, said)
	assert.Contains(t, all[2].Problem, "kvm-c cannot be reached")
}

// A lockspace that cannot be read is no empty one, also where other rows are known.
func TestHostsOfALockspaceThatCannotBeRead(t *testing.T) {
	w := newWorld(1, 3)
	w.hostErr = api.NewError(api.KindLocking, "sanlock does not answer")
	all, err := w.locks(t).HostList(t.Context())
	require.NoError(t, err)
	problems := map[string]string{}
	for _, h := range all {
		problems[h.Name] = h.Problem
	}
	assert.Equal(t, "cannot tell who is in the lockspace of vg: sanlock does not answer", problems["kvm-a"])
	assert.Contains(t, problems, "kvm-b", "a peer")
}

// Each lockspace that cannot be read is told on the one row of this host, also where that has no
// name of its own.
func TestUnreadLockspacesAreToldOnce(t *testing.T) {
	l := newWorld(0, 0).locks(t)
	rows := map[rowKey]*api.Host{{1, "", model.HostLive}: {Name: "host_id 1", HostID: 1, Self: true, State: "live"}}
	l.addUnread(rows, "vg_one", errors.New("no answer"))
	l.addUnread(rows, "vg_two", errors.New("no name"))
	require.Len(t, rows, 1)
	assert.Equal(t, "cannot tell who is in the lockspace of vg_one: no answer; cannot tell who is in the lockspace of vg_two: no name", rows[rowKey{1, "", model.HostLive}].Problem)
}

func TestWatchHosts(t *testing.T) {
	w := newWorld(0, 2)
	l, seen := w.locks(t), map[hostKey]lease.Host{}
	for _, step := range []struct {
		state  model.HostState
		gen    int64
		freeIn int
		event  string
		silent bool
	}{
		{model.HostLive, 1, 0, "", false},
		{model.HostFail, 1, 58, "kvm-b: kvm-b has stopped renewing its leases in vg; sanlock frees them in about 58s", true},
		{model.HostFail, 1, 40, "", true},
		{model.HostLive, 1, 0, "kvm-b: kvm-b renews its leases in vg again", false},
		{model.HostFail, 1, 58, "kvm-b: kvm-b has stopped renewing its leases in vg; sanlock frees them in about 58s", true},
		{model.HostDead, 1, 0, "kvm-b: kvm-b is dead to sanlock in vg: what it held is free", false},
		{model.HostUnknown, 2, 0, "", false},
		{model.HostLive, 2, 0, "kvm-b: kvm-b has joined the lockspace of vg", false},
		{model.HostDead, 2, 0, "kvm-b: kvm-b has left the lockspace of vg", false},
		{model.HostLive, 3, 0, "kvm-b: kvm-b has joined the lockspace of vg", false},
		{model.HostLive, 4, 0, "kvm-b: kvm-b has joined the lockspace of vg", false},
	} {
		w.events = nil
		w.hosts[2] = lease.Host{ID: 2, Name: "kvm-b", Gen: step.gen, State: step.state, FreeIn: step.freeIn}
		assert.Equal(t, step.silent, l.lookAtHosts(t.Context(), seen))
		if step.event == "" {
			assert.Empty(t, w.events)
		} else {
			assert.Equal(t, []string{step.event}, w.events)
		}
	}
	// A host that is in trouble when the daemon starts is told, one that is dead is not.
	w.events = nil
	w.hosts[2] = lease.Host{ID: 2, Name: "kvm-b", Gen: 4, State: model.HostFail}
	w.hosts[3] = lease.Host{ID: 3, Gen: 1, State: model.HostDead}
	l.lookAtHosts(t.Context(), map[hostKey]lease.Host{})
	assert.Equal(t, []string{"kvm-b: kvm-b has stopped renewing its leases in vg"}, w.events)
}

// One look at a lease costs the same whatever the number of hosts; asking all of them at
// 50 ms each takes a few times that.
func BenchmarkShow(b *testing.B) {
	for _, hosts := range []int{2, 20, 200, 2000} {
		for name, lease := range map[string]bool{"lease": true, "fan-out": false} {
			b.Run(fmt.Sprintf("%s/%d", name, hosts), func(b *testing.B) {
				w := newWorld(1, hosts)
				w.held(0, 2, ex)
				w.leaseOK = lease
				if !lease {
					w.delay = 50 * time.Millisecond
				}
				l := w.locks(b)
				for b.Loop() {
					w.hints = map[model.VolumeID]model.LockHint{}
					if _, err := l.Show(b.Context(), "vg/lv0"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkList(b *testing.B) {
	w := newWorld(10_000, 20)
	for i := range w.vols {
		w.held(i, 1+i%20, ex)
	}
	for name, cluster := range map[string]bool{"lease": false, "cluster": true} {
		b.Run(name, func(b *testing.B) {
			l := w.locks(b)
			for b.Loop() {
				if all, err := l.List(b.Context(), "vg", cluster); err != nil || len(all) != len(w.vols) {
					b.Fatal(err)
				}
			}
		})
	}
}
