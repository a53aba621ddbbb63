package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// follow takes a command that runs on another host one step further: asks for it, takes its
// answer, and finds out by itself what the other host cannot tell.
func (m *Manager) follow(ctx context.Context, e store.Entry) (time.Duration, bool) {
	route := api.RoutePeerCommandAsk
	if e.State == model.StateCreated && e.PeerState == "" && m.Now().Sub(e.Created) < beginWithin {
		route = api.RoutePeerCommand // it may not have arrived
	}
	report, err := m.ask(ctx, e, route)
	if ctx.Err() != nil {
		return 0, true
	}
	if err == nil {
		if e, err = m.heard(ctx, e, report); err != nil {
			return lookPause, true
		}
		if e.State.Final() {
			return m.tell(ctx, e)
		}
	}
	switch e.State {
	case model.StateCreated:
		return m.waitFor(ctx, e, report.Why, err)
	case model.StateReconcileSkip:
		return longestPause, true
	}
	if early := e.Next.Sub(m.Now()); early > 0 {
		return early, true
	}
	return m.reconcile(ctx, e, func(e store.Entry) (Verdict, error) { return m.investigate(ctx, e, report, err) })
}

// waitFor: the command has not ended as far as this host knows. why is the executor's word,
// asked the error where it could not be asked.
func (m *Manager) waitFor(ctx context.Context, e store.Entry, why string, asked error) (time.Duration, bool) {
	switch {
	case asked != nil && m.dead(ctx, e.Executor, e.PeerGeneration):
		_, _ = m.move(ctx, e, model.StateInterrupted, e.Executor+" is dead", nil)
		return 0, true
	case lost(e.PeerState):
		_, _ = m.move(ctx, e, model.StateInterrupted, fmt.Sprintf("%s says %s%s", e.Executor, e.PeerState, colon(why)), nil)
		return 0, true
	case m.overdue(e):
		why := "no answer from " + e.Executor + " in time"
		if asked != nil {
			why += colon(oneLine(asked.Error()))
		}
		_, _ = m.move(ctx, e, model.StateTimedOut, why, nil)
		return 0, true
	}
	if asked != nil {
		m.remark(ctx, e, oneLine(asked.Error()))
	}
	return m.Interval, true
}

// lost reports whether an executor in that state does not know how the command has ended.
func lost(s model.CommandState) bool {
	switch s {
	case model.StateInterrupted, model.StateTimedOut, model.StateReconciling, model.StateReconcileRetry, model.StateReconcileFailed, model.StateReconcileSkip:
		return true
	}
	return false
}

// goesOnThere reports whether an executor that lives looks after a command by itself, and may
// still do what is missing of it: one without a backend, whose plan it knows, that it has not
// given up.
func goesOnThere(r api.PeerReport) bool {
	return !r.Backend && len(r.Plan)+len(r.Targets) > 0 && r.State != string(model.StateReconcileSkip)
}

// investigate finds out without the executor where that is dead or does not know. report is
// what it has just said, asked why it could not be asked.
func (m *Manager) investigate(ctx context.Context, e store.Entry, report api.PeerReport, asked error) (Verdict, error) {
	kind, known := m.Kinds[e.Kind]
	switch {
	case !known:
		return Verdict{}, fmt.Errorf("this virtlvmd does not know the kind %s", e.Kind)
	case asked != nil && !m.dead(ctx, e.Executor, e.PeerGeneration):
		return Verdict{}, asked
	case asked == nil && !lost(e.PeerState):
		return Verdict{Outcome: NotYet, Reason: fmt.Sprintf("it is %s on %s", e.PeerState, e.Executor)}, nil
	case asked == nil && goesOnThere(report):
		return Verdict{Outcome: NotYet, Reason: fmt.Sprintf("it is %s on %s, which goes on with it by itself%s", e.PeerState, e.Executor, colon(report.Why))}, nil
	}
	leave, err := turn(ctx, m.looks)
	if err != nil {
		return Verdict{}, err
	}
	defer leave()
	return kind.Investigate(ctx, m.command(e))
}

// ask asks the executor, or with RoutePeerCommand makes it run the command.
func (m *Manager) ask(ctx context.Context, e store.Entry, route string) (api.PeerReport, error) {
	var report api.PeerReport
	err := m.call(ctx, e.Executor, route, api.PeerCommand{
		Sequence: e.Sequence, Kind: e.Kind, Args: e.Args, Cause: e.Cause, Created: e.Created,
		Timeout: max(1, int64(e.Deadline.Sub(m.Now()).Seconds())), OnDisconnect: string(e.OnDisconnect), Cancelled: e.Cancelled,
	}, &report)
	return report, err
}

