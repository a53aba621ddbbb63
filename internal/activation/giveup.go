package activation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// releasePatience bounds the question to a holder, which runs one LVM command.
const releasePatience = 20 * time.Second

// acquireAsking is acquire, but where other hosts hold a volume they are asked, once, to
// let go of what they only retain. No turn is held meanwhile.
func (m *Manager) acquireAsking(ctx context.Context, t taker, vg string, needs []model.Need) ([]taken, error) {
	got, err := m.acquire(ctx, t, vg, needs)
	if m.Peers == nil || api.KindOf(err) != api.KindHeld || m.claimed(vg) {
		return got, err
	}
	if err := m.askRelease(ctx, needs, err); err != nil {
		return nil, err
	}
	return m.acquire(ctx, t, vg, needs)
}

// askRelease returns nil where a second try makes sense, or why the volumes were refused
// and what the holder says of it.
func (m *Manager) askRelease(ctx context.Context, needs []model.Need, refused error) error {
	asked := false
	for _, n := range needs {
		v := n.Volume
		holders, err := m.Leases.Holders(ctx, v.VG, v.LeaseOffset, v.LockLV)
		if err != nil {
			return refused
		}
		for _, h := range holders {
			if h.Self || n.Role.Mode() == model.ModeSH && h.Mode == model.ModeSH {
				continue
			}
			if h.State != model.HostLive || h.Host == "" {
				return refused
			}
			short, cancel := context.WithTimeout(ctx, releasePatience)
			var answer api.ReleaseAnswer
			err := m.call(short, h.Host, api.RoutePeerRelease, api.ReleaseRequest{Volume: v.Name(), VGUUID: v.ID.VG, LVUUID: v.ID.LV}, &answer)
			cancel()
			if err != nil {
				why := err.Error()
				var said *api.Error // what a peer has answered, without its name
				if errors.As(err, &said) {
					why = said.Message
				}
				return api.NewError(api.KindHeld, fmt.Sprintf("%v (%s was asked for it: %s)", refused, h.Host, why))
			}
			asked = true
		}
	}
	if !asked {
		return refused
	}
	return nil
}

// Release lets go of a volume that nobody uses here, because peer wants it.
func (m *Manager) Release(ctx context.Context, peer string, req api.ReleaseRequest) (api.ReleaseAnswer, error) {
	return peerRequest(ctx, m, peer, "release "+req.Volume, func(ctx context.Context) (api.ReleaseAnswer, error) {
		return m.GiveUp(ctx, req)
	})
}

