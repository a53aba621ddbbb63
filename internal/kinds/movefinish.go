package kinds

import (
	"context"
	"fmt"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

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
