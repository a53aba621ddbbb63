//go:build e2e

package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// TestTimes measures what the real lvchange takes and what virtlvm adds. The hosts are
// emulated: ratios say more than seconds.
func TestTimes(t *testing.T) {
	run(t, scenario{"times_start", timesStart, true}, scenario{"times_migrate", timesMigrate, true})
}

// rounds of each measurement; the median counts.
const rounds = 3

// timed measures commands, each "name: command", in turn, and prints "name value unit".
func (e *env) timed(h *cluster.Host, commands ...string) map[string]time.Duration {
	e.Helper()
	var script strings.Builder
	script.WriteString("set -e; export LC_ALL=C LVM_SUPPRESS_FD_WARNINGS=1\n")
	fmt.Fprintf(&script, "for round in $(seq %d); do\n", rounds)
	for i, c := range commands {
		_, command, _ := strings.Cut(c, ": ")
		fmt.Fprintf(&script, "t=$(date +%%s%%N); { %s; } >/dev/null; echo \"%d $(( ($(date +%%s%%N) - t) / 1000000 ))\"\n", command, i)
	}
	script.WriteString("done")
	all := map[int][]time.Duration{}
	for line := range strings.Lines(e.must(h, script.String())) {
		var i, ms int
		_, err := fmt.Sscan(line, &i, &ms)
		require.NoError(e, err, line)
		all[i] = append(all[i], time.Duration(ms)*time.Millisecond)
	}
	medians := map[string]time.Duration{}
	for i, c := range commands {
		name, _, _ := strings.Cut(c, ": ")
		medians[name] = median(all[i])
		e.value(name, medians[name])
	}
	return medians
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func (e *env) value(name string, d time.Duration) {
	e.Helper()
	e.Logf("%s %d ms", name, d.Milliseconds())
}

// timesStart: the real lvchange for one volume and for eight, and our share of a start.
func timesStart(e *env) {
	names := []string{}
	for i := range 8 {
		names = append(names, "t"+strconv.Itoa(i+1))
	}
	volumes, err := e.c.CreateVolumes(e.ctx, 4, names...)
	require.NoError(e, err)
	defer func() { require.NoError(e, e.c.RemoveVolumes(e.ctx, volumes...)) }()
	for _, n := range []int{1, 8} {
		var full []string
		g := cluster.Guest{Name: fmt.Sprintf("disks%d", n)}
		for _, v := range volumes[:n] {
			full = append(full, v.Full())
			g.Disks = append(g.Disks, cluster.Disk{Source: v.Path()})
		}
		list := strings.Join(full, " ")
		label := func(what string) string { return fmt.Sprintf("lvchange_%s_%d_volumes: lvchange ", what, n) }
		e.timed(e.a,
			label("off_to_ex")+"-aey "+list, label("ex_to_sh")+"-asy "+list, label("sh_to_ex")+"-aey "+list,
			label("ex_to_off")+"-an "+list, label("off_to_sh")+"-asy "+list, label("sh_to_off")+"-an "+list)

		e.define(g, e.a)
		var total, hooks, lvm []time.Duration
		for range rounds {
			r, err := e.a.Virsh(e.ctx, "start", g.Name)
			require.NoError(e, err)
			require.Zero(e, r.Exit, r.Output())
			h, l := e.spent(e.a, g.Name, "prepare", "start", "started")
			total, hooks, lvm = append(total, r.Duration), append(hooks, h), append(lvm, l)
			e.destroy(e.a, g.Name)
		}
		own := median(hooks) - median(lvm)
		prefix := fmt.Sprintf("start_%d_volumes_", n)
		e.value(prefix+"virsh", median(total))
		e.value(prefix+"hooks", median(hooks))
		e.value(prefix+"lvchange", median(lvm))
		e.value(prefix+"own", own)
		e.Logf("%sown_share %.2f of virsh start", prefix, own.Seconds()/median(total).Seconds())
		e.released(volumes[:n]...)
	}
}

// spent is how long the last hook calls of a guest took on a host, and the changing LVM
// commands in them.
func (e *env) spent(h *cluster.Host, guest string, ops ...string) (hooks, changes time.Duration) {
	e.Helper()
	var records []api.HookRecord
	require.NoError(e, h.Ask(e.ctx, &records, "hooks", "--guest", guest, "--limit", "20"))
	var commands []api.Command
	require.NoError(e, h.Ask(e.ctx, &commands, "commands", "--limit", "100"))
	for _, op := range ops {
		var last api.HookRecord
		for _, r := range records {
			if r.Op == op && r.ID > last.ID {
				last = r
			}
		}
		require.NotZero(e, last.ID, "no hook call %s of %s", op, guest)
		hooks += last.Duration
		for _, c := range commands {
			if c.HookCall == last.ID && c.Kind != "query" {
				changes += c.Finished.Sub(c.Created)
			}
		}
	}
	return hooks, changes
}

// timesMigrate: the handoff beside the bare commands that it needs, on another volume and with
// the guest running where it runs at that moment of a migration: it takes processor time that
// either would have.
func timesMigrate(e *env) {
	guest, v := e.running()
	others, err := e.c.CreateVolumes(e.ctx, 4, "bare")
	require.NoError(e, err)
	defer func() { require.NoError(e, e.c.RemoveVolumes(e.ctx, others...)) }()
	other := others[0].Full()
	share := "ssh kvm-a lvchange -asy " + other + "; lvchange -asy " + other
	back := "lvchange -an " + other + "; ssh kvm-a lvchange -aey " + other
	e.must(e.a, "lvchange -aey "+other)
	bare := e.timed(e.b, "bare_lend_and_take: "+share, "bare_back: "+back)

	var lend, promote []time.Duration
	for i := range rounds {
		if i > 0 {
			e.start(e.a, guest)
		}
		require.Zero(e, e.migrate(e.a, e.b, guest).Exit)
		e.alone(e.b, v)
		hook, _ := e.spent(e.b, guest, "migrate")
		lend = append(lend, hook)
		promote = append(promote, e.promoted(guest, v))
		e.value("hook_migrate_each", lend[i])
		e.value("release_to_exclusive_each", promote[i])
		if i == rounds-1 { // while it runs on the destination
			last := e.timed(e.b, "bare_share: "+share, "bare_release_and_promote: ssh kvm-a lvchange -an "+other+"; lvchange -aey "+other, "bare_back: "+back)
			bare["bare_release_and_promote"] = last["bare_release_and_promote"]
			e.must(e.a, "lvchange -an "+other)
		}
		e.destroy(e.b, guest)
		e.released(v)
	}
	e.value("hook_migrate", median(lend))
	e.value("release_to_exclusive", median(promote))
	e.Logf("hook_migrate_ratio %.2f of the bare commands, at most 1.3", median(lend).Seconds()/bare["bare_lend_and_take"].Seconds())
	e.Logf("release_to_exclusive_ratio %.2f of the bare commands, at most 1.3 after one second has been taken off: %.2f",
		median(promote).Seconds()/bare["bare_release_and_promote"].Seconds(), (median(promote)-time.Second).Seconds()/bare["bare_release_and_promote"].Seconds())
}

// promoted is the time from the beginning of `release` on A to the end of the command that
// made the volume exclusive on B, by both journals.
func (e *env) promoted(guest string, v cluster.Volume) time.Duration {
	e.Helper()
	var records []api.HookRecord
	require.NoError(e, e.a.Ask(e.ctx, &records, "hooks", "--guest", guest, "--limit", "20"))
	var released time.Time
	for _, r := range records {
		if r.Op == "release" && r.Received.After(released) {
			released = r.Received
		}
	}
	var commands []api.Command
	require.NoError(e, e.b.Ask(e.ctx, &commands, "commands", "--limit", "50"))
	var exclusive time.Time
	for _, c := range commands {
		if slices.Contains(c.Argv, "-aey") && slices.Contains(c.Targets, v.Full()) && c.Finished.After(exclusive) {
			exclusive = c.Finished
		}
	}
	return exclusive.Sub(released) - e.ahead()
}

// ahead is how far B's clock is ahead of A's.
func (e *env) ahead() time.Duration {
	e.Helper()
	ns := strings.Fields(e.must(e.a, "date +%s%N; ssh kvm-b date +%s%N; date +%s%N"))
	require.Len(e, ns, 3)
	var t [3]int64
	for i, s := range ns {
		var err error
		t[i], err = strconv.ParseInt(s, 10, 64)
		require.NoError(e, err)
	}
	return time.Duration(t[1] - (t[0]+t[2])/2)
}
