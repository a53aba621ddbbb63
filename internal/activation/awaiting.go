package activation

import (
	"context"
	"maps"
	"time"

	"virtlvm/internal/model"
)

// awaitingPatience is how long a look is good enough while another host is waited for.
const awaitingPatience = 20 * time.Second

// rivalLives is how long it counts that the host which is waited for lives.
const rivalLives = 5 * time.Second

// lookAwaiting is a look for the ensure loop, which has a VG's turn. Where all that is missing in
// the VG is that another host lets go of what it shares, the last look is enough for a while:
// whether it has, its lease says, which must name no host any more but this one (see sharersOf).
// A look at lvmlockd would cost a program each time, on the way to the exclusive lock that a
// guest waits for. Where nothing is missing it is looked anew: what somebody changes by hand just
// after the last look would be found a whole interval later.
func (m *Manager) lookAwaiting(ctx context.Context, vg string) (local, error) {
	m.mu.Lock()
	q := m.queue(vg)
	last := q.last
	q.last = nil
	m.mu.Unlock()
	if last == nil || !m.goodFor(vg, last) {
		return m.look(ctx)
	}
	kept := *last
	kept.kept = true
	var err error
	if kept.devices, err = m.LVM.Devices(); err != nil || m.Uptime()-last.at >= m.enough(vg, kept) {
		return m.look(ctx)
	}
	return kept, nil
}

// enough is how old a look at a VG may be that shows what this one does; 0: it is no good.
func (m *Manager) enough(vg string, now local) time.Duration {
	if now.claimed[vg] || now.usable(vg) != nil {
		return 0
	}
	age := time.Duration(0)
	for _, j := range m.jobs(vg, now) {
		for _, h := range j.holds {
			if h.Phase == model.PhaseEnding {
				return 0
			}
		}
		switch {
		case j.done():
		case j.due() && j.want == model.ModeEX && j.have.Is(model.ModeSH):
			age = awaitingPatience
		default:
			return 0
		}
	}
	return age
}

// keepLook keeps the look with which a VG's turn ends: nothing has been changed since.
func (m *Manager) keepLook(vg string, now local) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue(vg)
	now.counts = maps.Clone(now.counts)
	now.counts[vg] = q.count
	now.kept = false
	q.last, m.newest = &now, &now
}

// recentPatience is how old a look may be that only tells how things stand.
const recentPatience = 2 * time.Second

// recentLook is a look for who decides nothing by it.
func (m *Manager) recentLook(ctx context.Context) (local, error) {
	m.mu.Lock()
	newest := m.newest
	good := newest != nil && len(newest.claimed) == 0 && m.Uptime()-newest.at < recentPatience && maps.Equal(newest.counts, m.counts())
	m.mu.Unlock()
	if good {
		return *newest, nil
	}
	return m.look(ctx)
}
