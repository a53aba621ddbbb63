package command

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// maxArgs bounds the arguments of a command.
const maxArgs = 32 << 10

// longestTimeout is as long as a row is kept at the least.
const longestTimeout = 30 * 24 * time.Hour

// Request accepts a command that an operator asks for. The answer comes after the commit, and for
// another host after that one has answered or could not be reached.
func (m *Manager) Request(ctx context.Context, req api.CommandRequest, by string) (api.Command, error) {
	if err := m.place(ctx, &req); err != nil {
		return api.Command{}, err
	}
	e, kind, err := m.newEntry(req, by)
	if err != nil {
		return api.Command{}, err
	}
	if e.Executor != m.Host {
		return m.runElsewhere(ctx, e)
	}
	plan, err := kind.Plan(ctx, e.Args)
	if err != nil {
		return api.Command{}, err
	}
	e.Side, e.State, e.Why, e.Acknowledged = model.SideLocal, model.StateStarted, "accepted", true
	e.Planned, e.Plan, e.Targets, e.Backend = true, plan.Record, plan.Targets, plan.Backend
	if e, _, err = m.Journal.AddEntry(ctx, e); err != nil {
		return api.Command{}, err
	}
	m.Log.Info("accepted a command", "command_id", e.ID, "kind", e.Kind, "cause", by)
	m.adopt(e)
	return m.Journal.Command(ctx, e.ID)
}

// Preview tells what a command would do, and does nothing. An error is what would refuse it.
func (m *Manager) Preview(ctx context.Context, req api.CommandRequest) (api.CommandPlan, error) {
	if err := m.place(ctx, &req); err != nil {
		return api.CommandPlan{}, err
	}
	if _, _, err := m.newEntry(req, ""); err != nil {
		return api.CommandPlan{}, err
	}
	q := api.PeerPlan{Kind: req.Kind, Args: req.Args}
	if req.Executor == "" || req.Executor == m.Host {
		return m.PeerPlan(ctx, "", q)
	}
	if m.Peers == nil {
		return api.CommandPlan{}, api.NewError(api.KindNotFound, m.Host+" has no peers")
	}
	var p api.CommandPlan
	err := m.call(ctx, req.Executor, api.RoutePeerCommandPlan, q, &p)
	return p, err
}

// PeerPlan answers another host that asks what a command would do here.
func (m *Manager) PeerPlan(ctx context.Context, _ string, q api.PeerPlan) (api.CommandPlan, error) {
	kind, known := m.Kinds[q.Kind]
	if !known {
		return api.CommandPlan{}, unknownKind(q.Kind, m.Host)
	}
	plan, err := kind.Plan(ctx, q.Args)
	if err != nil {
		return api.CommandPlan{}, err
	}
	answer := api.CommandPlan{Kind: q.Kind, Host: m.Host, Targets: []string{}, Volumes: plan.Volumes}
	for _, t := range plan.Targets {
		answer.Targets = append(answer.Targets, t.Name)
	}
	if answer.Volumes == nil {
		answer.Volumes = []api.PlannedVolume{}
	}
	return answer, nil
}

// place names the host that shall run a request, where its kind can tell and nobody has.
func (m *Manager) place(ctx context.Context, req *api.CommandRequest) error {
	p, ok := m.Kinds[req.Kind].(Placer)
	if !ok || req.Executor != "" || !isObject(req.Args) {
		return nil
	}
	host, err := p.Place(ctx, req.Args)
	if err == nil {
		req.Executor = host
	}
	return err
}

func (m *Manager) newEntry(req api.CommandRequest, by string) (store.Entry, Kind, error) {
	kind, known := m.Kinds[req.Kind]
	if !known {
		return store.Entry{}, nil, unknownKind(req.Kind, m.Host)
	}
	if len(req.Args) == 0 {
		req.Args = json.RawMessage(`{}`)
	}
	if !isObject(req.Args) {
		return store.Entry{}, nil, api.NewError(api.KindBadRequest, fmt.Sprintf("the arguments of a command are a JSON object of at most %d bytes", maxArgs))
	}
	on, err := disconnect(req.OnDisconnect)
	if err != nil {
		return store.Entry{}, nil, err
	}
	timeout := DefaultTimeout
	if req.Timeout != 0 {
		timeout = time.Duration(req.Timeout) * time.Second
	}
	if req.Timeout < 0 || req.Timeout > int64(longestTimeout.Seconds()) {
		return store.Entry{}, nil, api.NewError(api.KindBadRequest, fmt.Sprintf("the timeout of a command is at most %s", longestTimeout))
	}
	if !m.resumed() {
		return store.Entry{}, nil, api.NewError(api.KindDatabase, "virtlvmd could not read its journal yet, and so takes no command; see 'virtlvm status'")
	}
	executor := req.Executor
	if executor == "" {
		executor = m.Host
	}
	return store.Entry{
		Kind: req.Kind, Args: req.Args, Origin: m.Host, Sequence: m.nextSequence(), Executor: executor, Cause: by, BootID: m.BootID,
		Deadline: m.Now().Add(timeout), OnDisconnect: on,
	}, kind, nil
}

