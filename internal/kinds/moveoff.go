package kinds

import (
	"context"
	"fmt"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// copyOf is how the content of a disk is copied: as it is, whatever image is on it, unless
// the move crosses formats.
func (p movePlan) copyOf(d moveDisk) copyPlan {
	from, to := d.Format, d.ToFormat
	if from == to {
		from, to = formatRaw, formatRaw
	}
	return copyPlan{
		CopyArgs: api.CopyArgs{Source: d.Volume, Destination: d.Dest, Format: from, ToFormat: to, Bandwidth: p.Bandwidth},
		SourceID: d.SourceID, Size: d.Size,
	}
}

// startOff takes the sources, makes the destinations, and has qemu-img copy one disk after
// the other.
func (k moving) startOff(ctx context.Context, c command.Command, p movePlan) error {
	w := p.work(c.Key)
	var steps [][]string
	for _, d := range p.Disks {
		src, err := k.Engine.Take(ctx, w, d.Volume, model.RoleWritable)
		if err != nil {
			return err
		}
		if src.ID != d.SourceID || src.Size != d.Size {
			return inUse("%s is another volume now, or of another size, than when it was asked for", d.Volume)
		}
		plan := p.copyOf(d)
		virtual, _, err := volumeCopy(k).sizes(ctx, plan, src)
		if err != nil {
			return err
		}
		size, err := k.newSize(ctx, d, virtual)
		if err != nil {
			return err
		}
		dst, err := k.Engine.Create(ctx, w, d.Dest, size, d.Tags...)
		if err != nil {
			return err
		}
		steps = append(steps, copySteps(plan, virtual, dst.Size, hostDevice)...)
	}
	return k.Jobs.Start(ctx, backend.Job{
		ID: c.Key, Description: "virtlvm: move " + fromTo(p.Disks), Steps: steps,
	})
}

// lookOff: the progress is that of the disks that are done and of the one that is copied.
func (k moving) lookOff(ctx context.Context, c command.Command, p movePlan) command.Sight {
	s, r := lookAtJob(ctx, k.Jobs, c.Key)
	if s.Where != command.Running {
		return s
	}
	s.Progress.Phase = "copying"
	step := r.Step
	for _, d := range p.Disks {
		s.Progress.Total += d.Size
		n := compareStep(p.copyOf(d))
		switch {
		case step > n:
			s.Progress.Done += d.Size
		case step > 0:
			if step == n {
				s.Progress.Phase = "comparing"
			}
			if out, _, err := k.Jobs.Output(c.Key); err == nil {
				s.Progress.Done += d.Size / 1000 * lastStep(out)
			}
		}
		step -= n
	}
	return s
}

// offDisk is a disk with its volumes as they are.
type offDisk struct {
	moveDisk
	src, dst model.Volume // zero where they are not there
}

// finishOff: the move is decided when the first source is tagged as superseded, and then is
// taken to its end, whatever happens: from that moment no guest starts from it. Before,
// both volumes of each disk must have been this command's alone since before the copy.
func (k moving) finishOff(ctx context.Context, c command.Command, p movePlan, s command.Sight) (command.Verdict, error) {
	r, err := ended(ctx, k.Jobs, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	var disks []offDisk
	decided := false
	for _, d := range p.Disks {
		o := offDisk{moveDisk: d}
		if o.dst, err = k.dest(ctx, d); err != nil {
			return command.Verdict{}, err
		}
		src, err := k.Engine.Lookup(ctx, d.Volume)
		if err != nil && !isNotFound(err) {
			return command.Verdict{}, err
		}
		if err == nil && src.ID == d.SourceID {
			o.src = src
		}
		decided = decided || o.src.HasTag(model.TagSuperseded) && o.dst.HasTag(model.TagCommand+c.Key)
		disks = append(disks, o)
	}
	if decided {
		return k.followOff(ctx, c, p, disks)
	}
	reason := ""
	switch {
	case !r.OK(), c.Cancelled != "":
		reason = why(k.Jobs, c, r, s.Began)
	default:
		if reason, err = k.lostHold(ctx, c.Key, p, disks); err != nil {
			return command.Verdict{}, err
		}
	}
	if reason != "" {
		return k.failOff(ctx, c, p, reason)
	}
	return k.followOff(ctx, c, p, disks)
}

// lostHold says why a source may have been written since it was copied, or the copy.
func (k moving) lostHold(ctx context.Context, key string, p movePlan, disks []offDisk) (reason string, err error) {
	for _, d := range disks {
		for name, v := range map[string]model.Volume{d.Volume: d.src, d.Dest: d.dst} {
			if v.ID == (model.VolumeID{}) {
				return name + " has been removed or replaced meanwhile", nil
			}
			a, err := k.Engine.StateOf(ctx, v)
			if err != nil {
				return "", err
			}
			if !k.holds(p.work(key), v) || !a.Is(model.ModeEX) {
				return fmt.Sprintf("%s was copied, but has not been the command's alone ever since (this host was restarted, or its lock was taken away), and may have been written", name), nil
			}
		}
	}
	return "", nil
}

// followOff makes everybody follow: first no guest starts from a source any more.
func (k moving) followOff(ctx context.Context, c command.Command, p movePlan, disks []offDisk) (command.Verdict, error) {
	w := p.work(c.Key)
	for _, d := range disks {
		if err := k.supersede(ctx, w, d.moveDisk); err != nil {
			return command.Verdict{}, err
		}
	}
	var moved []string
	for _, d := range disks {
		if d.dst.ID != (model.VolumeID{}) {
			if err := k.Engine.Retag(ctx, w, d.dst, nil, []string{model.TagIncomplete + c.Key}); err != nil {
				return command.Verdict{}, err
			}
		}
		text := fmt.Sprintf("%s has the content of %s, compared", d.Dest, d.Volume)
		for _, u := range d.Users {
			note, err := k.redefine(ctx, d.moveDisk, u, d.dst.ID)
			if err != nil {
				return command.Verdict{}, err
			}
			text += fmt.Sprintf(", and is disk %s of guest %s%s", u.Target, u.Guest, note)
		}
		moved = append(moved, fmt.Sprintf("%s; %s is tagged %s: remove it when it is not needed any more", text, d.Volume, model.TagSuperseded))
	}
	held, err := giveBack(ctx, k.Engine, c.Key)
	return done("%s%s", strings.Join(moved, "; "), held), err
}

// failOff gives back what was taken; the destinations go.
func (k moving) failOff(ctx context.Context, c command.Command, p movePlan, reason string) (command.Verdict, error) {
	notes := ""
	for _, d := range p.Disks {
		note, err := k.takeAway(ctx, c, p, d)
		if err != nil {
			return command.Verdict{}, err
		}
		notes += note
	}
	held, err := giveBack(ctx, k.Engine, c.Key)
	return notDone("cannot move %s: %s%s%s", fromTo(p.Disks), reason, notes, held), err
}

// investigateOff judges a disk whose host is gone, and whose destination it has made.
func (k moving) investigateOff(ctx context.Context, c command.Command, d moveDisk, dst model.Volume) (command.Verdict, error) {
	src, err := k.Engine.Lookup(ctx, d.Volume)
	if err != nil && !isNotFound(err) {
		return command.Verdict{}, err
	}
	incomplete := dst.HasTag(model.TagIncomplete + c.Key)
	switch {
	case err == nil && src.ID == d.SourceID && src.HasTag(model.TagSuperseded), !incomplete:
		text := fmt.Sprintf("%s has the content of %s, compared", d.Dest, d.Volume)
		if incomplete {
			text += fmt.Sprintf("; %s is gone and has left a tag on it: 'lvchange --deltag %s%s %s'", c.Executor, model.TagIncomplete, c.Key, d.Dest)
		}
		return done("%s; look at the definitions of its guests on %s", text, c.Executor), nil
	}
	if err := k.Engine.Free(ctx, activation.Work{Key: c.Key}, dst, model.RoleWritable); err != nil {
		return notYet("the copy may go on: %v", err), nil
	}
	return notDone("cannot move %s to %s: %s is gone; %s is left half made: remove it with 'lvremove %s'", d.Volume, d.Dest, c.Executor, d.Dest, d.Dest), nil
}
