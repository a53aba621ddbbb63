package activation

import (
	"context"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// ShowVolume is one volume, with what is above and below it in all VGs in scope.
func (m *Manager) ShowVolume(ctx context.Context, name string) (api.Volume, error) {
	v, err := m.volumeNamed(ctx, name)
	if err != nil {
		return api.Volume{}, err
	}
	all, err := m.volumesOf(ctx, v.VG)
	if err != nil {
		return api.Volume{}, err
	}
	vgs, err := m.scopedVGs(ctx, "")
	if err != nil {
		return api.Volume{}, err
	}
	note := ""
	for _, vg := range vgs {
		if vg == v.VG {
			continue
		}
		more, err := m.volumesOf(ctx, vg)
		if err != nil {
			note = fmt.Sprintf("what in %s is above or below it cannot be told: %s", vg, oneLine(err.Error()))
		}
		all = append(all, more...)
	}
	for _, view := range link(all) {
		if view.UUID != v.ID.LV {
			continue
		}
		if view.Note == "" {
			view.Note = note
		}
		return view, nil
	}
	return api.Volume{}, api.NewError(api.KindNotFound, fmt.Sprintf("%s is no longer there", v.Name()))
}

// link names the volumes above and below each other, which tags know by their uuids.
func link(all []api.Volume) []api.Volume {
	byUUID := map[string]*api.Volume{}
	for i := range all {
		byUUID[all[i].UUID] = &all[i]
	}
	for i := range all {
		if below := byUUID[all[i].Backing]; below != nil {
			all[i].Backing = below.Name
			below.Children = append(below.Children, all[i].Name)
		}
	}
	return all
}

func backingOf(v model.Volume) string {
	uuid, _ := v.HasTagOf(model.TagBacking)
	return uuid
}

// Children are the volumes with images above a volume, in all VGs in scope, as their tags
// say. Not knowing is an error.
func (m *Manager) Children(ctx context.Context, v model.Volume) ([]model.Volume, error) {
	vgs, err := m.scopedVGs(ctx, "")
	if err != nil {
		return nil, err
	}
	var all []model.Volume
	for _, vg := range vgs {
		inv, err := m.inventory(ctx, vg)
		if err != nil {
			return nil, err
		}
		if inv == nil {
			continue
		}
		for _, name := range sortedKeys(inv.byName) {
			if child := inv.byName[name]; backingOf(child) == v.ID.LV {
				all = append(all, child)
			}
		}
	}
	return all, nil
}

// NoChildInUse is nil if no image above a volume is in use on any host, or says which is and
// where. Of images that virtlvm has not made nothing is known here; the lease of the volume
// itself tells of those, since each host that uses one shares it.
func (m *Manager) NoChildInUse(ctx context.Context, v model.Volume) error {
	children, err := m.Children(ctx, v)
	if err != nil {
		return api.NewError(api.KindOf(err), fmt.Sprintf("cannot tell which volumes have %s below them: %v", v.Name(), err))
	}
	for _, child := range children {
		holders, err := m.holdersOf(ctx, child.VG, []model.Volume{child})
		if err != nil {
			return err
		}
		var texts []string
		for _, h := range holders[child.LockLV] {
			if h.Self && m.onlyRetained(child.ID) {
				continue
			}
			texts = append(texts, h.Text(m.Now()))
		}
		if len(texts) > 0 {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s is the template below %s, which is held %s; stop its guest first", v.Name(), child.Name(), strings.Join(texts, " and ")))
		}
	}
	return nil
}

// onlyRetained: this host has the volume for nobody.
func (m *Manager) onlyRetained(id model.VolumeID) bool {
	holds := m.HoldsOf(id)
	for _, h := range holds {
		if h.Owner != model.OwnerRetained {
			return false
		}
	}
	return len(holds) > 0
}
