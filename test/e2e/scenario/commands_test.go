//go:build e2e

package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// TestCommands is long-running work that is asked for on kvm-b and done on kvm-a, while what
// carries it goes away: the connection of the two, or the daemon that runs it.
func TestCommands(t *testing.T) {
	run(t,
		scenario{"migrate_connection_lost", func(e *env) { e.migrates(e.connectionLost) }, true},
		scenario{"migrate_link_down", func(e *env) { e.migrates(e.linkFlaps) }, true},
		scenario{"migrate_daemon_killed", func(e *env) { e.migrates(e.daemonDies) }, true},
		scenario{"migrate_daemon_restarted", func(e *env) { e.migrates(e.daemonRestarted) }, true},
		scenario{"copy_connection_lost", func(e *env) { e.copies(e.connectionLost) }, true},
		scenario{"copy_link_down", func(e *env) { e.copies(e.linkDown) }, true},
		scenario{"copy_daemon_killed", func(e *env) { e.copies(e.daemonDies) }, true},
		scenario{"copy_daemon_restarted", func(e *env) { e.copies(e.daemonRestarted) }, true},
	)
}

// disturbance is what happens to a command that runs on A; work waits until the guest is over
// there, or the copy is written. adopted: another daemon has taken it up.
type disturbance func(work func()) (adopted bool)

// connectionLost: the work ends while the hosts cannot reach each other.
func (e *env) connectionLost(work func()) bool {
	mend := func() {
		for _, h := range e.hosts {
			e.must(h, "[ ! -e /usr/bin/ssh.away ] || mv /usr/bin/ssh.away /usr/bin/ssh")
		}
	}
	defer mend()
	for _, h := range e.hosts {
		e.must(h, "mv /usr/bin/ssh /usr/bin/ssh.away; pkill -f '[v]irtlvm relay' || true")
	}
	work()
	return false
}

// linkDown: the work ends while A's link is down.
func (e *env) linkDown(work func()) bool {
	defer e.must(e.a, "ip link set eth1 up")
	e.must(e.a, "ip link set eth1 down")
	work()
	return false
}

// linkFlaps: A's link is down for a while, shorter than what libvirt bears: memory moves on
// when it is back.
func (e *env) linkFlaps(work func()) bool {
	e.must(e.a, "trap 'ip link set eth1 up' EXIT; ip link set eth1 down; sleep 12")
	work()
	return false
}

func (e *env) daemonDies(work func()) bool {
	e.must(e.a, "kill -9 $(systemctl show -p MainPID --value virtlvmd.service)")
	work()
	e.must(e.a, "systemctl start virtlvmd.service")
	return true
}

func (e *env) daemonRestarted(work func()) bool {
	e.must(e.a, "systemctl restart virtlvmd.service")
	work()
	return true
}

// ask asks B for a command on A and waits until its work is under way there.
func (e *env) ask(words ...string) (origin api.Command) {
	e.Helper()
	words = append(words, "--host", e.a.Name, "--detach")
	require.NoError(e, e.b.Ask(e.ctx, &origin, words...))
	require.NoError(e, cluster.Eventually(e.ctx, 3*time.Minute, func() error {
		c, err := e.row(e.a, "executor")
		if err == nil && (c.State != "PROCESSING_IN_BACKEND" || c.Progress == nil || c.Progress.Done == 0) {
			err = fmt.Errorf("it is not under way: %s %+v %s", c.State, c.Progress, c.Error)
		}
		return err
	}))
	return origin
}

// row is the newest command of a host that has this side.
func (e *env) row(h *cluster.Host, side string) (api.Command, error) {
	var all []api.Command
	if err := h.Ask(e.ctx, &all, "commands"); err != nil {
		return api.Command{}, err
	}
	for _, c := range all {
		if c.Side == side {
			var one api.Command
			err := h.Ask(e.ctx, &one, "command", strconv.FormatInt(c.ID, 10))
			return one, err
		}
	}
	return api.Command{}, fmt.Errorf("%s has no command of the side %s", h.Name, side)
}

// succeeded waits until both ends know that it was done, and looks at how they got there.
func (e *env) succeeded(origin api.Command, adopted bool) {
	e.Helper()
	require.NoError(e, cluster.Eventually(e.ctx, 3*time.Minute, func() error {
		for h, side := range map[*cluster.Host]string{e.a: "executor", e.b: "origin"} {
			c, err := e.row(h, side)
			if err == nil && (c.State != "COMPLETED" || c.Unacknowledged) {
				err = fmt.Errorf("on %s it is %s (unacknowledged: %v): %s", h.Name, c.State, c.Unacknowledged, c.Error)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	there, err := e.row(e.a, "executor")
	require.NoError(e, err)
	require.Equal(e, origin.Sequence, there.Sequence)
	var states []string
	for _, t := range there.History {
		if t.From != t.To {
			states = append(states, t.To)
		}
	}
	e.Logf("%s: %s; %s", there.Kind, strings.Join(states, ", "), there.Outcome)
	if adopted {
		require.Contains(e, states, "DANGLED_IN_BACKEND")
	} else {
		require.NotContains(e, states, "DANGLED_IN_BACKEND")
	}
}

func (e *env) migrates(disturb disturbance) {
	guest, v := e.running()
	undo := e.throttle(e.a)
	defer undo()
	origin := e.ask("guest", "migrate", guest, e.b.Name)
	adopted := disturb(func() {
		undo()
		require.NoError(e, cluster.Eventually(e.ctx, 4*time.Minute, func() error {
			out, err := e.b.Must(e.ctx, "virsh -q domstate "+guest+" 2>&1 || true")
			if err == nil && strings.TrimSpace(out) != "running" {
				err = fmt.Errorf("%s does not run on %s: %s", guest, e.b.Name, out)
			}
			return err
		}))
	})
	e.succeeded(origin, adopted)
	e.over(e.b, guest, v)
}

func (e *env) copies(disturb disturbance) {
	const made = "vg_san/copied"
	defer e.must(e.a, "lvs "+made+" >/dev/null 2>&1 && lvremove -qq -y "+made+" || true")
	origin := e.ask("volume", "copy", e.one.Full(), made, "--bandwidth", "1")
	adopted := disturb(func() {
		require.NoError(e, cluster.Eventually(e.ctx, 4*time.Minute, func() error {
			_, err := e.a.Must(e.ctx, "! pgrep -x qemu-img")
			return err
		}))
	})
	e.succeeded(origin, adopted)
	e.released(e.one)
	e.must(e.a, "lvchange -aey "+e.one.Full()+" "+made+" && cmp "+e.one.Path()+" /dev/"+made)
	e.must(e.a, "lvchange -an "+e.one.Full()+" "+made)
}
