//go:build e2e

package scenario

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// TestLocks is the cluster lock manager: who holds what, asked from the other host, moving a
// lock, what others do by hand, `virtlvm check`, and storage that is lost.
func TestLocks(t *testing.T) {
	run(t,
		scenario{"lock_show", lockShow, true},
		scenario{"transfer", transfer, true},
		scenario{"transfer_in_use", transferInUse, true},
		scenario{"transfer_dead", transferDead, true},
		scenario{"noticed", noticed, false},
		scenario{"check_right", checkRight, true},
		scenario{"check_wrong", checkWrong, true},
		scenario{"lun_gone", lunGone, true},
		scenario{"lun_stalled", lunStalled, true},
		scenario{"unsafe_claims", unsafeClaims, true},
		scenario{"as_it_was", asItWas, true},
	)
}

// held is who holds a volume: host name -> mode.
type held map[string]string

// shows waits until a host tells who holds a volume, and until that is what the lease says.
// A conversion at that moment is told as one, never as somebody's.
func (e *env) shows(asked *cluster.Host, v cluster.Volume, want held) api.Lock {
	e.Helper()
	var l api.Lock
	require.NoError(e, cluster.Eventually(e.ctx, 2*time.Minute, func() error {
		l = api.Lock{}
		if err := asked.Ask(e.ctx, &l, "lock", "show", v.Full()); err != nil {
			return err
		}
		lease, err := asked.Lease(e.ctx, v)
		if err != nil {
			return err
		}
		truth, told := held{}, held{}
		for _, h := range []*cluster.Host{e.a, e.b} {
			for _, id := range lease.SH {
				if id == h.ID {
					truth[h.Name] = cluster.ModeSH
				}
			}
			if lease.EX == h.ID {
				truth[h.Name] = cluster.ModeEX
			}
		}
		for _, h := range l.Hosts {
			told[h.Host] = h.Mode
		}
		if l.Known != api.KnownLease || l.Converting || !maps.Equal(told, truth) || !maps.Equal(told, want) {
			return fmt.Errorf("lock show %s on %s: known by %s, converting %v, told %v, the lease says %s, wanted %v", v.Full(), asked.Name, l.Known, l.Converting, told, lease, want)
		}
		return nil
	}))
	return l
}

// lockShow: through every step of a migration each host tells what the other holds.
func lockShow(e *env) {
	v, a, b := e.one, e.a.Name, e.b.Name
	everywhere := func(want held) {
		e.Helper()
		for _, h := range e.hosts {
			e.shows(h, v, want)
		}
	}
	everywhere(held{})
	e.define(disk("vm1", v), e.a, e.b)
	e.start(e.b, "vm1")
	everywhere(held{b: cluster.ModeEX})
	l := e.shows(e.a, v, held{b: cluster.ModeEX})
	require.Equal(e, []string{"vm1"}, l.Hosts[0].Guests)
	require.Equal(e, api.Yes, l.Hosts[0].Active)
	require.Equal(e, api.Yes, l.Hosts[0].Open)
	r := e.whileMoving(e.b, e.a, "vm1", func(undo func()) {
		everywhere(held{a: cluster.ModeSH, b: cluster.ModeSH})
		undo()
	})
	require.Zero(e, r.Exit, r.Output())
	everywhere(held{a: cluster.ModeEX})
	// The whole group in one look, and a host that is asked where to work.
	var all []api.Lock
	require.NoError(e, e.b.Ask(e.ctx, &all, "locks", cluster.VG, "--cluster"))
	for _, l := range all {
		if l.Volume == v.Full() {
			require.Len(e, l.Hosts, 1)
			require.Equal(e, a, l.Hosts[0].Host)
		}
	}
	var where api.Endpoint
	require.NoError(e, e.b.Ask(e.ctx, &where, "lock", "where", v.Full()))
	require.Equal(e, a, where.Host)
	require.Equal(e, api.ReasonHolder, where.Reason)
	e.destroy(e.a, "vm1")
	e.released(v)
	everywhere(held{})
	var hosts []api.Host
	require.NoError(e, e.a.Ask(e.ctx, &hosts, "hosts"))
	require.Len(e, hosts, 2)
	for _, h := range hosts {
		require.Equal(e, "live", h.State)
		require.NotNil(e, h.Daemon, "%s: %s", h.Name, h.Problem)
		e.Logf("hosts: %s host_id %d, lease renewed %d s ago, latency %s, clock %s", h.Name, h.HostID, h.Age, h.Daemon.Latency, h.Daemon.Clock)
	}
}

