package activation

import (
	"context"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
)

// Repair is a command that `virtlvm check --fix` found to be needed.
type Repair struct {
	Cmd    run.Cmd
	Target model.Volume // what it is about: a VG alone, a volume, or neither
}

// Repair runs one command for an operator, as any that changes something: its intent and
// result journalled, alone on its VG. verify looks afterwards whether it has done what it
// was for: exit code 0 is no proof.
func (m *Manager) Repair(ctx context.Context, r Repair, by string, verify func(context.Context) error) (api.Command, error) {
	if err := m.awaitReady(ctx); err != nil {
		return api.Command{}, err
	}
	leave, targets := func() {}, []model.Volume(nil)
	if r.Target.VG != "" {
		var err error
		if leave, err = m.enterVG(ctx, r.Target.VG); err != nil {
			return api.Command{}, err
		}
		targets = append(targets, r.Target)
	}
	ctx = withCause(context.WithoutCancel(ctx), &cause{text: "check --fix, " + by})
	e, err := m.begin(ctx, "repair", r.Cmd, targets, store.HoldChange{}, journalled)
	leave() // to verify is to look at everything, which takes a while
	if err != nil {
		return api.Command{}, err
	}
	err = e.err
	if err != nil && !e.timedOut() {
		err = api.WrapError(kindOf(err), fmt.Sprintf("'%s' failed: %s", strings.Join(r.Cmd.Argv(), " "), lastLine(string(e.res.Stderr), err)), err)
	}
	if verr := verify(ctx); err == nil {
		err = verr
	}
	outcome := "verified"
	if err != nil {
		outcome = oneLine(err.Error())
	}
	m.conclude(ctx, e, err == nil, outcome)
	m.Kick()
	if err != nil {
		return api.Command{}, api.WrapError(kindOf(err), oneLine(err.Error()), err)
	}
	return m.Journal.Command(ctx, e.id)
}

// lastLine is what a program said last, or else the error.
func lastLine(stderr string, err error) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return last
	}
	return err.Error()
}
