package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// execute takes a command that runs on this host one step further.
func (m *Manager) execute(ctx context.Context, e store.Entry) (pause time.Duration, keep bool) {
	wasDown := e.BootID != m.BootID // this host, since the command was accepted
	switch {
	case e.State == model.StateStarted && wasDown:
		// Somebody else may have found out by now, and have told, that it has failed.
		return m.end(ctx, e, Verdict{Outcome: NotDone, Reason: "not begun before this host went down; nothing was done"})
	case e.State == model.StateDangled && wasDown && !e.Backend: // see mustWait
		_, _ = m.move(ctx, e, model.StateInterrupted, "this host went down", func(e *store.Entry) { e.Attempts, e.Next = 0, time.Time{} })
		return 0, true
	}
	switch e.State {
	case model.StateStarted:
		return m.begin(ctx, e)
	case model.StateProcessing, model.StateBackend, model.StateDangled:
		return m.lookAfter(ctx, e, nil)
	case model.StateReconcileSkip:
		return 0, false // until a person decides
	}
	return m.findOut(ctx, e)
}

// begin starts the work of an accepted command. The state is written first: a crash from
// then on leaves a command that is looked at, not one that is begun a second time.
func (m *Manager) begin(ctx context.Context, e store.Entry) (time.Duration, bool) {
	kind, known := m.Kinds[e.Kind]
	now := m.Now()
	switch {
	case !known:
		return m.end(ctx, e, Verdict{Outcome: NotDone, Reason: "this virtlvmd does not know the kind " + e.Kind + "; nothing was done"})
	case e.Cancelled != "":
		return m.end(ctx, e, Verdict{Outcome: NotDone, Reason: "nothing had begun"})
	case now.Sub(e.Created) > beginWithin || m.overdue(e):
		return m.end(ctx, e, Verdict{Outcome: NotDone, Reason: "not begun in time, since virtlvmd was down; nothing was done"})
	}
	next := model.StateProcessing
	if e.Backend {
		next = model.StateBackend
	}
	e, err := m.move(ctx, e, next, "begun", nil)
	if err != nil {
		return lookPause, true
	}
	if e.Cancelled != "" { // in the last moment
		return m.end(ctx, e, Verdict{Outcome: NotDone, Reason: "nothing had begun"})
	}
	within, cancel := context.WithTimeout(ctx, e.Deadline.Sub(now))
	defer cancel()
	err = kind.Start(within, m.command(e))
	m.untold(e.ID)
	if ctx.Err() != nil {
		return 0, true // the next daemon looks
	}
	if err != nil {
		m.Log.Warn("a command did not begin well", "command_id", e.ID, "kind", e.Kind, "err", err)
	}
	return m.lookAfter(ctx, e, err)
}

// lookAfter looks at a command whose work has begun.
func (m *Manager) lookAfter(ctx context.Context, e store.Entry, began error) (time.Duration, bool) {
	m.repeatCancel(ctx, e)
	v, s, err := m.judge(ctx, e, began)
	switch {
	case ctx.Err() != nil:
		return 0, true
	case err == nil && v.Outcome != NotYet:
		return m.end(ctx, e, v)
	case s.Where == Running:
		return m.goesOn(ctx, e, s)
	}
	return m.cannotTell(ctx, e, reasonOf(v, err))
}

// judge looks where the work stands and lets the kind finish what has ended.
func (m *Manager) judge(ctx context.Context, e store.Entry, began error) (Verdict, Sight, error) {
	kind, known := m.Kinds[e.Kind]
	if !known {
		return Verdict{}, Sight{Where: Unknown}, fmt.Errorf("this virtlvmd does not know the kind %s", e.Kind)
	}
	e, err := m.planAgain(ctx, kind, e)
	if err != nil {
		return Verdict{}, Sight{Where: Unknown}, err
	}
	s, err := m.look(ctx, kind, e)
	if err != nil {
		return Verdict{}, Sight{Where: Unknown}, err
	}
	s.Began = began
	switch s.Where {
	case Running:
		m.note(ctx, e, s.Progress)
		m.tend(ctx, kind, e, s)
		return Verdict{Outcome: NotYet, Reason: "it still runs"}, s, nil
	case Ended, Gone:
		v, err := kind.Finish(ctx, m.command(e), s)
		if err == nil && v.Outcome == NotDone && v.Reason == "" {
			v.Reason = reasonOf(Verdict{Reason: s.Reason}, began)
		}
		return v, s, err
	}
	return Verdict{Outcome: NotYet, Reason: s.Reason}, s, nil
}

