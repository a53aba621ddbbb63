package activation

import (
	"context"
	"crypto/rand"
	"strings"

	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// story is a live migration under way, as far as this host takes part: it is told, step by
// step, for those who want to know how it went. No decision is made by it.
type story struct {
	model.HandoffStep // what all its steps have in common
	steps             []model.HandoffStep
	busy              bool // the request or the hook call that asks is not answered yet
}

func (s *story) told(step model.Step) bool {
	for _, t := range s.steps {
		if t.Step == step {
			return true
		}
	}
	return false
}

// beginStory begins the story of a migration, which the destination gives its name. An older
// one of the guest has ended.
func (m *Manager) beginStory(side model.HandoffSide, uuid, guest, peer, attempt string) *story {
	if !plainName(attempt) {
		attempt = rand.Text()
	}
	s := &story{busy: true, HandoffStep: model.HandoffStep{Attempt: attempt, UUID: uuid, Guest: guest, Side: side, Peer: peer}}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stories[uuid] = s
	return s
}

// plainName: a name as hosts give them to grants and tries (rand.Text).
func plainName(s string) bool {
	return len(s) >= 16 && len(s) <= 64 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// tell adds a step to the story of a guest, once. It is written together with whatever
// is done next for the same cause, or at its end; at once where there is none.
func (m *Manager) tell(ctx context.Context, uuid string, step model.Step, detail string) {
	m.tellAt(ctx, uuid, "", step, detail, m.Now().UnixMilli())
}

// tellAt is tell with a time, for one try alone if it is named: what was seen of an older
// one must not be told of the next.
func (m *Manager) tellAt(ctx context.Context, uuid, attempt string, step model.Step, detail string, at int64) {
	m.mu.Lock()
	s := m.stories[uuid]
	if s == nil || s.told(step) || attempt != "" && (s.Attempt != attempt || s.busy) {
		m.mu.Unlock()
		return
	}
	t := s.HandoffStep
	t.Step, t.Detail, t.AtMillis = step, oneLine(detail), at
	s.steps = append(s.steps, t)
	if step.Last() {
		delete(m.stories, uuid)
	}
	m.mu.Unlock()
	m.Log.Info("live migration", "guest", t.Guest, "side", t.Side, "peer", t.Peer, "step", step, "detail", t.Detail)
	if c := causeOf(ctx); c.record {
		c.addStep(t)
		return
	}
	m.persist(ctx, store.HoldChange{Steps: []model.HandoffStep{t}})
}

// rest ends the question of a story; what the rest of it brings is seen by looking.
func (m *Manager) rest(s *story) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.busy = false
}

// hasStory: a live migration of the guest is under way or not told to its end.
func (m *Manager) hasStory(uuid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stories[uuid] != nil
}

func (c *cause) addStep(s model.HandoffStep) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = append(c.steps, s)
}

// takeSteps are the steps that have not been written yet.
func (c *cause) takeSteps() []model.HandoffStep {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.steps
	c.steps = nil
	return s
}

// loadStories goes on with the stories that have not ended: those of guests with holds, and
// of late those whose last hold may just have gone.
func (m *Manager) loadStories(ctx context.Context, holds []model.Hold) {
	const late, enough = 500, 50 // steps; a migration has up to ten
	guests := map[string]bool{"": true}
	for _, h := range holds {
		if model.IsGuest(h.Owner) {
			guests[h.Owner] = true
		}
	}
	newest := map[string]*story{}
	for _, guest := range sortedKeys(guests) {
		limit := enough
		if guest == "" {
			limit = late
		}
		steps, err := m.Journal.HandoffSteps(ctx, guest, limit)
		if err != nil {
			m.Log.Error("cannot read how the last migrations went", "err", err)
			return
		}
		for _, s := range triesOf(steps) {
			if s.UUID == guest || guest == "" {
				newest[s.UUID] = s
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, s := range newest {
		if m.stories[uuid] == nil && !s.ended() {
			m.stories[uuid] = s
		}
	}
}

// triesOf sorts steps by the try they belong to, oldest first.
func triesOf(steps []model.HandoffStep) []*story {
	type key struct {
		attempt string
		side    model.HandoffSide
	}
	var all []*story
	byKey := map[key]*story{}
	for _, t := range steps {
		k := key{t.Attempt, t.Side}
		s := byKey[k]
		if s == nil {
			s = &story{HandoffStep: t}
			byKey[k] = s
			all = append(all, s)
		}
		s.steps = append(s.steps, t)
	}
	return all
}

func (s *story) ended() bool { return len(s.steps) > 0 && s.steps[len(s.steps)-1].Step.Last() }
