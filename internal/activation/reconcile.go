package activation

import (
	"context"
	"errors"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// retryPauses are the waits between looks while something is not as wanted; the last one
// repeats.
var retryPauses = []time.Duration{
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// Load reads the holds; those of an earlier boot are dropped, because a reboot deactivates
// everything. Without a usable database it starts empty: Run finds out by looking.
func (m *Manager) Load(ctx context.Context) {
	all, err := m.Journal.Holds(ctx)
	if err != nil {
		m.Log.Error("cannot read the holds; what runs is found out by looking, and they are read when the database works", "err", err)
		return
	}
	var change store.HoldChange
	m.mu.Lock()
	for _, h := range all {
		if h.BootID != m.BootID {
			change.Delete = append(change.Delete, h)
			continue
		}
		// What has been found by looking meanwhile is newer.
		if _, known := m.holds[holdKey{h.Owner, h.Volume}]; !known {
			m.holds[holdKey{h.Owner, h.Volume}] = h
		}
	}
	m.loaded, m.journal = true, m.Journal.Generation()
	m.mu.Unlock()
	if len(change.Delete) > 0 {
		m.Log.Info("dropped holds of an earlier boot", "count", len(change.Delete))
	}
	m.persist(ctx, change)
	m.loadStories(ctx, all)
	m.loadFenced(ctx)
	if err := m.Journal.InterruptHookCalls(ctx); err != nil {
		m.Log.Error("cannot close the hook calls of the last daemon", "err", err)
	}
}

// Run looks and ensures until ctx ends: at once, when kicked, at every interval, and
// sooner while something is not as wanted.
func (m *Manager) Run(ctx context.Context, interval time.Duration) {
	defer m.asked.Wait()
	m.awaitLeftovers(ctx)
	if ctx.Err() != nil {
		return // they may run still: what is seen now means nothing
	}
	m.pass(ctx, true)
	m.resolveLeftovers(ctx)
	if ctx.Err() != nil {
		return // not everything was looked at
	}
	close(m.ready)
	m.Log.Info("first look done")
	tries, lastFull := 0, m.Now()
	for {
		awaited := false
		pause := max(0, interval-m.Now().Sub(lastFull))
		if m.restless() {
			pause = min(pause, retryPauses[min(tries, len(retryPauses)-1)])
			tries++
		} else {
			tries = 0
		}
		m.setNextLook(m.Now().Add(pause))
		select {
		case <-ctx.Done():
			return
		case <-m.kick:
			tries = 0
			awaited = m.settleDown(ctx)
		case <-m.After(pause):
		}
		m.setNextLook(time.Time{})
		// What costs LVM commands without a reason is not for a look that somebody waits for, as
		// long as another one comes soon.
		since := m.Now().Sub(lastFull)
		full := since >= interval && !awaited || since >= 2*interval
		if full {
			lastFull = m.Now()
		}
		m.pass(ctx, full)
		m.resolveLeftovers(ctx)
	}
}

func (m *Manager) setNextLook(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nextLook = at
}

// How long a look waits for more hints after one, and after one that another host waits for.
const (
	hintPause    = 50 * time.Millisecond
	awaitedPause = time.Millisecond
)

// settleDown lets hints that come in a bunch become one look; awaited: another host waits for it.
func (m *Manager) settleDown(ctx context.Context) (awaited bool) {
	awaited = took(m.awaited)
	if !awaited {
		select {
		case <-m.After(hintPause):
		case <-m.awaited:
			awaited = true
		case <-ctx.Done():
		}
	}
	if awaited {
		select {
		case <-m.After(awaitedPause):
		case <-ctx.Done():
		}
	}
	took(m.awaited)
	took(m.kick)
	return awaited
}

// restless: some volume is not as wanted, or a start or stop is under way that nobody
// will tell us the end of.
func (m *Manager) restless() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.report.unwanted) > 0 || len(m.stopping) > 0 || len(m.goneAt) > 0 {
		return true
	}
	for _, h := range m.holds {
		if h.Phase == model.PhaseEnding || model.IsGuest(h.Owner) && !h.Attempt.Seen {
			return true
		}
	}
	return false
}

// pass is one look at everything. full: also what costs LVM commands without a reason.
func (m *Manager) pass(ctx context.Context, full bool) {
	if !m.isLoaded() {
		m.Load(ctx)
	}
	m.flush(ctx)
	m.problem("database", m.Journal.Health(ctx))
	if full {
		m.lookAtVGs(ctx)
		m.lookForHandmade(ctx, true)
		m.prune(ctx)
	}
	s, err := m.sight()
	if err == nil {
		var unread error
		for _, u := range s.Unknown {
			unread = errors.Join(unread, errors.New("status file "+u.Path+" is not understood ("+u.Reason+"): its guest counts as running"))
		}
		m.problem("status files", unread)
		m.adopt(ctx, s, full)
		m.judge(ctx, "") // looks again: adopting may have taken long
		m.checkMigrations(ctx)
		m.forgetGone(s.ByUUID)
	}
	for _, vg := range m.heldVGs("") {
		m.ensureVG(ctx, vg)
	}
	m.followStories(ctx)
	m.tallyPass()
}

// lookAtVGs refreshes what is known of the volume groups and starts lockspaces that the
// boot did not.
func (m *Manager) lookAtVGs(ctx context.Context) {
	vgs, err := m.groups(ctx)
	if err != nil {
		return
	}
	m.mu.Lock()
	m.known = vgs
	for _, vg := range vgs {
		m.lockTypes[vg.Name] = vg.LockType
	}
	listed := map[string]bool{}
	for _, vg := range vgs {
		listed[vg.Name] = true
	}
	for name := range m.report.vgs {
		if !listed[name] || !m.Settings().Scope(name) {
			delete(m.report.vgs, name)
		}
	}
	m.mu.Unlock()
	now, err := m.look(ctx)
	m.problem("locks", err)
	if err != nil {
		return
	}
	var lockd error
	for _, vg := range vgs {
		if ours, _ := m.managed(vg.Name, vg.LockType); !ours {
			continue
		}
		if !now.locks.LockdRunning && !now.claimed[vg.Name] {
			lockd = now.usable(vg.Name)
		} else {
			m.reportVG(vg.Name, now.usable(vg.Name))
		}
	}
	m.problem("lvmlockd", lockd)
	m.checkHostNames(ctx)
}

func (m *Manager) isLoaded() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loaded
}

// prune forgets old rows, a little at a time.
func (m *Manager) prune(ctx context.Context) {
	keep := m.Settings().JournalKeep
	for i := 0; i < 10 && keep > 0; i++ {
		more, err := m.Journal.Prune(ctx, m.Now().Add(-keep))
		if err != nil || !more {
			return
		}
	}
}

// forgetGone drops what is remembered of guests that left no trace.
func (m *Manager) forgetGone(running map[string]guests.Guest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, since := range m.stopping {
		if m.Now().Sub(since) > startGrace {
			delete(m.stopping, uuid)
		}
	}
	owners := map[string]bool{}
	for k := range m.holds {
		owners[k.owner] = true
	}
	for uuid := range m.goneAt {
		if !owners[uuid] {
			delete(m.goneAt, uuid)
		}
	}
	for uuid := range m.released {
		if _, ok := running[uuid]; !ok && !owners[uuid] {
			delete(m.released, uuid)
		}
	}
}

// ReplaySpool takes events that the hook had to leave on disk. It must be called after
// Load and before the socket is served, so that an old event is never taken for a new one.
func (m *Manager) ReplaySpool(ctx context.Context, call api.HookCall) {
	call.Spooled = true
	m.Hook(ctx, call)
}
