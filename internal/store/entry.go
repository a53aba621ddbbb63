package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// Entry is a command with an origin and an executor, as one of them has it in its journal.
// Its state changes by Become alone.
type Entry struct {
	ID       int64
	Side     model.Side
	Kind     string
	State    model.CommandState
	Args     json.RawMessage
	Planned  bool            // the kind has planned it: Plan and Targets are known
	Plan     json.RawMessage // what the kind has found out
	Targets  []model.Target
	Backend  bool // runs outside of the daemon
	Origin   string
	Sequence int64
	Executor string
	// PeerState is what the executor last said, at the origin; PeerID its row.
	PeerState      model.CommandState
	PeerID         int64
	PeerGeneration string // of the host at the other end when it was asked
	Cause, BootID  string
	Created        time.Time
	Changed        time.Time // of the state; Why says why
	Finished       time.Time
	Deadline       time.Time
	OnDisconnect   model.Disconnect
	Cancelled      string
	Attempts       int
	Next           time.Time
	Progress       model.Progress
	Answer         json.RawMessage
	Error, Outcome string
	Why            string
	Acknowledged   bool

	steps []step
}

// step is a transition to be written, or a remark.
type step struct {
	from, to model.CommandState
	why      string
}

// Become takes the entry to the next state. A transition that is not legal is an error of
// kind bad_request.
func (e *Entry) Become(next model.CommandState, why string) error {
	if !e.State.CanBecome(next) {
		return api.NewError(api.KindBadRequest, fmt.Sprintf("command %d is %s and cannot become %s", e.ID, e.State, next))
	}
	e.steps = append(e.steps, step{e.State, next, text(why)})
	e.State = next
	return nil
}

// Remark adds a line to the entry's history without a transition.
func (e *Entry) Remark(what string) {
	e.steps = append(e.steps, step{e.State, e.State, text(what)})
}

const entryColumns = `id, side, kind, state, args, planned, plan, backend, origin, sequence, executor, peer_state, peer_id, peer_generation,
	cause, boot_id, created_ms, changed_ms, finished_ms, deadline_ms, on_disconnect, cancelled, attempts, next_ms, progress, answer, error, outcome, why, acknowledged`

// AddEntry writes a new command. One with the same origin and sequence is no error: it is
// returned as it is, existed true. A command that has not ended and has the same target
// refuses the new one, with kind in_use.
func (s *Store) AddEntry(ctx context.Context, e Entry) (added Entry, existed bool, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		var err error
		added, err = entryOf(ctx, tx, `origin = ? AND sequence = ? AND side <> 'step'`, e.Origin, e.Sequence)
		if existed = err == nil; existed || !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if err := taken(ctx, tx, e.Targets); err != nil {
			return err
		}
		added, err = s.insertEntry(ctx, tx, e)
		return err
	})
	return added, existed, err
}

func (s *Store) insertEntry(ctx context.Context, tx *sql.Tx, e Entry) (Entry, error) {
	now := s.opts.Now()
	if e.Created.IsZero() {
		e.Created = now
	}
	e.Changed = now
	if e.OnDisconnect == "" {
		e.OnDisconnect = model.DisconnectContinue
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO command (kind, state, argv, cause, boot_id, created_ms, changed_ms, why, side, origin, sequence, executor,
		peer_generation, args, planned, plan, backend, deadline_ms, on_disconnect, cancelled, acknowledged)
		VALUES (?, ?, '[]', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.Kind, e.State, text(e.Cause), e.BootID, e.Created.UnixMilli(), now.UnixMilli(), text(e.Why), e.Side, e.Origin, e.Sequence, e.Executor,
		e.PeerGeneration, object(e.Args), e.Planned, string(e.Plan), e.Backend, millis(e.Deadline), e.OnDisconnect, text(e.Cancelled), e.Acknowledged)
	if err != nil {
		return Entry{}, err
	}
	if e.ID, err = res.LastInsertId(); err != nil {
		return Entry{}, err
	}
	return e, setTargets(ctx, tx, e.ID, e.Targets)
}

// Change lets fn change the entry with this id and writes what it has changed, in one
// transaction; nothing if fn returns an error, which is returned as it is. Errors: not_found.
func (s *Store) Change(ctx context.Context, id int64, fn func(*Entry) error) (changed Entry, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		e, err := entryOf(ctx, tx, `id = ? AND side <> 'step'`, id)
		if errors.Is(err, sql.ErrNoRows) {
			return noEntry(id)
		}
		if err != nil {
			return err
		}
		before := e
		if err := fn(&e); err != nil {
			return err
		}
		if !reflect.DeepEqual(before, e) {
			if err := s.writeEntry(ctx, tx, &e, e.Planned && !before.Planned); err != nil {
				return err
			}
		}
		changed = e
		return nil
	})
	return changed, err
}

func noEntry(id int64) error {
	return api.NewError(api.KindNotFound, fmt.Sprintf("there is no command %d that goes on by itself; 'virtlvm commands' lists the journal", id))
}

