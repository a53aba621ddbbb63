package activation

import (
	"maps"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// Summary is what is known without looking, for metrics.
type Summary struct {
	Ready    bool // the first full look is done
	Holds    api.HoldCounts
	Pending  []api.Unwanted
	Problems int
	Passes   map[string]int // looks by outcome: "ok", "pending", "problems"
	Changes  map[Change]int
}

// Change is a kind of command that changes something, who wanted it, and how it ended.
type Change struct {
	Kind  string // "activate", "deactivate", "convert", ...
	Cause string // "hook", "operator", "peer", "reconcile", "other"
	State string // see model.CommandState
}

// tallies count since the daemon has started. Guarded by Manager.mu.
type tallies struct {
	passes  map[string]int
	changes map[Change]int
}

func newTallies() tallies { return tallies{map[string]int{}, map[Change]int{}} }

// Summary runs no program and waits for none.
func (m *Manager) Summary() Summary {
	s := Summary{Ready: m.isReady(), Pending: m.pendingList()}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Holds = m.countHolds()
	s.Problems = len(m.report.general) + len(m.report.vgs)
	s.Passes, s.Changes = maps.Clone(m.tallies.passes), maps.Clone(m.tallies.changes)
	return s
}

// tallyPass counts a look at everything by what it has left.
func (m *Manager) tallyPass() {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case len(m.report.general)+len(m.report.vgs) > 0:
		m.tallies.passes["problems"]++
	case len(m.report.unwanted) > 0:
		m.tallies.passes["pending"]++
	default:
		m.tallies.passes["ok"]++
	}
}

func (m *Manager) tallyChange(e *effect, state model.CommandState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tallies.changes[Change{e.kind, causeWord(e.cause), string(state)}]++
}

// causeWord is who a cause comes from: there are few of them.
func causeWord(text string) string {
	for _, word := range []string{"hook", "operator", "peer", "reconcile"} {
		if strings.HasPrefix(text, word) {
			return word
		}
	}
	return "other" // boot, shutdown, repairs
}