// GiveUp lets go of a volume that virtlvm itself has activated and that nobody uses here:
// no guest has it, nothing has it open and, unless an operator asks (req.Transfer), no
// operator has activated it. One that is off is no error.
func (m *Manager) GiveUp(ctx context.Context, req api.ReleaseRequest) (api.ReleaseAnswer, error) {
	v, err := m.volumeOf(ctx, req.Volume, req.VGUUID, req.LVUUID)
	if err != nil {
		return api.ReleaseAnswer{}, err
	}
	leave, err := m.enterVG(ctx, v.VG)
	if err != nil {
		return api.ReleaseAnswer{}, err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	now, err := m.look(ctx)
	if err == nil {
		err = now.usable(v.VG)
	}
	if err != nil {
		return api.ReleaseAnswer{}, err
	}
	was := now.ofVolume(v)
	hold, err := m.releasable(v, was, req.Transfer)
	if err != nil || was.Is(model.ModeOff) {
		return api.ReleaseAnswer{Mode: string(model.ModeOff)}, err
	}
	if err := m.mustBeClosed(ctx, v); err != nil {
		return api.ReleaseAnswer{}, err
	}
	m.end(ctx, func(h model.Hold) bool { return h.Volume == v.ID && idle(h) })
	m.ensureLocked(ctx, v.VG)
	if now, err = m.look(ctx); err == nil && !now.ofVolume(v).Is(model.ModeOff) {
		err = m.notOff(v, now)
	}
	if err != nil {
		m.unend(ctx, hold)
		return api.ReleaseAnswer{}, err
	}
	m.Log.Info("gave up a volume that nobody uses here", "volume", v.Name(), "cause", causeOf(ctx).text)
	return api.ReleaseAnswer{Mode: string(was.Lock), Use: useOf(hold), Guest: hold.Guest}, nil
}

// volumeOf finds a volume by its name here, and makes sure that it is the one that was
// meant.
func (m *Manager) volumeOf(ctx context.Context, name, vgUUID, lvUUID string) (model.Volume, error) {
	v, err := m.volumeNamed(ctx, name)
	if err == nil && v.ID != (model.VolumeID{VG: vgUUID, LV: lvUUID}) {
		err = api.NewError(api.KindLocking, fmt.Sprintf("%s is another volume on %s (uuid %s) than the one meant (uuid %s)", v.Name(), m.Host, v.ID.LV, lvUUID))
	}
	return v, err
}

// idle: an operator's hold, or one for nobody; both end when an operator says so.
func idle(h model.Hold) bool {
	return h.Owner == model.OwnerOperator || h.Owner == model.OwnerRetained
}

// releasable is the hold under which a volume may be given up, or why it may not.
func (m *Manager) releasable(v model.Volume, a model.Actual, operator bool) (hold model.Hold, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ours := false
	for _, h := range m.holds {
		switch {
		case h.Volume != v.ID:
			continue
		case h.Phase == model.PhaseEnding, h.Owner == model.OwnerRetained:
		case h.Owner == model.OwnerOperator && operator:
		case h.Owner == model.OwnerOperator:
			return h, api.NewError(api.KindHeld, fmt.Sprintf("%s was activated on %s by an operator; 'virtlvm deactivate %s' there, or 'virtlvm lock transfer', gives it up", v.Name(), m.Host, v.Name()))
		default:
			if !model.IsGuest(h.Owner) {
				return h, api.NewError(api.KindInUse, fmt.Sprintf("%s is used on %s by %s", v.Name(), m.Host, h.Subject()))
			}
			return h, api.NewError(api.KindInUse, fmt.Sprintf("%s is used on %s by guest %s; stop or migrate that guest", v.Name(), m.Host, show(h.Guest)))
		}
		ours, hold = true, h
	}
	if !ours && !a.Is(model.ModeOff) {
		return hold, api.NewError(api.KindInUse, fmt.Sprintf("%s was not activated by virtlvm on %s (%s); whoever did can run 'lvchange -an %s' there", v.Name(), m.Host, a, v.Name()))
	}
	return hold, nil
}

// mustBeClosed waits a moment, since udev opens a device whenever it changes.
func (m *Manager) mustBeClosed(ctx context.Context, v model.Volume) error {
	for try := 0; ; try++ {
		open, err := m.LVM.OpenCounts(ctx)
		if err != nil {
			return api.NewError(kindOf(err), fmt.Sprintf("cannot tell whether %s is open on %s: %v", v.Name(), m.Host, err))
		}
		if open[v.ID.DMUUID()] == 0 {
			return nil
		}
		if try == 4 {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s is open on %s; 'lsof /dev/%s' there tells by whom", v.Name(), m.Host, v.Name()))
		}
		<-m.After(250 * time.Millisecond)
	}
}

// unend brings back a hold that could not be ended.
func (m *Manager) unend(ctx context.Context, hold model.Hold) {
	m.mu.Lock()
	k := holdKey{hold.Owner, hold.Volume}
	_, there := m.holds[k]
	if there {
		m.holds[k] = hold
	}
	m.mu.Unlock()
	if there {
		m.persist(ctx, putHold(hold))
	}
}

// Retain takes a volume that nobody holds, because peer hands it over.
func (m *Manager) Retain(ctx context.Context, peer string, req api.RetainRequest) (struct{}, error) {
	return peerRequest(ctx, m, peer, "retain "+req.Volume, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, m.Keep(ctx, req)
	})
}

// Keep takes a volume for nobody, or back for the operator from whom a transfer took it.
// A volume that this host holds so already is no error.
func (m *Manager) Keep(ctx context.Context, req api.RetainRequest) error {
	v, err := m.volumeOf(ctx, req.Volume, req.VGUUID, req.LVUUID)
	if err != nil {
		return err
	}
	t, role := taker{owner: model.OwnerRetained, guest: req.Guest}, model.RoleWritable
	if req.Use == api.UseOperator {
		t = taker{owner: model.OwnerOperator}
		if req.Mode == string(model.ModeSH) {
			role = model.RoleShareable
		}
	}
	if role.Mode() == model.ModeEX && v.HasTag(model.TagShared) {
		return api.NewError(api.KindUnsupported, fmt.Sprintf("%s is tagged %s and never exclusive to a host", v.Name(), model.TagShared))
	}
	now, err := m.look(ctx)
	if err != nil {
		return err
	}
	if m.isHeld(v.ID) && now.ofVolume(v).Is(role.Mode()) {
		return nil
	}
	_, err = m.acquire(ctx, t, v.VG, []model.Need{{Volume: v, Role: role}})
	return err
}

// isHeld: somebody on this host wants the volume.
func (m *Manager) isHeld(id model.VolumeID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.holds {
		if h.Volume == id && h.Phase != model.PhaseEnding {
			return true
		}
	}
	return false
}
