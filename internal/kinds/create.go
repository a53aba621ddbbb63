package kinds

import (
	"context"
	"encoding/json"
	"fmt"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
)

// volumeCreate is volume.create. It takes a moment and has no backend: Start does it all,
// and after a crash Finish does what is missing. The volume is complete from the moment it
// loses its tag; until then it goes again if anything fails.
type volumeCreate struct{ Deps }

// createPlan is what Plan keeps.
type createPlan struct {
	api.CreateArgs
	// Room is the size of the volume in bytes; 0: it comes out of the template's header,
	// which is read under the lock.
	Room int64 `json:"room,omitempty"`
}

// Plan implements command.Kind.
func (k volumeCreate) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var p createPlan
	if err := decode(args, &p.CreateArgs); err != nil {
		return command.Plan{}, err
	}
	vg, lv, err := splitName(p.Volume)
	if err != nil {
		return command.Plan{}, err
	}
	p.Volume = vg + "/" + lv
	extent, free, err := k.Engine.ExtentSize(ctx, vg)
	if err != nil {
		return command.Plan{}, err
	}
	switch there, err := k.Engine.Lookup(ctx, p.Volume); {
	case err == nil:
		return command.Plan{}, inUse("%s exists already; name another volume, or remove that one", there.Name())
	case !isNotFound(err):
		return command.Plan{}, err
	}
	targets := []command.Target{plannedTarget(p.Volume)}
	below, err := k.planBacking(ctx, &p)
	if err != nil {
		return command.Plan{}, err
	}
	if p.Backing != "" {
		targets = append(targets, volumeTarget(below, true))
	}
	if p.Size > 0 {
		if p.Room, err = k.room(ctx, p.Format, p.Size, extent); err != nil {
			return command.Plan{}, err
		}
		if p.Room > free {
			return command.Plan{}, noRoom(vg, p.Room, free)
		}
	}
	rec, err := record(p)
	return command.Plan{Targets: targets, Record: rec}, err
}

// planBacking checks the template and what goes with it.
func (k volumeCreate) planBacking(ctx context.Context, p *createPlan) (model.Volume, error) {
	otherwise := formatRaw
	if p.Backing != "" {
		otherwise = formatQcow2
	}
	switch err := checkFormat(&p.Format, otherwise); {
	case err != nil:
		return model.Volume{}, err
	case p.Size < 0, p.Size == 0 && p.Backing == "":
		return model.Volume{}, badRequest("a size of %d bytes makes no sense; a volume has one extent at least", p.Size)
	case p.Size > maxSize:
		return model.Volume{}, badRequest("a size of %d bytes makes no sense; the largest is %d", p.Size, int64(maxSize))
	case p.Backing == "" && p.BackingFormat != "":
		return model.Volume{}, badRequest("a backing format says nothing without a backing volume")
	case p.Backing == "":
		return model.Volume{}, nil
	case p.Format != formatQcow2:
		return model.Volume{}, badRequest("a %s volume has nothing below it; only a qcow2 image has a backing volume", p.Format)
	}
	below, err := k.Engine.Lookup(ctx, p.Backing)
	if err != nil {
		return below, err
	}
	p.Backing = below.Name()
	if p.BackingFormat == "" {
		p.BackingFormat = below.Format()
	}
	if err := checkFormat(&p.BackingFormat, formatQcow2); err != nil {
		return below, err
	}
	if err := current(below); err != nil {
		return below, err
	}
	if !below.HasTag(model.TagShared) {
		return below, badRequest("%s is no template: a guest might write it, and spoil every volume above it; make it one with 'lvchange --addtag %s %s'", below.Name(), model.TagShared, below.Name())
	}
	return below, nil
}

// maxSize is QEMU's largest image, less than a byte count can be.
const maxSize = 1 << 62

// Room for what a qcow2 image keeps beside the guest's data and its tables: the dirty
// bitmaps of backups (one takes a 524,288th of the size).
const (
	headroom      = 1 << 20
	headroomShare = 4096
)

// room is the size of the volume for a guest's disk of so many bytes, in whole extents.
func (d Deps) room(ctx context.Context, format string, size, extent int64) (int64, error) {
	if format == formatQcow2 {
		full, err := d.Images.Measure(ctx, format, roundUp(size, sector))
		if err != nil {
			return 0, err
		}
		size = full + headroom + size/headroomShare
	}
	return roundUp(size, extent), nil
}

// sector is the unit of a disk's size in QEMU, in bytes.
const sector = 512

// Start implements command.Kind.
func (k volumeCreate) Start(ctx context.Context, c command.Command) error {
	var p createPlan
	if err := recall(c, &p); err != nil {
		return err
	}
	return k.make(ctx, activation.Work{Key: c.Key}, p)
}