// call makes one call of another host. One that could not be reached a moment ago is not
// tried again for every command.
func (m *Manager) call(ctx context.Context, host, route string, in, out any) error {
	m.mu.Lock()
	deaf := m.Now().Sub(m.deaf[host]) < deafFor
	m.mu.Unlock()
	if deaf {
		return api.NewError(api.KindUnreachable, host+" could not be reached a moment ago")
	}
	leave, err := turn(ctx, m.asks)
	if err != nil {
		return err
	}
	defer leave()
	patience := askTimeout
	if route == api.RoutePeerCommand || route == api.RoutePeerCommandPlan {
		patience = acceptTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err = m.Peers.Call(ctx, host, route, in, out); err != nil && api.KindOf(err) == api.KindUnreachable {
		m.mu.Lock()
		m.deaf[host] = m.Now()
		m.mu.Unlock()
	}
	return err
}

// refused reports whether the error of the first request is the other host's own word that
// it will not run the command, and so has not.
func refused(err error) bool {
	switch api.KindOf(err) {
	case api.KindUnreachable, api.KindUnknown, api.KindInternal, api.KindDatabase:
		return false
	}
	return true
}

// refusal ends a command that the executor has refused: it has no row there.
func (m *Manager) refusal(ctx context.Context, e store.Entry, why error) {
	_, err := m.Journal.Change(ctx, e.ID, func(now *store.Entry) error {
		if now.State != e.State {
			return errMoved
		}
		if err := conclude(now, Verdict{Outcome: NotDone, Reason: oneLine(why.Error())}); err != nil {
			return err
		}
		now.Acknowledged = true
		return nil
	})
	if err != nil { // it is asked for then
		m.notWritten(e, err)
		m.adopt(e)
	}
}

// heard takes what the executor says into the journal.
func (m *Manager) heard(ctx context.Context, e store.Entry, r api.PeerReport) (store.Entry, error) {
	m.heardProgress(e.ID, r.Progress)
	before := e
	e, err := m.Journal.Change(ctx, e.ID, func(e *store.Entry) error {
		if e.State.Final() {
			return nil
		}
		state := model.CommandState(r.State)
		if !state.Known() {
			return api.NewError(api.KindInternal, fmt.Sprintf("%s says that command %d is %q, which is no state", e.Executor, r.ID, r.State))
		}
		if r.Final != state.Final() {
			return api.NewError(api.KindInternal, fmt.Sprintf("%s says that command %d is %s, and whether it has ended contradicts that", e.Executor, r.ID, state))
		}
		if e.PeerState == "" {
			// The executor's clock decides; this one waits a little longer.
			e.Deadline = m.Now().Add(time.Duration(r.Deadline)*time.Second + 2*m.Interval)
		}
		e.PeerState, e.PeerID = state, r.ID
		if !e.Planned && len(r.Targets)+len(r.Plan) > 0 {
			e.Planned, e.Plan, e.Targets = true, r.Plan, targetsOf(r.Targets)
		}
		if !r.Final {
			return nil
		}
		v := Verdict{Outcome: Done, Answer: r.Answer, Reason: r.Outcome}
		if r.Error != "" {
			v = Verdict{Outcome: NotDone, Answer: r.Answer, Reason: r.Error}
		}
		return conclude(e, v)
	})
	if err != nil {
		m.Log.Error("cannot journal what the executor of a command says", "command_id", e.ID, "host", e.Executor, "err", err)
		return before, err
	}
	if e.State.Final() && !before.State.Final() {
		m.Log.Info("command ended", "command_id", e.ID, "kind", e.Kind, "host", e.Executor, "state", e.State, "outcome", e.Outcome, "err", e.Error)
	}
	return e, nil
}

// tell hands over what the host at the other end must know of a command that has ended, until
// it says that it has it.
func (m *Manager) tell(ctx context.Context, e store.Entry) (time.Duration, bool) {
	var err error
	if e.Side == model.SideExecutor {
		var answer api.PeerCommandNoticeAnswer
		err = m.call(ctx, e.Origin, api.RoutePeerCommandNotice, api.PeerCommandNotice{Sequences: []int64{e.Sequence}}, &answer)
		if err == nil && len(answer.Gone) == 0 {
			err = errors.New("it will ask for the answer")
		}
	} else {
		ack := api.PeerAck{Sequence: e.Sequence}
		if !e.PeerState.Final() { // found out without the executor
			ack.Found, ack.Why = string(DoneWord), e.Outcome
			if e.Error != "" {
				ack.Found, ack.Why = string(FailedWord), e.Error
			}
		}
		err = m.call(ctx, e.Executor, api.RoutePeerCommandAck, ack, nil)
	}
	if ctx.Err() != nil {
		return 0, true
	}
	if err != nil {
		return min(longestTell, tellPause*time.Duration(m.setTries(e.ID, 1))), true
	}
	if _, err := m.Journal.Change(ctx, e.ID, func(e *store.Entry) error { e.Acknowledged = true; return nil }); err != nil {
		m.notWritten(e, err)
		return lookPause, true
	}
	return 0, false
}

func targetsOf(all []api.PeerTarget) []model.Target {
	targets := make([]model.Target, 0, len(all))
	for _, t := range all {
		targets = append(targets, model.Target{Volume: model.VolumeID{VG: t.VGUUID, LV: t.LVUUID}, Name: t.Name, Shared: t.Shared})
	}
	return targets
}
