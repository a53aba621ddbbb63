package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

const commandColumns = `id, kind, state, argv, coalesce(hook_call, 0), cause, pid, created_ms, finished_ms, exit_code, stderr, error, outcome,
	side, origin, executor, sequence, peer_state, peer_id, args, deadline_ms, on_disconnect, cancelled, why, changed_ms, attempts, next_ms, progress, answer, acknowledged`

// Commands lists rows of the journal, newest first, at most f.Limit.
func (s *Store) Commands(ctx context.Context, f api.CommandFilter) ([]api.Command, error) {
	where, args := []string{"1"}, []any{}
	if f.Before > 0 {
		where, args = append(where, `id < ?`), append(args, f.Before)
	}
	if !f.Since.IsZero() {
		// Ids grow with time, but for looks, which are written when they have ended: the
		// first few rows of that time have its smallest id among them.
		where = append(where, `created_ms >= ?`, `id >= (SELECT coalesce(min(id), 0) FROM (SELECT id FROM command WHERE created_ms >= ? ORDER BY created_ms LIMIT 1000))`)
		args = append(args, f.Since.UnixMilli(), f.Since.UnixMilli())
	}
	if len(f.States) > 0 {
		states, err := statesOf(f.States)
		if err != nil {
			return nil, err
		}
		where = append(where, states)
	}
	return s.commands(ctx, `SELECT `+commandColumns+` FROM command WHERE `+strings.Join(where, " AND ")+` ORDER BY id DESC LIMIT ?`, append(args, f.Limit)...)
}

// statesOf makes a condition; where the one index of states knows all of them it says so.
func statesOf(names []string) (string, error) {
	wanted := map[model.CommandState]bool{}
	for _, name := range names {
		state := model.CommandState(strings.ToUpper(name))
		switch {
		case strings.EqualFold(name, api.StateOpen):
			for _, s := range model.CommandStates() {
				wanted[s] = wanted[s] || !s.Final()
			}
		case state.Known():
			wanted[state] = true
		default:
			return "", api.NewError(api.KindBadRequest, fmt.Sprintf("%q is not a state of a command; there are %s, and %q for all that have not ended", name, listOf(model.CommandStates()), api.StateOpen))
		}
	}
	condition := `state IN (` + quoted(func(s model.CommandState) bool { return wanted[s] }) + `)`
	if !wanted[model.StateCompleted] {
		condition += ` AND state <> 'COMPLETED'`
	}
	return condition, nil
}

func listOf(states []model.CommandState) string {
	all := make([]string, len(states))
	for i, s := range states {
		all[i] = string(s)
	}
	return strings.Join(all, ", ")
}

// Command returns one row with its history; api.KindNotFound if there is none.
func (s *Store) Command(ctx context.Context, id int64) (api.Command, error) {
	all, err := s.commands(ctx, `SELECT `+commandColumns+` FROM command WHERE id = ?`, id)
	if err != nil {
		return api.Command{}, err
	}
	if len(all) == 0 {
		return api.Command{}, api.NewError(api.KindNotFound, fmt.Sprintf("there is no command %d in the journal; 'virtlvm commands' lists them", id))
	}
	all[0].History, err = s.history(ctx, id)
	return all[0], err
}

func (s *Store) commands(ctx context.Context, query string, args ...any) ([]api.Command, error) {
	all := []api.Command{}
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			c, err := scanCommand(rows)
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		return nameTargets(ctx, db, all, func(c *api.Command) (int64, *[]string) { return c.ID, &c.Targets })
	})
	return all, err
}

func scanCommand(rows *sql.Rows) (api.Command, error) {
	c := api.Command{Targets: []string{}}
	var argv, args, progress, answer string
	var created, finished, deadline, changed, next int64
	var acknowledged bool
	if err := rows.Scan(&c.ID, &c.Kind, &c.State, &argv, &c.HookCall, &c.Cause, &c.PID, &created, &finished, &c.ExitCode, &c.Stderr, &c.Error, &c.Outcome,
		&c.Side, &c.Origin, &c.Executor, &c.Sequence, &c.PeerState, &c.PeerID, &args, &deadline, &c.OnDisconnect, &c.Cancelled, &c.Why, &changed,
		&c.Attempts, &next, &progress, &answer, &acknowledged); err != nil {
		return c, err
	}
	c.Created, c.Finished = fromMillis(created), fromMillis(finished)
	if err := json.Unmarshal([]byte(argv), &c.Argv); err != nil {
		return c, err
	}
	if c.Side == string(model.SideStep) {
		c.Side, c.OnDisconnect = "", ""
		return c, nil
	}
	c.Deadline, c.Changed, c.Next = fromMillis(deadline), fromMillis(changed), fromMillis(next)
	c.Args, c.Answer, c.Unacknowledged = raw(args), raw(answer), !acknowledged
	if progress == "" {
		return c, nil
	}
	var p model.Progress
	err := json.Unmarshal([]byte(progress), &p)
	c.Progress = ProgressOf(p)
	return c, err
}

