package activation

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// taker is on whose behalf volumes are acquired.
type taker struct {
	owner   string // see model.Hold
	guest   string // guest name
	attempt model.Attempt
	// incoming: the volumes are shared with the source of a live migration.
	incoming bool
	grant    model.Grant
	seen     *local // a look from before, nil where there is none
}

// taken is what one acquire changed on one volume, so that it can be undone.
type taken struct {
	vg      string
	volume  model.Volume
	before  model.Actual
	hold    model.Hold
	oldHold *model.Hold // nil: there was none
	// retained is the hold for nobody that gave way to this one.
	retained *model.Hold
}

// acquire takes holds for needs in one VG and brings their volumes to the wanted mode,
// verified. On any failure everything this call changed is undone, and the error says
// why, naming the holder. The caller undoes what it took in other VGs.
func (m *Manager) acquire(ctx context.Context, t taker, vg string, needs []model.Need) (all []taken, err error) {
	if m.claimed(vg) {
		return m.acquireClaimed(ctx, t, vg, needs)
	}
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return nil, err
	}
	defer leave()
	// From here on the operation runs to its end, even if the hook has gone: the caller
	// then undoes it as a whole.
	ctx = context.WithoutCancel(ctx)

	before, err := m.lookFor(ctx, vg, t.seen)
	if err != nil {
		return nil, err
	}
	if err := before.usable(vg); err != nil {
		return nil, err
	}
	all, change, err := m.admit(ctx, t, vg, needs, before)
	if err != nil {
		return nil, err
	}
	if err := m.applyClaim(ctx, all, change, before); err != nil {
		m.undo(ctx, vg, all)
		return nil, err
	}
	return all, nil
}

// admit puts holds for the needs into memory where nothing on this host speaks against them;
// change is what the journal must have before anything is activated for them.
func (m *Manager) admit(ctx context.Context, t taker, vg string, needs []model.Need, before local) (all []taken, change store.HoldChange, err error) {
	if err := m.strangers(ctx, needs, before); err != nil {
		return nil, change, err
	}
	if err := m.refuseCutOff(ctx, needs, before); err != nil {
		return nil, change, err
	}
	if all, change, err = m.claim(t, vg, needs, before); err == nil {
		change.Steps = causeOf(ctx).takeSteps()
	}
	return all, change, err
}

// claim checks the needs against the holds of other guests on this host (rule 1: a volume
// that is written belongs to one guest) and puts the holds into memory.
func (m *Manager) claim(t taker, vg string, needs []model.Need, before local) ([]taken, store.HoldChange, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range needs {
		a := before.ofVolume(n.Volume)
		if err := m.conflict(t.owner, n, a); err != nil {
			return nil, store.HoldChange{}, err
		}
		if a.Orphan {
			return nil, store.HoldChange{}, api.NewError(api.KindLocking, fmt.Sprintf(
				"the lock of %s is orphaned on this host (lvmlockd died under it); start lvmlockd with '--adopt 1', or reboot this host", n.Volume.Name()))
		}
	}
	all := make([]taken, 0, len(needs))
	var change store.HoldChange
	for _, n := range needs {
		k := holdKey{t.owner, n.Volume.ID}
		tk := taken{vg: vg, volume: n.Volume, before: before.ofVolume(n.Volume)}
		h := model.Hold{
			Owner: t.owner, Guest: t.guest, Volume: n.Volume.ID, LockLV: n.Volume.LockLV, Name: n.Volume.Name(),
			Role: n.Role, Mode: n.Role.Mode(), Phase: model.PhaseHeld, BootID: m.BootID, Attempt: t.attempt, Since: m.Now().UnixMilli(),
		}
		if t.incoming {
			h.Phase, h.Grant = model.PhaseIncoming, t.grant
		}
		if old, ok := m.holds[k]; ok {
			tk.oldHold = &old
			h.Claim = old.Claim // it has been published all the while
			if old.Phase == model.PhaseHeld {
				h.Since = old.Since
			}
		}
		tk.hold = h
		if r, ok := m.holds[holdKey{model.OwnerRetained, n.Volume.ID}]; ok && t.owner != model.OwnerRetained {
			tk.retained = &r
			delete(m.holds, holdKey{model.OwnerRetained, n.Volume.ID})
			change.Delete = append(change.Delete, r)
		}
		m.holds[k] = h
		all = append(all, tk)
		change.Put = append(change.Put, h)
	}
	return all, change, nil
}

