package activation

import (
	"context"
	"maps"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// notice takes a call that must never fail: it only makes us look.
func (m *Manager) notice(ctx context.Context, call api.HookCall) {
	uuid := call.UUID
	if uuid == "" {
		uuid = m.uuidOf(call.Guest)
	}
	sameBoot := call.Stamp.BootID == m.BootID
	m.called(uuid)
	switch {
	case uuid == "" || !sameBoot:
	case call.Op == "stopped" && !call.Spooled:
		// libvirt still restores ownership of the disks before it calls `release`.
		m.mu.Lock()
		m.stopping[uuid] = m.Now()
		m.mu.Unlock()
		return
	case call.Op == "release" || call.Op == "stopped":
		m.mu.Lock()
		m.released[uuid] = max(m.released[uuid], call.Stamp.UptimeMillis)
		delete(m.stopping, uuid)
		delete(m.passed, uuid)
		m.mu.Unlock()
		if call.Op == "release" && !call.Spooled {
			// Wait, so that the volumes are free when virsh returns; go on even if the hook
			// does not.
			ctx, done := context.WithTimeout(context.WithoutCancel(ctx), 2*startGrace)
			defer done()
			m.judge(ctx, uuid)
			// Not before commands of the last daemon have ended: one that still runs may activate
			// what is off now.
			if m.awaitReady(ctx) == nil {
				m.ensureGuest(ctx, uuid)
			}
			if m.hasStory(uuid) {
				m.Kick()
			}
			return
		}
	}
	m.Kick()
}

// uuidOf finds a guest's uuid from its holds, where an event came without a readable XML.
func (m *Manager) uuidOf(guest string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, h := range m.holds {
		if h.Guest == guest && model.IsGuest(k.owner) {
			return k.owner
		}
	}
	return ""
}

// fate is what becomes of a hold after a look at the guests.
type fate int

const (
	keep   fate = iota
	seen        // its QEMU runs
	ending      // its guest is gone
)

// sight is one look at the guests, with the number of hook calls each guest had had
// before it. What a guest did since makes what was seen of it worthless.
type sight struct {
	guests.Snapshot
	calls map[string]uint64
}

func (m *Manager) sight() (sight, error) {
	m.mu.Lock()
	calls := maps.Clone(m.calls)
	m.mu.Unlock()
	snap, err := m.Guests.Observe()
	m.problem("guests", err)
	return sight{snap, calls}, err
}

// stale must be called with m.mu held.
func (m *Manager) stale(s sight, uuid string) bool { return m.calls[uuid] != s.calls[uuid] }

// called notes a hook call for a guest.
func (m *Manager) called(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[uuid]++
}

// judge looks which guests run and ends the holds of those that do not; only: one
// guest's uuid, or "" for all.
func (m *Manager) judge(ctx context.Context, only string) {
	s, err := m.sight()
	if err != nil {
		return // unknown is never gone
	}
	m.judgeBy(ctx, s, only)
}

func (m *Manager) judgeBy(ctx context.Context, s sight, only string) {
	var change store.HoldChange
	m.mu.Lock()
	for k, h := range m.holds {
		if !model.IsGuest(k.owner) || h.Phase == model.PhaseEnding || only != "" && k.owner != only || m.stale(s, k.owner) {
			continue
		}
		switch m.fateOf(h, s.Snapshot) {
		case seen:
			delete(m.goneAt, k.owner)
			was := h
			h.Attempt.Seen = true
			if m.migrationOver(h, s.ByUUID[k.owner]) {
				h.Phase, h.Grant, h.Since = model.PhaseHeld, model.Grant{}, m.Now().UnixMilli()
			}
			if h == was {
				continue
			}
		case ending:
			if m.retain(h, &change) {
				continue
			}
			h.Phase, h.Since = model.PhaseEnding, m.Now().UnixMilli()
		default:
			continue
		}
		m.holds[k] = h
		change.Put = append(change.Put, h)
	}
	m.mu.Unlock()
	m.persist(ctx, change)
}

// fateOf must be called with m.mu held. A hold ends only on evidence: its QEMU was there
// and is gone, its start was ended by libvirt or never became a QEMU.
func (m *Manager) fateOf(h model.Hold, snap guests.Snapshot) fate {
	if m.inflight[h.Owner] > 0 {
		return keep
	}
	if m.goingDown && snap.Liveness(h.Owner, h.Guest) == guests.Gone {
		return ending // libvirt has ended: no call for it comes any more
	}
	if h.Phase == model.PhaseIncoming && !h.Prepared && !h.Attempt.Seen && snap.Liveness(h.Owner, h.Guest) == guests.Gone {
		if h.Attempt.AnsweredMillis == 0 {
			return ending // the daemon died before the verdict
		}
		// Its migration has only called `migrate`. A `release` now is that of a plain start
		// which was refused meanwhile; checkIncoming asks the source how it stands.
		return keep
	}
	_, listed := snap.ByUUID[h.Owner]
	switch snap.Liveness(h.Owner, h.Guest) {
	case guests.Alive:
		return seen
	case guests.Unknown:
		return keep
	case guests.Gone:
	}
	if since, ok := m.stopping[h.Owner]; ok && m.Now().Sub(since) < startGrace {
		return keep
	}
	answered := h.Attempt.AnsweredMillis
	if at, ok := m.released[h.Owner]; ok && answered > 0 && at >= answered {
		return ending
	}
	if listed { // QEMU gone, status file not: libvirtd is down, or about to call us
		since, ok := m.goneAt[h.Owner]
		if !ok {
			since = m.Now()
			m.goneAt[h.Owner] = since
		}
		if m.Now().Sub(since) > startGrace {
			return ending
		}
		return keep
	}
	switch {
	case h.Attempt.Seen, answered == 0: // gone, or the daemon died before the verdict
		return ending
	case h.Attempt.LibvirtdPID != 0 && h.Attempt.LibvirtdStart != 0 && !m.Alive(h.Attempt.LibvirtdPID, h.Attempt.LibvirtdStart):
		return ending
	case answered > 0 && m.uptimeMillis()-answered > startGrace.Milliseconds():
		return ending
	}
	return keep
}

// end moves held holds to ending.
func (m *Manager) end(ctx context.Context, which func(model.Hold) bool) {
	var change store.HoldChange
	m.mu.Lock()
	for k, h := range m.holds {
		if h.Phase != model.PhaseEnding && which(h) {
			h.Phase, h.Since = model.PhaseEnding, m.Now().UnixMilli()
			m.holds[k] = h
			change.Put = append(change.Put, h)
		}
	}
	m.mu.Unlock()
	m.persist(ctx, change)
}

// ensureGuest brings the VGs of a guest's holds to what is wanted.
func (m *Manager) ensureGuest(ctx context.Context, uuid string) {
	for _, vg := range m.heldVGs(uuid) {
		m.ensureVG(ctx, vg)
	}
}

// heldVGs are the VGs with holds of an owner, "" for all.
func (m *Manager) heldVGs(owner string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	vgs := map[string]bool{}
	for k, h := range m.holds {
		if owner == "" || k.owner == owner {
			vg, _, _ := strings.Cut(h.Name, "/")
			vgs[vg] = true
		}
	}
	return sortedKeys(vgs)
}
