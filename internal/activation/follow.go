package activation

import (
	"context"
	"strings"

	"virtlvm/internal/guests"
	"virtlvm/internal/model"
)

// followStories tells what can be seen of the migrations under way: holds that have
// changed, jobs of libvirt that have got on.
func (m *Manager) followStories(ctx context.Context) {
	m.mu.Lock()
	var open []story
	for _, s := range m.stories {
		if !s.busy {
			open = append(open, *s)
		}
	}
	m.mu.Unlock()
	if len(open) == 0 {
		return
	}
	snap, err := m.Guests.Observe()
	if err != nil {
		return
	}
	now, err := m.recentLook(ctx)
	if err != nil {
		return
	}
	for _, s := range open {
		m.follow(ctx, s, snap.ByUUID[s.UUID], now)
	}
}

// standing is where the holds of a migration stand.
type standing struct {
	shared     int64 // when those lent or incoming became so, 0: there are none
	seen       bool  // QEMU has been seen with one of these
	held       int64
	ending     int64
	unfinished bool // some volume is not as its hold wants it
}

func (m *Manager) standingOf(uuid string, now local) standing {
	var at standing
	for _, h := range m.holdsOf(uuid) {
		switch h.Phase {
		case model.PhaseLent, model.PhaseIncoming:
			at.shared, at.seen = max(at.shared, h.Since), at.seen || h.Attempt.Seen
		case model.PhaseEnding:
			at.ending = max(at.ending, h.Since)
		case model.PhaseHeld:
			if h.Mode == model.ModeEX {
				at.held = max(at.held, h.Since)
			}
		}
		at.unfinished = at.unfinished || !now.ofHold(h).Is(h.Wanted())
	}
	return at
}

// follow tells the steps that a look shows. A daemon that was killed may have missed some.
func (m *Manager) follow(ctx context.Context, s story, g guests.Guest, now local) {
	tell := func(step model.Step, at int64) {
		if at == 0 {
			at = m.Now().UnixMilli()
		}
		m.tellAt(ctx, s.UUID, s.Attempt, step, "", at)
	}
	at := m.standingOf(s.UUID, now)
	began, kept, lost := model.StepLent, model.StepTakenBack, model.StepGone
	if s.Side == model.SideDestination {
		began, kept, lost = model.StepTaken, model.StepSwitched, model.StepFailed
	}
	switch {
	case at.shared > 0:
		tell(began, at.shared)
		moves := strings.HasPrefix(g.Job.Phase, "perform")
		if s.Side == model.SideDestination {
			moves = at.seen && g.Job.Async == jobIn
		}
		if moves {
			tell(model.StepMoving, 0)
		}
	case !s.told(began):
		tell(model.StepInterrupted, 0)
	case at.held > 0:
		tell(kept, at.held)
		if !at.unfinished {
			tell(model.StepExclusive, 0)
		}
	default:
		if s.Side == model.SideSource || !s.told(kept) {
			tell(lost, at.ending)
		}
		if at.ending == 0 {
			tell(model.StepReleased, 0)
		}
	}
}
