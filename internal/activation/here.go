package activation

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// What the cluster lock manager needs to know of this host.

// LocksHere lists what this host has of a VG's volumes: locks, devices, guests. An error
// means that it cannot be told; a volume that is not listed is off.
func (m *Manager) LocksHere(ctx context.Context, q api.LocksQuery) (api.LocksAnswer, error) {
	if err := m.awaitReady(ctx); err != nil {
		return api.LocksAnswer{}, err
	}
	vgUUID, err := m.vgUUID(ctx, q.VG)
	if err != nil {
		return api.LocksAnswer{}, err
	}
	now, err := m.look(ctx)
	if err != nil {
		return api.LocksAnswer{}, err
	}
	if now.locks.SanlockDown && !now.claimed[q.VG] {
		return api.LocksAnswer{}, api.NewError(api.KindLocking, fmt.Sprintf("neither lvmlockd nor sanlock answers on %s: it may have locks that nobody there knows of", m.Host))
	}
	open, err := m.LVM.OpenCounts(ctx)
	if err != nil {
		return api.LocksAnswer{}, api.NewError(kindOf(err), fmt.Sprintf("cannot read which volumes are open on %s: %v", m.Host, err))
	}
	answer := api.LocksAnswer{Started: now.started(q.VG), Volumes: m.localLocks(q.VG, vgUUID, now, open)}
	if now.claimed[q.VG] {
		answer.HostID = slices.Index(m.Settings().Claims[q.VG], m.Host) + 1
		return answer, nil
	}
	if hosts, err := m.Leases.Hosts(ctx, q.VG); err == nil {
		for _, h := range hosts {
			if h.Self {
				answer.HostID = h.ID
			}
		}
	}
	return answer, nil
}

// PeerLocks is LocksHere for another host.
func (m *Manager) PeerLocks(ctx context.Context, peer string, q api.LocksQuery) (api.LocksAnswer, error) {
	return peerQuery(ctx, m, peer, "locks "+q.VG, func(ctx context.Context) (api.LocksAnswer, error) { return m.LocksHere(ctx, q) })
}

func (m *Manager) vgUUID(ctx context.Context, vg string) (string, error) {
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	for range 2 {
		for _, g := range known {
			if ours, _ := m.managed(g.Name, g.LockType); ours && g.Name == vg {
				return g.UUID, nil
			}
		}
		var err error
		if known, err = m.groups(ctx); err != nil { // it may be new
			return "", api.NewError(kindOf(err), fmt.Sprintf("cannot list the volume groups of %s: %v", m.Host, err))
		}
	}
	return "", api.NewError(api.KindNotFound, fmt.Sprintf("%s has no volume group %s that virtlvm manages", m.Host, vg))
}

func (m *Manager) localLocks(vg, vgUUID string, now local, open map[string]int) []api.LocalLock {
	found := map[string]*api.LocalLock{} // by LV uuid
	of := func(lv string) *api.LocalLock {
		if found[lv] == nil {
			found[lv] = &api.LocalLock{UUID: lv, Mode: string(model.ModeOff)}
		}
		return found[lv]
	}
	for lv, mode := range now.locks.VGs[vg].Locks {
		if mode != model.ModeOff {
			of(lv).Mode = string(mode)
		}
	}
	for _, o := range now.locks.Orphans {
		if o.VG == vg {
			l := of(o.LV)
			l.Orphan, l.Mode = true, string(o.Mode)
		}
	}
	for uuid := range now.devices {
		if id, ok := model.ParseDMUUID(uuid); ok && id.VG == vgUUID {
			l := of(id.LV)
			l.Active, l.Open = true, open[uuid] > 0
		}
	}
	m.mu.Lock()
	for _, h := range m.holds {
		if h.Volume.VG != vgUUID {
			continue
		}
		l := of(h.Volume.LV)
		if h.Guest != "" {
			l.Guests = append(l.Guests, h.Guest)
		}
		if l.Use == "" || l.Use == api.UseEnding {
			l.Use = useOf(h)
		}
	}
	m.mu.Unlock()
	all := make([]api.LocalLock, 0, len(found))
	for _, lv := range sortedKeys(found) {
		sort.Strings(found[lv].Guests)
		all = append(all, *found[lv])
	}
	return all
}

func useOf(h model.Hold) string {
	switch {
	case h.Phase == model.PhaseEnding:
		return api.UseEnding
	case h.Owner == model.OwnerRetained:
		return api.UseRetained
	case h.Owner == model.OwnerOperator:
		return api.UseOperator
	case !model.IsGuest(h.Owner):
		return api.UseCommand
	}
	return api.UseGuest
}

// ManagedVGs lists the volume groups that virtlvm manages on this host, or makes sure of
// one.
func (m *Manager) ManagedVGs(ctx context.Context, only string) ([]string, error) {
	if err := m.awaitReady(ctx); err != nil {
		return nil, err
	}
	return m.scopedVGs(ctx, only)
}

// KnownVGs lists the managed volume groups that have a lockspace as of the last full look;
// it runs nothing.
func (m *Manager) KnownVGs() []string {
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	var all []string
	for _, vg := range known {
		if ours, err := m.managed(vg.Name, vg.LockType); ours && err == nil && !m.claimed(vg.Name) {
			all = append(all, vg.Name)
		}
	}
	return all
}

// Inventory lists the volumes of a managed VG by name. LockLV and LeaseOffset are those of
// the lock that protects each.
func (m *Manager) Inventory(ctx context.Context, vg string) ([]model.Volume, error) {
	inv, err := m.inventory(ctx, vg)
	if err != nil || inv == nil {
		return nil, err
	}
	all := make([]model.Volume, 0, len(inv.byName))
	for _, name := range sortedKeys(inv.byName) {
		all = append(all, inv.byName[name])
	}
	return all, nil
}

// VolumeNamed finds a managed volume by "vg/lv".
func (m *Manager) VolumeNamed(ctx context.Context, name string) (model.Volume, error) {
	if err := m.awaitReady(ctx); err != nil {
		return model.Volume{}, err
	}
	return m.volumeNamed(ctx, name)
}

// Record runs an operator's request with a row of the journal about it; argv is what the
// operator typed. The row's outcome is what do returns. The answer has the row's id also
// where do fails.
func (m *Manager) Record(ctx context.Context, by, kind string, argv []string, vols []model.Volume, do func(context.Context) (string, error)) (api.Command, error) {
	return m.record(ctx, &cause{text: by, record: true}, kind, argv, vols, do)
}

// putHold is the change that writes one hold.
func putHold(h model.Hold) store.HoldChange { return store.HoldChange{Put: []model.Hold{h}} }
