package kinds

import (
	"context"
	"fmt"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
)

// planFull finds out who has the volume, and whether it can go to another volume group; the
// disk becomes one of the plan's.
func (k moving) planFull(ctx context.Context, p *movePlan, d *moveDisk, src model.Volume, toVG, name string) error {
	if err := k.planUsers(ctx, p, d, src); err != nil {
		return err
	}
	if err := checkFormat(&d.ToFormat, d.Format); err != nil {
		return err
	}
	if !p.running() {
		if err := k.Engine.Unsaved(ctx, src); err != nil { // of a guest on another host
			return err
		}
	}
	if err := k.planDestination(ctx, d, src, toVG, name); err != nil {
		return err
	}
	d.Tags = newTags(*d, src)
	p.Disks = append(p.Disks, *d)
	return nil
}

// newTags say what will be on the new volume: an image that is not converted keeps what is
// below it.
func newTags(d moveDisk, src model.Volume) []string {
	if d.ToFormat == formatRaw {
		return nil
	}
	tags := []string{model.TagFormat + d.ToFormat}
	if below, found := src.HasTagOf(model.TagBacking); found && d.Format == d.ToFormat {
		tags = append(tags, model.TagBacking+below)
	}
	return tags
}

// planUsers finds the guest that runs with the volume, or those that are defined here with
// it, as which disk, and in what format.
func (k moving) planUsers(ctx context.Context, p *movePlan, d *moveDisk, src model.Volume) error {
	var owner *model.Hold
	for _, h := range k.Engine.HoldsOf(src.ID) {
		if h.Owner == model.OwnerRetained {
			continue // gives way
		}
		if !model.IsGuest(h.Owner) || owner != nil || h.Phase != model.PhaseHeld {
			return inUse("%s is held on this host (%s) by %s; only a volume that nobody, or one running guest alone, has can be moved", src.Name(), k.Host, h.Subject())
		}
		owner = &h
	}
	if owner == nil {
		if err := k.Engine.Free(ctx, activation.Work{}, src, model.RoleWritable); err != nil {
			return err
		}
		return k.planDefined(d, src)
	}
	g, err := runningGuest(k.Guests, owner.Guest, k.Host)
	if err != nil {
		return err
	}
	dom, err := domain.ParseStatus(g.XML)
	if err != nil {
		return notKnown("cannot read the disks of guest %s: %v", g.Name, err)
	}
	for _, disk := range dom.Disks {
		at, err := k.isAt(disk.Source, src.Name(), src.ID)
		if err != nil {
			return err
		}
		if at {
			p.Guest, p.UUID = g.Name, g.UUID
			return movable(d, dom, disk, src)
		}
	}
	return api.NewError(api.KindUnsupported, fmt.Sprintf("%s is not itself a disk of guest %s, but an image below one (%s); only whole disks can be moved", src.Name(), g.Name, owner.Role))
}

// planDefined finds the guests that are defined here with a volume with which none runs.
func (k moving) planDefined(d *moveDisk, src model.Volume) error {
	all, err := k.Definitions()
	if err != nil {
		return notKnown("cannot read which guests are defined on %s: %v", k.Host, err)
	}
	declared := d.Format
	for _, dom := range all {
		for _, disk := range dom.Disks {
			for i, image := range disk.Images() {
				at, err := k.isAt(image.Source, src.Name(), src.ID)
				switch {
				case err != nil:
					return err
				case !at:
					continue
				case dom.Saved:
					return savedImage(dom.Name, src.Name())
				case i > 0:
					return api.NewError(api.KindUnsupported, fmt.Sprintf("%s is below disk %s of guest %s; only whole disks can be moved", src.Name(), disk.Target, dom.Name))
				}
				if err := movable(d, dom, disk, src); err != nil {
					return err
				}
				if declared != "" && d.Format != declared {
					return badRequest("%s is %s by the definition of guest %s, and %s as it was asked for or by another guest", src.Name(), d.Format, dom.Name, declared)
				}
				declared = d.Format
			}
		}
	}
	if d.Format == "" {
		d.Format = src.Format()
	}
	return checkFormat(&d.Format, formatRaw)
}

// savedImage refuses to touch the disks of a guest with a managed-save image: its memory
// names them, and goes on with their content.
func savedImage(guest, volume string) error {
	return inUse("guest %s has a managed-save image, which goes on with %s as it is: start the guest, or give the image up with 'virsh managedsave-remove %s'", guest, volume, guest)
}

// movable is nil for a disk that can be brought as it is to another volume, and adds its
// guest to the users.
func movable(d *moveDisk, dom *domain.Domain, disk domain.Disk, src model.Volume) error {
	no := func(why string) error {
		return api.NewError(api.KindUnsupported, fmt.Sprintf("disk %s of guest %s (%s) cannot be moved: %s", disk.Target, dom.Name, src.Name(), why))
	}
	format := disk.Source.Format
	if format == "" {
		format = formatRaw
	}
	switch {
	case disk.Role != model.RoleWritable:
		return no(fmt.Sprintf("it is %s", disk.Role))
	case format != formatRaw && format != formatQcow2:
		return no("its format is " + format)
	case len(disk.Backing) > 0:
		return no("it has an image below it, which a copy would swallow")
	case disk.Source.Sliced, disk.Source.Data != nil:
		return no("its image is not the whole of one volume")
	}
	d.Format = format
	d.Users = append(d.Users, diskUser{Guest: dom.Name, UUID: dom.UUID, Target: disk.Target})
	return nil
}

// planDestination checks the volume that is to be made.
func (k moving) planDestination(ctx context.Context, d *moveDisk, src model.Volume, toVG, name string) error {
	if toVG == src.VG {
		return badRequest("%s is in volume group %s already; within one volume group only the lock moves, with the guest", src.Name(), toVG)
	}
	vg, lv, err := splitName(toVG + "/" + name)
	if err != nil {
		return err
	}
	d.Dest = vg + "/" + lv
	if _, _, err := k.Engine.ExtentSize(ctx, src.VG); err != nil {
		return err // its tags could not be changed when it has moved
	}
	extent, free, err := k.Engine.ExtentSize(ctx, vg)
	if err != nil {
		return err
	}
	need, err := k.destRoom(ctx, *d, extent)
	switch {
	case err != nil:
		return err
	case d.ToFormat == formatRaw && d.Format == formatRaw && (extent <= 0 || src.Size%extent != 0):
		return badRequest("%s has %d bytes, which is no multiple of the extents of %s (%d bytes): the disk would change its size; extend it first, with 'virsh blockresize' for the guest", src.Name(), src.Size, vg, extent)
	case need > free:
		return noRoom(vg, need, free)
	}
	switch _, err := k.Engine.Lookup(ctx, d.Dest); {
	case err == nil:
		return inUse("%s exists already; name another volume with --name, or remove that one", d.Dest)
	case !isNotFound(err):
		return err
	}
	return nil
}

// destRoom is the size of the new volume as far as it is known before the source can be read: a
// raw copy of an image may need less.
func (k moving) destRoom(ctx context.Context, d moveDisk, extent int64) (int64, error) {
	if d.Format == formatRaw && d.ToFormat == formatQcow2 {
		return k.room(ctx, formatQcow2, d.Size, extent)
	}
	return roundUp(d.Size, extent), nil
}
