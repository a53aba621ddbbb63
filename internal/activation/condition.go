package activation

import (
	"context"
	"fmt"
	"slices"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// Condition is what there is of one VG on this host, for `virtlvm check`.
type Condition struct {
	VG      lvm.VG
	Managed bool
	// Claimed: it has no lvmlockd, and its volumes are claimed among its hosts.
	Claimed bool
	// Stuck and Err say why nothing more is known; Stuck: an LVM command hangs.
	Stuck bool
	Err   error
	// Unlocked: read without a lock, so that it may be out of date.
	Unlocked bool
	Started  bool // its lockspace
	Volumes  []VolumeCondition
}

// VolumeCondition is a volume and what this host has of it.
type VolumeCondition struct {
	model.Volume
	Actual model.Actual
	// Held: a hold wants it, or one that is protected by the same lock.
	Held bool
	// Unshareable says why it cannot be active on two hosts, as a live migration needs it;
	// "" if it can.
	Unshareable string
}

// Conditions looks at every VG that this host sees. It reads no lease and changes nothing.
// VGs that are not managed come with their volumes and without locks.
func (m *Manager) Conditions(ctx context.Context) ([]Condition, error) {
	vgs, err := m.groups(ctx)
	if err != nil {
		return nil, api.NewError(kindOf(err), fmt.Sprintf("cannot list the volume groups: %v", err))
	}
	now, lookErr := m.look(ctx)
	all := make([]Condition, 0, len(vgs))
	for _, vg := range vgs {
		c := Condition{VG: vg, Started: lookErr == nil && now.started(vg.Name)}
		managed, err := m.managed(vg.Name, vg.LockType)
		c.Managed = managed && err == nil
		c.Claimed = c.Managed && vg.LockType == "none"
		m.mu.Lock()
		c.Stuck = len(m.queue(vg.Name).stuck) > 0
		m.mu.Unlock()
		inv, err := m.inventory(ctx, vg.Name)
		switch {
		case err != nil:
			c.Err = err
		case inv != nil:
			c.Unlocked = inv.unlocked
			c.Volumes = m.conditionsOf(inv, now)
		}
		if c.Err == nil && c.Managed {
			c.Err = lookErr // without the locks its volumes say nothing
		}
		all = append(all, c)
	}
	return all, nil
}

func (m *Manager) conditionsOf(inv *inventory, now local) []VolumeCondition {
	locks := map[string]bool{}
	m.mu.Lock()
	for _, h := range m.holds {
		locks[h.LockLV] = true
	}
	m.mu.Unlock()
	var all []VolumeCondition
	for _, name := range sortedKeys(inv.byName) {
		v := inv.byName[name]
		all = append(all, VolumeCondition{
			Volume: v, Actual: now.ofVolume(v), Held: locks[v.LockLV], Unshareable: inv.unshareable(v),
		})
	}
	return slices.Clip(all)
}
