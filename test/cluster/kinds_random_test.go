package cluster

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// mishap is what happens to a command when it has been looked at so often.
type mishap struct {
	tick int
	what string // "kill", "cancel", "reboot"
	at   int    // kill: the nth place from then on
	late bool   // and after it
}

func mishaps() *rapid.Generator[mishap] {
	return rapid.Custom(func(t *rapid.T) mishap {
		return mishap{
			tick: rapid.IntRange(0, 6).Draw(t, "tick"), what: rapid.SampledFrom([]string{"kill", "kill", "kill", "cancel", "reboot"}).Draw(t, "what"),
			at: rapid.IntRange(1, 12).Draw(t, "at"), late: rapid.Bool().Draw(t, "late"),
		}
	})
}

// TestRandomKinds lets each kind live through any order of daemons that are killed, hosts that
// are rebooted and wishes to cancel. Every command ends, or says what only a person can tell;
// nothing is held for it any more, and what is not complete is named. Under the race detector
// few; make sim does as many as it is asked for.
func TestRandomKinds(t *testing.T) {
	t.Parallel()
	all := lostKinds(t.TempDir())
	names := slices.Sorted(maps.Keys(all))
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom(names).Draw(rt, "kind")
		story := rapid.SliceOfN(mishaps(), 1, 4).Draw(rt, "mishaps")
		if run++; raceOn && run > 15 {
			return
		}
		if !t.Run(fmt.Sprint(run, " ", name), func(t *testing.T) { live(t, all[name], story) }) {
			rt.Fatalf("%s: %+v", name, story)
		}
	})
}

func live(t *testing.T, k lostKind, story []mishap) {
	t.Helper()
	r := newRig(t)
	if s, ok := k.args.(api.SnapshotArgs); ok && filepath.IsAbs(s.To) {
		s.To = filepath.Join(t.TempDir(), "snap")
		k.args = s
	}
	r.mortal()
	k.before(r)
	w := r.mustAsk(r.a, k.kind, k.args)
	ticks := 0
	happen := func(s command.Sight) {
		r.catchUp(s)
		for _, m := range story {
			if m.tick != ticks {
				continue
			}
			switch m.what {
			case "kill":
				r.kill.again(m.at, m.late)
			case "cancel":
				w.cancel("operator uid 0")
			case "reboot":
				r.jobs["kvm-a"].Lose(w.c.Key, backend.Rebooted)
				r.jobs["kvm-a"].Wait()
				r.a.PowerCut()
				r.kill.revive()
				r.boot()
			}
		}
		ticks++
	}
	happen(command.Sight{})
	w.tick = happen
	var v command.Verdict
	for i := 0; ; i++ {
		v = w.tries(1)
		if v.Outcome == done || v.Outcome == notDone || ticks > 8 && strings.Contains(v.Reason, "virtlvm command resolve") {
			break
		}
		require.Less(t, i, 2000, "no end: %+v", v)
		time.Sleep(time.Millisecond)
	}
	r.kill.again(0, false)
	require.NotEmpty(t, v.Reason)
	require.NotContains(t, v.Reason, "\n")
	if v.Outcome == notYet {
		return
	}
	require.Eventually(t, func() bool {
		return len(r.a.Engine().HoldsBy(model.CommandOwner(w.c.Key, ""))) == 0 && len(r.a.Engine().HoldsBy(model.CommandOwner(w.c.Key, UUID(1)))) == 0
	}, 20*time.Second, time.Millisecond, "%s; held: %v", v.Reason, r.a.Engine().HoldsOf(model.VolumeID{}))
	for _, vg := range []string{"vg_san", "vg_two"} {
		volumes, err := r.b.Engine().Volumes(ctx, vg)
		require.NoError(t, err)
		for _, volume := range volumes {
			for _, tag := range r.tags(volume.Name) {
				if strings.HasPrefix(tag, model.TagIncomplete) {
					require.Equal(t, notDone, v.Outcome, "%s is tagged %s: %s", volume.Name, tag, v.Reason)
					require.Regexp(t, volume.Name+" is left half made|tagged "+tag, v.Reason, "%s is left with %s", volume.Name, tag)
				}
			}
		}
	}
}

// again arms the killer once more.
func (k *killer) again(at int, after bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at, k.name, k.after, k.n, k.hit = at, "", after, 0, ""
}
