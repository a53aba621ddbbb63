package kinds

import (
	"context"
	"fmt"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
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

// dest is a disk's destination; its zero value where it is not there.
func (k moving) dest(ctx context.Context, d moveDisk) (model.Volume, error) {
	dst, err := k.Engine.Lookup(ctx, d.Dest)
	if isNotFound(err) {
		return model.Volume{}, nil
	}
	return dst, err
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

// seenDisk is a disk with what there is of it.
type seenDisk struct {
	moveDisk
	sight
	dst model.Volume
}

// finishRunning: the disks of the running guest decide; where the guest has ended, its
// definition does, which libvirt changes with the pivot. Nothing pivots until all disks can.
func (k moving) finishRunning(ctx context.Context, c command.Command, p movePlan, s command.Sight) (command.Verdict, error) {
	var disks []seenDisk
	copies, behind, ended, pivoted := 0, 0, 0, 0
	for _, d := range p.Disks {
		dst, err := k.dest(ctx, d)
		if err != nil {
			return command.Verdict{}, err
		}
		at, err := k.see(p, d, dst.ID)
		if err != nil {
			return command.Verdict{}, err
		}
		disks = append(disks, seenDisk{d, at, dst})
		switch {
		case at.foreign:
			return notYet("another block job is under way on disk %s of guest %s; it must end first", d.target(), p.Guest), nil
		case at.mirror && !at.ready:
			copies, behind = copies+1, behind+1
		case at.mirror:
			copies++
		case at.disk == onSource:
			ended++
		case at.disk == onDest:
			pivoted++
		}
	}
	switch {
	case copies > 0 && pivoted == 0 && (c.Cancelled != "" || ended > 0):
		return notYet("the copy of %s is being aborted", names(p.Disks)), k.abort(ctx, p)
	case behind > 0:
		return notYet("the copy of %s has not caught up yet", names(p.Disks)), nil
	}
	return k.settleDisks(ctx, c, p, disks, s)
}

func names(disks []moveDisk) string {
	all := make([]string, 0, len(disks))
	for _, d := range disks {
		all = append(all, d.Volume)
	}
	return strings.Join(all, ", ")
}

// settleDisks brings each disk to its end: pivots, then makes everybody follow, or takes
// the destination away again.
func (k moving) settleDisks(ctx context.Context, c command.Command, p movePlan, disks []seenDisk, s command.Sight) (command.Verdict, error) {
	var moved, notes []string
	var failed []moveDisk
	why := ""
	// All of them first: no lock of the guest is given back while it has a block job.
	for i, d := range disks {
		if !d.mirror {
			continue
		}
		wait, err := k.pivot(ctx, c, p, d)
		if err != nil || wait != "" {
			return notYet("%s", wait), err
		}
		disks[i].disk = onDest
	}
	for _, d := range disks {
		complete, reason, err := k.onDest(d, c.Key)
		switch {
		case err != nil:
			return command.Verdict{}, err
		case complete:
			note, wait, err := k.complete(ctx, c, p, d)
			if err != nil || wait != "" {
				return notYet("%s", wait), err
			}
			moved = append(moved, fmt.Sprintf("disk %s of guest %s is on %s; %s is off and tagged %s: remove it when it is not needed any more%s", d.target(), p.Guest, d.Dest, d.Volume, model.TagSuperseded, note))
		case reason == "":
			return notYet("%s since the pivot was asked for, and it cannot be told whether %s or %s is the real one. Look at both, and at the guest's definition, and tell with 'virtlvm command resolve'", d.disk, d.Volume, d.Dest), nil
		default:
			note, err := k.takeAway(ctx, c, p, d.moveDisk)
			if err != nil {
				return command.Verdict{}, err
			}
			failed, notes, why = append(failed, d.moveDisk), append(notes, note), reason
		}
	}
	held, err := giveBack(ctx, k.Engine, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	if len(failed) == 0 {
		return done("%s%s", strings.Join(moved, "; "), held), nil
	}
	switch {
	case c.Cancelled != "":
		why = "it was cancelled: " + c.Cancelled
	case s.Began != nil:
		why = s.Began.Error()
	}
	if len(moved) > 0 {
		held += "; but " + strings.Join(moved, "; ")
	}
	return notDone("cannot move %s: %s; guest %s goes on with %s%s%s", fromTo(failed), why, p.Guest, names(failed), strings.Join(notes, ""), held), nil
}

func fromTo(disks []moveDisk) string {
	all := make([]string, 0, len(disks))
	for _, d := range disks {
		all = append(all, d.Volume+" to "+d.Dest)
	}
	return strings.Join(all, ", ")
}

// onDest says whether a disk without a copy under way is on its destination; else why not,
// or "" where nobody can tell.
func (k moving) onDest(d seenDisk, key string) (is bool, why string, err error) {
	switch {
	case d.disk == onDest:
		return true, "", nil
	case d.disk == onSource:
		return false, "the copy ended before it had caught up", nil
	case !d.dst.HasTag(tagPivot + key):
		return false, fmt.Sprintf("%s, and the copy had not caught up before", d.disk), nil
	}
	at, _, err := k.definedAt(d.moveDisk, d.Users[0], d.dst.ID)
	return at == onDest, "", err
}

// pivot says on disk that it will be asked for, and asks. From here on the guest is started
// from neither volume until it is known on which it is: the source is free as soon as the
// guest has left it, whatever becomes of this host.
func (k moving) pivot(ctx context.Context, c command.Command, p movePlan, d seenDisk) (wait string, err error) {
	if err := k.Engine.Retag(ctx, p.work(c.Key), d.dst, []string{tagPivot + c.Key}, nil); err != nil {
		return "", err
	}
	if err := k.supersede(ctx, p.work(c.Key), d.moveDisk); err != nil {
		return "", err
	}
	if err := k.Virt.Pivot(ctx, p.UUID, d.target()); err != nil {
		return "", err
	}
	at, err := k.see(p, d.moveDisk, d.dst.ID)
	if err == nil && (at.disk != onDest || at.mirror) {
		wait = fmt.Sprintf("libvirt says that disk %s has pivoted, and does not show it there yet", d.target())
	}
	return wait, err
}

// complete makes everybody follow the disk: the definition, the locks, the tags.
func (k moving) complete(ctx context.Context, c command.Command, p movePlan, d seenDisk) (note, wait string, err error) {
	w := p.work(c.Key)
	if note, err = k.redefine(ctx, d.moveDisk, d.Users[0], d.dst.ID); err != nil {
		return "", "", err
	}
	// Somebody else may have pivoted.
	if err := k.supersede(ctx, w, d.moveDisk); err != nil {
		return "", "", err
	}
	if err := k.Engine.Settle(ctx, p.UUID); err != nil {
		return "", "", err
	}
	at, err := k.see(p, d.moveDisk, d.dst.ID)
	if err != nil {
		return "", "", err
	}
	if at.disk == onDest && !k.heldBy(d.dst.ID, p.UUID) {
		return "", fmt.Sprintf("guest %s has no lock of its own on %s yet", p.Guest, d.Dest), nil
	}
	if err := k.Engine.Retag(ctx, w, d.dst, nil, []string{model.TagIncomplete + c.Key, tagPivot + c.Key}); err != nil {
		return "", "", err
	}
	src, there, err := k.source(ctx, d.moveDisk)
	if err != nil || !there {
		return note, "", err
	}
	a, err := k.Engine.StateOf(ctx, src)
	if err == nil && !a.Is(model.ModeOff) {
		wait = fmt.Sprintf("%s, which the disk has left, is still %s on %s", d.Volume, a, k.Host)
	}
	return note, wait, err
}

// source is the volume that a disk is moved from, unless it is not there any more.
func (k moving) source(ctx context.Context, d moveDisk) (src model.Volume, there bool, err error) {
	src, err = k.Engine.Lookup(ctx, d.Volume)
	if isNotFound(err) {
		return model.Volume{}, false, nil
	}
	return src, err == nil && src.ID == d.SourceID, err
}

// supersede tags the source.
func (k moving) supersede(ctx context.Context, w activation.Work, d moveDisk) error {
	src, there, err := k.source(ctx, d)
	if err != nil || !there {
		return err
	}
	return k.Engine.Retag(ctx, w, src, []string{model.TagSuperseded}, nil)
}

// keep takes the tag off a source that the running guest has not left: none had it when the move
// began.
func (k moving) keep(ctx context.Context, w activation.Work, d moveDisk) error {
	src, there, err := k.source(ctx, d)
	if err != nil || !there {
		return err
	}
	return k.Engine.Retag(ctx, w, src, nil, []string{model.TagSuperseded})
}

func (k moving) heldBy(id model.VolumeID, uuid string) bool {
	for _, h := range k.Engine.HoldsOf(id) {
		if h.Owner == uuid && h.Phase == model.PhaseHeld {
			return true
		}
	}
	return false
}

// takeAway leaves the guest as it is and removes the destination.
func (k moving) takeAway(ctx context.Context, c command.Command, p movePlan, d moveDisk) (note string, err error) {
	if p.running() {
		if err := k.keep(ctx, p.work(c.Key), d); err != nil {
			return "", err
		}
		// The guest's own hold on a destination that it has no more ends.
		if err := k.Engine.Settle(ctx, p.UUID); err != nil {
			return "", err
		}
	}
	return leftover(d.Dest, k.Engine.RemoveMade(ctx, p.work(c.Key), d.Dest))
}

// investigate judges one disk from its tags.
func (k moving) investigate(ctx context.Context, c command.Command, p movePlan, d moveDisk) (command.Verdict, error) {
	dst, err := k.dest(ctx, d)
	switch {
	case err != nil:
		return command.Verdict{}, err
	case !dst.HasTag(model.TagCommand + c.Key):
		return notDone("cannot move %s to %s: %s is gone, and has made nothing", d.Volume, d.Dest, c.Executor), nil
	case !p.running():
		return k.investigateOff(ctx, c, d, dst)
	case !dst.HasTag(model.TagIncomplete + c.Key):
		return done("disk %s of guest %s is on %s", d.target(), p.Guest, d.Dest), nil
	case !dst.HasTag(tagPivot + c.Key):
		if err := k.Engine.Free(ctx, p.work(c.Key), dst, model.RoleMirror); err != nil {
			return notYet("the copy may go on: %v", err), nil
		}
		return notDone("cannot move %s to %s: %s is gone, and never let the guest go on there; %s is left half made: remove it with 'lvremove %s'", d.Volume, d.Dest, c.Executor, d.Dest, d.Dest), nil
	}
	return notYet("%s is gone since the pivot was asked for; it cannot be told from here whether %s or %s is the real one. Look at both, and tell with 'virtlvm command resolve'", c.Executor, d.Volume, d.Dest), nil
}
