package activation

import (
	"context"
	"fmt"
	"slices"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// acquireClaimed is acquire in a VG without lvmlockd: the intent is published, the other
// members are asked, and only then is anything activated. The VG's turn is not held while
// they are asked; what they say stays true as long as the holds stay published.
func (m *Manager) acquireClaimed(ctx context.Context, t taker, vg string, needs []model.Need) ([]taken, error) {
	leave, err := m.claimAlone(t.owner, needs)
	if err != nil {
		return nil, err
	}
	defer leave()
	all, err := m.publish(ctx, t, vg, needs)
	if err != nil {
		return nil, err
	}
	wishes := make([]wish, 0, len(all))
	for _, t := range all {
		wishes = append(wishes, wish{t.volume, t.hold.Wanted()})
	}
	refused, err := m.ask(ctx, vg, wishes, true)
	for _, t := range all {
		if err == nil {
			err = refused[t.volume.ID]
		}
	}
	if err == nil {
		err = m.takeClaimed(ctx, vg, all)
	}
	if err != nil {
		m.release(context.WithoutCancel(ctx), all)
		return nil, err
	}
	return all, nil
}

// claimAlone refuses to claim a volume a second time for the same owner while the others
// are asked for the first time: each would take the other's hold for one that was there
// before, and bring it back when it is refused itself.
func (m *Manager) claimAlone(owner string, needs []model.Need) (leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range needs {
		if m.claiming[holdKey{owner, n.Volume.ID}] {
			return nil, api.NewError(api.KindInUse, fmt.Sprintf("%s is being claimed on this host already, and the others have not answered yet; try again", n.Volume.Name()))
		}
	}
	for _, n := range needs {
		m.claiming[holdKey{owner, n.Volume.ID}] = true
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, n := range needs {
			delete(m.claiming, holdKey{owner, n.Volume.ID})
		}
	}, nil
}

// beingClaimed: the others are being asked for one of the holds.
func (m *Manager) beingClaimed(holds []model.Hold) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(holds, func(h model.Hold) bool { return m.claiming[holdKey{h.Owner, h.Volume}] })
}

// publish writes the intents: from here on who asks this host is told of them.
func (m *Manager) publish(ctx context.Context, t taker, vg string, needs []model.Need) ([]taken, error) {
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	before, err := m.look(ctx)
	if err != nil {
		return nil, err
	}
	all, change, err := m.admit(ctx, t, vg, needs, before)
	if err != nil {
		return nil, err
	}
	if err := m.writeHolds(ctx, change); err != nil {
		m.undo(ctx, vg, all)
		return nil, err
	}
	return all, nil
}

// takeClaimed activates what the others have granted, refreshed and verified.
func (m *Manager) takeClaimed(ctx context.Context, vg string, all []taken) error {
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	before, err := m.look(ctx)
	if err != nil {
		return err
	}
	holds := make([]model.Hold, 0, len(all))
	vols := map[model.LockMode][]model.Volume{}
	for _, t := range all {
		holds = append(holds, t.hold)
		mode := t.hold.Wanted().Max(before.ofVolume(t.volume).Lock)
		vols[mode] = append(vols[mode], t.volume)
	}
	change, err := m.grant(holds)
	if err != nil {
		return err
	}
	if err := m.writeHolds(ctx, change); err != nil {
		return err
	}
	for _, mode := range []model.LockMode{model.ModeEX, model.ModeSH} {
		if err := m.activateClaimed(ctx, mode, vols[mode], before, journalled); err != nil {
			return err
		}
	}
	return nil
}

// grant notes what the others have granted. Each hold must still be the one that they were
// asked for.
func (m *Manager) grant(asked []model.Hold) (change store.HoldChange, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range asked {
		now, ok := m.holds[holdKey{h.Owner, h.Volume}]
		if !ok || now.Phase != h.Phase || now.Since != h.Since || now.Wanted() != h.Wanted() {
			return store.HoldChange{}, api.NewError(api.KindInUse, fmt.Sprintf("%s was given up on this host while the others were asked; try again", h.Name))
		}
	}
	for _, h := range asked {
		now := m.holds[holdKey{h.Owner, h.Volume}]
		if now.Claim != now.Wanted() {
			now.Claim = now.Wanted()
			m.holds[holdKey{h.Owner, h.Volume}] = now
			change.Put = append(change.Put, now)
		}
	}
	return change, nil
}

