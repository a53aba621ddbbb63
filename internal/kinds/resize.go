package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
)

// volumeResize is volume.resize. It takes a moment and has no backend: Finish does it all,
// step by step, and does only what is missing, so that it may be called again. What grows,
// grows from below: volume, image, guest; what shrinks, from above.
type volumeResize struct{ Deps }

// resizePlan is what Plan keeps.
type resizePlan struct {
	api.ResizeArgs // Size is what a guest shall see, in bytes; Add is done with
	ID             model.VolumeID
	Old            int64 // size of the volume before
	Retained       bool  // it was exclusive on this host for nobody
}

// Plan implements command.Kind.
func (k volumeResize) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var p resizePlan
	if err := decode(args, &p.ResizeArgs); err != nil {
		return command.Plan{}, err
	}
	v, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil {
		return command.Plan{}, err
	}
	p.Volume, p.ID, p.Old = v.Name(), v.ID, v.Size
	if err := k.resizable(ctx, v); err != nil {
		return command.Plan{}, err
	}
	user, err := k.userOf(v)
	if err != nil {
		return command.Plan{}, err
	}
	if err := k.planFormat(&p, v, user); err != nil {
		return command.Plan{}, err
	}
	targets := []command.Target{volumeTarget(v, false)}
	if user != nil {
		targets = append(targets, guestTarget(user.UUID, user.Guest))
	} else {
		if err := k.Engine.Free(ctx, activation.Work{}, v, model.RoleWritable); err != nil {
			return command.Plan{}, err
		}
		if err := k.Engine.Unsaved(ctx, v); err != nil {
			return command.Plan{}, err
		}
	}
	for _, h := range k.Engine.HoldsOf(v.ID) {
		p.Retained = p.Retained || h.Owner == model.OwnerRetained && h.Phase == model.PhaseHeld
	}
	if err := k.planSize(ctx, &p, v, user); err != nil {
		return command.Plan{}, err
	}
	rec, err := record(p)
	return command.Plan{Targets: targets, Record: rec, Once: true}, err
}

// resizable is nil for a volume whose size may change at all.
func (k volumeResize) resizable(ctx context.Context, v model.Volume) error {
	if err := current(v); err != nil {
		return err
	}
	children, err := k.Engine.Children(ctx, v)
	switch {
	case err != nil:
		return err
	case len(children) > 0:
		return inUse("%s is the template below %s and keeps its size; make another volume", v.Name(), children[0].Name())
	case v.HasTag(model.TagShared):
		return unsupported("%s is tagged %s: several hosts may have it, and LVM resizes only what one host has; take the tag off first", v.Name(), model.TagShared)
	}
	return nil
}

// planFormat finds out what is on the volume: the guest that runs with it knows, else its
// tag, else whoever asks. It is never looked for.
func (volumeResize) planFormat(p *resizePlan, v model.Volume, user *user) error {
	known := v.Format()
	if user != nil {
		known = user.Format
	}
	if p.Format != "" && known != "" && p.Format != known {
		return badRequest("%s is %s, not %s", v.Name(), known, p.Format)
	}
	if known != "" {
		p.Format = known
	}
	return checkFormat(&p.Format, formatRaw)
}