func (s *Store) writeEntry(ctx context.Context, tx *sql.Tx, e *Entry, targets bool) error {
	now := s.opts.Now()
	for _, t := range e.steps {
		q, args := `UPDATE command SET state = ?, why = ?, changed_ms = ? WHERE id = ? AND state = ?`, []any{t.to, t.why, now.UnixMilli(), e.ID, t.from}
		if t.from == t.to {
			q = `INSERT INTO command_transition (command, at_ms, from_state, to_state, cause) VALUES (?, ?, ?, ?, ?)`
			args = []any{e.ID, now.UnixMilli(), t.from, t.to, t.why}
		} else {
			e.Changed, e.Why = now, t.why
		}
		if _, err := tx.ExecContext(ctx, q, args...); err != nil {
			return err
		}
	}
	e.steps = nil
	if e.State.Final() && e.Finished.IsZero() {
		e.Finished = now
	}
	progress := ""
	if e.Progress != (model.Progress{}) {
		data, err := json.Marshal(e.Progress)
		if err != nil {
			return err
		}
		progress = string(data)
	}
	if _, err := tx.ExecContext(ctx, `UPDATE command SET planned = ?, plan = ?, backend = ?, peer_state = ?, peer_id = ?, peer_generation = ?, finished_ms = ?,
		deadline_ms = ?, cancelled = ?, attempts = ?, next_ms = ?, progress = ?, answer = ?, error = ?, outcome = ?, acknowledged = ? WHERE id = ?`,
		e.Planned, string(e.Plan), e.Backend, e.PeerState, e.PeerID, e.PeerGeneration, millis(e.Finished), millis(e.Deadline), text(e.Cancelled),
		e.Attempts, millis(e.Next), progress, string(e.Answer), text(e.Error), text(e.Outcome), e.Acknowledged, e.ID); err != nil {
		return err
	}
	if !targets {
		return nil
	}
	return setTargets(ctx, tx, e.ID, e.Targets)
}

func setTargets(ctx context.Context, tx *sql.Tx, id int64, targets []model.Target) error {
	for _, t := range targets {
		if _, err := tx.ExecContext(ctx, `INSERT OR IGNORE INTO command_target (command, vg_uuid, lv_uuid, name, shared) VALUES (?, ?, ?, ?, ?)`,
			id, t.Volume.VG, t.Volume.LV, text(t.Name), t.Shared); err != nil {
			return err
		}
	}
	return nil
}

// taken is an error if another command that has not ended has one of the targets.
func taken(ctx context.Context, tx *sql.Tx, targets []model.Target) error {
	for _, t := range targets {
		var id int64
		var kind, state string
		err := tx.QueryRowContext(ctx, `SELECT c.id, c.kind, c.state FROM command c JOIN command_target t ON t.command = c.id
			WHERE c.state <> 'COMPLETED' AND c.state IN (`+openStates+`) AND c.side <> 'step' AND t.vg_uuid = ? AND t.lv_uuid = ? AND NOT (t.shared AND ?)
			ORDER BY c.id LIMIT 1`, t.Volume.VG, t.Volume.LV, t.Shared).Scan(&id, &kind, &state)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return err
		}
		return api.NewError(api.KindInUse, fmt.Sprintf("%s belongs to command %d (%s, %s), which has not ended; wait for it, or see 'virtlvm command %d'", t.Name, id, kind, state, id))
	}
	return nil
}

// openStates are all that are not final, as a list for IN.
var openStates = quoted(func(s model.CommandState) bool { return !s.Final() })

func quoted(which func(model.CommandState) bool) string {
	var names []string
	for _, state := range model.CommandStates() {
		if which(state) {
			names = append(names, "'"+string(state)+"'")
		}
	}
	return strings.Join(names, ", ")
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// entryOf reads one entry; sql.ErrNoRows if there is none.
func entryOf(ctx context.Context, q querier, where string, args ...any) (Entry, error) {
	all, err := entries(ctx, q, where, args...)
	if err == nil && len(all) == 0 {
		err = sql.ErrNoRows
	}
	if err != nil {
		return Entry{}, err
	}
	return all[0], nil
}

func entries(ctx context.Context, q querier, where string, args ...any) ([]Entry, error) {
	rows, err := q.QueryContext(ctx, `SELECT `+entryColumns+` FROM command WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []Entry
	for rows.Next() {
		e, err := scanEntry(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Targets, err = targets(ctx, q, all[i].ID); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func scanEntry(rows *sql.Rows) (Entry, error) {
	var e Entry
	var args, plan, progress, answer string
	var created, changed, finished, deadline, next int64
	if err := rows.Scan(&e.ID, &e.Side, &e.Kind, &e.State, &args, &e.Planned, &plan, &e.Backend, &e.Origin, &e.Sequence, &e.Executor, &e.PeerState, &e.PeerID,
		&e.PeerGeneration, &e.Cause, &e.BootID, &created, &changed, &finished, &deadline, &e.OnDisconnect, &e.Cancelled, &e.Attempts, &next, &progress, &answer,
		&e.Error, &e.Outcome, &e.Why, &e.Acknowledged); err != nil {
		return e, err
	}
	e.Created, e.Changed, e.Finished, e.Deadline, e.Next = fromMillis(created), fromMillis(changed), fromMillis(finished), fromMillis(deadline), fromMillis(next)
	e.Args, e.Plan, e.Answer = raw(args), raw(plan), raw(answer)
	if progress != "" {
		return e, json.Unmarshal([]byte(progress), &e.Progress)
	}
	return e, nil
}

func raw(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

func object(args json.RawMessage) string {
	if len(args) == 0 {
		return "{}"
	}
	return string(args)
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
