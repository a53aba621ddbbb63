package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
	"virtlvm/internal/virt"
)

// guestDetach is guest.detach: libvirt detaches a disk, and the guest's hold follows what its
// status file shows. A guest that runs lets go of a disk when it likes.
type guestDetach struct{ Deps }

// detachPlan is what Plan keeps.
type detachPlan struct {
	api.DetachArgs
	UUID   string
	Volume string
	ID     model.VolumeID
	Target string
	Format string
}

func (p detachPlan) disk() virt.Disk {
	return virt.Disk{Device: device(p.Volume), Target: p.Target, Format: p.Format}
}

// unplugPatience is how long a guest may take to let go of a disk.
const unplugPatience = time.Minute

// Plan implements command.Kind.
func (k guestDetach) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var p detachPlan
	if err := decode(args, &p.DetachArgs); err != nil {
		return command.Plan{}, err
	}
	s, err := k.subjectOf(p.Guest, &p.Live, &p.Config)
	if err != nil {
		return command.Plan{}, err
	}
	p.UUID = s.uuid
	doc := s.running
	if !p.Live {
		doc = s.defined
	}
	if err := k.planDisk(ctx, &p, doc); err != nil {
		return command.Plan{}, err
	}
	rec, err := record(p)
	return command.Plan{Targets: []command.Target{{Volume: p.ID, Name: p.Volume}, guestTarget(p.UUID, p.Guest)}, Record: rec}, err
}

// planDisk finds the disk by its name or its volume.
func (k guestDetach) planDisk(ctx context.Context, p *detachPlan, doc *domain.Domain) error {
	for _, disk := range doc.Disks {
		ref, isLV, err := k.Resolver.Resolve(disk.Source)
		if err != nil || !isLV {
			if disk.Target == p.Disk {
				return unsupported("disk %s of guest %s is on no volume; detach it with 'virsh detach-disk'", p.Disk, p.Guest)
			}
			continue
		}
		name := ref.String()
		if ref.DMUUID != "" && strings.Contains(p.Disk, "/") {
			v, err := k.Engine.Lookup(ctx, p.Disk)
			if err == nil && v.ID.DMUUID() == ref.DMUUID {
				name = v.Name()
			}
		}
		if disk.Target != p.Disk && name != strings.TrimPrefix(p.Disk, "/dev/") {
			continue
		}
		if ref.DMUUID != "" && !strings.Contains(p.Disk, "/") {
			return unsupported("disk %s of guest %s is named as %s; say which volume that is in place of %s", p.Disk, p.Guest, disk.Source, p.Disk)
		}
		v, err := k.Engine.Lookup(ctx, name)
		if err != nil {
			return err
		}
		p.Volume, p.ID, p.Target, p.Format = v.Name(), v.ID, disk.Target, formatOf(disk.Source)
		return nil
	}
	return api.NewError(api.KindNotFound, fmt.Sprintf("guest %s has no disk %s on %s", p.Guest, p.Disk, k.Host))
}

// Start implements command.Kind: Finish does it all.
func (guestDetach) Start(context.Context, command.Command) error { return nil }

// Look implements command.Kind.
func (guestDetach) Look(context.Context, command.Command) (command.Sight, error) {
	return command.Sight{Where: command.Gone}, nil
}

// Cancel implements command.Kind. It is seen by Finish.
func (guestDetach) Cancel(context.Context, command.Command) error { return nil }

// Finish implements command.Kind. The running guest comes first: while it has the disk its
// definition keeps it, too.
func (k guestDetach) Finish(ctx context.Context, c command.Command, _ command.Sight) (command.Verdict, error) {
	var p detachPlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	live, config, err := k.seeDisk(p.Guest, p.UUID, p.Target, p.Volume, p.ID)
	if err != nil {
		return command.Verdict{}, err
	}
	if c.Cancelled != "" && (live && p.Live || config && !p.Live) {
		return notDone("cannot detach disk %s of guest %s: it was cancelled: %s", p.Target, p.Guest, c.Cancelled), nil
	}
	if p.Live && live {
		err := k.Virt.DetachDisk(ctx, p.UUID, p.disk(), virt.InGuest)
		if again(ctx, err) {
			return command.Verdict{}, err
		}
		if live, config, err = k.still(ctx, p, err); err != nil {
			return notDone("cannot detach disk %s of guest %s: %v", p.Target, p.Guest, err), nil
		}
		switch {
		case live && k.Now().Sub(c.Created) > unplugPatience:
			return notDone("guest %s has not let go of disk %s (%s) within %s; it may still do so, and its lock follows then", p.Guest, p.Target, p.Volume, unplugPatience), nil
		case live:
			return notYet("guest %s has not let go of disk %s yet", p.Guest, p.Target), nil
		}
	}
	if p.Config && config {
		if err := k.Virt.DetachDisk(ctx, p.UUID, p.disk(), virt.InDefinition); again(ctx, err) {
			return command.Verdict{}, err
		} else if err != nil {
			return notDone("disk %s is still in the definition of guest %s: %v", p.Target, p.Guest, err), nil
		}
	}
	if p.Live {
		if err := k.Engine.Settle(ctx, p.UUID); err != nil {
			return command.Verdict{}, notKnown("%v", err)
		}
	}
	return done("guest %s has given up disk %s (%s)%s", p.Guest, p.Target, p.Volume, places(p.Live, p.Config)), nil
}

// still looks at the disk after libvirt was asked to detach it: its refusal counts only where
// the guest has the disk, and is not about to lose it.
func (k guestDetach) still(_ context.Context, p detachPlan, refused error) (live, config bool, err error) {
	live, config, err = k.seeDisk(p.Guest, p.UUID, p.Target, p.Volume, p.ID)
	if err == nil && live && refused != nil && !strings.Contains(refused.Error(), "in the process of unplug") {
		err = refused
	}
	return live, config, err
}

// Investigate implements command.Kind.
func (k guestDetach) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	var p detachPlan
	if err := recallOr(c, &p, &p.DetachArgs); err != nil {
		return command.Verdict{}, err
	}
	return k.gone(ctx, c, p.Guest, p.Live && !p.Config)
}
