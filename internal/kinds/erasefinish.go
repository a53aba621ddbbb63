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

// Finish implements command.Kind. A volume is removed only where the job says that every zero
// has been written.
func (k volumeErase) Finish(ctx context.Context, c command.Command, s command.Sight) (command.Verdict, error) {
	var p erasePlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	v, there, err := k.find(ctx, p)
	if err != nil {
		return command.Verdict{}, err
	}
	w := activation.Work{Key: c.Key}
	if len(p.steps()) == 0 {
		return k.removeOnly(ctx, w, c, p, v, there, s.Began)
	}
	r, err := ended(ctx, k.Jobs, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	k.marks.forget(c.Key)
	switch {
	case r.OK() && there && v.Size > p.Size:
		return k.failed(ctx, w, p, v, there, r, "somebody has extended it meanwhile")
	case there && atBy(v, c.Key):
		return k.refused(ctx, w, p, "another command has been at it since: it is left as it is")
	case r.OK() && k.remove && there && !v.HasTag(model.TagIncomplete+c.Key):
		return k.refused(ctx, w, p, "it was zeroed, and another command or an operator has been at it since: it is kept")
	case r.OK() && k.remove:
		return k.removed(ctx, w, p, v, there, nil)
	case r.OK() && there:
		return k.erased(ctx, w, p, v)
	}
	return k.failed(ctx, w, p, v, there, r, why(k.Jobs, c, r, s.Began))
}

// removeOnly removes a volume that needs no zeros, or that an earlier command has filled with them.
func (k volumeErase) removeOnly(ctx context.Context, w activation.Work, c command.Command, p erasePlan, v model.Volume, there bool, began error) (command.Verdict, error) {
	from, _ := zeroedTo(v)
	switch {
	case there && c.Cancelled != "":
		return k.refused(ctx, w, p, "it was cancelled: "+c.Cancelled)
	case there && p.Zero && from < v.Size:
		return k.refused(ctx, w, p, "it has changed since this was asked for")
	}
	return k.removed(ctx, w, p, v, there, began)
}

// find looks for the volume.
func (k volumeErase) find(ctx context.Context, p erasePlan) (v model.Volume, there bool, err error) {
	v, err = k.Engine.Lookup(ctx, p.Volume)
	if isNotFound(err) {
		return v, false, nil
	}
	return v, err == nil && (v.ID == p.ID || p.ID == model.VolumeID{}), err
}

// verb of messages.
func (k volumeErase) verb() string {
	if k.remove {
		return "delete"
	}
	return "erase"
}

func (k volumeErase) refused(ctx context.Context, w activation.Work, p erasePlan, why string) (command.Verdict, error) {
	held, err := giveBack(ctx, k.Engine, w.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return notDone("cannot %s %s: %s%s", k.verb(), p.Volume, why, held), nil
}

// erased: the content is complete from the moment that the volume loses its tags.
func (k volumeErase) erased(ctx context.Context, w activation.Work, p erasePlan, v model.Volume) (command.Verdict, error) {
	if v.HasTag(model.TagIncomplete + w.Key) { // else it is complete, and says itself what is on it
		if err := k.complete(ctx, w, v); err != nil {
			return command.Verdict{}, err
		}
	}
	note, err := giveBack(ctx, k.Engine, w.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return done("%s is zeros, %d bytes%s%s", p.Volume, p.Size, p.how(), note), nil
}

// how says what was more, or less, than writing zeros from one end to the other.
func (p erasePlan) how() string {
	text := ""
	if p.From > 0 {
		text = fmt.Sprintf(" (the first %d by an earlier command)", p.From)
	}
	if p.Discard {
		text += ", discarded"
	}
	return text
}

// complete takes off the tags that say that the content is not complete, and those of what was
// on the volume.
func (k volumeErase) complete(ctx context.Context, w activation.Work, v model.Volume) error {
	return k.untag(ctx, w, v, append(eraseTags(v), contentTags(v)...))
}

func (k volumeErase) untag(ctx context.Context, w activation.Work, v model.Volume, del []string) error {
	if len(del) == 0 {
		return nil
	}
	return k.Engine.Retag(ctx, w, v, nil, del)
}

// contentTags are the tags of a volume that say what image is on it.
func contentTags(v model.Volume) []string {
	var all []string
	for _, tag := range v.Tags {
		if strings.HasPrefix(tag, model.TagFormat) || strings.HasPrefix(tag, model.TagBacking) {
			all = append(all, tag)
		}
	}
	return all
}

// removed removes the volume, or finds that it is gone. began is why nothing could be begun.
func (k volumeErase) removed(ctx context.Context, w activation.Work, p erasePlan, v model.Volume, there bool, began error) (command.Verdict, error) {
	zeroed := ""
	if p.Zero {
		zeroed = ", zeroed before" + p.how()
	}
	if !there {
		held, err := giveBack(ctx, k.Engine, w.Key)
		return done("%s is removed%s%s", p.Volume, zeroed, held), err
	}
	if began != nil {
		return k.refused(ctx, w, p, began.Error())
	}
	err := k.Engine.Remove(ctx, w, v)
	switch api.KindOf(err) {
	case api.KindInUse, api.KindHeld, api.KindUnsupported, api.KindOutOfScope:
		// That does not end by trying again. What is complete again says so.
		if p.Zero {
			if err := k.complete(ctx, w, v); err != nil {
				return command.Verdict{}, err
			}
			return k.refused(ctx, w, p, fmt.Sprintf("%v; it is zeros, and still there", err))
		}
		return k.refused(ctx, w, p, err.Error())
	}
	if err != nil {
		return command.Verdict{}, err
	}
	return done("%s is removed%s", p.Volume, zeroed), nil
}

// failed keeps the volume, with what is known of its content.
func (k volumeErase) failed(ctx context.Context, w activation.Work, p erasePlan, v model.Volume, there bool, r backend.Report, reason string) (command.Verdict, error) {
	if !there {
		return k.refused(ctx, w, p, reason+"; it has been removed or replaced meanwhile")
	}
	if !v.HasTag(model.TagIncomplete + w.Key) {
		return k.refused(ctx, w, p, reason) // as it was, or somebody has been at it since
	}
	if !touched(r) && !p.Was {
		if err := k.untag(ctx, w, v, eraseTags(v)); err != nil {
			return command.Verdict{}, err
		}
		return k.refused(ctx, w, p, reason)
	}
	from, _ := zeroedTo(v)
	at := max(from, k.reached(w.Key, p))
	if err := k.mark(ctx, w.Key, v, at); err != nil {
		return command.Verdict{}, err
	}
	return k.refused(ctx, w, p, fmt.Sprintf("%s; %d of its %d bytes are zeros, the others may be old: it is kept, tagged %s%s, and no guest is started from it; ask for it again, on any host, to go on from there", reason, at, p.Size, model.TagIncomplete, w.Key))
}

// Investigate implements command.Kind. The volume, or its absence, and its tags tell, since
// LVM's metadata is the same on all hosts.
func (k volumeErase) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	p, err := k.arguments(c.Args)
	if len(c.Plan) > 0 {
		p = erasePlan{}
		err = recall(c, &p)
	}
	if err != nil {
		return command.Verdict{}, err
	}
	v, there, err := k.find(ctx, p)
	switch {
	case err != nil:
		return command.Verdict{}, err
	case !there && k.remove:
		return done("%s is removed", p.Volume), nil
	case !there:
		return notDone("cannot %s %s: it has been removed or replaced meanwhile", k.verb(), p.Volume), nil
	}
	if err := k.Engine.Free(ctx, activation.Work{Key: c.Key}, v, model.RoleWritable); err != nil {
		return notYet("it may go on: %v", err), nil
	}
	from, incomplete := zeroedTo(v)
	switch {
	case incomplete && v.HasTag(model.TagIncomplete+c.Key):
		return notDone("cannot %s %s: %s is gone; %d of its %d bytes are zeros, and no guest is started from it; ask for it again, on any host, to go on from there", k.verb(), p.Volume, c.Executor, from, v.Size), nil
	case k.remove:
		return notDone("cannot %s %s: %s is gone, and the volume is still there", k.verb(), p.Volume, c.Executor), nil
	}
	return notYet("%s is gone, and it cannot be told from here whether %s was zeroed or never begun with; look at it, or erase it again, and tell with 'virtlvm command resolve'", c.Executor, p.Volume), nil
}
