package activation

import (
	"context"
	"strings"

	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// retain turns the hold of a guest that has ended into one for nobody, where the
// configuration says so, the guest has run with the volume exclusively here and the host
// stays up; false: the hold ends. A claim is not kept for nobody. It must be called with m.mu held.
func (m *Manager) retain(h model.Hold, change *store.HoldChange) bool {
	vg, _, _ := strings.Cut(h.Name, "/")
	if !m.Settings().Retain || m.isClaimed(vg) || m.goingDown || h.Phase != model.PhaseHeld || h.Role != model.RoleWritable || h.Mode != model.ModeEX || !h.Attempt.Seen {
		return false
	}
	m.keepForNobody(h, change)
	m.Log.Info("retained a volume of a guest that has ended", "guest", h.Guest, "volume", h.Name)
	return true
}

// keepForNobody must be called with m.mu held.
func (m *Manager) keepForNobody(h model.Hold, change *store.HoldChange) {
	kept := model.Hold{
		Owner: model.OwnerRetained, Guest: h.Guest, Volume: h.Volume, LockLV: h.LockLV, Name: h.Name,
		Role: model.RoleWritable, Mode: h.Mode, Claim: h.Claim, Phase: model.PhaseHeld, BootID: m.BootID, Since: m.Now().UnixMilli(),
	}
	delete(m.holds, holdKey{h.Owner, h.Volume})
	m.holds[holdKey{kept.Owner, kept.Volume}] = kept
	change.Delete = append(change.Delete, h)
	change.Put = append(change.Put, kept)
}

// LeaveHere turns a command's hold on a volume into one for nobody: it stays exclusive on
// this host until a guest here or another host needs it. Again is no error.
func (m *Manager) LeaveHere(ctx context.Context, w Work, v model.Volume) {
	m.mu.Lock()
	var change store.HoldChange
	h, ok := m.holds[holdKey{w.owner(), v.ID}]
	if ok && h.Phase == model.PhaseHeld && h.Mode == model.ModeEX && !m.goingDown {
		m.keepForNobody(h, &change)
	}
	m.mu.Unlock()
	m.persist(ctx, change)
}

// settleRetained drops the holds for nobody of volumes that somebody needs, or that
// somebody else has deactivated: those are never taken again. A volume that is neither
// exclusive nor off is given up. It must be called with m.mu held.
func (m *Manager) settleRetained(jobs []job, change *store.HoldChange) {
	for _, j := range jobs {
		k := holdKey{model.OwnerRetained, j.volume.ID}
		h, ok := m.holds[k]
		if !ok || h.Phase != model.PhaseHeld {
			continue
		}
		needed := false
		for _, other := range j.holds {
			needed = needed || other.Owner != model.OwnerRetained && other.Phase != model.PhaseEnding
		}
		switch {
		case needed, j.have.Is(model.ModeOff):
			delete(m.holds, k)
			change.Delete = append(change.Delete, h)
		case !j.have.Is(h.Mode):
			h.Phase, h.Since = model.PhaseEnding, m.Now().UnixMilli()
			m.holds[k] = h
			change.Put = append(change.Put, h)
		}
	}
}
