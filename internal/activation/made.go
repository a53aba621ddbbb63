package activation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// ExtentSize of a managed VG in which volumes can be made, and its free space, in bytes.
func (m *Manager) ExtentSize(ctx context.Context, vg string) (extent, free int64, err error) {
	vgs, err := m.groups(ctx)
	if err != nil {
		return 0, 0, api.NewError(kindOf(err), fmt.Sprintf("cannot read volume group %s: %v", vg, err))
	}
	for _, g := range vgs {
		if g.Name != vg {
			continue
		}
		ours, err := m.managed(vg, g.LockType)
		if err == nil && !ours {
			err = api.NewError(api.KindOutOfScope, fmt.Sprintf("volume group %s is not managed by virtlvm (lock type %s); see [scope] in virtlvm.toml", vg, g.LockType))
		}
		if err == nil {
			err = m.unchangeable(vg)
		}
		return g.ExtentSize, g.Free, err
	}
	return 0, 0, api.NewError(api.KindNotFound, fmt.Sprintf("there is no volume group %s on this host", vg))
}

// Create makes a volume for a command, active exclusively here and held by the command,
// and tagged as incomplete, and with tags. One that this command has made before is taken
// again; another one of that name is refused.
func (m *Manager) Create(ctx context.Context, w Work, name string, size int64, tags ...string) (model.Volume, error) {
	if err := m.awaitReady(ctx); err != nil {
		return model.Volume{}, err
	}
	ctx = w.context(ctx)
	vg, lv, err := lvm.SplitName(name)
	if err != nil {
		return model.Volume{}, err
	}
	if _, _, err := m.ExtentSize(ctx, vg); err != nil {
		return model.Volume{}, err
	}
	if err := m.create(ctx, w, vg, lv, size, tags); err != nil {
		return model.Volume{}, err
	}
	return m.Take(ctx, w, name, model.RoleMirror)
}

func (m *Manager) create(ctx context.Context, w Work, vg, lv string, size int64, tags []string) error {
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	now, err := m.look(ctx)
	if err == nil {
		err = now.usable(vg)
	}
	if err != nil {
		return err
	}
	v, found, err := m.inVG(ctx, vg, lv)
	if err != nil {
		return err
	}
	name, made := vg+"/"+lv, !found
	if made {
		cmd := lvm.CreateCmd(name, size, append([]string{model.TagCommand + w.Key, model.TagIncomplete + w.Key}, tags...)...)
		e, err := m.begin(ctx, "create", cmd, []model.Volume{{VG: vg, LV: lv}}, store.HoldChange{}, journalled)
		if err != nil {
			return err
		}
		v, found, err = m.inVG(ctx, vg, lv)
		if err != nil {
			m.conclude(ctx, e, false, "could not be observed: "+err.Error())
			return err
		}
		m.conclude(ctx, e, found, outcome(name, found))
		if !found {
			return m.createError(e, name)
		}
	}
	if !madeBy(v, w.Key) {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s exists already; name another volume, or remove that one", name))
	}
	if made || !now.ofVolume(v).Is(model.ModeOff) {
		m.holdMade(ctx, w, v)
	}
	if v.Size != size {
		return api.NewError(api.KindInternal, fmt.Sprintf("%s was to be made with %d bytes and has %d", name, size, v.Size))
	}
	return nil
}

func (m *Manager) createError(e *effect, name string) error {
	if e.timedOut() {
		return api.NewError(api.KindUnknown, fmt.Sprintf("%v; what became of it is looked at when it ends", e.err))
	}
	if e.err == nil {
		return api.NewError(api.KindInternal, fmt.Sprintf("LVM said that %s is made, but it is not there; see 'virtlvm command %d'", name, e.id))
	}
	vg, _, _ := strings.Cut(name, "/")
	if strings.Contains(string(e.res.Stderr), "xtend sanlock LV") {
		return api.NewError(api.KindLocking, fmt.Sprintf("%s: the volume group's leases fill their area (%s/lvmlock), and LVM could not extend it: free some space in %s, or remove volumes (%v)", name, vg, vg, e.err))
	}
	return api.NewError(kindOf(e.err), fmt.Sprintf("%s: %v", name, e.err))
}

