package activation

import (
	"context"
	"fmt"
	"slices"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// Expendable is nil if a volume may lose its content, and itself where it is removed, as far
// as this can be told without taking it: it has a lock of its own, it is no template and
// nothing else is made of it, and no guest counts on it. Erased, that is one with a
// managed-save image; removed, any that is defined on this host or on another live one. Not
// knowing is an error as well.
func (m *Manager) Expendable(ctx context.Context, v model.Volume, removed bool) error {
	if err := m.awaitReady(ctx); err != nil {
		return err
	}
	refuse := func(why string) error { return api.NewError(api.KindUnsupported, v.Name()+" "+why) }
	if v.HasTag(model.TagShared) {
		return refuse(fmt.Sprintf("is tagged %s (a template or cluster disk); what uses it on another host may not be seen here. If nothing does: lvchange --deltag %s %s", model.TagShared, model.TagShared, v.Name()))
	}
	inv, err := m.inventory(ctx, v.VG)
	switch {
	case err != nil:
		return err
	case inv == nil || inv.unlocked:
		return api.NewError(api.KindLocking, fmt.Sprintf("volume group %s cannot be read with its lock now", v.VG))
	}
	if v.LeaseOffset < 0 || v.LockLV != v.ID.LV || v.Pool != "" || v.Origin != "" {
		return refuse(fmt.Sprintf("has no lock of its own (type %s): its pool's or origin's protects it; use LVM's own tools", v.SegType))
	}
	for _, other := range inv.byName {
		if other.Origin == v.LV || other.Pool == v.LV {
			return refuse(fmt.Sprintf("is what %s is made of, a snapshot or thin volume; remove that first", other.Name()))
		}
	}
	children, err := m.Children(ctx, v)
	if err != nil {
		return api.NewError(api.KindOf(err), fmt.Sprintf("cannot tell which volumes have %s below them: %v", v.Name(), err))
	}
	if len(children) > 0 {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s is the template below %s; delete that first", v.Name(), children[0].Name()))
	}
	if removed {
		return m.unnamed(ctx, v)
	}
	return m.unsaved(ctx, v)
}

// Remove removes a volume for a command that may have it: Expendable, held by nobody else and
// closed. Everything is looked at again. An error of kind not-found: it is not there any more; of
// kind unknown: its tags are not those of v any more, by which the command has judged.
func (m *Manager) Remove(ctx context.Context, w Work, v model.Volume) error {
	ctx = w.context(ctx)
	now, err := m.Lookup(ctx, v.Name())
	if err == nil && now.ID != v.ID {
		err = api.NewError(api.KindNotFound, fmt.Sprintf("%s is another volume now", v.Name()))
	}
	if err != nil {
		return err
	}
	if err := m.Expendable(ctx, now, true); err != nil {
		return err
	}
	// Nobody else has it where this succeeds, and nobody takes it until it is gone.
	if now, err = m.Take(ctx, w, v.Name(), model.RoleWritable); err != nil {
		return err
	}
	if !slices.Equal(now.Tags, v.Tags) {
		return api.NewError(api.KindUnknown, fmt.Sprintf("the tags of %s have changed meanwhile", v.Name()))
	}
	if err := m.remove(context.WithoutCancel(ctx), w, now, func(now model.Volume) bool { return now.ID == v.ID }); err != nil {
		return err
	}
	m.Log.Info("removed a volume", "volume", v.Name(), "uuid", v.ID.LV, "command", w.Key)
	return m.GiveBack(ctx, w.Key)
}
