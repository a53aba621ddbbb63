package kinds

import (
	"context"
	"errors"
	"fmt"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// Finish implements command.Kind. The disk of the running guest decides; where the guest
// has ended, its definition does, which libvirt changes with the pivot.
func (k volumeMove) Finish(ctx context.Context, c command.Command, s command.Sight) (command.Verdict, error) {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	dst, err := k.destID(ctx, p)
	if err != nil {
		return command.Verdict{}, err
	}
	at, err := k.see(p, dst.ID)
	if err != nil {
		return command.Verdict{}, err
	}
	switch {
	case at.foreign:
		return notYet("another block job is under way on disk %s of guest %s; it must end first", p.Target, p.Guest), nil
	case at.mirror && c.Cancelled != "":
		return notYet("the copy of disk %s is being aborted", p.Target), k.Virt.AbortBlockJob(ctx, p.UUID, p.Target)
	case at.mirror && at.ready:
		return k.pivot(ctx, c, p, dst)
	case at.mirror:
		return notYet("the copy of disk %s has not caught up yet", p.Target), nil
	case at.disk == onDest:
		return k.complete(ctx, c, p, dst)
	case at.disk == onSource:
		return k.fail(ctx, c, p, s, "the copy ended before it had caught up")
	}
	return k.withoutDisk(ctx, c, p, dst, s, at.disk)
}

// pivot says on disk that it will be asked for, and asks.
func (k volumeMove) pivot(ctx context.Context, c command.Command, p movePlan, dst model.Volume) (command.Verdict, error) {
	if err := k.Engine.Retag(ctx, p.work(c.Key), dst, []string{tagPivot + c.Key}, nil); err != nil {
		return command.Verdict{}, err
	}
	if err := k.Virt.Pivot(ctx, p.UUID, p.Target); err != nil {
		return command.Verdict{}, err
	}
	at, err := k.see(p, dst.ID)
	if err != nil {
		return command.Verdict{}, err
	}
	if at.disk != onDest || at.mirror {
		return notYet("libvirt says that disk %s has pivoted, and does not show it there yet", p.Target), nil
	}
	return k.complete(ctx, c, p, dst)
}

// complete makes everybody follow the disk: the definition, the locks, the tags.
func (k volumeMove) complete(ctx context.Context, c command.Command, p movePlan, dst model.Volume) (command.Verdict, error) {
	w := p.work(c.Key)
	note, err := k.redefine(ctx, p, dst.ID)
	if err != nil {
		return command.Verdict{}, err
	}
	if err := k.Engine.Settle(ctx, p.UUID); err != nil {
		return command.Verdict{}, err
	}
	at, err := k.see(p, dst.ID)
	if err != nil {
		return command.Verdict{}, err
	}
	if at.disk == onDest && !k.heldBy(dst.ID, p.UUID) {
		return notYet("guest %s has no lock of its own on %s yet", p.Guest, p.Dest), nil
	}
	if err := k.Engine.Retag(ctx, w, dst, nil, []string{model.TagIncomplete + c.Key, tagPivot + c.Key}); err != nil {
		return command.Verdict{}, err
	}
	src, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil && !isNotFound(err) {
		return command.Verdict{}, err
	}
	if there := err == nil && src.ID == p.SourceID; there {
		if err := k.Engine.Retag(ctx, w, src, []string{model.TagSuperseded}, nil); err != nil {
			return command.Verdict{}, err
		}
		a, err := k.Engine.StateOf(ctx, src)
		if err != nil {
			return command.Verdict{}, err
		}
		if !a.Is(model.ModeOff) {
			return notYet("%s, which the disk has left, is still %s on %s", p.Volume, a, k.Host), nil
		}
	}
	held, err := giveBack(ctx, k.Engine, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return done("disk %s of guest %s is on %s; %s is off and tagged %s: remove it when it is not needed any more%s%s", p.Target, p.Guest, p.Dest, p.Volume, model.TagSuperseded, note, held), nil
}

func (k volumeMove) heldBy(id model.VolumeID, uuid string) bool {
	for _, h := range k.Engine.HoldsOf(id) {
		if h.Owner == uuid && h.Phase == model.PhaseHeld {
			return true
		}
	}
	return false
}

// definedAt says on which volume the disk is in the guest's definition on this host;
// noGuest where there is none.
func (k volumeMove) definedAt(p movePlan, destID model.VolumeID) (at diskAt, path string, err error) {
	all, err := k.Definitions()
	if err != nil {
		return "", "", notKnown("cannot read the definition of guest %s: %v", p.Guest, err)
	}
	for _, d := range all {
		if d.UUID != p.UUID {
			continue
		}
		s, err := k.seeDisk(p, d, destID)
		for _, disk := range d.Disks {
			if disk.Target == p.Target {
				path = disk.Source.Path
			}
		}
		return s.disk, path, err
	}
	return noGuest, "", nil
}

// redefine sees to it that the guest starts from the destination next time. libvirt itself
// has changed its definition when it pivoted, but for a crash just then.
func (k volumeMove) redefine(ctx context.Context, p movePlan, destID model.VolumeID) (note string, err error) {
	at, path, err := k.definedAt(p, destID)
	if err != nil {
		return "", err
	}
	if at != onSource {
		if at == onDest || at == noGuest {
			return "", nil
		}
		return fmt.Sprintf("; its definition has disk %s on another volume: see 'virsh dumpxml --inactive %s'", p.Target, p.Guest), nil
	}
	if err := k.Virt.RedefineDisk(ctx, p.UUID, p.Target, path, device(p.Dest)); err != nil {
		var refused *api.Error
		if errors.As(err, &refused) && refused.Kind == api.KindInUse {
			return fmt.Sprintf("; its definition still names %s: change it with 'virsh edit %s' (%v)", p.Volume, p.Guest, err), nil
		}
		return "", err
	}
	return "", nil
}

// withoutDisk judges where the guest, or its disk, is not there any more.
func (k volumeMove) withoutDisk(ctx context.Context, c command.Command, p movePlan, dst model.Volume, s command.Sight, seen diskAt) (command.Verdict, error) {
	if !dst.HasTag(tagPivot + c.Key) {
		return k.fail(ctx, c, p, s, fmt.Sprintf("%s, and the copy had not caught up before", seen))
	}
	at, _, err := k.definedAt(p, dst.ID)
	if err != nil {
		return command.Verdict{}, err
	}
	if at == onDest {
		return k.complete(ctx, c, p, dst)
	}
	return notYet("%s since the pivot was asked for, and its definition has disk %s on: %s; it cannot be told whether %s or %s is the real one. Look at both, and tell with 'virtlvm command resolve'",
		seen, p.Target, at, p.Volume, p.Dest), nil
}

// fail leaves the guest as it is and removes the destination.
func (k volumeMove) fail(ctx context.Context, c command.Command, p movePlan, s command.Sight, reason string) (command.Verdict, error) {
	switch {
	case c.Cancelled != "":
		reason = "it was cancelled: " + c.Cancelled
	case s.Began != nil:
		reason = s.Began.Error()
	}
	// The guest's own hold on a destination that it has no more ends.
	if err := k.Engine.Settle(ctx, p.UUID); err != nil {
		return command.Verdict{}, err
	}
	note, err := leftover(p.Dest, k.Engine.RemoveMade(ctx, p.work(c.Key), p.Dest))
	if err != nil {
		return command.Verdict{}, err
	}
	held, err := giveBack(ctx, k.Engine, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return notDone("cannot move %s to %s: %s; guest %s goes on with %s%s%s", p.Volume, p.Dest, reason, p.Guest, p.Volume, note, held), nil
}

// Investigate implements command.Kind. The tags of the two volumes tell, since LVM's
// metadata is the same on all hosts.
func (k volumeMove) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	if len(c.Plan) == 0 {
		return notDone("%s has never accepted it", c.Executor), nil
	}
	var p movePlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	dst, err := k.destID(ctx, p)
	switch {
	case err != nil:
		return command.Verdict{}, err
	case !dst.HasTag(model.TagCommand + c.Key):
		return notDone("cannot move %s to %s: %s is gone, and has made nothing", p.Volume, p.Dest, c.Executor), nil
	case !dst.HasTag(model.TagIncomplete + c.Key):
		return done("disk %s of guest %s is on %s", p.Target, p.Guest, p.Dest), nil
	case !dst.HasTag(tagPivot + c.Key):
		if err := k.Engine.Free(ctx, p.work(c.Key), dst, model.RoleMirror); err != nil {
			return notYet("the copy may go on: %v", err), nil
		}
		return notDone("cannot move %s to %s: %s is gone, and never let the guest go on there; %s is left half made: remove it with 'lvremove %s'", p.Volume, p.Dest, c.Executor, p.Dest, p.Dest), nil
	}
	return notYet("%s is gone since the pivot was asked for; it cannot be told from here whether %s or %s is the real one. Look at both, and tell with 'virtlvm command resolve'", c.Executor, p.Volume, p.Dest), nil
}
