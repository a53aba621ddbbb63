package command

import (
	"context"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// keepProgress is how often the progress of a running command is written.
const keepProgress = 30 * time.Second

// note remembers how far a running command has come. The journal gets it now and then: it is
// only to be shown, and to be compared with after a restart.
func (m *Manager) note(ctx context.Context, e store.Entry, p model.Progress) {
	now := m.Now()
	m.mu.Lock()
	last, known := m.progress[e.ID]
	if !known {
		last = e.Progress
	}
	p = advance(last, p, now)
	m.progress[e.ID] = p
	m.mu.Unlock()
	if now.Sub(e.Progress.At) < keepProgress {
		return
	}
	if _, err := m.Journal.Change(ctx, e.ID, func(e *store.Entry) error { e.Progress = p; return nil }); err != nil {
		m.Log.Warn("cannot journal the progress of a command", "command_id", e.ID, "err", err)
	}
}

// advance completes a sample with what the last one tells.
func advance(last, p model.Progress, now time.Time) model.Progress {
	p.At, p.Moved = now.Round(time.Millisecond), last.Moved
	if p.Moved.IsZero() || p.Done != last.Done || p.Phase != last.Phase {
		p.Moved = p.At
	}
	if p.Speed == 0 && last.Phase == p.Phase && p.Done >= last.Done && !last.At.IsZero() {
		took := p.At.Sub(last.At).Seconds()
		if took <= 0 {
			p.Speed = last.Speed
			return p
		}
		p.Speed = int64(float64(p.Done-last.Done) / took)
		if last.Speed > 0 { // smooth: the older samples count for two thirds
			p.Speed = (2*last.Speed + p.Speed) / 3
		}
	}
	return p
}

// heardProgress remembers what the executor says.
func (m *Manager) heardProgress(id int64, p *api.Progress) {
	if p == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.progress[id] = model.Progress{Done: p.Done, Total: p.Total, Speed: p.Speed, Phase: p.Phase, At: p.At, Moved: p.Moved}
}
