package kinds

import (
	"context"
	"encoding/json"
	"fmt"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
)

// volumeMove is volume.move: libvirt copies a disk of a running guest to a new volume,
// follows the guest's writes, and at last lets the guest go on there (pivot). The copy is
// a job of libvirt's and QEMU's, which do not need us for it; only the pivot is asked for
// by Finish. Where the disk is, is read in libvirt's status file of the guest.
type volumeMove struct{ Deps }

// movePlan is what Plan keeps.
type movePlan struct {
	api.MoveArgs
	SourceID model.VolumeID `json:"source_id"`
	Dest     string         `json:"dest"` // "vg/lv"
	Size     int64          `json:"size"` // bytes, of both
	Guest    string         `json:"guest"`
	UUID     string         `json:"uuid"`
	Target   string         `json:"target"` // "vda"
	Format   string         `json:"format"` // of the image: "raw", "qcow2"
}

func (p movePlan) work(key string) activation.Work { return activation.Work{Key: key, Guest: p.UUID} }

// tagPivot + KEY is on the destination from before the pivot is asked for until the move is
// complete: without it the source is certainly the real one.
const tagPivot = "virtlvm.pivot="

// Plan implements command.Kind.
func (k volumeMove) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var p movePlan
	if err := decode(args, &p.MoveArgs); err != nil {
		return command.Plan{}, err
	}
	if err := checkBandwidth(p.Bandwidth); err != nil {
		return command.Plan{}, err
	}
	src, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil {
		return command.Plan{}, err
	}
	p.Volume, p.SourceID, p.Size = src.Name(), src.ID, src.Size
	if err := k.planDestination(ctx, &p, src); err != nil {
		return command.Plan{}, err
	}
	if err := k.planDisk(ctx, &p, src); err != nil {
		return command.Plan{}, err
	}
	rec, err := record(p)
	return command.Plan{
		Targets: []command.Target{volumeTarget(src, false), plannedTarget(p.Dest), guestTarget(p.UUID, p.Guest)},
		Record:  rec, Backend: true,
	}, err
}

func (k volumeMove) planDestination(ctx context.Context, p *movePlan, src model.Volume) error {
	if p.Name == "" {
		p.Name = src.LV
	}
	if p.ToVG == src.VG {
		return badRequest("%s is in volume group %s already; within one volume group only the lock moves, with the guest", src.Name(), p.ToVG)
	}
	var err error
	if p.ToVG, p.Name, err = splitName(p.ToVG + "/" + p.Name); err != nil {
		return err
	}
	p.Dest = p.ToVG + "/" + p.Name
	extent, free, err := k.Engine.ExtentSize(ctx, p.ToVG)
	switch {
	case err != nil:
		return err
	case extent <= 0 || src.Size%extent != 0:
		return badRequest("%s has %d bytes, which is no multiple of the extents of %s (%d bytes): the disk would change its size; extend it first, with 'virsh blockresize' for the guest", src.Name(), src.Size, p.ToVG, extent)
	case src.Size > free:
		return noRoom(p.ToVG, src.Size, free)
	}
	switch _, err := k.Engine.Lookup(ctx, p.Dest); {
	case err == nil:
		return inUse("%s exists already; name another volume with --name, or remove that one", p.Dest)
	case !isNotFound(err):
		return err
	}
	return nil
}

// planDisk finds the guest that writes the volume, and as which disk.
func (k volumeMove) planDisk(ctx context.Context, p *movePlan, src model.Volume) error {
	var owner *model.Hold
	for _, h := range k.Engine.HoldsOf(src.ID) {
		if !model.IsGuest(h.Owner) || owner != nil || h.Phase != model.PhaseHeld {
			return inUse("%s is held on this host (%s) by %s; only a volume that one running guest alone has can be moved", src.Name(), k.Host, h.Subject())
		}
		owner = &h
	}
	if owner == nil {
		if err := k.Engine.Free(ctx, activation.Work{}, src, model.RoleWritable); err != nil {
			return err
		}
		return inUse("no guest runs with %s; copy it with 'virtlvm volume copy %s %s', change the guest's definition and remove the old one", src.Name(), src.Name(), p.Dest)
	}
	g, err := runningGuest(k.Guests, owner.Guest, k.Host)
	if err != nil {
		return err
	}
	d, err := domain.ParseStatus(g.XML)
	if err != nil {
		return notKnown("cannot read the disks of guest %s: %v", g.Name, err)
	}
	p.Guest, p.UUID = g.Name, g.UUID
	for _, disk := range d.Disks {
		at, err := k.isAt(disk.Source, src.Name(), src.ID)
		if err != nil {
			return err
		}
		if at {
			return k.movable(p, disk, src)
		}
	}
	return api.NewError(api.KindUnsupported, fmt.Sprintf("%s is not itself a disk of guest %s, but an image below one (%s); only whole disks can be moved", src.Name(), g.Name, owner.Role))
}

// movable is nil for a disk that block copy can bring as it is to another volume.
func (k volumeMove) movable(p *movePlan, disk domain.Disk, src model.Volume) error {
	p.Target, p.Format = disk.Target, disk.Source.Format
	if p.Format == "" {
		p.Format = formatRaw
	}
	no := func(why string) error {
		return api.NewError(api.KindUnsupported, fmt.Sprintf("disk %s of guest %s (%s) cannot be moved: %s", disk.Target, p.Guest, src.Name(), why))
	}
	switch {
	case disk.Role != model.RoleWritable:
		return no(fmt.Sprintf("it is %s", disk.Role))
	case p.Format != formatRaw && p.Format != formatQcow2:
		return no("its format is " + p.Format)
	case len(disk.Backing) > 0:
		return no("it has an image below it, which a copy would swallow")
	case disk.Source.Sliced, disk.Source.Data != nil:
		return no("its image is not the whole of one volume")
	}
	return nil
}