func outcome(name string, there bool) string {
	if there {
		return name + " is there"
	}
	return name + " is not there"
}

// holdMade holds for a command what it has made and is active here, if nobody does: should it be
// neither taken nor removed, it is off when the command gives back what it holds, and not active
// for nobody. It must be called with the VG's turn.
func (m *Manager) holdMade(ctx context.Context, w Work, v model.Volume) {
	h := model.Hold{
		Owner: w.owner(), Volume: v.ID, LockLV: v.LockLV, Name: v.Name(), Role: model.RoleMirror, Mode: model.ModeEX,
		Phase: model.PhaseHeld, BootID: m.BootID, Since: m.Now().UnixMilli(),
	}
	m.mu.Lock()
	for _, other := range m.holds {
		if other.Volume == v.ID {
			m.mu.Unlock()
			return
		}
	}
	m.holds[holdKey{h.Owner, h.Volume}] = h
	m.mu.Unlock()
	m.persist(ctx, putHold(h))
}

// heldMade is holdMade where the daemon may have died between the making and the hold.
func (m *Manager) heldMade(ctx context.Context, w Work, v model.Volume) error {
	leave, err := m.enterVG(ctx, v.VG)
	if err != nil {
		return err
	}
	defer leave()
	now, err := m.look(ctx)
	if err == nil && !now.ofVolume(v).Is(model.ModeOff) {
		m.holdMade(context.WithoutCancel(ctx), w, v)
	}
	return err
}

// madeBy: a command has made the volume, and its content is not complete.
func madeBy(v model.Volume, key string) bool {
	return v.HasTag(model.TagCommand+key) && v.HasTag(model.TagIncomplete+key)
}

// inVG finds a volume of a VG by its name now.
func (m *Manager) inVG(ctx context.Context, vg, lv string) (model.Volume, bool, error) {
	inv, err := m.inventory(ctx, vg)
	if err != nil {
		return model.Volume{}, false, err
	}
	if inv == nil {
		return model.Volume{}, false, unseen(vg)
	}
	if inv.unlocked {
		return model.Volume{}, false, api.NewError(api.KindLocking, fmt.Sprintf("volume group %s could only be read without its lock; what it says may be out of date", vg))
	}
	v, found := inv.byName[lv]
	return v, found, nil
}

// toChange takes the turn of a volume's VG, whose metadata may be changed, and finds the volume
// as it is now.
func (m *Manager) toChange(ctx context.Context, v model.Volume) (now model.Volume, leave func(), err error) {
	if err := m.unchangeable(v.VG); err != nil {
		return now, nil, err
	}
	if leave, err = m.enterVG(ctx, v.VG); err != nil {
		return now, nil, err
	}
	now, found, err := m.inVG(context.WithoutCancel(ctx), v.VG, v.LV)
	if err == nil && (!found || now.ID != v.ID) {
		err = api.NewError(api.KindNotFound, fmt.Sprintf("volume %s (uuid %s) is no longer there", v.Name(), v.ID.LV))
	}
	if err != nil {
		leave()
		return now, nil, err
	}
	return now, leave, nil
}