// planSize makes the size an absolute one, and checks it as far as it is known.
func (k volumeResize) planSize(ctx context.Context, p *resizePlan, v model.Volume, user *user) error {
	if p.Size <= 0 || p.Size > maxSize {
		return badRequest("a size of %d bytes makes no sense", p.Size)
	}
	a, err := k.Engine.StateOf(ctx, v)
	if err != nil {
		return err
	}
	sees := v.Size // what a guest sees now; 0: not known
	if p.Format == formatQcow2 {
		sees = 0
		if a.Active {
			if sees, err = k.virtualSize(ctx, *p); err != nil {
				return err
			}
		}
	}
	switch {
	case p.Add && sees == 0:
		return badRequest("how large the image on %s is can be read only where it is active; say the whole size", v.Name())
	case p.Add && p.Size > maxSize-sees:
		return badRequest("a size of %d bytes makes no sense", p.Size)
	case p.Add:
		p.Size, p.Add = p.Size+sees, false
	}
	extent, free, err := k.Engine.ExtentSize(ctx, v.VG)
	if err != nil {
		return err
	}
	room, err := k.room(ctx, p.Format, p.Size, extent)
	if err != nil {
		return err
	}
	if p.Format == formatRaw {
		p.Size = room
	}
	switch {
	case sees == p.Size:
		return badRequest("%s has %d bytes already", v.Name(), sees)
	case sees > p.Size && !p.Shrink:
		return badRequest("%s has %d bytes, and %d are fewer: what is beyond them would be lost; say --shrink if its guest has given that up", v.Name(), sees, p.Size)
	case (sees > p.Size || sees == 0 && p.Shrink) && user != nil:
		return inUse("%s is a disk of guest %s, which runs: a disk is made smaller only while its guest is off", v.Name(), user.Guest)
	case room-v.Size > free:
		return noRoom(v.VG, room-v.Size, free)
	}
	return nil
}

// virtualSize is what a guest sees of the image on an active volume.
func (k volumeResize) virtualSize(ctx context.Context, p resizePlan) (int64, error) {
	h, err := k.Images.Inspect(ctx, domain.Source{Path: device(p.Volume), Format: p.Format})
	if err != nil {
		return 0, badRequest("%s is not what it was said to be: %s", p.Volume, oneLine(err.Error()))
	}
	return h.Size, nil
}

// Start implements command.Kind: Finish does it all.
func (volumeResize) Start(context.Context, command.Command) error { return nil }

// Look implements command.Kind.
func (volumeResize) Look(context.Context, command.Command) (command.Sight, error) {
	return command.Sight{Where: command.Gone}, nil
}

// Cancel implements command.Kind. It is seen by Finish.
func (volumeResize) Cancel(context.Context, command.Command) error { return nil }

// Finish implements command.Kind.
func (k volumeResize) Finish(ctx context.Context, c command.Command, _ command.Sight) (command.Verdict, error) {
	var p resizePlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	w := activation.Work{Key: c.Key}
	v, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil && !isNotFound(err) {
		return command.Verdict{}, err
	}
	if err == nil && v.ID != p.ID {
		err = inUse("%s is another volume now than when it was asked for", p.Volume)
	}
	how := ""
	switch {
	case err == nil && c.Cancelled != "" && v.Size == p.Old:
		err = fmt.Errorf("it was cancelled: %s", c.Cancelled)
	case err == nil:
		how, err = k.resize(ctx, w, p, v)
	}
	if again(ctx, err) {
		return command.Verdict{}, err
	}
	if p.Retained {
		k.Engine.LeaveHere(ctx, w, v)
	}
	note, backErr := giveBack(ctx, k.Engine, c.Key)
	if backErr != nil {
		return command.Verdict{}, backErr
	}
	if err != nil {
		what := "cannot resize " + p.Volume + ": "
		return notDone("%s%s%s%s", what, strings.TrimPrefix(err.Error(), what), k.grown(ctx, p), note), nil
	}
	return done("%s%s", how, note), nil
}

// grown tells of a volume that has grown, and whose image or guest has not.
func (k volumeResize) grown(ctx context.Context, p resizePlan) string {
	v, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil || v.ID != p.ID || v.Size == p.Old {
		return ""
	}
	return fmt.Sprintf("; the volume itself has %d bytes now, which harms nothing: ask once more", v.Size)
}

