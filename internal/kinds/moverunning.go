package kinds

import (
	"context"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
)

// startRunning makes the new volumes and begins to copy to each. What was begun before is
// not begun again.
func (k moving) startRunning(ctx context.Context, c command.Command, p movePlan) error {
	for _, d := range p.Disks {
		virtual, err := k.virtualSize(ctx, d)
		if err != nil {
			return err
		}
		size, err := k.newSize(ctx, d, virtual)
		if err != nil {
			return err
		}
		dst, err := k.Engine.Create(ctx, p.work(c.Key), d.Dest, size, d.Tags...)
		if err != nil {
			return err
		}
		at, err := k.see(p, d, dst.ID)
		if err != nil {
			return err
		}
		if at.disk != onSource || at.mirror {
			continue
		}
		if err := k.Images.Format(ctx, device(d.Dest), d.ToFormat, virtual); err != nil {
			return api.NewError(api.KindInternal, oneLine(err.Error()))
		}
		if err := k.Virt.BlockCopy(ctx, p.UUID, d.target(), device(d.Dest), d.ToFormat, p.Bandwidth*mebibyte); err != nil {
			return err
		}
	}
	return nil
}

// virtualSize is that of the disk as its guest sees it; the volume must be readable here.
func (k moving) virtualSize(ctx context.Context, d moveDisk) (int64, error) {
	if d.Format == formatRaw {
		return d.Size, nil
	}
	h, err := k.Images.Inspect(ctx, domain.Source{Path: device(d.Volume), Format: d.Format})
	if err != nil {
		return 0, api.NewError(api.KindInternal, oneLine(err.Error()))
	}
	return h.Size, nil
}

// newSize is that of the new volume. An image that stays in its format keeps its room.
func (k moving) newSize(ctx context.Context, d moveDisk, virtual int64) (int64, error) {
	extent, _, err := k.Engine.ExtentSize(ctx, vgOf(d.Dest))
	size := d.Size
	switch {
	case err != nil:
		return 0, err
	case d.Format == d.ToFormat:
	case d.ToFormat == formatQcow2:
		return k.room(ctx, formatQcow2, virtual, extent)
	case extent <= 0 || virtual%extent != 0:
		return 0, badRequest("the disk on %s has %d bytes, which is no multiple of the extents of %s (%d bytes): as a raw volume it would change its size; extend it first", d.Volume, virtual, vgOf(d.Dest), extent)
	default:
		size = virtual
	}
	return roundUp(size, extent), nil
}

// dest is a disk's destination; its zero value where it is not there.
func (k moving) dest(ctx context.Context, d moveDisk) (model.Volume, error) {
	dst, err := k.Engine.Lookup(ctx, d.Dest)
	if isNotFound(err) {
		return model.Volume{}, nil
	}
	return dst, err
}

// abort ends the copies that are under way.
func (k moving) abort(ctx context.Context, p movePlan) error {
	for _, d := range p.Disks {
		at, err := k.see(p, d, model.VolumeID{})
		if err != nil {
			return err
		}
		if !at.mirror {
			continue
		}
		if err := k.Virt.AbortBlockJob(ctx, p.UUID, d.target()); err != nil {
			return err
		}
	}
	return nil
}
