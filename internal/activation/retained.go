package activation

import (
	"context"
	"strings"
	"time"

	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
)

// retain turns the hold of a guest that has ended into one for nobody, where the
// configuration says so and the guest has run with the volume exclusively here; false: the
// hold ends. It must be called with m.mu held.
func (m *Manager) retain(h model.Hold, change *store.HoldChange) bool {
	if !m.Settings().Retain || h.Phase != model.PhaseHeld || h.Role != model.RoleWritable || h.Mode != model.ModeEX || !h.Attempt.Seen {
		return false
	}
	kept := model.Hold{
		Owner: model.OwnerRetained, Guest: h.Guest, Volume: h.Volume, LockLV: h.LockLV, Name: h.Name,
		Role: h.Role, Mode: h.Mode, Phase: model.PhaseHeld, BootID: m.BootID, Since: m.Now().UnixMilli(),
	}
	delete(m.holds, holdKey{h.Owner, h.Volume})
	m.holds[holdKey{kept.Owner, kept.Volume}] = kept
	change.Delete = append(change.Delete, h)
	change.Put = append(change.Put, kept)
	m.Log.Info("retained a volume of a guest that has ended", "guest", h.Guest, "volume", h.Name)
	return true
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

// ShutDown gives up what is retained, where the host goes down: the lockspaces cannot stop
// while a volume is active, and other hosts would have to wait until sanlock frees it.
// systemd tells; without it nothing is done.
func (m *Manager) ShutDown(ctx context.Context) {
	retained := func(h model.Hold) bool { return h.Owner == model.OwnerRetained }
	some := false
	m.mu.Lock()
	for _, h := range m.holds {
		some = some || retained(h)
	}
	m.mu.Unlock()
	if !some {
		return
	}
	// Its exit code is not 0 unless the host is up and well.
	res, _ := m.Runner.Run(ctx, run.Cmd{Name: "systemctl", Args: []string{"is-system-running"}, Timeout: systemctlPatience})
	if strings.TrimSpace(string(res.Stdout)) != "stopping" {
		return
	}
	m.Log.Info("the host goes down: what is retained is given up")
	m.end(ctx, retained)
	for _, vg := range m.heldVGs(model.OwnerRetained) {
		m.ensureVG(ctx, vg)
	}
}

const systemctlPatience = 3 * time.Second
