package activation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
)

// cause says on whose behalf something is run; it collects the looks made for it.
type cause struct {
	text     string
	hookCall int64 // 0: none
	record   bool  // looks made for it become rows

	mu      sync.Mutex
	queries []store.Query
	steps   []model.HandoffStep // see Manager.tell
}

type causeKey struct{}

func withCause(ctx context.Context, c *cause) context.Context {
	return context.WithValue(ctx, causeKey{}, c)
}

func causeOf(ctx context.Context) *cause {
	c, _ := ctx.Value(causeKey{}).(*cause)
	if c == nil {
		c = &cause{text: "reconcile"}
	}
	return c
}

func (c *cause) take() []store.Query {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queries
	c.queries = nil
	return q
}

// Recorder is a Runner for commands that only look: each run on behalf of a hook call or
// an operator becomes a row of the journal when that call ends. The periodic looks are
// not recorded, they would drown it.
type Recorder struct {
	Runner run.Runner
	Now    func() time.Time
	BootID string
	// Timeout of one look; nil: the runner's default.
	Timeout func() time.Duration
}

// Run implements run.Runner.
func (r Recorder) Run(ctx context.Context, cmd run.Cmd) (run.Result, error) {
	if r.Timeout != nil && cmd.Timeout == 0 {
		cmd.Timeout = r.Timeout()
	}
	c, ok := ctx.Value(causeKey{}).(*cause)
	if !ok || !c.record {
		return r.Runner.Run(ctx, cmd)
	}
	started := r.Now()
	res, err := r.Runner.Run(ctx, cmd)
	q := store.Query{
		Intent:   store.Intent{Kind: "query", Argv: cmd.Argv(), HookCall: c.hookCall, Cause: c.text, BootID: r.BootID},
		Result:   store.Result{State: model.StateCompleted, ExitCode: res.ExitCode, Stderr: clip(string(res.Stderr))},
		Started:  started,
		Duration: res.Duration,
	}
	if err != nil {
		q.State, q.Error = model.StateFailed, err.Error()
	}
	c.mu.Lock()
	c.queries = append(c.queries, q)
	c.mu.Unlock()
	return res, err
}

// effect is a command that changes something, from its intent to its result.
type effect struct {
	id      int64 // 0: the journal could not take it
	kind    string
	cause   string
	vg      string
	targets []model.Volume
	res     run.Result
	err     error // typed, see lvm.Classify
}

// must says whether an effect may go on without a journal: a release may, a start not.
type must bool

const (
	journalled must = true
	bestEffort must = false
)

// begin writes the intent (with the holds it serves), runs the command and classifies its
// answer. The caller verifies and then calls conclude. A non-nil error means that nothing
// has run.
func (m *Manager) begin(ctx context.Context, kind string, cmd run.Cmd, targets []model.Volume, change store.HoldChange, need must) (*effect, error) {
	c := causeOf(ctx)
	e := &effect{kind: kind, cause: c.text, targets: targets}
	if len(targets) > 0 {
		e.vg = targets[0].VG
	}
	var err error
	err = m.writing(change, func(change store.HoldChange) error {
		e.id, err = m.beginOwn(ctx, store.Intent{
			Kind: kind, Argv: cmd.Argv(), Targets: targets, HookCall: c.hookCall, Cause: c.text, BootID: m.BootID,
		}, change)
		return err
	})
	if err != nil {
		if need == journalled {
			return nil, err
		}
		m.setDirty()
		m.Log.Error("cannot journal a command; it runs all the same", "command", strings.Join(cmd.Argv(), " "), "err", err)
	}
	cmd.Timeout = m.Settings().CommandTimeout
	if id := e.id; id != 0 {
		cmd.OnStart = func(pid int, start uint64) {
			if err := m.Journal.Running(ctx, id, pid, start); err != nil {
				m.Log.Warn("cannot journal the pid of a command", "command_id", id, "err", err)
			}
		}
	}
	m.handmade.begin(targets)
	began := m.Now()
	m.changes(e.vg)
	res, rerr := m.Runner.Run(ctx, cmd)
	m.changes(e.vg)
	e.res, e.err = res, lvm.Classify(cmd, res, rerr)
	var te *run.TimeoutError
	if errors.As(rerr, &te) {
		m.markStuck(e.vg, te, began)
		go func() { // then its row is resolved by looking
			<-te.Done
			m.handmade.end(targets)
			m.disown(e.id)
			m.Kick()
		}()
	}
	m.Log.Info("ran", "command", strings.Join(cmd.Argv(), " "), "command_id", e.id, "cause", c.text,
		"exit_code", res.ExitCode, "duration", res.Duration, "err", e.err)
	return e, nil
}

