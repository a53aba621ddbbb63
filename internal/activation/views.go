package activation

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// Status is this host at a glance. It runs at most one LVM-side program (lvmlockctl), and
// where guests run journalctl.
func (m *Manager) Status(ctx context.Context) api.Status {
	s := api.Status{
		Host: m.Host, BootID: m.BootID, Started: m.started, Ready: m.isReady(), BreakGlass: m.Settings().BreakGlass(),
		Database: "ok", Lockd: "ok", VGs: []api.VG{}, Problems: []string{},
	}
	if err := m.Journal.Health(ctx); err != nil {
		s.Database = oneLine(err.Error())
	}
	now, lookErr := m.look(ctx)
	switch {
	case lookErr != nil:
		s.Lockd = oneLine(lookErr.Error())
	case !now.locks.LockdRunning:
		s.Lockd = "lvmlockd is not running"
	}
	if snap, err := m.Guests.Observe(); err == nil {
		for _, g := range snap.ByUUID {
			if g.Alive != guests.Gone {
				s.Guests++
			}
		}
	}
	if s.Guests > 0 {
		s.Events = m.unopened(ctx)
	}
	s.Pending = m.pendingList()
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Holds = m.countHolds()
	s.Events = append(s.Events, m.report.latest()...)
	slices.SortStableFunc(s.Events, func(a, b api.Incident) int { return b.At.Compare(a.At) })
	for _, vg := range m.known {
		s.VGs = append(s.VGs, m.vgView(vg, now, lookErr))
	}
	for _, topic := range sortedKeys(m.report.general) {
		s.Problems = append(s.Problems, m.report.general[topic])
	}
	for _, vg := range sortedKeys(m.report.vgs) {
		s.Problems = append(s.Problems, m.report.vgs[vg])
	}
	return s
}

// countHolds must be called with m.mu held.
func (m *Manager) countHolds() (n api.HoldCounts) {
	for _, h := range m.holds {
		if h.Owner == model.OwnerRetained && h.Phase == model.PhaseHeld {
			n.Retained++
		}
		switch h.Wanted() {
		case model.ModeEX:
			n.Exclusive++
		case model.ModeSH:
			n.Shared++
		default:
			n.Ending++
		}
	}
	return n
}

// vgView must be called with m.mu held.
func (m *Manager) vgView(vg lvm.VG, now local, lookErr error) api.VG {
	inScope, err := m.managed(vg.Name, vg.LockType)
	v := api.VG{Name: vg.Name, UUID: vg.UUID, LockType: vg.LockType, InScope: inScope && err == nil, Lockspace: "unknown", Volumes: vg.Volumes}
	if lookErr == nil {
		v.Lockspace = "stopped"
		if now.started(vg.Name) {
			v.Lockspace = "started"
		}
	}
	if vg.LockType == "none" {
		v.Lockspace = "-"
	}
	if now.claimed[vg.Name] {
		v.Lockspace = "claims"
	}
	held := map[model.VolumeID]bool{}
	for _, h := range m.holds {
		if h.Volume.VG == vg.UUID {
			held[h.Volume] = true
		}
	}
	v.Held = len(held)
	if q := m.vgs[vg.Name]; q != nil && len(q.stuck) > 0 {
		v.Stuck = q.stuck[0].text(m.Now())
	}
	return v
}

// Volumes lists the volumes of the VGs in scope, or of one VG, with their holders read
// from the leases on disk.
func (m *Manager) Volumes(ctx context.Context, vg string) ([]api.Volume, error) {
	vgs, err := m.scopedVGs(ctx, vg)
	if err != nil {
		return nil, err
	}
	all := []api.Volume{}
	for _, name := range vgs {
		vols, err := m.volumesOf(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, vols...)
	}
	return link(all), nil
}

func (m *Manager) scopedVGs(ctx context.Context, only string) ([]string, error) {
	vgs, err := m.groups(ctx)
	if err != nil {
		return nil, api.NewError(kindOf(err), fmt.Sprintf("cannot list the volume groups: %v", err))
	}
	var all []string
	for _, vg := range vgs {
		ours, _ := m.managed(vg.Name, vg.LockType)
		if only != "" && vg.Name == only && !ours {
			return nil, api.NewError(api.KindOutOfScope, fmt.Sprintf("volume group %s is not managed by virtlvm (lock type %s)", only, vg.LockType))
		}
		if ours && (only == "" || vg.Name == only) {
			all = append(all, vg.Name)
		}
	}
	if only != "" && len(all) == 0 {
		return nil, api.NewError(api.KindNotFound, fmt.Sprintf("there is no volume group %s on this host", only))
	}
	return all, nil
}

