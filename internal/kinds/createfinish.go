package kinds

import (
	"context"
	"fmt"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// Finish implements command.Kind. After a crash it goes on; what has failed it undoes.
func (k volumeCreate) Finish(ctx context.Context, c command.Command, s command.Sight) (command.Verdict, error) {
	var p createPlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	w := activation.Work{Key: c.Key}
	v, state, err := k.find(ctx, w, p)
	if err != nil {
		return command.Verdict{}, err
	}
	failed := s.Began
	if state != complete && failed == nil && c.Cancelled == "" {
		if failed = k.make(ctx, w, p); ctx.Err() != nil {
			return command.Verdict{}, ctx.Err()
		}
		if v, state, err = k.find(ctx, w, p); err != nil {
			return command.Verdict{}, err
		}
	}
	if state == complete {
		return k.complete(ctx, w, p, v)
	}
	if kind := api.KindOf(failed); failed != nil && c.Cancelled == "" && (kind == api.KindUnknown || kind == api.KindStuck) {
		return command.Verdict{}, failed
	}
	note := ""
	if state == halfMade {
		if note, err = leftover(p.Volume, k.Engine.RemoveMade(ctx, w, p.Volume)); err != nil {
			return command.Verdict{}, err
		}
	}
	held, err := giveBack(ctx, k.Engine, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	why := "it was cancelled: " + c.Cancelled
	if failed != nil && c.Cancelled == "" {
		why = failed.Error()
	}
	return notDone("cannot create %s: %s%s%s", p.Volume, why, note, held), nil
}

// made is how far a volume has come.
type made string

const (
	notMade  made = "not made" // or another one of that name
	halfMade made = "half made"
	complete made = "complete"
)

func (k volumeCreate) find(ctx context.Context, w activation.Work, p createPlan) (model.Volume, made, error) {
	v, err := k.Engine.Lookup(ctx, p.Volume)
	switch {
	case isNotFound(err):
		return v, notMade, nil
	case err != nil:
		return v, "", err
	case !v.HasTag(model.TagCommand + w.Key):
		return v, notMade, nil
	case v.HasTag(model.TagIncomplete + w.Key):
		return v, halfMade, nil
	}
	return v, complete, nil
}

// complete leaves the volume exclusive here, and gives back the rest.
func (k volumeCreate) complete(ctx context.Context, w activation.Work, p createPlan, v model.Volume) (command.Verdict, error) {
	k.Engine.LeaveHere(ctx, w, v)
	note, err := giveBack(ctx, k.Engine, w.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return done("%s%s%s", k.describe(p, v), " is exclusive on "+k.Host, note), nil
}

// describe is the volume in a few words, with what has been rounded.
func (k volumeCreate) describe(p createPlan, v model.Volume) string {
	switch {
	case p.Backing != "":
		return fmt.Sprintf("%s, %d bytes, qcow2 above %s,", v.Name(), v.Size, p.Backing)
	case p.Format == formatQcow2:
		return fmt.Sprintf("%s, %d bytes with a qcow2 image of %d,", v.Name(), v.Size, roundUp(p.Size, sector))
	case v.Size != p.Size:
		return fmt.Sprintf("%s, %d bytes (%d rounded up to whole extents),", v.Name(), v.Size, p.Size)
	}
	return fmt.Sprintf("%s, %d bytes,", v.Name(), v.Size)
}

// Investigate implements command.Kind. The tags tell, on every host.
func (k volumeCreate) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	var args api.CreateArgs
	if err := decode(c.Args, &args); err != nil {
		return command.Verdict{}, err
	}
	v, state, err := k.find(ctx, activation.Work{Key: c.Key}, createPlan{CreateArgs: args})
	if err != nil {
		return command.Verdict{}, err
	}
	switch state {
	case complete:
		return done("%s is made", v.Name()), nil
	case notMade:
		return notDone("cannot create %s: %s is gone, and has made nothing", args.Volume, c.Executor), nil
	case halfMade:
	}
	if err := k.Engine.Free(ctx, activation.Work{Key: c.Key}, v, model.RoleWritable); err != nil {
		return notYet("it may go on: %v", err), nil
	}
	return notDone("cannot create %s: %s is gone; it is left half made, tagged %s%s: remove it with 'lvremove %s'", v.Name(), c.Executor, model.TagIncomplete, c.Key, v.Name()), nil
}