// conflict must be called with m.mu held. An ending hold counts until its volume is off:
// something may have it open still.
func (m *Manager) conflict(owner string, n model.Need, a model.Actual) error {
	for _, h := range m.holds {
		if h.Volume != n.Volume.ID || h.Owner == owner || model.Together(h.Owner, owner) || h.Owner == model.OwnerRetained && h.Phase == model.PhaseHeld || h.Phase == model.PhaseEnding && a.Is(model.ModeOff) {
			continue
		}
		if n.Role.Mode() != model.ModeEX && h.Mode != model.ModeEX {
			continue
		}
		if h.Owner == model.OwnerOperator {
			return api.NewError(api.KindHeld, fmt.Sprintf("%s is held on this host by an operator (virtlvm activate); run 'virtlvm deactivate %s' first", h.Name, h.Name))
		}
		if key, _, ok := model.CommandOf(h.Owner); ok {
			return api.NewError(api.KindHeld, fmt.Sprintf("%s is held on this host (%s) by command %s; wait for its end, or cancel it: see 'virtlvm commands'", h.Name, m.Host, key))
		}
		if h.Phase == model.PhaseEnding {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s of guest %s, which has ended, is not released yet on this host; see 'virtlvm status' and try again", h.Name, show(h.Guest)))
		}
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is used on this host (%s) by guest %s as a %s disk; stop that guest, or take the disk out of one of the two", h.Name, m.Host, show(h.Guest), h.Role))
	}
	return nil
}

// applyClaim runs what is missing: one lvchange per mode, each verified.
func (m *Manager) applyClaim(ctx context.Context, all []taken, change store.HoldChange, before local) error {
	wanting := map[model.LockMode][]model.Volume{}
	for _, t := range all {
		if want := t.hold.Wanted(); !before.ofVolume(t.volume).Is(want) {
			wanting[want] = append(wanting[want], t.volume)
		}
	}
	if len(wanting) == 0 {
		// Nothing to run, but the intent must be on disk before the guest starts, and the
		// locks that lvmlockd lists must be worth something: with sanlock dead they are not.
		if err := m.leased(ctx, all); err != nil {
			return err
		}
		return m.writeHolds(ctx, change)
	}
	for _, mode := range []model.LockMode{model.ModeEX, model.ModeSH} {
		vols := wanting[mode]
		if len(vols) == 0 {
			continue
		}
		if mode == model.ModeEX {
			if err := m.soleSharers(ctx, vols, before); err != nil {
				return err
			}
		}
		e, err := m.begin(ctx, "activate", lvm.ActivateCmd(mode, names(vols)...), vols, change, journalled)
		if err != nil {
			return err
		}
		change = store.HoldChange{}
		if err := m.verify(ctx, e, mode, vols); err != nil {
			return err
		}
	}
	return nil
}

// soleSharers refuses to make a volume exclusive that is shared here and by another host,
// too: a convert that must fail disturbs the others' lease (rule 6).
func (m *Manager) soleSharers(ctx context.Context, vols []model.Volume, before local) error {
	var shared []model.Volume
	for _, v := range vols {
		if before.ofVolume(v).Lock == model.ModeSH {
			shared = append(shared, v)
		}
	}
	if len(shared) == 0 {
		return nil
	}
	holders, err := m.holdersOf(ctx, shared[0].VG, shared)
	if err != nil {
		return err
	}
	for _, v := range shared {
		if slices.ContainsFunc(holders[v.LockLV], func(h model.Holder) bool { return !h.Self }) {
			return m.heldBy(v, holders[v.LockLV])
		}
	}
	return nil
}

// verify looks whether every volume is as the command should have made it, and concludes
// the command. Exit code 0 is no proof, and a failure may have changed some of them.
func (m *Manager) verify(ctx context.Context, e *effect, want model.LockMode, vols []model.Volume) error {
	after, wrong, err := m.observe(ctx, e, want, vols)
	if err == nil && len(wrong) > 0 {
		err = m.explain(ctx, e, wrong, *after)
	}
	return err
}