// Retag adds and deletes tags of a volume for a command; what is so already is no error.
func (m *Manager) Retag(ctx context.Context, w Work, v model.Volume, add, del []string) error {
	ctx = w.context(ctx)
	now, leave, err := m.toChange(ctx, v)
	if err != nil {
		return err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	tagged := func(v model.Volume) bool {
		missing := func(tag string) bool { return !v.HasTag(tag) }
		return !slices.ContainsFunc(add, missing) && !slices.ContainsFunc(del, v.HasTag)
	}
	if tagged(now) {
		return nil
	}
	e, err := m.begin(ctx, "tag", lvm.TagCmd(v.Name(), add, del), []model.Volume{v}, store.HoldChange{}, journalled)
	if err != nil {
		return err
	}
	now, _, err = m.inVG(ctx, v.VG, v.LV)
	done := err == nil && tagged(now)
	m.conclude(ctx, e, done, strings.TrimSpace(v.Name()+" tagged "+strings.Join(now.Tags, ",")))
	switch {
	case done:
		return nil
	case e.err != nil:
		return api.NewError(kindOf(e.err), fmt.Sprintf("cannot tag %s: %v", v.Name(), e.err))
	case err == nil:
		err = errors.New("LVM said that it is done, and it is not")
	}
	return api.NewError(kindOf(err), fmt.Sprintf("cannot tag %s: %v", v.Name(), err))
}

// RemoveMade removes a volume that a command has made and not completed. Every condition
// is looked at again: its own tags, nobody else's hold, closed here, locked nowhere else
// (it is taken exclusively), named by no guest that is defined on this host or another.
// Where one is not met, or cannot be told, it stays and the error says why. A volume that
// is not there is no error.
func (m *Manager) RemoveMade(ctx context.Context, w Work, name string) error {
	if err := m.awaitReady(ctx); err != nil {
		return err
	}
	ctx = w.context(ctx)
	v, err := m.Lookup(ctx, name)
	if IsGone(err) {
		return m.GiveBack(ctx, w.Key)
	}
	if err != nil {
		return err
	}
	if !madeBy(v, w.Key) {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s does not carry the tags of command %s and is left alone", name, w.Key))
	}
	if err := m.unchangeable(v.VG); err != nil {
		return err
	}
	if err := m.heldMade(ctx, w, v); err != nil {
		return err
	}
	if err := m.unnamed(ctx, v); err != nil {
		return err
	}
	// Nobody else has it where this succeeds, and nobody takes it until it is gone.
	if v, err = m.Take(ctx, w, name, model.RoleMirror); err != nil {
		return err
	}
	if err := m.remove(context.WithoutCancel(ctx), w, v, func(v model.Volume) bool { return madeBy(v, w.Key) }); err != nil {
		return err
	}
	m.Log.Info("removed a volume that a command had half made", "volume", v.Name(), "command", w.Key)
	return m.GiveBack(ctx, w.Key)
}

// remove removes a volume that the command holds exclusively, if it is still the one that may
// go.
func (m *Manager) remove(ctx context.Context, w Work, v model.Volume, may func(model.Volume) bool) error {
	if err := m.unchangeable(v.VG); err != nil {
		return err
	}
	leave, err := m.enterVG(ctx, v.VG)
	if err != nil {
		return err
	}
	defer leave()
	now, found, err := m.inVG(ctx, v.VG, v.LV)
	if err != nil || !found {
		return err
	}
	if now.ID != v.ID || !may(now) {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s has changed meanwhile and is left alone", v.Name()))
	}
	for _, h := range m.HoldsOf(v.ID) {
		if h.Owner != w.owner() {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s is held on this host by %s as well; it is left alone", v.Name(), h.Subject()))
		}
	}
	if err := m.mustBeClosed(ctx, v); err != nil {
		return err
	}
	e, err := m.begin(ctx, "remove", lvm.RemoveCmd(v.Name()), []model.Volume{v}, store.HoldChange{}, journalled)
	if err != nil {
		return err
	}
	_, found, err = m.inVG(ctx, v.VG, v.LV)
	m.conclude(ctx, e, err == nil && !found, outcome(v.Name(), found))
	if err == nil && found {
		err = e.err
		if err == nil {
			err = errors.New("LVM said that it is removed, and it is there")
		}
	}
	if err != nil {
		return api.NewError(kindOf(err), fmt.Sprintf("cannot remove %s: %v", v.Name(), err))
	}
	return nil
}
