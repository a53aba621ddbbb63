package activation

import (
	"slices"

	"virtlvm/internal/api"
)

// keepEvents is how many of the latest events `virtlvm status` shows.
const keepEvents = 20

// Event notes something that was noticed and not done by virtlvm. It is only ever told.
func (m *Manager) Event(kind, subject, text string) {
	m.Log.Warn("noticed", "kind", kind, "subject", subject, "event", text)
	m.mu.Lock()
	defer m.mu.Unlock()
	all := append(m.report.events, api.Incident{At: m.Now(), Kind: kind, Subject: subject, Text: text})
	m.report.events = slices.Clone(all[max(0, len(all)-keepEvents):])
}

// latest must be called with m.mu held.
func (r *report) latest() []api.Incident {
	all := slices.Clone(r.events)
	slices.Reverse(all)
	return all
}
