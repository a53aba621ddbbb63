package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// PeerRun accepts a command that another host asks for. The answer comes after the commit.
// Asked twice, the second one is answered from the row of the first.
func (m *Manager) PeerRun(ctx context.Context, peer string, q api.PeerCommand) (api.PeerReport, error) {
	m.heardFrom(peer)
	kind, err := m.checkPeer(q)
	if err != nil {
		return api.PeerReport{}, err
	}
	if e, found, err := m.Journal.EntryOf(ctx, peer, q.Sequence); err != nil || found {
		return m.again(ctx, e, q, err)
	}
	if q.Cancelled != "" {
		return api.PeerReport{}, api.NewError(api.KindBadRequest, "cancelled before it had begun: "+q.Cancelled)
	}
	plan, err := kind.Plan(ctx, q.Args)
	if err != nil {
		return api.PeerReport{}, err
	}
	e := m.peerEntry(ctx, peer, q)
	e.State, e.Why = model.StateStarted, "accepted"
	e.Planned, e.Plan, e.Targets, e.Backend = true, plan.Record, plan.Targets, plan.Backend
	return m.accept(ctx, e, q)
}

// PeerAsk tells how a command is that another host has asked for. One that this journal does
// not know was lost here or has never arrived: it is not begun, but looked at as if the daemon
// had been restarted.
func (m *Manager) PeerAsk(ctx context.Context, peer string, q api.PeerCommand) (api.PeerReport, error) {
	m.heardFrom(peer)
	if _, err := m.checkPeer(q); err != nil {
		return api.PeerReport{}, err
	}
	if e, found, err := m.Journal.EntryOf(ctx, peer, q.Sequence); err != nil || found {
		return m.again(ctx, e, q, err)
	}
	e := m.peerEntry(ctx, peer, q)
	e.State, e.Why = model.StateDangled, peer+" asks about it and this journal does not know it: lost, or never arrived"
	e.Cancelled = q.Cancelled
	return m.accept(ctx, e, q)
}

func (m *Manager) checkPeer(q api.PeerCommand) (Kind, error) {
	kind, known := m.Kinds[q.Kind]
	switch {
	case !known:
		return nil, unknownKind(q.Kind, m.Host)
	case q.Sequence <= 0 || !isObject(q.Args):
		return nil, api.NewError(api.KindBadRequest, "a command needs a sequence and arguments")
	}
	_, err := disconnect(q.OnDisconnect)
	return kind, err
}

func (m *Manager) peerEntry(ctx context.Context, peer string, q api.PeerCommand) store.Entry {
	timeout := DefaultTimeout
	if q.Timeout > 0 {
		timeout = time.Duration(q.Timeout) * time.Second
	}
	e := store.Entry{
		Side: model.SideExecutor, Kind: q.Kind, Args: q.Args, Origin: peer, Sequence: q.Sequence, Executor: m.Host,
		Cause: fmt.Sprintf("%s on %s", q.Cause, peer), BootID: m.BootID, Deadline: m.Now().Add(timeout), OnDisconnect: model.Disconnect(q.OnDisconnect),
	}
	if m.Hosts != nil {
		e.PeerGeneration = m.Hosts.Generation(ctx, peer)
	}
	return e
}

func (m *Manager) accept(ctx context.Context, e store.Entry, q api.PeerCommand) (api.PeerReport, error) {
	e, existed, err := m.Journal.AddEntry(ctx, e)
	if err != nil || existed {
		return m.again(ctx, e, q, err)
	}
	m.Log.Info("accepted a command of another host", "command_id", e.ID, "kind", e.Kind, "host", e.Origin, "state", e.State)
	m.adopt(e)
	return m.report(e), nil
}

// again answers from a row that is there.
func (m *Manager) again(ctx context.Context, e store.Entry, q api.PeerCommand, err error) (api.PeerReport, error) {
	if err != nil {
		return api.PeerReport{}, err
	}
	if e.Side != model.SideExecutor || e.Kind != q.Kind || !sameJSON(e.Args, q.Args) {
		return api.PeerReport{}, api.NewError(api.KindBadRequest, fmt.Sprintf("command %d of this journal has the same origin and sequence, and is another one (%s)", e.ID, e.Kind))
	}
	if q.Cancelled != "" && e.Cancelled == "" && !e.State.Final() {
		if e, err = m.cancel(ctx, e, q.Cancelled); err != nil {
			m.Log.Warn("cannot cancel a command", "command_id", e.ID, "err", err)
		}
	}
	return m.report(e), nil
}

