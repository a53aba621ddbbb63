package command

import (
	"context"
	"fmt"
	"slices"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// findOut looks what became of a command of this host that was interrupted or timed out.
//
// A command that another host has asked for is reconciled there; here it stays as it is until
// what can be seen here decides. If its origin is dead, and for a command of this host alone,
// it is reconciled here: a limited number of attempts with growing pauses, then a person. So is
// one that its origin does not know any more.
func (m *Manager) findOut(ctx context.Context, e store.Entry) (time.Duration, bool) {
	if early := e.Next.Sub(m.Now()); early > 0 {
		return early, true
	}
	if e.Side == model.SideExecutor && !isReconcile(e.State) && !m.dead(ctx, e.Origin, e.PeerGeneration) {
		if why := m.mustWait(ctx, e); why != "" {
			return m.attempted(ctx, e, why)
		}
		v, _, err := m.judge(ctx, e, nil)
		if ctx.Err() != nil {
			return 0, true
		}
		if err == nil && v.Outcome != NotYet {
			return m.end(ctx, e, v)
		}
		if e.Attempts < maxAttempts || !m.forgotten(ctx, e) {
			return m.attempted(ctx, e, reasonOf(v, err))
		}
	}
	return m.reconcile(ctx, e, func(e store.Entry) (Verdict, error) {
		v, _, err := m.judge(ctx, e, nil)
		return v, err
	})
}

// mustWait says why a command without a backend is not gone on with yet: since it was
// interrupted this host was down, and its origin may have found out by itself, and have told
// somebody, that it has failed. It must not be done after that.
func (m *Manager) mustWait(ctx context.Context, e store.Entry) string {
	if e.Backend || e.BootID == m.BootID {
		return ""
	}
	var answer api.PeerCommandNoticeAnswer
	err := m.call(ctx, e.Origin, api.RoutePeerCommandNotice, api.PeerCommandNotice{Sequences: []int64{e.Sequence}}, &answer)
	switch {
	case err != nil:
		return fmt.Sprintf("this host was down meanwhile, and %s cannot say whether it still waits for it: %s", e.Origin, oneLine(err.Error()))
	case slices.Contains(answer.Ended, e.Sequence):
		return fmt.Sprintf("this host was down meanwhile, and %s finds out by itself what became of it", e.Origin)
	}
	return ""
}

// forgotten reports whether the origin of a command says that it does not wait for it any more.
func (m *Manager) forgotten(ctx context.Context, e store.Entry) bool {
	var answer api.PeerCommandNoticeAnswer
	err := m.call(ctx, e.Origin, api.RoutePeerCommandNotice, api.PeerCommandNotice{Sequences: []int64{e.Sequence}}, &answer)
	return err == nil && slices.Contains(answer.Gone, e.Sequence)
}

func isReconcile(s model.CommandState) bool {
	return s == model.StateReconcileRetry || s == model.StateReconcileFailed
}

// reconcile makes one attempt with look, and writes what came of it.
func (m *Manager) reconcile(ctx context.Context, e store.Entry, look func(store.Entry) (Verdict, error)) (time.Duration, bool) {
	if isReconcile(e.State) && e.Attempts >= maxAttempts {
		return m.giveUp(ctx, e, e.Why)
	}
	e, err := m.move(ctx, e, model.StateReconciling, fmt.Sprintf("attempt %d of %d", e.Attempts+1, maxAttempts), func(e *store.Entry) { e.Attempts++ })
	if err != nil {
		return lookPause, true
	}
	v, err := look(e)
	if ctx.Err() != nil {
		return 0, true // the next daemon looks
	}
	if err == nil && v.Outcome != NotYet {
		return m.end(ctx, e, v)
	}
	next, why := model.StateReconcileRetry, v.Reason
	if err != nil {
		next, why = model.StateReconcileFailed, oneLine(err.Error())
	}
	pause := pauseAfter(e.Attempts)
	e, err = m.move(ctx, e, next, why, func(e *store.Entry) { e.Next = m.Now().Add(pause) })
	if err != nil {
		return lookPause, true
	}
	if e.Attempts >= maxAttempts {
		return m.giveUp(ctx, e, why)
	}
	return pause, true
}

// giveUp leaves a command to a person. One of another host goes on being asked for now and
// then: its answer may come after all.
func (m *Manager) giveUp(ctx context.Context, e store.Entry, why string) (time.Duration, bool) {
	e, err := m.move(ctx, e, model.StateReconcileSkip, fmt.Sprintf("given up after %d attempts%s", e.Attempts, colon(why)), func(e *store.Entry) { e.Next = time.Time{} })
	if err != nil {
		return lookPause, true
	}
	m.Log.Error("what became of a command cannot be found out: a person must look", "command_id", e.ID, "kind", e.Kind, "why", e.Why)
	return longestPause, e.Side == model.SideOrigin
}

// dead reports whether another host is dead since it had that generation.
func (m *Manager) dead(ctx context.Context, host, generation string) bool {
	return m.Hosts != nil && m.Hosts.Dead(ctx, host, generation)
}