// resize does what is missing, and says what there is at the end.
func (k volumeResize) resize(ctx context.Context, w activation.Work, p resizePlan, v model.Volume) (string, error) {
	user, err := k.userOf(v)
	if err != nil {
		return "", err
	}
	if user == nil {
		if _, err := k.Engine.Take(ctx, w, p.Volume, model.RoleWritable); err != nil {
			return "", err
		}
		// The guest may have been saved since; none starts with it now.
		if err := k.Engine.Unsaved(ctx, v); err != nil {
			return "", err
		}
	}
	extent, _, err := k.Engine.ExtentSize(ctx, v.VG)
	if err != nil {
		return "", err
	}
	room, err := k.room(ctx, p.Format, p.Size, extent)
	if err != nil {
		return "", err
	}
	smaller := room < v.Size && p.Format == formatRaw
	if p.Format == formatQcow2 {
		sees, err := k.virtualSize(ctx, p)
		if err != nil {
			return "", err
		}
		if smaller = p.Size < sees; smaller && !p.Shrink {
			return "", badRequest("the image on it has %d bytes, and %d are fewer: what is beyond them would be lost; say --shrink if its guest has given that up", sees, p.Size)
		}
	}
	if smaller && user != nil {
		return "", inUse("it is a disk of guest %s, which runs: a disk is made smaller only while its guest is off", user.Guest)
	}
	if room > v.Size {
		if err := k.Engine.Resize(ctx, w, v, room); err != nil {
			return "", err
		}
	}
	if err := k.resizeContent(ctx, p, user, smaller); err != nil {
		return "", err
	}
	if room < v.Size && p.Shrink && user == nil {
		if err := k.Engine.Resize(ctx, w, v, room); err != nil {
			return "", err
		}
	}
	return k.describe(p, user, room), nil
}

// resizeContent lets the guest that runs, or the image of one that is off, have the new size.
func (k volumeResize) resizeContent(ctx context.Context, p resizePlan, user *user, smaller bool) error {
	if user != nil {
		return k.Virt.BlockResize(ctx, user.UUID, user.Target, p.Size)
	}
	if p.Format != formatQcow2 {
		return nil
	}
	sees, err := k.virtualSize(ctx, p)
	if err != nil || sees == roundUp(p.Size, sector) {
		return err
	}
	return k.Images.Resize(ctx, device(p.Volume), p.Format, roundUp(p.Size, sector), smaller)
}

func (k volumeResize) describe(p resizePlan, user *user, room int64) string {
	text := fmt.Sprintf("%s has %d bytes", p.Volume, room)
	if p.Format == formatQcow2 {
		text += fmt.Sprintf(", its image %d", roundUp(p.Size, sector))
	}
	if user != nil {
		text += fmt.Sprintf("; guest %s sees them as disk %s", user.Guest, user.Target)
	}
	return text
}

// Investigate implements command.Kind. The size of the volume is the same on all hosts, and of
// a raw one it is all there is; what size an image on it has is not known elsewhere.
func (k volumeResize) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	var p resizePlan
	if err := recallOr(c, &p, &p.ResizeArgs); err != nil {
		return command.Verdict{}, err
	}
	v, err := k.Engine.Lookup(ctx, p.Volume)
	switch {
	case isNotFound(err), err == nil && len(c.Plan) > 0 && v.ID != p.ID:
		return notDone("cannot resize %s: it has been removed or replaced meanwhile", p.Volume), nil
	case err != nil:
		return command.Verdict{}, err
	case p.Add: // to what size, only a plan says
		return neverHeard(c, v.Name()), nil
	}
	if known := v.Format(); p.Format == "" && known != "" {
		p.Format = known
	}
	extent, _, err := k.Engine.ExtentSize(ctx, v.VG)
	if err != nil {
		return command.Verdict{}, err
	}
	room, err := k.room(ctx, p.Format, p.Size, extent)
	switch {
	case err != nil:
		return command.Verdict{}, err
	case p.Format != formatQcow2 && v.Size == room:
		return done("%s has %d bytes", v.Name(), v.Size), nil
	case p.Format != formatQcow2, !p.Shrink && v.Size < room: // the volume grows before its image
		return notDone("cannot resize %s: it has %d bytes, and %s is gone", v.Name(), v.Size, c.Executor), nil
	}
	return notYet("%s is gone, and the size of the image on %s (%d bytes) can be read only where that is active; look at it, and tell with 'virtlvm command resolve'", c.Executor, v.Name(), v.Size), nil
}
