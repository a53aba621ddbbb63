package kinds

import (
	"context"
	"fmt"
	"slices"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// Finish implements command.Kind.
func (k volumeCopy) Finish(ctx context.Context, c command.Command, s command.Sight) (command.Verdict, error) {
	var p copyPlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	r, err := ended(ctx, k.Jobs, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	w := activation.Work{Key: c.Key}
	if r.OK() {
		return k.succeeded(ctx, w, p)
	}
	return k.failed(ctx, w, p, r, why(k.Jobs, c, r, s.Began))
}

// succeeded: both were compared. The destination is complete from the moment it loses its
// tag.
func (k volumeCopy) succeeded(ctx context.Context, w activation.Work, p copyPlan) (command.Verdict, error) {
	dst, err := k.Engine.Lookup(ctx, p.Destination)
	if err != nil && !isNotFound(err) {
		return command.Verdict{}, err
	}
	lost := ""
	switch {
	case err != nil || p.makes() && !dst.HasTag(model.TagCommand+w.Key) || !p.makes() && dst.ID != p.Existed:
		lost = "somebody has removed or replaced that meanwhile"
	case atBy(dst, w.Key) && !k.holds(w, dst):
		lost = "this host went down, and another command has been at that since"
	case dst.HasTag(model.TagIncomplete + w.Key): // else it is complete, and says itself what is on it
		if err := k.complete(ctx, w, dst, p.Tags); err != nil {
			return command.Verdict{}, err
		}
	}
	note, err := giveBack(ctx, k.Engine, w.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	if lost != "" {
		return notDone("%s was copied to %s, but %s", p.Source, p.Destination, lost), nil
	}
	return done("%s is a copy of %s, compared%s", p.Destination, p.Source, note), nil
}

// holds reports whether the command has a volume, which it has then had ever since it took it: its
// holds do not survive the host.
func (d Deps) holds(w activation.Work, v model.Volume) bool {
	return slices.ContainsFunc(d.Engine.HoldsBy(model.CommandOwner(w.Key, w.Guest)), func(h model.Hold) bool {
		return h.Volume == v.ID && h.Phase == model.PhaseHeld
	})
}

// complete takes off what says that the content is not complete, of earlier commands as well:
// all of it is new. What image is on it the tags say.
func (k volumeCopy) complete(ctx context.Context, w activation.Work, dst model.Volume, tags []string) error {
	var old []string
	for _, tag := range contentTags(dst) {
		if !slices.Contains(tags, tag) {
			old = append(old, tag)
		}
	}
	return k.Engine.Retag(ctx, w, dst, tags, append(old, eraseTags(dst)...))
}

// failed gives back what was taken; a destination that was made goes.
func (k volumeCopy) failed(ctx context.Context, w activation.Work, p copyPlan, r backend.Report, reason string) (command.Verdict, error) {
	note := ""
	var err error
	if p.makes() {
		if note, err = leftover(p.Destination, k.Engine.RemoveMade(ctx, w, p.Destination)); err != nil {
			return command.Verdict{}, err
		}
	} else if note, err = k.spoiled(ctx, w, p, r); err != nil {
		return command.Verdict{}, err
	}
	held, err := giveBack(ctx, k.Engine, w.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return notDone("cannot copy %s to %s: %s%s%s", p.Source, p.Destination, reason, note, held), nil
}

// spoiled says what has become of a destination that was there before: where qemu-img has
// begun, its content is neither the old nor the new one, and the tag stays.
func (k volumeCopy) spoiled(ctx context.Context, w activation.Work, p copyPlan, r backend.Report) (note string, err error) {
	dst, err := k.Engine.Lookup(ctx, p.Destination)
	if isNotFound(err) || err == nil && dst.ID != p.Existed {
		return "; " + p.Destination + " has been removed or replaced meanwhile", nil
	}
	if err != nil {
		return "", err
	}
	tag := model.TagIncomplete + w.Key
	if !dst.HasTag(tag) {
		return "", nil
	}
	if touched(r) {
		return fmt.Sprintf("; the old content of %s is lost and the new one not complete: it stays tagged %s, and no guest is started from it; copy once more with --overwrite, or remove it", p.Destination, tag), nil
	}
	return "", k.Engine.Retag(ctx, w, dst, nil, []string{tag})
}

// Investigate implements command.Kind. The tags of the destination tell, since LVM's
// metadata is the same on all hosts: it is made with the tag of its command and complete
// without the tag that says that it is not.
func (k volumeCopy) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	var args api.CopyArgs
	if err := decode(c.Args, &args); err != nil {
		return command.Verdict{}, err
	}
	dst, err := k.Engine.Lookup(ctx, args.Destination)
	if isNotFound(err) {
		return notDone("cannot copy %s to %s: %s is gone, and has made nothing", args.Source, args.Destination, c.Executor), nil
	}
	if err != nil {
		return command.Verdict{}, err
	}
	made, incomplete := dst.HasTag(model.TagCommand+c.Key), dst.HasTag(model.TagIncomplete+c.Key)
	if !incomplete {
		switch {
		case made:
			return done("%s is a copy of %s, compared", args.Destination, args.Source), nil
		case !args.Overwrite:
			return notDone("cannot copy %s to %s: %s never began", args.Source, args.Destination, c.Executor), nil
		}
		return notYet("%s was to be written over, and it cannot be told from here whether it was; ask %s", args.Destination, c.Executor), nil
	}
	if err := k.Engine.Free(ctx, activation.Work{Key: c.Key}, dst, model.RoleWritable); err != nil {
		return notYet("the copy may go on: %v", err), nil
	}
	return notDone("cannot copy %s to %s: %s is gone; %s is left with incomplete content, tagged %s%s: remove it, or copy once more",
		args.Source, args.Destination, c.Executor, args.Destination, model.TagIncomplete, c.Key), nil
}
