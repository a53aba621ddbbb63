package activation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// adopt gives holds to guests that run without them - they ran before virtlvm did, passed
// by break-glass, or were given a disk while running - and ends the holds of disks that
// were taken away. The ensure loop then takes what locks are missing; a refusal there is an
// alarm. all: also look at guests whose disks have not changed.
func (m *Manager) adopt(ctx context.Context, s sight, all bool) {
	ctx = withInventories(ctx)
	for _, uuid := range sortedKeys(s.ByUUID) {
		g := s.ByUUID[uuid]
		if g.Alive != guests.Alive {
			continue
		}
		topic := "guest " + g.Name
		doc, err := m.readStatus(g)
		if err != nil {
			m.problem(topic, err)
			continue
		}
		if m.isAdopted(uuid, doc.key) && !all {
			continue
		}
		err = m.adoptGuest(ctx, s, g, doc.domain)
		m.problem(topic, err)
		if err == nil {
			m.setAdopted(uuid, doc.key)
		}
	}
	m.forgetAdopted(s.Snapshot)
}

// adoptNow adopts one running guest; see withInventories.
func (m *Manager) adoptNow(ctx context.Context, s sight, g guests.Guest) error {
	doc, err := m.readStatus(g)
	if err != nil {
		return err
	}
	return m.adoptGuest(ctx, s, g, doc.domain)
}

// document is what the status file of a running guest says of its domain. Most are the same at
// every look, and to read one takes a hundred times as long as its checksum.
type document struct {
	sum    [sha256.Size]byte // see ofDomain
	domain *domain.Domain    // nobody changes it
	key    string            // see disksKey
}

func (m *Manager) readStatus(g guests.Guest) (document, error) {
	sum := sha256.Sum256(ofDomain(g.XML))
	m.mu.Lock()
	doc, ok := m.parsed[g.UUID]
	m.mu.Unlock()
	if ok && doc.sum == sum {
		return doc, nil
	}
	d, err := domain.ParseStatus(g.XML)
	if err != nil {
		return document{}, fmt.Errorf("cannot read the disks of running guest %s: %w", show(g.Name), err)
	}
	doc = document{sum: sum, domain: d, key: disksKey(d)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parsed[g.UUID] = doc
	return doc, nil
}

// ofDomain is a status file from its <domain> on. What libvirt writes before that, such as the
// phase of a migration, says nothing of disks.
func ofDomain(status []byte) []byte {
	return status[max(0, bytes.Index(status, []byte("<domain "))):]
}

// adoptGuest adopts what can be adopted, disk by disk: one that cannot be judged must not
// leave the others without protection.
func (m *Manager) adoptGuest(ctx context.Context, s sight, g guests.Guest, d *domain.Domain) error {
	var placed []located
	var failed error
	for _, w := range m.walks(d) {
		// The first step only: libvirt has found the chain, and a running guest's headers
		// change under us.
		found, err := m.next(ctx, []walk{w})
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		placed = append(placed, found...)
	}
	needs, err := mergeNeeds(placed)
	if err != nil {
		failed = errors.Join(failed, err)
	}
	var change store.HoldChange
	var now local
	m.mu.Lock()
	looked := slices.ContainsFunc(needs, func(n model.Need) bool { return !m.hasHold(g.UUID, n) })
	m.mu.Unlock()
	if looked {
		if now, err = m.look(ctx); err != nil {
			return fmt.Errorf("running guest %s is not protected: %w", show(g.Name), err)
		}
	}
	m.mu.Lock()
	if m.inflight[g.UUID] > 0 || m.stale(s, g.UUID) ||
		!looked && slices.ContainsFunc(needs, func(n model.Need) bool { return !m.hasHold(g.UUID, n) }) {
		m.mu.Unlock()
		m.Kick()
		return nil
	}
	wanted := map[model.VolumeID]bool{}
	for _, n := range needs {
		wanted[n.Volume.ID] = true
		k := holdKey{g.UUID, n.Volume.ID}
		if m.hasHold(g.UUID, n) {
			continue
		}
		if err := m.conflict(g.UUID, n, now.ofVolume(n.Volume)); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		h := model.Hold{
			Owner: g.UUID, Guest: g.Name, Volume: n.Volume.ID, LockLV: n.Volume.LockLV, Name: n.Volume.Name(), Role: n.Role, Mode: n.Role.Mode(),
			Phase: model.PhaseHeld, BootID: m.BootID, Attempt: model.Attempt{Seen: true, AnsweredMillis: m.uptimeMillis()}, Since: m.Now().UnixMilli(),
		}
		m.holds[k] = h
		change.Put = append(change.Put, h)
		m.Log.Info("adopted a volume of a running guest", "guest", g.Name, "volume", h.Name, "mode", h.Mode)
	}
	// Only a quiet guest's XML says what it has: jobs add and remove images on the way.
	if quiet(g) && failed == nil {
		for k, h := range m.holds {
			if k.owner == g.UUID && h.Phase == model.PhaseHeld && h.Attempt.Seen && !wanted[k.volume] && m.inScope(h) {
				m.Log.Info("a running guest no longer has a volume", "guest", g.Name, "volume", h.Name)
				if m.retain(h, &change) {
					continue
				}
				h.Phase, h.Since = model.PhaseEnding, m.Now().UnixMilli()
				m.holds[k] = h
				change.Put = append(change.Put, h)
			}
		}
	}
	m.mu.Unlock()
	m.persist(ctx, change)
	if failed != nil {
		return fmt.Errorf("ALARM: running guest %s is not fully protected: %w", show(g.Name), failed)
	}
	return nil
}

// hasHold must be called with m.mu held.
func (m *Manager) hasHold(owner string, n model.Need) bool {
	h, ok := m.holds[holdKey{owner, n.Volume.ID}]
	return ok && h.Phase != model.PhaseEnding && h.Mode.Covers(n.Role.Mode())
}

func (m *Manager) inScope(h model.Hold) bool {
	vg, _, _ := strings.Cut(h.Name, "/")
	return m.Settings().Scope(vg)
}

// disksKey tells whether the disks of a guest have changed.
func disksKey(d *domain.Domain) string {
	var b strings.Builder
	for _, disk := range d.Disks {
		for _, im := range disk.Images() {
			fmt.Fprintf(&b, "%s %s\n", im.Source, im.Role)
		}
	}
	return b.String()
}

func (m *Manager) isAdopted(uuid, key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	last, ok := m.adopted[uuid]
	return ok && last == key
}

func (m *Manager) setAdopted(uuid, key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adopted[uuid] = key
}

func (m *Manager) forgetAdopted(snap guests.Snapshot) {
	m.mu.Lock()
	for uuid := range m.adopted {
		if _, ok := snap.ByUUID[uuid]; !ok {
			delete(m.adopted, uuid)
		}
	}
	maps.DeleteFunc(m.parsed, func(uuid string, _ document) bool {
		_, ok := snap.ByUUID[uuid]
		return !ok
	})
	running := map[string]bool{}
	for _, g := range snap.ByUUID {
		running["guest "+g.Name] = true
	}
	m.mu.Unlock()
	m.solved("guest ", running)
}

// quiet: libvirt is doing nothing with the guest that could change its disks.
func quiet(g guests.Guest) bool {
	return (g.Job.Async == "" || g.Job.Async == "none") && (g.Job.Type == "" || g.Job.Type == "none") && !g.BlockJobs
}
