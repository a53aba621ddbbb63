package activation

import (
	"sort"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// report is what the last looks found that is not as it should be. Guarded by Manager.mu.
type report struct {
	unwanted map[model.VolumeID]api.Unwanted
	reasons  map[model.VolumeID]failure // last failure of a volume
	rivals   map[model.VolumeID]rival   // who keeps a volume from being exclusive here
	vgs      map[string]string          // by VG: why it cannot be worked on
	general  map[string]string          // by topic
	events   []api.Incident             // oldest first, see Event
}

// failure is why a volume could not be brought to its wanted mode.
type failure struct {
	text string
	at   time.Time
}

func newReport() report {
	return report{
		unwanted: map[model.VolumeID]api.Unwanted{},
		reasons:  map[model.VolumeID]failure{},
		rivals:   map[model.VolumeID]rival{},
		vgs:      map[string]string{},
		general:  map[string]string{},
	}
}

// problem notes or (err nil) clears something that is wrong with this host; it is logged
// when it changes.
func (m *Manager) problem(topic string, err error) {
	m.mu.Lock()
	old := m.report.general[topic]
	if err == nil {
		delete(m.report.general, topic)
	} else {
		m.report.general[topic] = oneLine(err.Error())
	}
	now := m.report.general[topic]
	m.mu.Unlock()
	switch {
	case now != "" && now != old:
		m.Log.Warn("problem", "topic", topic, "problem", now)
	case now == "" && old != "":
		m.Log.Info("problem solved", "topic", topic)
	}
}

// solved clears the problems of a kind, by the beginning of their topics, that are not
// among those found now.
func (m *Manager) solved(kind string, found map[string]bool) {
	var over []string
	m.mu.Lock()
	for topic := range m.report.general {
		if strings.HasPrefix(topic, kind) && !found[topic] {
			over = append(over, topic)
		}
	}
	m.mu.Unlock()
	for _, topic := range over {
		m.problem(topic, nil)
	}
}

func (m *Manager) reportVG(vg string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.report.vgs, vg)
		return
	}
	m.report.vgs[vg] = oneLine(err.Error())
}

func (m *Manager) noteFailure(vols []model.Volume, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range vols {
		text := oneLine(err.Error())
		if m.report.reasons[v.ID].text != text {
			m.Log.Warn("a volume is not as wanted", "volume", v.Name(), "reason", text)
		}
		m.report.reasons[v.ID] = failure{text, m.Now()}
	}
}

// reportJobs makes the list of volumes that are not in their wanted mode.
func (m *Manager) reportJobs(jobs []job, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range jobs {
		if j.done() {
			delete(m.report.unwanted, j.volume.ID)
			delete(m.report.reasons, j.volume.ID)
			delete(m.report.rivals, j.volume.ID)
			continue
		}
		u, known := m.report.unwanted[j.volume.ID]
		if !known {
			u.Since = m.sinceWhen(j)
		}
		u.Volume, u.Wanted, u.Actual = j.volume.Name(), string(j.want), j.have.String()
		u.Guest = guestsOf(j.holds)
		f := m.report.reasons[j.volume.ID]
		u.Reason, u.Failed, u.Next = f.text, f.at, j.next()
		if err != nil {
			u.Reason, u.Failed = oneLine(err.Error()), m.Now()
		}
		m.report.unwanted[j.volume.ID] = u
	}
	// Volumes without a hold any more want nothing.
	held := map[model.VolumeID]bool{}
	for _, h := range m.holds {
		held[h.Volume] = true
	}
	for id := range m.report.unwanted {
		if !held[id] {
			delete(m.report.unwanted, id)
			delete(m.report.reasons, id)
			delete(m.report.rivals, id)
		}
	}
}

// sinceWhen is since when a volume has not been as wanted that is found so for the first time: since
// its guest has ended or its migration has, which the journal knows, else since now. It must be
// called with m.mu held.
func (m *Manager) sinceWhen(j job) time.Time {
	since := m.Now()
	for _, h := range j.holds {
		s := m.stories[h.Owner]
		ended := s != nil && h.Phase == model.PhaseHeld && j.have.Is(model.ModeSH) && (s.told(model.StepSwitched) || s.told(model.StepTakenBack))
		if at := time.UnixMilli(h.Since); h.Since > 0 && at.Before(since) && (ended || j.want == model.ModeOff) {
			since = at
		}
	}
	return since
}

// reportBlind reports a VG that cannot be looked at or worked on: what should be off there is
// not known to be. What was not as wanted before is still reported.
func (m *Manager) reportBlind(vg string, err error) {
	m.reportVG(vg, err)
	jobs := m.jobs(vg, local{})
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range jobs {
		if _, known := m.report.unwanted[j.volume.ID]; known || j.want != model.ModeOff {
			continue
		}
		m.report.unwanted[j.volume.ID] = api.Unwanted{
			Volume: j.volume.Name(), Guest: guestsOf(j.holds), Wanted: string(j.want), Actual: "unknown",
			Since: m.sinceWhen(j), Next: j.next(), Failed: m.Now(), Reason: oneLine(err.Error()),
		}
	}
}

func guestsOf(holds []model.Hold) string {
	seen := map[string]bool{}
	for _, h := range holds {
		seen[h.Guest] = true
	}
	return strings.Join(sortedKeys(seen), ", ")
}

// pendingList is the report's unwanted volumes by name.
func (m *Manager) pendingList() []api.Unwanted {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]api.Unwanted, 0, len(m.report.unwanted))
	for _, u := range m.report.unwanted {
		if u.Next != "" {
			u.NextTry = m.nextLook
		}
		all = append(all, u)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Volume < all[j].Volume })
	return all
}
