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

// Unsaved is nil if no guest that is defined on a live host, and names the volume, has a
// managed-save image. Not knowing is an error as well.
func (m *Manager) Unsaved(ctx context.Context, v model.Volume) error { return m.unsaved(ctx, v) }

// Resize changes the size of a volume, in whole extents, for a command. The volume must be
// exclusive here, held by the command or by the guest that uses it; it is made smaller only
// where the command alone holds it and nothing has it open. One that has the size is no error.
func (m *Manager) Resize(ctx context.Context, w Work, v model.Volume, size int64) error {
	ctx = w.context(ctx)
	now, leave, err := m.toChange(ctx, v)
	if err != nil {
		return err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	if now.Size == size {
		return nil
	}
	if err := m.resizable(ctx, w, now, size < now.Size); err != nil {
		return err
	}
	e, err := m.begin(ctx, "resize", lvm.ResizeCmd(v.Name(), size, size < now.Size), []model.Volume{v}, store.HoldChange{}, journalled)
	if err != nil {
		return err
	}
	if e.timedOut() {
		m.conclude(ctx, e, false, "unknown until the command ends")
		return api.NewError(api.KindUnknown, fmt.Sprintf("%v; what became of it is looked at when it ends", e.err))
	}
	now, found, err := m.inVG(ctx, v.VG, v.LV)
	if err != nil {
		m.conclude(ctx, e, false, "could not be observed: "+err.Error())
		return api.NewError(api.KindUnknown, fmt.Sprintf("cannot tell whether %s was resized: %v", v.Name(), err))
	}
	done := found && now.Size == size
	m.conclude(ctx, e, done, fmt.Sprintf("%s has %d bytes", v.Name(), now.Size))
	switch {
	case done:
		return nil
	case e.err != nil:
		return api.NewError(kindOf(e.err), oneLine(e.err.Error()))
	}
	return api.NewError(api.KindInternal, fmt.Sprintf("cannot resize %s: LVM said that it is done, and it is not", v.Name()))
}

// resizable must be called with the VG's turn.
func (m *Manager) resizable(ctx context.Context, w Work, v model.Volume, shrink bool) error {
	now, err := m.look(ctx)
	if err != nil {
		return err
	}
	if a := now.ofVolume(v); !a.Is(model.ModeEX) {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s is not exclusive on this host (%s), and so is not resized here", v.Name(), a))
	}
	holds := m.HoldsOf(v.ID)
	ours := func(h model.Hold) bool { return h.Owner == w.owner() }
	users := func(h model.Hold) bool {
		return ours(h) || model.IsGuest(h.Owner) && h.Phase == model.PhaseHeld && h.Mode == model.ModeEX
	}
	if !slices.ContainsFunc(holds, users) {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s is held neither by command %s nor by a guest on this host, and is left alone", v.Name(), w.Key))
	}
	if !shrink {
		return nil
	}
	for _, h := range holds {
		if !ours(h) {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s is used on this host by %s, and is not made smaller under it", v.Name(), h.Subject()))
		}
	}
	return m.mustBeClosed(ctx, v)
}