func disconnect(word string) (model.Disconnect, error) {
	switch d := model.Disconnect(word); d {
	case "":
		return model.DisconnectContinue, nil
	case model.DisconnectContinue, model.DisconnectCancel:
		return d, nil
	}
	return "", api.NewError(api.KindBadRequest, fmt.Sprintf("on-disconnect %q is neither %s nor %s", word, model.DisconnectContinue, model.DisconnectCancel))
}

// runElsewhere hands a command to another host. What may or may not have arrived is no
// failure: its row is here, and is asked for.
func (m *Manager) runElsewhere(ctx context.Context, e store.Entry) (api.Command, error) {
	if m.Peers == nil {
		return api.Command{}, api.NewError(api.KindNotFound, m.Host+" has no peers")
	}
	if err := api.CheckHostName(e.Executor); err != nil {
		return api.Command{}, api.NewError(api.KindBadRequest, err.Error())
	}
	if m.Hosts != nil {
		e.PeerGeneration = m.Hosts.Generation(ctx, e.Executor)
	}
	e.Side, e.State, e.Why = model.SideOrigin, model.StateCreated, "asked for"
	e, _, err := m.Journal.AddEntry(ctx, e)
	if err != nil {
		return api.Command{}, err
	}
	report, asked := m.ask(ctx, e, api.RoutePeerCommand)
	// From here on the operator's own connection does not matter.
	ctx = context.WithoutCancel(ctx)
	switch {
	case asked == nil:
		if _, err := m.heard(ctx, e, report); err != nil {
			return api.Command{}, err
		}
	case refused(asked), api.KindOf(asked) == api.KindUnreachable: // surely not running there
		m.refusal(ctx, e, asked)
		return api.Command{}, asked
	default:
		m.remark(ctx, e, oneLine(asked.Error()))
	}
	m.adopt(e)
	return m.Journal.Command(ctx, e.ID)
}

// Cancel asks a command to end. It ends when its backend does; look at it.
func (m *Manager) Cancel(ctx context.Context, id int64, req api.CancelRequest, by string) (api.Command, error) {
	e, err := m.Journal.Entry(ctx, id)
	if err != nil {
		return api.Command{}, err
	}
	why := by
	if req.Why != "" {
		why += ": " + oneLine(req.Why)
	}
	if _, err := m.cancel(ctx, e, why); err != nil {
		return api.Command{}, err
	}
	return m.Journal.Command(ctx, id)
}

