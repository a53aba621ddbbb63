package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// Finish implements command.Kind.
func (k volumeSnapshot) Finish(ctx context.Context, c command.Command, s command.Sight) (command.Verdict, error) {
	var p snapshotPlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	r, err := ended(ctx, k.Jobs, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	if !r.OK() && p.Agent && r.Step > 0 {
		// The script thaws, unless it was killed. Thawing what is not frozen is no harm.
		if err := k.Virt.Thaw(ctx, p.UUID); err != nil {
			k.Log.Warn("cannot make sure that the file systems of a guest are thawed", "guest", p.Guest, "err", err)
		}
	}
	w := activation.Work{Key: c.Key}
	if !r.OK() {
		return k.failed(ctx, w, p, why(k.Jobs, c, r, s.Began))
	}
	complete := k.completeVolume
	if p.toFile() {
		complete = k.completeFile
	}
	lost, err := complete(ctx, w, p)
	if err != nil {
		return command.Verdict{}, err
	}
	if lost != "" {
		return k.failed(ctx, w, p, lost)
	}
	note, err := giveBack(ctx, k.Engine, w.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return done("%s is a snapshot of %s, %s%s", p.To, p.Volume, k.how(c.Key, p), note), nil
}

// how says what the snapshot is worth.
func (k volumeSnapshot) how(key string, p snapshotPlan) string {
	if !p.running() {
		return "compared"
	}
	out, _, err := k.Jobs.Output(key)
	switch {
	case err == nil && strings.Contains("\n"+out, "\n"+frozenWord+"\n"):
		return fmt.Sprintf("taken while guest %s ran, its file systems frozen for the moment", p.Guest)
	case p.Agent:
		return fmt.Sprintf("taken while guest %s ran; its agent could not freeze the file systems, so it is as after a power cut", p.Guest)
	}
	return fmt.Sprintf("taken while guest %s ran; it has no agent that answers, so the snapshot is as after a power cut", p.Guest)
}

// completeVolume: the snapshot is complete from the moment that its volume loses its tag. lost
// says why it is not there.
func (k volumeSnapshot) completeVolume(ctx context.Context, w activation.Work, p snapshotPlan) (lost string, err error) {
	dst, err := k.Engine.Lookup(ctx, p.To)
	if isNotFound(err) || err == nil && !dst.HasTag(model.TagCommand+w.Key) {
		return "somebody has removed or replaced it meanwhile", nil
	}
	if err != nil || !dst.HasTag(model.TagIncomplete+w.Key) { // it is complete already
		return "", err
	}
	return "", k.Engine.Retag(ctx, w, dst, p.Tags, []string{model.TagIncomplete + w.Key})
}

// completeFile gives the file its name, if nobody else has taken it meanwhile.
func (k volumeSnapshot) completeFile(_ context.Context, w activation.Work, p snapshotPlan) (lost string, err error) {
	part := p.path(w.Key)
	made, err := os.Lstat(part)
	if errors.Is(err, fs.ErrNotExist) {
		// It has its name already, or is gone.
		if _, err := os.Lstat(p.To); err == nil {
			return "", nil
		}
		return "somebody has removed it meanwhile", nil
	}
	if err != nil {
		return "", notKnown("cannot look at %s: %v", part, err)
	}
	// With its name it is complete, after a power cut as well. The kernel tells an error once.
	if err := syncPath(part); err != nil {
		return err.Error(), nil
	}
	if err := os.Link(part, p.To); err != nil {
		there, statErr := os.Lstat(p.To)
		switch {
		case statErr == nil && !os.SameFile(made, there):
			return "somebody has made another file of that name meanwhile", nil
		case statErr != nil:
			return "", notKnown("cannot name the snapshot %s: %v", p.To, err)
		}
	}
	if err := os.Remove(part); err != nil {
		return "", notKnown("cannot remove the other name of %s: %v", p.To, err)
	}
	return "", syncPath(filepath.Dir(p.To))
}

// syncPath brings a file, or the names in a folder, to the disk.
func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return notKnown("cannot open %s: %v", path, err)
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return notKnown("cannot sync %s: %v", path, err)
	}
	return nil
}

// failed removes what was made, and nothing else.
func (k volumeSnapshot) failed(ctx context.Context, w activation.Work, p snapshotPlan, reason string) (command.Verdict, error) {
	note := ""
	var err error
	if p.toFile() {
		if err := os.Remove(p.path(w.Key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			note = fmt.Sprintf("; %s is left half made: %v", p.path(w.Key), err)
		}
	} else if note, err = leftover(p.To, k.Engine.RemoveMade(ctx, w, p.To)); err != nil {
		return command.Verdict{}, err
	}
	held, err := giveBack(ctx, k.Engine, w.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return notDone("cannot make the snapshot %s of %s: %s%s%s", p.To, p.Volume, reason, note, held), nil
}

// Investigate implements command.Kind. The tags of the volume tell, as those of a copy do; of a
// file nothing is known elsewhere.
func (k volumeSnapshot) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	var p snapshotPlan
	if err := recallOr(c, &p, &p.SnapshotArgs); err != nil {
		return command.Verdict{}, err
	}
	if p.toFile() {
		return notYet("%s is gone, and only there it can be told whether %s is complete: it is if it has that name. Look there, and tell with 'virtlvm command resolve'", c.Executor, p.To), nil
	}
	dst, err := k.Engine.Lookup(ctx, p.To)
	switch {
	case err != nil && !isNotFound(err):
		return command.Verdict{}, err
	case err != nil || !dst.HasTag(model.TagCommand+c.Key):
		return notDone("cannot make the snapshot %s of %s: %s is gone, and has made nothing", p.To, p.Volume, c.Executor), nil
	case !dst.HasTag(model.TagIncomplete + c.Key):
		return done("%s is a snapshot of %s", p.To, p.Volume), nil
	}
	if err := k.Engine.Free(ctx, activation.Work{Key: c.Key}, dst, model.RoleWritable); err != nil {
		return notYet("it may go on: %v", err), nil
	}
	return notDone("cannot make the snapshot %s of %s: %s is gone; %s is left incomplete: remove it with 'virtlvm volume delete %s'", p.To, p.Volume, c.Executor, p.To, p.To), nil
}