// Start implements command.Kind.
func (k volumeMove) Start(ctx context.Context, c command.Command) error {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return err
	}
	dst, err := k.Engine.Create(ctx, p.work(c.Key), p.Dest, p.Size)
	if err != nil {
		return err
	}
	at, err := k.see(p, dst.ID)
	if err != nil {
		return err
	}
	if at.disk != onSource || at.mirror {
		return nil // it was begun before
	}
	if p.Format == formatQcow2 {
		h, err := k.Images.Inspect(ctx, domain.Source{Path: device(p.Volume), Format: p.Format})
		if err == nil {
			err = k.Images.Format(ctx, device(p.Dest), p.Format, h.Size)
		}
		if err != nil {
			return api.NewError(api.KindInternal, oneLine(err.Error()))
		}
	}
	return k.Virt.BlockCopy(ctx, p.UUID, p.Target, device(p.Dest), p.Format, p.Bandwidth*mebibyte)
}

// diskAt says which volume a disk is on.
type diskAt string

const (
	onSource diskAt = "source"
	onDest   diskAt = "destination"
	onOther  diskAt = "another volume"
	noGuest  diskAt = "the guest does not run here"
	noDisk   diskAt = "the guest has no such disk"
)

// sight of the disk in libvirt's status file.
type sight struct {
	disk          diskAt
	mirror, ready bool // a copy to the destination is under way; it has caught up
	foreign       bool // another block job is
}

// see reads where the disk is. An error: it cannot be told.
func (k volumeMove) see(p movePlan, destID model.VolumeID) (sight, error) {
	snap, err := k.Guests.Observe()
	if err != nil {
		return sight{}, notKnown("cannot tell what guest %s does: %v", p.Guest, err)
	}
	switch snap.Liveness(p.UUID, p.Guest) {
	case guests.Gone:
		return sight{disk: noGuest}, nil
	case guests.Unknown:
		return sight{}, notKnown("cannot tell whether guest %s runs on %s", p.Guest, k.Host)
	case guests.Alive:
	}
	d, err := domain.ParseStatus(snap.ByUUID[p.UUID].XML)
	if err != nil {
		return sight{}, notKnown("cannot read the disks of guest %s: %v", p.Guest, err)
	}
	return k.seeDisk(p, d, destID)
}

func (k volumeMove) seeDisk(p movePlan, d *domain.Domain, destID model.VolumeID) (sight, error) {
	for _, disk := range d.Disks {
		if disk.Target != p.Target {
			continue
		}
		s := sight{disk: onOther}
		for at, v := range map[diskAt]struct {
			name string
			id   model.VolumeID
		}{onSource: {p.Volume, p.SourceID}, onDest: {p.Dest, destID}} {
			is, err := k.isAt(disk.Source, v.name, v.id)
			if err != nil {
				return sight{}, err
			}
			if is {
				s.disk = at
			}
		}
		if disk.Mirror != nil {
			is, err := k.isAt(*disk.Mirror, p.Dest, destID)
			if err != nil {
				return sight{}, err
			}
			s.mirror, s.foreign, s.ready = is, !is, is && disk.MirrorReady
		}
		return s, nil
	}
	return sight{disk: noDisk}, nil
}

// destID is the destination's id; zero where it is not there.
func (k volumeMove) destID(ctx context.Context, p movePlan) (model.Volume, error) {
	dst, err := k.Engine.Lookup(ctx, p.Dest)
	if isNotFound(err) {
		return model.Volume{}, nil
	}
	return dst, err
}

// Look implements command.Kind. A copy that has caught up is at its end as far as libvirt
// goes: Finish pivots.
func (k volumeMove) Look(ctx context.Context, c command.Command) (command.Sight, error) {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return command.Sight{}, err
	}
	// By the name alone: this is called often, and must not ask LVM.
	at, err := k.see(p, model.VolumeID{})
	if err != nil {
		return command.Sight{Where: command.Unknown, Reason: oneLine(err.Error())}, nil //nolint:nilerr // not to be told now is an answer
	}
	switch {
	case at.disk == noGuest, at.disk == noDisk:
		return command.Sight{Where: command.Gone, Reason: string(at.disk)}, nil
	case at.mirror && !at.ready:
		s := command.Sight{Where: command.Running, Progress: model.Progress{Total: p.Size, Phase: "copying"}}
		if j, err := k.Virt.BlockJob(ctx, p.UUID, p.Target); err == nil && j.Found {
			s.Progress.Done, s.Progress.Total = j.Done, j.End
		}
		return s, nil
	case at.mirror:
		return command.Sight{Where: command.Ended, Reason: "the copy has caught up", Progress: model.Progress{Done: p.Size, Total: p.Size, Phase: "pivoting"}}, nil
	}
	return command.Sight{Where: command.Ended, Reason: "the disk is on the " + string(at.disk)}, nil
}

// Cancel implements command.Kind. A copy that is not there any more needs no end.
func (k volumeMove) Cancel(ctx context.Context, c command.Command) error {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return err
	}
	at, err := k.see(p, model.VolumeID{})
	if err != nil || !at.mirror {
		return err
	}
	return k.Virt.AbortBlockJob(ctx, p.UUID, p.Target)
}