// timedOut reports whether the command's outcome is unknown.
func (e *effect) timedOut() bool {
	var te *run.TimeoutError
	return errors.As(e.err, &te)
}

// conclude writes what came of an effect. done: the volumes are as wanted, whatever the
// exit code said.
func (m *Manager) conclude(ctx context.Context, e *effect, done bool, outcome string) {
	if !e.timedOut() {
		m.handmade.end(e.targets)
	}
	r := store.Result{State: model.StateFailed, ExitCode: e.res.ExitCode, Stderr: clip(string(e.res.Stderr)), Outcome: outcome}
	if e.err != nil {
		r.Error = e.err.Error()
	}
	switch {
	case done:
		r.State = model.StateCompleted
	case e.timedOut():
		r.State, r.ExitCode = model.StateTimedOut, -1
	case e.err == nil:
		r.Error = "exit code 0, but the volumes are not as wanted"
	}
	m.tallyChange(e, r.State)
	if e.id == 0 {
		return
	}
	if !e.timedOut() {
		defer m.disown(e.id)
	}
	if err := m.Journal.Finish(ctx, e.id, r, store.HoldChange{}); err != nil {
		m.setDirty()
		m.Log.Error("cannot journal the result of a command", "command_id", e.id, "err", err)
	}
}

// beginOwn writes the row of a command of this daemon, which nobody must take for a left-over
// from then on until disown.
func (m *Manager) beginOwn(ctx context.Context, in store.Intent, change store.HoldChange) (id int64, err error) {
	m.mu.Lock()
	m.beginning++
	m.mu.Unlock()
	id, err = m.Journal.Begin(ctx, in, change)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beginning--
	if err == nil {
		m.own[id] = true
	}
	return id, err
}

func (m *Manager) disown(id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.own, id)
}

// persist writes holds that need no command. Memory is what counts while the daemon
// runs; what the database misses is written when it works again.
func (m *Manager) persist(ctx context.Context, change store.HoldChange) {
	if change.Empty() {
		return
	}
	if err := m.writeHolds(ctx, change); err != nil {
		m.setDirty()
		m.Log.Error("cannot write the holds", "err", err)
	}
}

// writeHolds is persist where the caller must know whether it is written.
func (m *Manager) writeHolds(ctx context.Context, change store.HoldChange) error {
	return m.writing(change, func(change store.HoldChange) error { return m.Journal.ChangeHolds(ctx, change) })
}

// writing writes a change that memory has already, one at a time and as memory is by then: of two
// that are made of one hold, the older one would undo the newer one in the journal where it is
// written last.
func (m *Manager) writing(change store.HoldChange, write func(store.HoldChange) error) error {
	if len(change.Put)+len(change.Delete) == 0 {
		return write(change)
	}
	<-m.pen
	defer func() { m.pen <- struct{}{} }()
	now := store.HoldChange{Steps: change.Steps}
	m.mu.Lock()
	for _, h := range slices.Concat(change.Put, change.Delete) {
		if newest, ok := m.holds[holdKey{h.Owner, h.Volume}]; ok {
			now.Put = append(now.Put, newest)
		} else {
			now.Delete = append(now.Delete, h)
		}
	}
	m.mu.Unlock()
	return write(now)
}

func (m *Manager) setDirty() {
	m.mu.Lock()
	m.dirty = true
	m.mu.Unlock()
}

// flush writes all holds where an earlier write failed, or into a database begun anew. It
// keeps the lock meanwhile, so that no newer hold is overwritten; it is rare.
func (m *Manager) flush(ctx context.Context) {
	<-m.pen
	defer func() { m.pen <- struct{}{} }()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loaded || !m.dirty && m.journal == m.Journal.Generation() {
		return
	}
	all := make([]model.Hold, 0, len(m.holds))
	for _, h := range m.holds {
		all = append(all, h)
	}
	generation := m.Journal.Generation()
	if err := m.Journal.ReplaceHolds(ctx, all); err == nil {
		m.dirty, m.journal = false, generation
	}
}

// clip keeps a program's stderr readable and the journal small.
func clip(s string) string {
	const limit = 4096
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "?")
	if len(s) <= limit {
		return s
	}
	return fmt.Sprintf("%s... (%d bytes)", s[:limit], len(s))
}

// kindOf finds the error kind of anything the lower packages return.
func kindOf(err error) api.Kind {
	var k interface{ Kind() api.Kind }
	if errors.As(err, &k) {
		return k.Kind()
	}
	var te *run.TimeoutError
	if errors.As(err, &te) {
		return api.KindUnknown
	}
	var nf *run.NotFoundError
	if errors.As(err, &nf) {
		return api.KindLocking
	}
	return api.KindOf(err)
}