// report is a row as its origin is told.
func (m *Manager) report(e store.Entry) api.PeerReport {
	r := api.PeerReport{
		ID: e.ID, State: string(e.State), Why: e.Why, Plan: e.Plan, Targets: []api.PeerTarget{}, Backend: e.Backend, Final: e.State.Final(),
		Deadline: int64(e.Deadline.Sub(m.Now()).Seconds()), Progress: store.ProgressOf(m.command(e).Progress),
	}
	for _, t := range e.Targets {
		r.Targets = append(r.Targets, api.PeerTarget{VGUUID: t.Volume.VG, LVUUID: t.Volume.LV, Name: t.Name, Shared: t.Shared})
	}
	if r.Final {
		r.Answer, r.Error, r.Outcome = e.Answer, e.Error, e.Outcome
	}
	return r
}

// PeerAck takes the word of an origin that it has the answer, or that it has found out what
// this host did not know.
func (m *Manager) PeerAck(ctx context.Context, peer string, q api.PeerAck) error {
	if q.Found != "" {
		if err := checkWord(ResolveAs(q.Found)); err != nil {
			return err
		}
	}
	e, found, err := m.Journal.EntryOf(ctx, peer, q.Sequence)
	if err != nil || !found || e.Side != model.SideExecutor {
		return err
	}
	m.contradicted(ctx, e, q)
	if !e.State.Final() {
		if q.Found == "" {
			return api.NewError(api.KindBadRequest, fmt.Sprintf("command %d has not ended on %s (%s)", e.ID, m.Host, e.State))
		}
		if e, err = m.settle(ctx, e, ResolveAs(q.Found), peer+" has found out"+colon(q.Why)); err != nil {
			return err
		}
	}
	if e.Acknowledged {
		return nil
	}
	_, err = m.Journal.Change(ctx, e.ID, func(e *store.Entry) error { e.Acknowledged = true; return nil })
	return err
}

// contradicted notes that an origin takes a command that has ended here for another one than
// it is: neither row changes any more, and a person may want to know.
func (m *Manager) contradicted(ctx context.Context, e store.Entry, q api.PeerAck) {
	if !e.State.Final() || e.Acknowledged || q.Found == "" || (ResolveAs(q.Found) == FailedWord) == (e.Error != "") {
		return
	}
	m.Log.Warn("two hosts do not agree on how a command has ended", "command_id", e.ID, "kind", e.Kind, "host", e.Origin, "state", e.State, "err", e.Error, "there", q.Found, "why", q.Why)
	m.remark(ctx, e, fmt.Sprintf("%s takes it for %s%s, which it is not here: look at both journals", e.Origin, q.Found, brackets(oneLine(q.Why))))
}

func brackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// PeerNotice takes the hint that these commands have something to tell. Those that this host
// waits for no more are named in the answer.
func (m *Manager) PeerNotice(ctx context.Context, peer string, q api.PeerCommandNotice) (api.PeerCommandNoticeAnswer, error) {
	m.heardFrom(peer)
	answer := api.PeerCommandNoticeAnswer{Gone: []int64{}, Ended: []int64{}}
	for _, sequence := range q.Sequences {
		e, found, err := m.Journal.EntryOf(ctx, m.Host, sequence)
		if err != nil {
			return answer, err
		}
		if !found || e.Side != model.SideOrigin || e.Executor != peer || e.State.Final() && e.Acknowledged {
			answer.Gone = append(answer.Gone, sequence)
		} else if e.State.Final() || e.State == model.StateReconciling {
			answer.Ended = append(answer.Ended, sequence)
		}
	}
	m.HintHost(peer)
	return answer, nil
}

// changed lets the origin of a command know that something has happened to it. Nobody waits
// for it: the origin asks by itself as well.
func (m *Manager) changed(ctx context.Context, e store.Entry) {
	if e.Side != model.SideExecutor || m.Peers == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	waiting, sends := m.notices[e.Origin]
	m.notices[e.Origin] = append(waiting, e.Sequence)
	if !sends {
		m.work.Go(func() { m.sendNotices(ctx, e.Origin) })
	}
}

func (m *Manager) sendNotices(ctx context.Context, host string) {
	for {
		m.mu.Lock()
		all := m.notices[host]
		if len(all) == 0 || ctx.Err() != nil {
			delete(m.notices, host)
			m.mu.Unlock()
			return
		}
		m.notices[host] = []int64{}
		m.mu.Unlock()
		// What the answer names is handled when the end is told.
		_ = m.call(ctx, host, api.RoutePeerCommandNotice, api.PeerCommandNotice{Sequences: all}, &api.PeerCommandNoticeAnswer{})
	}
}

func isObject(args json.RawMessage) bool {
	var object map[string]any
	return len(args) <= maxArgs && json.Unmarshal(args, &object) == nil && object != nil
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

func unknownKind(kind, host string) error {
	return api.NewError(api.KindBadRequest, fmt.Sprintf("virtlvmd on %s does not know commands of kind %q", host, kind))
}