// ProgressOf is a progress as the API tells it; nil if nothing is known.
func ProgressOf(p model.Progress) *api.Progress {
	if p == (model.Progress{}) {
		return nil
	}
	a := &api.Progress{Done: p.Done, Total: p.Total, Speed: p.Speed, Phase: p.Phase, At: p.At, Moved: p.Moved}
	if p.Speed > 0 && p.Total > p.Done {
		a.Left = (p.Total - p.Done + p.Speed - 1) / p.Speed
	}
	return a
}

func (s *Store) history(ctx context.Context, id int64) ([]api.Transition, error) {
	var all []api.Transition
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, `SELECT at_ms, from_state, to_state, cause FROM command_transition WHERE command = ? ORDER BY id`, id)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var t api.Transition
			var at int64
			if err := rows.Scan(&at, &t.From, &t.To, &t.Cause); err != nil {
				return err
			}
			t.Time = fromMillis(at)
			all = append(all, t)
		}
		return rows.Err()
	})
	return all, err
}

// Events lists the transitions after an event, or with after below 0 the newest ones, oldest
// first.
func (s *Store) Events(ctx context.Context, after int64, limit int) ([]api.Event, error) {
	all := []api.Event{}
	err := s.read(ctx, func(db *sql.DB) error {
		from := `SELECT * FROM command_transition WHERE id > ? ORDER BY id LIMIT ?`
		if after < 0 {
			from = `SELECT * FROM command_transition WHERE id > ? ORDER BY id DESC LIMIT ?`
		}
		rows, err := db.QueryContext(ctx, `SELECT t.id, t.at_ms, t.command, c.kind, c.side, t.from_state, t.to_state, t.cause
			FROM (`+from+`) t JOIN command c ON c.id = t.command ORDER BY t.id`, after, limit)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			e := api.Event{Targets: []string{}}
			var at int64
			if err := rows.Scan(&e.ID, &at, &e.Command, &e.Kind, &e.Side, &e.From, &e.To, &e.Cause); err != nil {
				return err
			}
			e.Time = fromMillis(at)
			all = append(all, e)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		return nameTargets(ctx, db, all, func(e *api.Event) (int64, *[]string) { return e.Command, &e.Targets })
	})
	return all, err
}

// nameTargets fills in the names of the targets of many commands with one query; of says which
// command a row is of, and where the names belong.
func nameTargets[T any](ctx context.Context, q querier, all []T, of func(*T) (command int64, names *[]string)) error {
	var ids []int64
	wanted := map[int64][]*[]string{}
	for i := range all {
		id, names := of(&all[i])
		if wanted[id] == nil {
			ids = append(ids, id)
		}
		wanted[id] = append(wanted[id], names)
	}
	list, err := json.Marshal(ids)
	if err != nil || len(ids) == 0 {
		return err
	}
	rows, err := q.QueryContext(ctx, `SELECT command, name FROM command_target WHERE command IN (SELECT value FROM json_each(?)) ORDER BY command, name`, string(list))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int64
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return err
		}
		for _, names := range wanted[id] {
			*names = append(*names, name)
		}
	}
	return rows.Err()
}

func targets(ctx context.Context, q querier, id int64) ([]model.Target, error) {
	rows, err := q.QueryContext(ctx, `SELECT vg_uuid, lv_uuid, name, shared FROM command_target WHERE command = ? ORDER BY name`, id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []model.Target
	for rows.Next() {
		var t model.Target
		if err := rows.Scan(&t.Volume.VG, &t.Volume.LV, &t.Name, &t.Shared); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, rows.Err()
}