// cancel writes the wish and passes it on.
func (m *Manager) cancel(ctx context.Context, e store.Entry, why string) (store.Entry, error) {
	e, err := m.Journal.Change(ctx, e.ID, func(e *store.Entry) error {
		switch {
		case e.State.Final():
			return api.NewError(api.KindBadRequest, fmt.Sprintf("command %d has ended (%s); there is nothing to cancel", e.ID, e.State))
		case lost(e.State):
			return api.NewError(api.KindBadRequest, fmt.Sprintf("command %d does not run any more as far as is known (%s), and so cannot be cancelled; see 'virtlvm command %d'", e.ID, e.State, e.ID))
		}
		if e.Cancelled == "" {
			e.Cancelled = why
			e.Remark("asked to end: " + why)
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	defer m.hint(e.ID)
	if e.Side == model.SideOrigin {
		return e, m.cancelElsewhere(ctx, e)
	}
	if e.State == model.StateStarted {
		return e, nil
	}
	return e, m.tellBackend(ctx, e)
}

func (m *Manager) cancelElsewhere(ctx context.Context, e store.Entry) error {
	report, err := m.ask(ctx, e, api.RoutePeerCommandAsk)
	if err == nil {
		_, err = m.heard(ctx, e, report)
		return err
	}
	return api.NewError(api.KindUnknown, fmt.Sprintf("command %d will be asked to end as soon as %s can be reached: %s", e.ID, e.Executor, oneLine(err.Error())))
}

// tellBackend passes the wish on to the kind.
func (m *Manager) tellBackend(ctx context.Context, e store.Entry) error {
	kind, known := m.Kinds[e.Kind]
	if !known {
		return unknownKind(e.Kind, m.Host)
	}
	if err := kind.Cancel(ctx, m.command(e)); err != nil {
		m.remark(context.WithoutCancel(ctx), e, "cannot be asked to end: "+oneLine(err.Error()))
		return err
	}
	m.mu.Lock()
	if t := m.tasks[e.ID]; t != nil {
		t.told = true
	}
	m.mu.Unlock()
	return nil
}

// untold: a cancel that came while the backend was being begun may have met nothing yet.
func (m *Manager) untold(id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tasks[id]; t != nil {
		t.told = false
	}
}

// repeatCancel tells the backend of a command that was cancelled before this daemon, or
// could not be told.
func (m *Manager) repeatCancel(ctx context.Context, e store.Entry) {
	m.mu.Lock()
	t := m.tasks[e.ID]
	told := t == nil || t.told
	m.mu.Unlock()
	if e.Cancelled == "" || told {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := m.tellBackend(ctx, e); err != nil {
		m.Log.Warn("cannot cancel a command; tried again", "command_id", e.ID, "err", err)
	}
}

// ResolveAs is a person's word, or another host's, on how a command has ended.
type ResolveAs string

// Words.
const (
	DoneWord   ResolveAs = "completed"
	FailedWord ResolveAs = "failed"
)

func checkWord(as ResolveAs) error {
	if as == DoneWord || as == FailedWord {
		return nil
	}
	return api.NewError(api.KindBadRequest, fmt.Sprintf("a command can be resolved as %s or as %s, not as %q", DoneWord, FailedWord, as))
}

// Resolve ends a command whose outcome could not be found out.
func (m *Manager) Resolve(ctx context.Context, id int64, req api.ResolveRequest, by string) (api.Command, error) {
	as, why := ResolveAs(req.As), oneLine(req.Why)
	if err := checkWord(as); err != nil {
		return api.Command{}, err
	}
	if why == "" {
		return api.Command{}, api.NewError(api.KindBadRequest, "say why: it is kept in the journal")
	}
	e, err := m.Journal.Entry(ctx, id)
	if err != nil {
		return api.Command{}, err
	}
	if e, err = m.settle(ctx, e, as, by+": "+why); err != nil {
		return api.Command{}, err
	}
	if !e.Acknowledged {
		m.adopt(e)
		m.hint(e.ID)
	}
	return m.Journal.Command(ctx, id)
}

// settle ends a command of which nobody here knows how it has ended.
func (m *Manager) settle(ctx context.Context, e store.Entry, as ResolveAs, why string) (store.Entry, error) {
	return m.Journal.Change(ctx, e.ID, func(e *store.Entry) error {
		if !lost(e.State) {
			return api.NewError(api.KindBadRequest, fmt.Sprintf("command %d is %s: only a command whose outcome is not known can be resolved", e.ID, e.State))
		}
		if e.State == model.StateReconciling {
			return api.NewError(api.KindBadRequest, fmt.Sprintf("command %d is being found out this moment; try again", e.ID))
		}
		if isReconcile(e.State) {
			if err := e.Become(model.StateReconcileSkip, why); err != nil {
				return err
			}
		}
		v := Verdict{Outcome: Done, Reason: why}
		if as == FailedWord {
			v.Outcome = NotDone
		}
		return conclude(e, v)
	})
}

// View returns a row of the journal with the newest progress. fresh: its executor is asked
// first, where that is another host.
func (m *Manager) View(ctx context.Context, id int64, fresh bool) (api.Command, error) {
	if fresh {
		e, err := m.Journal.Entry(ctx, id)
		if err == nil && e.Side == model.SideOrigin && !e.State.Final() && e.PeerState != "" {
			if report, err := m.ask(ctx, e, api.RoutePeerCommandAsk); err == nil {
				_, err = m.heard(ctx, e, report)
				if err == nil && report.Final {
					m.hint(id)
				}
			}
		}
	}
	c, err := m.Journal.Command(ctx, id)
	m.overlay(&c)
	return c, err
}

// List lists the journal with the newest progress.
func (m *Manager) List(ctx context.Context, f api.CommandFilter) ([]api.Command, error) {
	all, err := m.Journal.Commands(ctx, f)
	for i := range all {
		m.overlay(&all[i])
	}
	return all, err
}

func (m *Manager) overlay(c *api.Command) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, known := m.progress[c.ID]; known && c.Finished.IsZero() {
		c.Progress = store.ProgressOf(p)
	}
}

// Summary counts the open commands, and names those that need a person, one line each.
func (m *Manager) Summary(ctx context.Context) (api.CommandSummary, []string, error) {
	const named = 10
	var s api.CommandSummary
	var problems []string
	tasks, err := m.Journal.Tasks(ctx)
	for _, t := range tasks {
		switch {
		case t.State.Final():
			s.Unsent++
		case t.State == model.StateReconcileSkip:
			if s.Skipped++; s.Skipped <= named {
				problems = append(problems, m.problem(ctx, t.ID))
			}
		case lost(t.State):
			s.Unresolved++
		default:
			s.Running++
		}
	}
	if s.Skipped > named {
		problems = append(problems, fmt.Sprintf("the outcome of %d more commands could not be found out; see 'virtlvm commands --state %s'", s.Skipped-named, model.StateReconcileSkip))
	}
	return s, problems, err
}

func (m *Manager) problem(ctx context.Context, id int64) string {
	e, err := m.Journal.Entry(ctx, id)
	if err != nil {
		return fmt.Sprintf("command %d needs a person: %v", id, err)
	}
	about := ""
	for i, t := range e.Targets {
		if i < 3 {
			about += " " + t.Name
		}
	}
	return fmt.Sprintf("command %d (%s%s): its outcome could not be found out (%s); look, then 'virtlvm command resolve %d --as completed|failed --why ...'", id, e.Kind, about, e.Why, id)
}