// moves runs `virtlvm lock transfer` on a host.
func (e *env) moves(on *cluster.Host, v cluster.Volume, to *cluster.Host, options ...string) cluster.Result {
	e.Helper()
	line := strings.Join(append([]string{"virtlvm --json lock transfer", v.Full(), "--to", to.Name}, options...), " ")
	r, err := on.Run(e.ctx, line)
	require.NoError(e, err)
	e.Logf("%s on %s: exit %d after %.1f s %s", line, on.Name, r.Exit, r.Duration.Seconds(), r.Output())
	return r
}

// transfer: an idle volume goes to the other host and back, asked from either.
func transfer(e *env) {
	v := e.one
	moved := func(r cluster.Result) bool {
		require.Zero(e, r.Exit, r.Output())
		var t api.TransferResult
		require.NoError(e, json.Unmarshal([]byte(r.Stdout), &t), r.Stdout)
		require.Len(e, t.Volumes, 1)
		return t.Volumes[0].Moved
	}
	e.must(e.a, "virtlvm activate "+v.Full())
	require.True(e, moved(e.moves(e.a, v, e.b)))
	e.alone(e.b, v)
	require.False(e, moved(e.moves(e.a, v, e.b)), "it is there already")
	require.True(e, moved(e.moves(e.a, v, e.a)), "asked by the target")
	e.alone(e.a, v)
	require.True(e, moved(e.moves(e.a, v, e.b)))
	e.alone(e.b, v)
	// A guest gets what is only retained elsewhere.
	e.define(disk("vm1", v), e.a)
	e.start(e.a, "vm1")
	e.alone(e.a, v)
	e.destroy(e.a, "vm1")
	e.released(v)
}

// transferInUse: what a guest has stays where it is.
func transferInUse(e *env) {
	guest, v := e.running()
	for _, on := range e.hosts {
		r := e.moves(on, v, e.b)
		require.Equal(e, api.KindInUse.ExitCode(), r.Exit)
		require.Contains(e, r.Stderr, "is used on kvm-a by guest vm1")
	}
	e.over(e.a, guest, v)
}

// transferDead: the lock of a host that has lost power is not taken by force; the answer says
// when it frees itself, and --wait waits.
func transferDead(e *env) {
	v := e.two
	e.must(e.b, "virtlvm activate "+v.Full())
	e.holds(e.b, v, cluster.ModeEX)
	require.NoError(e, e.b.Kill())
	killed := time.Now()
	require.NoError(e, cluster.Eventually(e.ctx, time.Minute, func() error {
		r := e.moves(e.a, v, e.a)
		require.NotZero(e, r.Exit)
		require.Contains(e, r.Stderr, e.b.Name)
		if !strings.Contains(r.Stderr, "frees it in about") {
			return fmt.Errorf("it is not told when: %s", r.Stderr)
		}
		return nil
	}))
	lease, err := e.a.Lease(e.ctx, v)
	require.NoError(e, err)
	require.Equal(e, e.b.ID, lease.EX, "somebody has taken it by force")
	r := e.moves(e.a, v, e.a, "--wait", "--timeout", "5m")
	require.Zero(e, r.Exit, r.Output())
	e.Logf("kvm-a has it %.0f s after the power cut", time.Since(killed).Seconds())
	require.Greater(e, time.Since(killed), 60*time.Second)
	e.holds(e.a, v, cluster.ModeEX)
	e.must(e.a, "virtlvm deactivate "+v.Full())
	e.boot(e.b)
	require.NoError(e, e.b.StartLockspace(e.ctx))
	e.released(v)
}

// noticed: what somebody does by hand is an event, soon, and is left as it is.
func noticed(e *env) {
	v := e.one
	for _, step := range []struct {
		command, kind string
		within        time.Duration
	}{
		{"lvchange -aey", api.EventActivated, 10 * time.Second},
		{"lvchange -asy", api.EventMode, 100 * time.Second}, // by the periodic look
		{"lvchange -an", api.EventDeactivated, 10 * time.Second},
	} {
		// By the host's own clock; lvchange works on after the device has changed.
		at := e.must(e.a, step.command+" "+v.Full()+" && date +%s%3N")
		var ms int64
		_, err := fmt.Sscan(at, &ms)
		require.NoError(e, err)
		done := time.UnixMilli(ms)
		require.NoError(e, cluster.Eventually(e.ctx, step.within, func() error {
			var s api.Status
			if err := e.a.Ask(e.ctx, &s, "status"); err != nil {
				return err
			}
			for _, i := range s.Events {
				if i.Kind == step.kind && i.Subject == v.Full() && i.At.After(done.Add(-30*time.Second)) {
					e.Logf("%s: noticed %.1f s after it: %s", step.command, i.At.Sub(done).Seconds(), i.Text)
					return nil
				}
			}
			return fmt.Errorf("%s was not noticed: %+v", step.command, s.Events)
		}))
	}
	e.released(v)
}