// activateClaimed activates volumes whose claim is written, or refreshes those that are
// active: their devices may be older than the metadata. It is called with the VG's turn.
func (m *Manager) activateClaimed(ctx context.Context, mode model.LockMode, vols []model.Volume, before local, need must) error {
	var off, on []model.Volume
	for _, v := range vols {
		if before.ofVolume(v).Active {
			on = append(on, v)
		} else {
			off = append(off, v)
		}
	}
	if len(on) > 0 {
		e, err := m.begin(ctx, "refresh", lvm.RefreshCmd(names(on)...), on, store.HoldChange{}, need)
		if err != nil {
			return err
		}
		if err := m.verify(ctx, e, mode, on); err != nil {
			return err
		}
		if e.err != nil {
			return api.NewError(kindOf(e.err), fmt.Sprintf("%s is active here and cannot be refreshed: %v", on[0].Name(), e.err))
		}
	}
	if len(off) > 0 {
		e, err := m.begin(ctx, "activate", lvm.ActivateLocalCmd(names(off)...), off, store.HoldChange{}, need)
		if err != nil {
			return err
		}
		return m.verify(ctx, e, mode, off)
	}
	return nil
}

// ensureClaims is what ensureOn is for VGs with locks. What needs no word of the others is
// done: a claim is weakened, or a device that has gone under a claim is made again. The rest
// waits for claimDue, which asks without the VG's turn.
func (m *Manager) ensureClaims(ctx context.Context, jobs []job, now *local) *local {
	var weak []model.Hold
	var off []job
	for _, j := range jobs {
		if !j.have.Lock.Covers(j.want) {
			continue
		}
		weak = append(weak, wantingMore(j.holds)...)
		if !j.have.Active {
			off = append(off, j)
		}
	}
	if len(weak) > 0 {
		change, err := m.grant(weak)
		if err == nil {
			err = m.writeHolds(ctx, change)
		}
		if err != nil {
			m.Log.Error("cannot weaken a claim", "err", err)
		}
		now = nil
	}
	if vols := m.ours(ctx, off); len(vols) > 0 {
		// For the row alone: the look after it tells.
		if err := m.activateClaimed(ctx, off[0].want, vols, local{}, bestEffort); err != nil {
			m.noteFailure(vols, err)
		}
		now = nil
	}
	return now
}

// wantingMore are the holds that claim more than they want.
func wantingMore(holds []model.Hold) []model.Hold {
	return slices.DeleteFunc(slices.Clone(holds), func(h model.Hold) bool {
		return h.Phase == model.PhaseEnding || h.Wanted().Covers(h.Claim)
	})
}

// claimVGs are the VGs without lvmlockd in which something is held.
func (m *Manager) claimVGs() []string {
	return slices.DeleteFunc(m.heldVGs(""), func(vg string) bool { return !m.claimed(vg) || !m.Settings().Scope(vg) })
}

// claimDue asks for what running guests need in a VG without lvmlockd and have not: what
// came by a migration is wanted exclusively when that has ended, and a guest may run that
// had not asked. No lock is held meanwhile.
func (m *Manager) claimDue(ctx context.Context, vg string) {
	now, err := m.look(ctx)
	if err != nil {
		return // the ensure loop reports it
	}
	var due []job
	var wishes []wish
	for _, j := range m.jobs(vg, now) {
		if j.want != model.ModeOff && j.due() && !j.have.Lock.Covers(j.want) && !m.beingClaimed(j.holds) {
			due = append(due, j)
			wishes = append(wishes, wish{j.volume, j.want})
		}
	}
	if len(due) == 0 {
		return
	}
	refused, err := m.ask(ctx, vg, wishes, false)
	if err != nil {
		for _, j := range due {
			m.noteFailure([]model.Volume{j.volume}, err)
		}
		return
	}
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	for _, j := range due {
		if err := refused[j.volume.ID]; err != nil {
			m.noteFailure([]model.Volume{j.volume}, err)
			m.withdraw(ctx, j)
			continue
		}
		change, err := m.grant(slices.DeleteFunc(j.holds, func(h model.Hold) bool { return h.Phase == model.PhaseEnding }))
		if err != nil {
			continue // the next look asks again
		}
		m.persist(ctx, change)
	}
	m.ensureLocked(ctx, vg)
}

// withdraw ends an operator's intent that a daemon which has died left behind, when it is
// refused: nobody waits for it any more, and those of two hosts would refuse each other for
// ever.
func (m *Manager) withdraw(ctx context.Context, j job) {
	if j.have.Active {
		return
	}
	m.end(ctx, func(h model.Hold) bool {
		return h.Volume == j.volume.ID && h.Owner == model.OwnerOperator && h.Claim == ""
	})
}

// shareClaims is share in a VG without lvmlockd: what is lent is claimed shared.
func (m *Manager) shareClaims(ctx context.Context, lent []model.Hold) error {
	change, err := m.grant(lent)
	if err != nil {
		return err
	}
	if len(change.Put) > 0 {
		if err := m.writeHolds(ctx, change); err != nil {
			return err
		}
	}
	now, err := m.look(ctx)
	if err != nil {
		return err
	}
	for _, h := range lent {
		if a := now.ofHold(h); !a.Is(model.ModeSH) {
			return api.NewError(api.KindLocking, fmt.Sprintf("%s cannot be lent: it is %s on %s", h.Name, a, m.Host))
		}
	}
	return nil
}