func (m *Manager) look(ctx context.Context, kind Kind, e store.Entry) (Sight, error) {
	leave, err := turn(ctx, m.looks)
	if err != nil {
		return Sight{}, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return kind.Look(ctx, m.command(e))
}

// tend lets the kind write down how far its work has come.
func (m *Manager) tend(ctx context.Context, kind Kind, e store.Entry, s Sight) {
	tender, ok := kind.(Tender)
	if !ok {
		return
	}
	if err := tender.Tend(ctx, m.command(e), s); err != nil && ctx.Err() == nil {
		m.Log.Warn("cannot write down how far a command has come; tried again", "command_id", e.ID, "kind", e.Kind, "err", err)
	}
}

// planAgain plans a command that this journal got to know of when its origin asked about it:
// it was lost here, or never arrived. Without a backend it is taken for cancelled: what there is
// of it is judged or undone, and nobody expects any more that it is begun. One that can be planned
// only once is left to what its origin finds out.
func (m *Manager) planAgain(ctx context.Context, kind Kind, e store.Entry) (store.Entry, error) {
	if e.Planned {
		return e, nil
	}
	plan, err := kind.Plan(ctx, e.Args)
	if err != nil {
		return e, err
	}
	if plan.Once {
		return e, api.NewError(api.KindUnknown, "this journal does not know what was there before, and cannot tell what has been done")
	}
	return m.Journal.Change(ctx, e.ID, func(e *store.Entry) error {
		e.Planned, e.Plan, e.Targets, e.Backend = true, plan.Record, plan.Targets, plan.Backend
		if !e.Backend && e.Cancelled == "" {
			e.Cancelled = "not known here when " + e.Origin + " asked about it"
		}
		return nil
	})
}

// goesOn: the backend works.
func (m *Manager) goesOn(ctx context.Context, e store.Entry, s Sight) (time.Duration, bool) {
	switch {
	case m.overdue(e) && e.State == model.StateBackend:
		_, _ = m.move(ctx, e, model.StateDangled, "its deadline has passed; it still runs and is looked at until it ends", nil)
	case m.overdue(e) && e.State == model.StateProcessing:
		_, _ = m.move(ctx, e, model.StateTimedOut, "its deadline has passed; it still runs", nil)
	case e.State == model.StateDangled && !m.overdue(e):
		_, _ = m.move(ctx, e, model.StateBackend, "found running"+colon(s.Reason), func(e *store.Entry) { e.Attempts = 0 })
	}
	m.setTries(e.ID, 0)
	if m.overdue(e) {
		return m.Interval, true
	}
	age := m.Now().Sub(e.Created)
	return min(longestLook, max(lookPause, age/60)), true
}

// cannotTell: neither running nor ended for sure.
func (m *Manager) cannotTell(ctx context.Context, e store.Entry, reason string) (time.Duration, bool) {
	tries := m.setTries(e.ID, 1)
	switch {
	case e.State == model.StateBackend && m.overdue(e):
		_, _ = m.move(ctx, e, model.StateDangled, "its deadline has passed"+colon(reason), nil)
	case e.State == model.StateProcessing && m.overdue(e):
		_, _ = m.move(ctx, e, model.StateTimedOut, "its deadline has passed"+colon(reason), nil)
	case e.State == model.StateDangled && (!e.Planned || e.Attempts+1 >= adoptAttempts):
		_, _ = m.move(ctx, e, model.StateInterrupted, "what became of it cannot be told here"+colon(reason), func(e *store.Entry) { e.Attempts = 0 })
	case e.State == model.StateDangled:
		return m.attempted(ctx, e, reason)
	default:
		m.remark(ctx, e, reason)
	}
	return min(pauseAfter(tries), m.Interval), true
}

// attempted counts an attempt that has found nothing out, without a change of state.
func (m *Manager) attempted(ctx context.Context, e store.Entry, reason string) (time.Duration, bool) {
	pause := pauseAfter(e.Attempts + 1)
	anew := m.isNews(e.ID, reason)
	_, err := m.Journal.Change(ctx, e.ID, func(now *store.Entry) error {
		now.Attempts, now.Next = e.Attempts+1, m.Now().Add(pause)
		if anew {
			now.Remark(reason)
		}
		return nil
	})
	if err != nil {
		m.Log.Error("cannot journal an attempt", "command_id", e.ID, "err", err)
	}
	return pause, true
}

// end writes how a command has ended.
func (m *Manager) end(ctx context.Context, e store.Entry, v Verdict) (time.Duration, bool) {
	ended, err := m.Journal.Change(ctx, e.ID, func(now *store.Entry) error {
		if now.State != e.State {
			return errMoved
		}
		if v.Outcome != Done && now.Cancelled != "" {
			v.Reason = "cancelled (" + now.Cancelled + ")" + colon(v.Reason)
		}
		return conclude(now, v)
	})
	if err != nil {
		m.notWritten(e, err)
		return lookPause, true
	}
	m.Log.Info("command ended", "command_id", e.ID, "kind", e.Kind, "state", ended.State, "outcome", ended.Outcome, "err", ended.Error)
	m.changed(ctx, ended)
	return 0, !ended.Acknowledged
}

// conclude writes a verdict into an entry, with the states on the way.
func conclude(e *store.Entry, v Verdict) error {
	next, why := model.StateCompleted, v.Reason
	e.Answer, e.Error, e.Outcome = v.Answer, "", v.Reason
	if v.Outcome != Done {
		if why == "" {
			why = "not done"
		}
		next, e.Error, e.Outcome = model.StateFailed, why, ""
	}
	switch e.State {
	case model.StateReconcileRetry, model.StateReconcileFailed:
		if err := e.Become(model.StateReconciling, ""); err != nil {
			return err
		}
		next = model.StateReconciled
	case model.StateReconciling:
		next = model.StateReconciled
	case model.StateStarted:
		if next == model.StateCompleted { // nothing can be done that has not begun
			return api.NewError(api.KindInternal, fmt.Sprintf("command %d has not begun and cannot be done", e.ID))
		}
	}
	e.Next, e.Acknowledged = time.Time{}, e.Side == model.SideLocal
	return e.Become(next, why)
}

// errMoved: somebody else has changed the state meanwhile.
var errMoved = errors.New("its state has changed meanwhile")

// move writes one transition, if the state is still the one that was seen.
func (m *Manager) move(ctx context.Context, e store.Entry, to model.CommandState, why string, with func(*store.Entry)) (store.Entry, error) {
	moved, err := m.Journal.Change(ctx, e.ID, func(now *store.Entry) error {
		if now.State != e.State {
			return errMoved
		}
		if with != nil {
			with(now)
		}
		return now.Become(to, why)
	})
	if err != nil {
		m.notWritten(e, err)
		return e, err
	}
	m.Log.Info("command", "command_id", e.ID, "kind", e.Kind, "from", e.State, "to", to, "why", why)
	m.changed(ctx, moved)
	return moved, nil
}

func (m *Manager) notWritten(e store.Entry, err error) {
	if !errors.Is(err, errMoved) {
		m.Log.Error("cannot journal a command; tried again", "command_id", e.ID, "err", err)
	}
}

// isNews reports whether a remark is not the last one that was made.
func (m *Manager) isNews(id int64, text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[id]
	if text == "" || t != nil && t.said == text {
		return false
	}
	if t != nil {
		t.said = text
	}
	return true
}

// remark adds a line to a command's history, once for the same text.
func (m *Manager) remark(ctx context.Context, e store.Entry, text string) {
	if !m.isNews(e.ID, text) {
		return
	}
	if _, err := m.Journal.Change(ctx, e.ID, func(e *store.Entry) error { e.Remark(text); return nil }); err != nil {
		m.Log.Error("cannot journal a remark", "command_id", e.ID, "remark", text, "err", err)
	}
}

// setTries counts on by one, or begins anew with 0.
func (m *Manager) setTries(id int64, by int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[id]
	if t == nil {
		return 1
	}
	t.tries = by * (t.tries + by)
	return t.tries
}

// pauseAfter grows from two seconds to an hour.
func pauseAfter(attempts int) time.Duration {
	const doublings = 11 // 2^12 s is more than an hour
	return min(longestPause, time.Second<<min(max(attempts, 1), doublings+1))
}

func (m *Manager) overdue(e store.Entry) bool { return !m.Now().Before(e.Deadline) }

// command is an entry as its kind sees it.
func (m *Manager) command(e store.Entry) Command {
	m.mu.Lock()
	p, known := m.progress[e.ID]
	m.mu.Unlock()
	if !known {
		p = e.Progress
	}
	return Command{
		Key: keyOf(e), ID: e.ID, Kind: e.Kind, Args: e.Args, Plan: e.Plan, Targets: e.Targets, State: e.State,
		Origin: e.Origin, Executor: e.Executor, Cause: e.Cause, Created: e.Created, Deadline: e.Deadline,
		OnDisconnect: e.OnDisconnect, Cancelled: e.Cancelled, Progress: p,
	}
}

func keyOf(e store.Entry) string { return e.Origin + "-" + strconv.FormatInt(e.Sequence, 10) }

func reasonOf(v Verdict, err error) string {
	if err != nil {
		return oneLine(err.Error())
	}
	return v.Reason
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func colon(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
