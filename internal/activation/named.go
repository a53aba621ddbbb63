package activation

import (
	"context"
	"errors"
	"fmt"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
)

// unnamed is nil if no guest that is defined on this host or on another live one names the
// volume, or says which does. Not knowing is an error as well.
func (m *Manager) unnamed(ctx context.Context, v model.Volume) error {
	return m.namedBut(ctx, v, func(api.WritersAnswer) bool { return false })
}

// unsaved is nil if no such guest has a managed-save image.
func (m *Manager) unsaved(ctx context.Context, v model.Volume) error {
	return m.namedBut(ctx, v, func(a api.WritersAnswer) bool { return !a.Saved })
}

// namedBut is unnamed without the guests that may name it.
func (m *Manager) namedBut(ctx context.Context, v model.Volume, may func(api.WritersAnswer) bool) error {
	q := api.WritersQuery{Volumes: []api.LentVolume{{VGUUID: v.ID.VG, LVUUID: v.ID.LV, Name: v.Name()}}}
	answer, err := m.namedHere(q)
	if err == nil && answer.Guest != "" && !may(answer) {
		err = namedBy(v, answer, m.Host)
	}
	if err != nil || m.Peers == nil {
		return err
	}
	hosts, err := m.hostsWith(ctx, v.VG)
	if err != nil {
		return api.NewError(api.KindUnknown, fmt.Sprintf("cannot tell which hosts may have a guest that names %s: %v", v.Name(), err))
	}
	for _, host := range hosts {
		var answer api.WritersAnswer
		if err := m.call(ctx, host, api.RoutePeerNamed, q, &answer); err != nil {
			return api.NewError(api.KindUnknown, fmt.Sprintf("%s cannot say whether a guest that is defined there names %s: %v", host, v.Name(), err))
		}
		if answer.Guest != "" && !may(answer) {
			return namedBy(v, answer, host)
		}
	}
	return nil
}

// hostsWith are the other live hosts, all of those that have a VG among them: where one of these
// is not known it is an error.
func (m *Manager) hostsWith(ctx context.Context, vg string) ([]string, error) {
	byVG, _ := m.lockspaces(ctx)
	if byVG[vg] == nil { // new since the last full look, or it could not be read
		there, err := m.Leases.Hosts(ctx, vg)
		if err != nil {
			return nil, err
		}
		byVG[vg] = there
	}
	names := map[string]bool{}
	for in, hosts := range byVG {
		for _, h := range hosts {
			switch {
			case h.Self, h.State == model.HostDead, h.Name == m.Host:
			case h.Name != "":
				names[h.Name] = true
			case in == vg:
				return nil, fmt.Errorf("the name of the one with host_id %d is not known", h.ID)
			}
		}
	}
	return sortedKeys(names), nil
}

func namedBy(v model.Volume, a api.WritersAnswer, host string) error {
	text := fmt.Sprintf("%s is a disk of guest %s, which is defined on %s", v.Name(), show(a.Guest), host)
	if a.Saved {
		text += fmt.Sprintf(" and has a managed-save image there: start the guest, or give the image up with 'virsh managedsave-remove %s'", show(a.Guest))
	}
	return api.NewError(api.KindInUse, text)
}

// Named answers a host that asks whether a guest that is defined here names one of some
// volumes.
func (m *Manager) Named(ctx context.Context, peer string, q api.WritersQuery) (api.WritersAnswer, error) {
	return peerQuery(ctx, m, peer, "named", func(context.Context) (api.WritersAnswer, error) { return m.namedHere(q) })
}

// namedHere is whether a guest that is defined here names one of some volumes, running or not; one
// with a managed-save image before others. A definition that is not understood makes the answer
// unknown.
func (m *Manager) namedHere(q api.WritersQuery) (api.WritersAnswer, error) {
	var guests []*domain.Domain
	err := errors.New("nobody has said where they are")
	if m.Definitions != nil {
		guests, err = m.Definitions()
	}
	if err != nil {
		return api.WritersAnswer{}, api.NewError(api.KindUnknown, fmt.Sprintf("the guests that are defined on %s cannot be read: %v", m.Host, err))
	}
	var found api.WritersAnswer
	for _, d := range guests {
		if found.Guest != "" && !d.Saved {
			continue
		}
		for _, disk := range d.Disks {
			for _, im := range disk.Images() {
				ref, isLV, err := m.Disks.Resolver.Resolve(im.Source)
				if err != nil {
					return api.WritersAnswer{}, api.NewError(api.KindUnknown, fmt.Sprintf("guest %s on %s: %v", show(d.Name), m.Host, err))
				}
				if !isLV {
					continue
				}
				for _, v := range q.Volumes {
					id := model.VolumeID{VG: v.VGUUID, LV: v.LVUUID}
					if ref.DMUUID != "" && ref.DMUUID == id.DMUUID() || ref.VG+"/"+ref.LV == v.Name {
						found = api.WritersAnswer{Volume: v.Name, Guest: d.Name, Saved: d.Saved}
					}
				}
			}
		}
	}
	return found, nil
}

// current refuses to start a guest from a volume whose content a long-running command has
// not completed, or has moved elsewhere.
func current(v model.Volume) error {
	if key, ok := v.HasTagOf(model.TagIncomplete); ok {
		return api.NewError(api.KindHeld, fmt.Sprintf(
			"the content of %s is not complete: command %s is at it, or has failed; wait for its end, see 'virtlvm commands' (to use it all the same: lvchange --deltag %s%s %s)",
			v.Name(), key, model.TagIncomplete, key, v.Name()))
	}
	if v.HasTag(model.TagSuperseded) {
		return api.NewError(api.KindHeld, fmt.Sprintf(
			"%s is tagged %s: its content has been moved to another volume, and is old; change the disk in the guest's definition (to use it all the same: lvchange --deltag %s %s)",
			v.Name(), model.TagSuperseded, model.TagSuperseded, v.Name()))
	}
	return nil
}