// make does what is missing of the volume.
func (k volumeCreate) make(ctx context.Context, w activation.Work, p createPlan) error {
	var tags []string
	if p.Format != formatRaw {
		tags = append(tags, model.TagFormat+p.Format)
	}
	if p.Backing != "" {
		below, err := k.takeBelow(ctx, w, &p)
		if err != nil {
			return err
		}
		tags = append(tags, model.TagBacking+below.ID.LV)
	}
	if p.Room == 0 {
		vg, _, err := splitName(p.Volume)
		if err != nil {
			return err
		}
		extent, _, err := k.Engine.ExtentSize(ctx, vg)
		if err != nil {
			return err
		}
		if p.Room, err = k.room(ctx, p.Format, p.Size, extent); err != nil {
			return err
		}
	}
	v, err := k.Engine.Create(ctx, w, p.Volume, p.Room, tags...)
	if err != nil {
		return err
	}
	if err := k.format(ctx, p); err != nil {
		return err
	}
	return k.Engine.Retag(ctx, w, v, nil, []string{model.TagIncomplete + w.Key})
}

// format makes the image, and reads it back.
func (k volumeCreate) format(ctx context.Context, p createPlan) error {
	if p.Format != formatQcow2 {
		return nil
	}
	var err error
	virtual := roundUp(p.Size, sector)
	if p.Backing == "" {
		err = k.Images.Format(ctx, device(p.Volume), p.Format, virtual)
	} else {
		err = k.Images.Overlay(ctx, device(p.Volume), virtual, device(p.Backing), p.BackingFormat)
	}
	if err != nil {
		return err
	}
	h, err := k.Images.Inspect(ctx, domain.Source{Path: device(p.Volume), Format: p.Format})
	if err != nil {
		return api.NewError(api.KindInternal, oneLine(err.Error()))
	}
	if h.Size != virtual || (h.Backing != nil) != (p.Backing != "") {
		return api.NewError(api.KindInternal, fmt.Sprintf("qemu-img said that the image on %s is made, but it has %d bytes in place of %d, or another image below it", p.Volume, h.Size, virtual))
	}
	return nil
}

// takeBelow takes the template and what is below that shared, since qemu-img opens them all,
// and returns the template. A size that was not asked for is the template's.
func (k volumeCreate) takeBelow(ctx context.Context, w activation.Work, p *createPlan) (model.Volume, error) {
	chain, size, err := k.takeChain(ctx, w, p.Backing, p.BackingFormat)
	if err != nil {
		return model.Volume{}, err
	}
	for _, v := range chain {
		if v.Name() == p.Volume {
			return model.Volume{}, badRequest("%s would be below itself, through %s", p.Volume, p.Backing)
		}
	}
	switch {
	case p.Size == 0:
		p.Size = size
	case p.Size < size:
		return model.Volume{}, badRequest("%s would be smaller than its template %s (%d bytes, and %d): a guest would not see all of it", p.Volume, p.Backing, p.Size, size)
	}
	return chain[0], nil
}

// takeChain takes an image that others are made above, and all that is below it, shared; it
// returns their volumes and the size of what a guest sees.
func (d Deps) takeChain(ctx context.Context, w activation.Work, name, format string) (chain []model.Volume, size int64, err error) {
	first, seen := name, map[model.VolumeID]bool{}
	for {
		v, err := d.Engine.Take(ctx, w, name, model.RoleBacking)
		if err != nil {
			if name != first {
				err = api.NewError(api.KindOf(err), fmt.Sprintf("below %s: %v", first, err))
			}
			return nil, 0, err
		}
		if seen[v.ID] {
			return nil, 0, badRequest("the chain of images below %s comes back to %s: it has no end", first, v.Name())
		}
		seen[v.ID] = true
		chain = append(chain, v)
		h, err := d.Images.Inspect(ctx, domain.Source{Path: device(name), Format: format})
		if err != nil {
			return nil, 0, badRequest("%s is not what it was said to be: %s (if it has no image on it: --backing-format raw)", v.Name(), oneLine(err.Error()))
		}
		if len(chain) == 1 {
			if size = h.Size; format == formatRaw {
				size = v.Size
			}
		}
		if h.Data != nil {
			return nil, 0, badRequest("the image on %s keeps its data elsewhere (%s)", v.Name(), h.Data)
		}
		if h.Backing == nil {
			return chain, size, nil
		}
		ref, isLV, err := d.Resolver.Resolve(*h.Backing)
		switch {
		case err != nil:
			return nil, 0, badRequest("below %s: %v", v.Name(), err)
		case !isLV:
			return chain, size, nil // a file or the like is none of ours
		case ref.DMUUID != "":
			return nil, 0, badRequest("the image on %s names the one below it as %s; name it as /dev/VG/LV with 'qemu-img rebase -u'", v.Name(), h.Backing)
		}
		name, format = ref.String(), h.Backing.Format
	}
}

// Look implements command.Kind: nothing of it goes on outside of the daemon.
func (volumeCreate) Look(context.Context, command.Command) (command.Sight, error) {
	return command.Sight{Where: command.Gone, Reason: "virtlvmd ended before it was done"}, nil
}

// Cancel implements command.Kind. It is seen by Finish.
func (volumeCreate) Cancel(context.Context, command.Command) error { return nil }
