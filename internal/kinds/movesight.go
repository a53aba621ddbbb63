package kinds

import (
	"context"

	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
)

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
func (k moving) see(p movePlan, d moveDisk, destID model.VolumeID) (sight, error) {
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
	dom, err := domain.ParseStatus(snap.ByUUID[p.UUID].XML)
	if err != nil {
		return sight{}, notKnown("cannot read the disks of guest %s: %v", p.Guest, err)
	}
	s, _, err := k.seeDisk(dom, d, d.target(), destID)
	return s, err
}

func (k moving) seeDisk(dom *domain.Domain, d moveDisk, target string, destID model.VolumeID) (sight, domain.Source, error) {
	for _, disk := range dom.Disks {
		if disk.Target != target {
			continue
		}
		s := sight{disk: onOther}
		for at, v := range map[diskAt]struct {
			name string
			id   model.VolumeID
		}{onSource: {d.Volume, d.SourceID}, onDest: {d.Dest, destID}} {
			is, err := k.isAt(disk.Source, v.name, v.id)
			if err != nil {
				return sight{}, disk.Source, err
			}
			if is {
				s.disk = at
			}
		}
		if disk.Mirror != nil {
			is, err := k.isAt(*disk.Mirror, d.Dest, destID)
			if err != nil {
				return sight{}, disk.Source, err
			}
			s.mirror, s.foreign, s.ready = is, !is, is && disk.MirrorReady
		}
		return s, disk.Source, nil
	}
	return sight{disk: noDisk}, domain.Source{}, nil
}

// lookRunning: copies that have caught up are at their end as far as libvirt goes. By the
// names of the volumes alone: this is called often, and must not ask LVM.
func (k moving) lookRunning(ctx context.Context, p movePlan) command.Sight {
	total := model.Progress{Phase: "pivoting"}
	copying, mirrors, gone := false, false, true
	where := onSource
	for _, d := range p.Disks {
		at, err := k.see(p, d, model.VolumeID{})
		if err != nil {
			return command.Sight{Where: command.Unknown, Reason: oneLine(err.Error())}
		}
		gone = gone && (at.disk == noGuest || at.disk == noDisk)
		where, mirrors = at.disk, mirrors || at.mirror
		done, end := d.Size, d.Size
		if at.mirror && !at.ready {
			copying, done = true, 0
			if j, err := k.Virt.BlockJob(ctx, p.UUID, d.target()); err == nil && j.Found {
				done, end = j.Done, j.End
			}
		}
		total.Done, total.Total = total.Done+done, total.Total+end
	}
	switch {
	case gone:
		return command.Sight{Where: command.Gone, Reason: string(where)}
	case copying && !k.broken(p):
		total.Phase = "copying"
		return command.Sight{Where: command.Running, Progress: total}
	case mirrors:
		return command.Sight{Where: command.Ended, Reason: "the copy has caught up", Progress: total}
	}
	return command.Sight{Where: command.Ended, Reason: "the disk is on the " + string(where)}
}

// broken: a copy has ended before it had caught up, and so those of the other disks have no
// use any more.
func (k moving) broken(p movePlan) bool {
	for _, d := range p.Disks {
		if at, err := k.see(p, d, model.VolumeID{}); err == nil && at.disk == onSource && !at.mirror {
			return true
		}
	}
	return false
}