// observe is verify that tells what there is, and which volumes are not as wanted. An error
// means that it cannot be told.
func (m *Manager) observe(ctx context.Context, e *effect, want model.LockMode, vols []model.Volume) (after *local, wrong []model.Volume, err error) {
	if e.timedOut() {
		m.conclude(ctx, e, false, "unknown until the command ends")
		return nil, nil, api.NewError(api.KindUnknown, fmt.Sprintf("%v; what became of it is looked at when it ends", e.err))
	}
	now, err := m.look(ctx)
	if err != nil {
		m.conclude(ctx, e, false, "could not be observed: "+err.Error())
		return nil, nil, err
	}
	for _, v := range vols {
		if !now.ofVolume(v).Is(want) {
			wrong = append(wrong, v)
		}
	}
	m.conclude(ctx, e, len(wrong) == 0, now.describe(vols))
	return &now, wrong, nil
}

// undo brings back what an acquire found, newest first. It is called with the VG's turn.
func (m *Manager) undo(ctx context.Context, vg string, all []taken) {
	m.undoHolds(ctx, all)
	m.restoreModes(ctx, all)
	m.ensureLocked(ctx, vg)
}

func (m *Manager) undoHolds(ctx context.Context, all []taken) {
	var change store.HoldChange
	m.mu.Lock()
	for i := len(all) - 1; i >= 0; i-- {
		t := all[i]
		k := holdKey{t.hold.Owner, t.volume.ID}
		if t.retained != nil && !t.before.Is(model.ModeOff) {
			m.holds[holdKey{model.OwnerRetained, t.volume.ID}] = *t.retained
			change.Put = append(change.Put, *t.retained)
		}
		if t.oldHold != nil {
			m.holds[k] = *t.oldHold
			change.Put = append(change.Put, *t.oldHold)
			continue
		}
		if t.before.Is(model.ModeOff) {
			// The ensure loop deactivates it and tries again where that fails now.
			h := t.hold
			h.Phase = model.PhaseEnding
			m.holds[k] = h
			change.Put = append(change.Put, h)
			continue
		}
		delete(m.holds, k)
		change.Delete = append(change.Delete, t.hold)
	}
	m.mu.Unlock()
	m.persist(ctx, change)
}

// restoreModes converts back volumes that were active in another mode before.
func (m *Manager) restoreModes(ctx context.Context, all []taken) {
	if len(all) > 0 && m.claimed(all[0].vg) {
		return // a claim is that of the holds
	}
	now, err := m.look(ctx)
	if err != nil {
		m.Log.Error("cannot look at volumes to undo an activation", "err", err)
		return
	}
	for _, t := range all {
		back := t.before.Lock
		if !t.before.Active || t.before.Orphan || back == model.ModeOff || now.ofVolume(t.volume) == t.before {
			continue
		}
		vols := []model.Volume{t.volume}
		e, err := m.begin(ctx, "activate", lvm.ActivateCmd(back, names(vols)...), vols, store.HoldChange{}, bestEffort)
		if err != nil {
			continue
		}
		if err := m.verify(ctx, e, back, vols); err != nil {
			m.Log.Error("cannot undo a conversion", "volume", t.volume.Name(), "back_to", back, "err", err)
		}
	}
}

// explain turns a failed command into the one line an administrator reads.
func (m *Manager) explain(ctx context.Context, e *effect, wrong []model.Volume, after local) error {
	var le *lvm.Error
	if errors.As(e.err, &le) {
		for _, v := range wrong {
			if f, ok := le.Of(v.Name()); ok {
				return m.explainFailure(ctx, v, f, le)
			}
		}
		return api.NewError(le.Kind(), fmt.Sprintf("%s: %v", wrong[0].Name(), le))
	}
	if e.err != nil {
		return api.NewError(kindOf(e.err), fmt.Sprintf("%s: %v", wrong[0].Name(), e.err))
	}
	return api.NewError(api.KindLocking, fmt.Sprintf("LVM said that %s is activated, but it is: %s; see 'virtlvm command %d'",
		wrong[0].Name(), after.ofVolume(wrong[0]), e.id))
}

func names(vols []model.Volume) []string {
	all := make([]string, 0, len(vols))
	for _, v := range vols {
		all = append(all, v.Name())
	}
	return all
}
