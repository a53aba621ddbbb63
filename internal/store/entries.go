package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"virtlvm/internal/model"
)

// Entry returns a command with an origin and an executor. Errors: not_found.
func (s *Store) Entry(ctx context.Context, id int64) (e Entry, err error) {
	err = s.read(ctx, func(db *sql.DB) error {
		e, err = entryOf(ctx, db, `id = ? AND side <> 'step'`, id)
		if errors.Is(err, sql.ErrNoRows) {
			return noEntry(id)
		}
		return err
	})
	return e, err
}

// EntryOf returns the command of a request; found false if there is none.
func (s *Store) EntryOf(ctx context.Context, origin string, sequence int64) (e Entry, found bool, err error) {
	err = s.read(ctx, func(db *sql.DB) error {
		e, err = entryOf(ctx, db, `origin = ? AND sequence = ? AND side <> 'step'`, origin, sequence)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		found = err == nil
		return err
	})
	return e, found, err
}

// Task is an entry that somebody has to look after: it has not ended, or the other host does not
// know how.
type Task struct {
	ID    int64
	Side  model.Side
	State model.CommandState
	Peer  string    // the host at the other end; "" for local
	Next  time.Time // not before
	// Disconnect: it shall be cancelled when its origin is lost.
	Disconnect bool
}

// Tasks returns all of them, oldest first.
func (s *Store) Tasks(ctx context.Context) ([]Task, error) {
	var all []Task
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, `SELECT id, side, state, CASE side WHEN 'origin' THEN executor WHEN 'executor' THEN origin ELSE '' END, next_ms, on_disconnect = 'cancel'
			FROM command WHERE side <> 'step' AND id IN (
				SELECT id FROM command WHERE state <> 'COMPLETED' AND state IN (`+openStates+`) UNION SELECT id FROM command WHERE acknowledged = 0)
			ORDER BY id`)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var t Task
			var next int64
			if err := rows.Scan(&t.ID, &t.Side, &t.State, &t.Peer, &next, &t.Disconnect); err != nil {
				return err
			}
			t.Next = fromMillis(next)
			all = append(all, t)
		}
		return rows.Err()
	})
	return all, err
}

// Interrupt writes what the end of the last daemon means for the commands that it ran: those
// inside of it are interrupted, those with a backend dangle, and what was being found out is
// to be looked at again. It returns how many there were.
func (s *Store) Interrupt(ctx context.Context, why string) (count int64, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		now := s.opts.Now().UnixMilli()
		for from, to := range map[model.CommandState]model.CommandState{
			model.StateProcessing:  model.StateInterrupted,
			model.StateBackend:     model.StateDangled,
			model.StateReconciling: model.StateReconcileRetry,
		} {
			res, err := tx.ExecContext(ctx, `UPDATE command SET state = ?, why = ?, changed_ms = ?, next_ms = 0
				WHERE state = ? AND state <> 'COMPLETED' AND side <> 'step'`, to, why, now, from)
			if err != nil {
				return err
			}
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			count += n
		}
		return nil
	})
	return count, err
}

// LastSequence is the highest sequence of the requests of an origin; 0 if there are none.
func (s *Store) LastSequence(ctx context.Context, origin string) (last int64, err error) {
	err = s.read(ctx, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, `SELECT coalesce(max(sequence), 0) FROM command WHERE origin = ? AND side <> 'step'`, origin).Scan(&last)
	})
	return last, err
}

// Disconnectable returns the running commands of this host that shall be cancelled when their
// origin is lost.
func (s *Store) Disconnectable(ctx context.Context) (all []Entry, err error) {
	err = s.read(ctx, func(db *sql.DB) error {
		all, err = entries(ctx, db, `state <> 'COMPLETED' AND state IN ('STARTED', 'PROCESSING', 'PROCESSING_IN_BACKEND', 'DANGLED_IN_BACKEND')
			AND side IN ('local', 'executor') AND on_disconnect = 'cancel'`)
		return err
	})
	return all, err
}
