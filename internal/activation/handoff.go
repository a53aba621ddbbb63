package activation

import (
	"context"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// Handoff tells how the migrations of a guest went, the one under way and the one before,
// on both hosts.
func (m *Manager) Handoff(ctx context.Context, guest string) (api.GuestHandoff, error) {
	tries, err := m.tries(ctx, guest)
	if err != nil {
		return api.GuestHandoff{}, err
	}
	if len(tries) == 0 {
		return api.GuestHandoff{}, api.NewError(api.KindNotFound, "no live migration of guest "+show(guest)+" from or to this host is known; a migration between two others is told there")
	}
	newest := tries[len(tries)-1]
	answer := api.GuestHandoff{Guest: newest.Guest, UUID: newest.UUID, Migrations: []api.Migration{}}
	there := map[string]api.HandoffAnswer{}
	failed := map[string]error{}
	for i := len(tries) - 1; i >= 0; i-- {
		s := tries[i]
		if s.UUID != newest.UUID { // the name belonged to another guest once
			continue
		}
		if _, asked := there[s.Peer]; !asked && failed[s.Peer] == nil {
			there[s.Peer], failed[s.Peer] = m.askHandoff(ctx, s.Peer, s.UUID)
		}
		migration := api.Migration{Attempt: s.Attempt, Source: m.sideOf(s), Destination: otherSide(s, there[s.Peer], failed[s.Peer])}
		if s.Side == model.SideDestination {
			migration.Source, migration.Destination = migration.Destination, migration.Source
		}
		answer.Migrations = append(answer.Migrations, migration)
		if s.ended() || len(answer.Migrations) == 2 {
			break
		}
	}
	return answer, nil
}

// HandoffSides answers another host: this host's side of the migrations from or to there.
func (m *Manager) HandoffSides(ctx context.Context, peer string, q api.HandoffQuery) (api.HandoffAnswer, error) {
	return peerQuery(ctx, m, peer, "handoff "+q.UUID, func(ctx context.Context) (api.HandoffAnswer, error) {
		tries, err := m.tries(ctx, q.UUID)
		if err != nil {
			return api.HandoffAnswer{}, err
		}
		answer := api.HandoffAnswer{Now: m.Now(), Sides: map[string]api.HandoffSide{}}
		for _, s := range tries {
			if s.Peer == peer && s.UUID == q.UUID {
				answer.Sides[s.Attempt] = m.sideOf(s)
			}
		}
		return answer, nil
	})
}

// tries are the newest migrations of a guest, by its name or uuid, oldest first: from the
// database and, where that lags behind, from memory.
func (m *Manager) tries(ctx context.Context, guest string) ([]*story, error) {
	const enough = 100
	steps, err := m.Journal.HandoffSteps(ctx, guest, enough)
	if err != nil {
		return nil, err
	}
	tries := triesOf(steps)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.stories {
		if s.UUID != guest && s.Guest != guest {
			continue
		}
		now := &story{HandoffStep: s.HandoffStep, steps: append([]model.HandoffStep{}, s.steps...)}
		if n := len(tries); n > 0 && tries[n-1].Attempt == s.Attempt && tries[n-1].Side == s.Side {
			tries = tries[:n-1]
		}
		tries = append(tries, now)
	}
	return tries, nil
}

func (m *Manager) sideOf(s *story) api.HandoffSide {
	side := api.HandoffSide{Host: m.Host, State: api.HandoffUnseen, Steps: []api.HandoffStep{}}
	for _, t := range s.steps {
		side.Steps = append(side.Steps, api.HandoffStep{Step: string(t.Step), At: time.UnixMilli(t.AtMillis), Detail: t.Detail})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.stories[s.UUID]
	switch {
	case s.ended():
		side.State = string(s.steps[len(s.steps)-1].Step)
	case now != nil && now.Attempt == s.Attempt && now.Side == s.Side:
		side.State = api.HandoffUnderWay
	}
	return side
}

// otherSide is what the host at the other end has answered about a migration.
func otherSide(s *story, answer api.HandoffAnswer, err error) api.HandoffSide {
	side, known := answer.Sides[s.Attempt]
	switch {
	case err != nil:
		return api.HandoffSide{Host: s.Peer, State: api.HandoffUnknown, Steps: []api.HandoffStep{}, Problem: oneLine(err.Error())}
	case !known:
		return api.HandoffSide{Host: s.Peer, State: api.HandoffUnknown, Steps: []api.HandoffStep{}, Problem: s.Peer + " knows nothing of it"}
	}
	side.Host = s.Peer
	return side
}

func (m *Manager) askHandoff(ctx context.Context, peer, uuid string) (api.HandoffAnswer, error) {
	var answer api.HandoffAnswer
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := m.call(ctx, peer, api.RoutePeerHandoff, api.HandoffQuery{UUID: uuid}, &answer); err != nil {
		return answer, err
	}
	ahead := answer.Now.Sub(m.Now()).Round(time.Second)
	for attempt, side := range answer.Sides {
		side.Ahead = ahead
		answer.Sides[attempt] = side
	}
	return answer, nil
}