func (m *Manager) volumesOf(ctx context.Context, vg string) ([]api.Volume, error) {
	inv, err := m.inventory(ctx, vg)
	if err != nil {
		return nil, err
	}
	now, err := m.look(ctx)
	if err != nil {
		return nil, err
	}
	open, err := m.LVM.OpenCounts(ctx)
	if err != nil {
		return nil, api.NewError(kindOf(err), fmt.Sprintf("cannot read which volumes are open: %v", err))
	}
	all := []api.Volume{}
	if inv == nil {
		return all, nil
	}
	offsets := map[string]int64{}
	for _, v := range inv.byName {
		offsets[v.LockLV] = v.LeaseOffset
	}
	holders, holdersErr := m.Leases.HoldersAll(ctx, vg, offsets)
	known := api.KnownLease
	if now.claimed[vg] {
		known = api.KnownPeers
	}
	for _, name := range sortedKeys(inv.byName) {
		v := inv.byName[name]
		a := now.ofVolume(v)
		view := api.Volume{
			Name: v.Name(), UUID: v.ID.LV, Type: v.SegType, Size: v.Size, Wanted: string(model.ModeOff), Actual: a.String(),
			Open: open[v.ID.DMUUID()] > 0, Holders: []api.Holder{}, Known: known, Guests: []string{},
			Tags: v.Tags, Format: v.Format(), Backing: backingOf(v),
		}
		held, ok := holders[v.LockLV]
		if !ok {
			view.Known = api.KnownUnknown
		}
		if holdersErr != nil {
			view.Note = oneLine(holdersErr.Error())
		}
		for _, h := range held {
			view.Holders = append(view.Holders, api.Holder{Host: h.Label(), HostID: h.HostID, Mode: string(h.Mode), State: string(h.State), FreeIn: h.FreeIn})
		}
		m.addHolds(&view, v, a)
		all = append(all, view)
	}
	return all, nil
}

// addHolds tells what this host's holds want of a volume, and what nobody wants.
func (m *Manager) addHolds(view *api.Volume, v model.Volume, a model.Actual) {
	m.mu.Lock()
	defer m.mu.Unlock()
	want, held := model.ModeOff, false
	for _, h := range m.holds {
		if h.Volume != v.ID {
			continue
		}
		held = true
		want = want.Max(h.Wanted())
		switch {
		case h.Owner == model.OwnerOperator:
			view.Note = "activated by an operator"
		case h.Owner == model.OwnerRetained:
			view.Note = "retained, used by nobody"
		case !model.IsGuest(h.Owner):
			view.Note = "held by " + h.Subject()
		default:
			view.Guests = append(view.Guests, h.Guest)
		}
	}
	sort.Strings(view.Guests)
	view.Wanted = string(want)
	if !held && a.Active {
		view.Note = "active here, but not by virtlvm"
	}
	if u, ok := m.report.unwanted[v.ID]; ok && u.Reason != "" {
		view.Note = u.Reason
	}
}

// ListGuests lists the guests that run or have holds here.
func (m *Manager) ListGuests(ctx context.Context) ([]api.Guest, error) {
	snap, err := m.Guests.Observe()
	if err != nil {
		return nil, api.NewError(api.KindInternal, fmt.Sprintf("cannot observe the guests: %v", err))
	}
	now, lookErr := m.look(ctx)
	byUUID := map[string]*api.Guest{}
	for uuid, g := range snap.ByUUID {
		v := &api.Guest{Name: g.Name, UUID: uuid, State: g.State, PID: g.PID, Job: g.Job.Async, Volumes: []api.GuestDisk{}, Note: g.Note}
		switch g.Alive {
		case guests.Gone:
			v.State = "gone"
		case guests.Unknown:
			v.State = "unknown"
		}
		if lookErr == nil {
			v.CannotMigrate = m.obstacles(ctx, g, now)
		} else {
			v.CannotMigrate = []string{oneLine(lookErr.Error())}
		}
		v.CanMigrate = len(v.CannotMigrate) == 0
		byUUID[uuid] = v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, h := range m.holds {
		if !model.IsGuest(k.owner) {
			continue
		}
		g := byUUID[k.owner]
		if g == nil {
			g = &api.Guest{Name: h.Guest, UUID: k.owner, State: "gone", Volumes: []api.GuestDisk{}, CannotMigrate: []string{"it does not run here"}}
			if !h.Attempt.Seen && h.Phase == model.PhaseHeld {
				g.State = "starting"
			}
			byUUID[k.owner] = g
		}
		actual := "unknown"
		if lookErr == nil {
			actual = now.ofHold(h).String()
		}
		g.Volumes = append(g.Volumes, api.GuestDisk{Volume: h.Name, Role: string(h.Role), Phase: string(h.Phase), Wanted: string(h.Wanted()), Actual: actual})
	}
	all := make([]api.Guest, 0, len(byUUID))
	for _, g := range byUUID {
		sort.Slice(g.Volumes, func(i, j int) bool { return g.Volumes[i].Volume < g.Volumes[j].Volume })
		if note := m.report.general["guest "+g.Name]; note != "" {
			g.Note = note
		}
		all = append(all, *g)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, nil
}
