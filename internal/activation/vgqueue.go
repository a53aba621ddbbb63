package activation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// vgQueue lets one change at a time into a VG: LVM takes the VG lock anyway, and what is
// read before a change must still be true when it is made.
type vgQueue struct {
	turn  chan struct{} // holds one token
	stuck []*stuck      // each until it ends, oldest first; guarded by Manager.mu
	// count is of the turns and of what has begun and ended to change the VG; guarded by Manager.mu.
	count uint64
	last  *local // the newest look that ended a turn, see lookAwaiting; guarded by Manager.mu
}

// stuck is an LVM command that passed its deadline and has not ended.
type stuck struct {
	command string
	pid     int
	since   time.Time
}

// queue must be called with m.mu held.
func (m *Manager) queue(vg string) *vgQueue {
	q := m.vgs[vg]
	if q == nil {
		q = &vgQueue{turn: make(chan struct{}, 1)}
		q.turn <- struct{}{}
		m.vgs[vg] = q
	}
	return q
}

// enterVG waits for the VG's turn. It fails at once where an LVM command hangs on the VG:
// the next one would hang behind it.
func (m *Manager) enterVG(ctx context.Context, vg string) (leave func(), err error) {
	m.mu.Lock()
	q := m.queue(vg)
	err = m.stuckError(vg, q)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-q.turn: // is free, whether or not somebody waits for us still
		return m.entered(vg, q)
	default:
	}
	select {
	case <-q.turn:
		return m.entered(vg, q)
	case <-ctx.Done():
		return nil, api.NewError(api.KindUnknown, fmt.Sprintf("%s is busy: another operation on it has not ended in time; see 'virtlvm commands' and try again", vg))
	}
}

// entered has the turn, which is given back where the VG has become stuck meanwhile.
func (m *Manager) entered(vg string, q *vgQueue) (leave func(), err error) {
	leave = func() { q.turn <- struct{}{} }
	m.mu.Lock()
	q.count++
	err = m.stuckError(vg, q)
	m.mu.Unlock()
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// counts are the VGs' counts, of those whose turn nobody has. It must be called with m.mu held.
func (m *Manager) counts() map[string]uint64 {
	all := make(map[string]uint64, len(m.vgs))
	for vg, q := range m.vgs {
		if len(q.turn) == 1 {
			all[vg] = q.count
		}
	}
	return all
}

// changes notes that a command which changes the VG begins or has ended.
func (m *Manager) changes(vg string) {
	if vg == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue(vg).count++
}

// goodFor reports, to who has a VG's turn, whether a look from before is as good as a new one:
// nobody else has had the turn since it began, and nothing was changed.
func (m *Manager) goodFor(vg string, seen *local) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, free := seen.counts[vg]
	return free && m.queue(vg).count == at+1
}

// lookFor is a look for who has a VG's turn; seen is one from before, nil where there is none.
func (m *Manager) lookFor(ctx context.Context, vg string, seen *local) (local, error) {
	if seen != nil && m.goodFor(vg, seen) {
		return *seen, nil
	}
	return m.look(ctx)
}

// stuckError must be called with m.mu held.
func (m *Manager) stuckError(vg string, q *vgQueue) error {
	if len(q.stuck) == 0 {
		return nil
	}
	return api.NewError(api.KindStuck, fmt.Sprintf("%s is stuck: %s", vg, q.stuck[0].text(m.Now())))
}

func (s *stuck) text(now time.Time) string {
	return fmt.Sprintf("'%s' (pid %d) has not ended for %s; the storage, sanlock or lvmlockd hangs: check them, virtlvm goes on by itself when the command ends",
		s.command, s.pid, now.Sub(s.since).Round(time.Second))
}

// markStuck notes a command that goes on beyond its deadline, until it ends; then
// what it did is looked at.
func (m *Manager) markStuck(vg string, te *run.TimeoutError, since time.Time) {
	select {
	case <-te.Done:
		return // SIGTERM ended it
	default:
	}
	s := &stuck{command: strings.Join(te.Argv, " "), pid: te.PID, since: since}
	m.mu.Lock()
	q := m.queue(vg)
	q.stuck = append(q.stuck, s)
	m.mu.Unlock()
	m.Log.Error("an LVM command hangs; starts on its volume group are refused until it ends", "vg", vg, "command", s.command, "pid", s.pid)
	go func() {
		<-te.Done
		m.mu.Lock()
		q.count++
		q.stuck = slices.DeleteFunc(q.stuck, func(other *stuck) bool { return other == s })
		m.mu.Unlock()
		m.Log.Info("the LVM command that hung has ended", "vg", vg, "command", s.command, "pid", s.pid)
		m.Kick()
	}()
}
