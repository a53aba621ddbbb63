package cluster

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"virtlvm/test/fakevirt"
)

var showStory = flag.Bool("sim.story", false, "print what happens in each schedule")

// TestSim runs random schedules; see sim. rapid prints how to run one again that fails.
func TestSim(t *testing.T) {
	if raceOn {
		t.Skip("slow with the race detector: make test runs this without; TestSimReplays runs some with it")
	}
	for _, size := range []struct {
		name        string
		least, most int
	}{{"two hosts", 2, 2}, {"more hosts", 3, 5}} {
		t.Run(size.name, func(t *testing.T) {
			t.Parallel()
			s := newSchedule()
			rapid.Check(t, func(rt *rapid.T) {
				s := s
				s.hosts = rapid.IntRange(size.least, size.most).Draw(rt, "hosts")
				bad, story := s.run(rt, func(do func(TB)) {
					rapid.SyncTest(rt, func(rt *rapid.T) { do(rt) })
				}, drawn(rt))
				s.count("schedules")
				if *showStory {
					fmt.Println(story())
				}
				if bad != "" {
					rt.Fatalf("%s\n\n%s\n%s", bad, story(), bad)
				}
			})
			t.Logf("%v", s.tally.n)
			// rapid is content with fewer where the time is short.
			want, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
			require.NoError(t, err)
			if testing.Short() {
				want /= 5
			}
			assert.GreaterOrEqual(t, s.tally.n["schedules"], want, "schedules; give it more -timeout")
		})
	}
}

// schedule is how a simulation is made.
type schedule struct {
	hosts  int
	claims bool // always
	tally  *tally
	docs   *fakevirt.Documents // of all schedules
}

func newSchedule() schedule {
	return schedule{tally: &tally{n: map[string]int{}}, docs: fakevirt.NewDocuments()}
}

func (c schedule) count(what string) {
	c.tally.mu.Lock()
	defer c.tally.mu.Unlock()
	c.tally.n[what]++
}

// run makes the simulation in a bubble as the dice say, and tells what was wrong, "" for
// nothing, and, where it is asked, what has happened.
func (c schedule) run(t TB, bubble func(func(TB)), dice dice) (bad string, story func() string) {
	t.Helper()
	may := func(what string) bool { return dice(2, what) == 1 }
	o := swarm{may("crash"), may("host death"), may("net"), may("hand"), may("tools"), may("hints"), may("post-copy"), c.claims || may("claims")}
	steps := 20 + dice(100, "steps")
	bubble(func(t TB) {
		var names []string
		for i := range c.hosts {
			names = append(names, fmt.Sprintf("kvm-%c", 'a'+i))
		}
		s := newSim(t, names, o, dice, c.tally, c.docs)
		defer s.end()
		for range steps {
			if s.bad != "" {
				break
			}
			s.step()
		}
		if s.bad == "" {
			s.settleAll()
		}
		bad, story = s.bad, s.story
	})
	return bad, story
}

// TestSimReplays: the same draws make the same run, so that a failure can be looked at.
func TestSimReplays(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := newSchedule()
			s.hosts = 3
			run := func() string {
				throw := rand.New(rand.NewPCG(seed, seed))
				bad, story := s.run(t, func(do func(TB)) {
					synctest.Test(t, func(t *testing.T) { do(t) })
				}, func(n int, _ string) int { return throw.IntN(n) })
				require.Empty(t, bad, story())
				return story()
			}
			first, second := strings.Split(run(), "\n"), strings.Split(run(), "\n")
			for i := range min(len(first), len(second)) {
				require.Equal(t, first[i], second[i], "line %d, after %s", i, strings.Join(first[max(0, i-5):i], "\n"))
			}
			assert.Len(t, second, len(first))
		})
	}
}

// TestSimClaims runs schedules with a VG without lvmlockd: partitions, member lists that
// differ, hosts that die and are declared fenced, starts on all hosts at once.
func TestSimClaims(t *testing.T) {
	if raceOn {
		t.Skip("as TestSim")
	}
	t.Parallel()
	s := newSchedule()
	s.claims = true
	rapid.Check(t, func(rt *rapid.T) {
		s := s
		s.hosts = rapid.IntRange(2, 4).Draw(rt, "hosts")
		bad, story := s.run(rt, func(do func(TB)) {
			rapid.SyncTest(rt, func(rt *rapid.T) { do(rt) })
		}, drawn(rt))
		s.count("schedules")
		if *showStory {
			fmt.Println(story())
		}
		if bad != "" {
			rt.Fatalf("%s\n\n%s\n%s", bad, story(), bad)
		}
	})
	t.Logf("%v", s.tally.n)
}
