package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"virtlvm/internal/model"
)

// Intent is a command before it runs.
type Intent struct {
	Kind     string // "activate", "deactivate", "query", "lockstart"
	Argv     []string
	Targets  []model.Volume
	HookCall int64 // 0: none
	Cause    string
	BootID   string
}

// Result is what came of a command.
type Result struct {
	State    model.CommandState
	ExitCode int // -1: it did not run or did not end
	Stderr   string
	Error    string // our reading of a failure
	Outcome  string // what was observed afterwards
}

// OpenCommand is a command whose end is not in the journal.
type OpenCommand struct {
	ID       int64
	Kind     string
	State    model.CommandState
	Argv     []string
	BootID   string
	PID      int    // 0: it may never have started
	PIDStart uint64 // clock ticks since boot
	Targets  []model.Volume
}

// Begin writes an intent, and the holds it serves, in one transaction, and syncs it. One
// without targets is a request that changes nothing by itself: its sync is that of the first
// intent it leads to.
func (s *Store) Begin(ctx context.Context, in Intent, holds HoldChange) (id int64, err error) {
	when := atOnce
	if len(in.Targets) == 0 {
		when = soon
	}
	err = s.transact(ctx, when, func(tx *sql.Tx) error {
		if err := changeHolds(ctx, tx, holds); err != nil {
			return err
		}
		id, err = insertCommand(ctx, tx, in, s.opts.Now())
		return err
	})
	return id, err
}

// Running records the process that runs a command. After a power failure there is none.
func (s *Store) Running(ctx context.Context, id int64, pid int, start uint64) error {
	return s.transact(ctx, soon, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE command SET state = ?, changed_ms = ?, pid = ?, pid_start = ? WHERE id = ?`,
			model.StateProcessing, s.opts.Now().UnixMilli(), pid, int64(start), id) //nolint:gosec // clock ticks since boot fit
		return err
	})
}

// Finish writes a command's result, what it means for the holds, and what was looked at for it, in one
// transaction.
func (s *Store) Finish(ctx context.Context, id int64, r Result, holds HoldChange, queries ...Query) error {
	return s.transact(ctx, beforeVerdict, func(tx *sql.Tx) error {
		if err := changeHolds(ctx, tx, holds); err != nil {
			return err
		}
		if err := addQueries(ctx, tx, queries); err != nil {
			return err
		}
		return finishCommand(ctx, tx, id, r, s.opts.Now())
	})
}

func insertCommand(ctx context.Context, tx *sql.Tx, in Intent, now time.Time) (int64, error) {
	id, err := insertStep(ctx, tx, in, Result{State: model.StateStarted, ExitCode: -1}, now, 0)
	if err != nil {
		return 0, err
	}
	if len(in.Targets) == 0 {
		return id, nil
	}
	insert, err := tx.PrepareContext(ctx, `INSERT OR IGNORE INTO command_target (command, vg_uuid, lv_uuid, name) VALUES (?, ?, ?, ?)`)
	if err != nil {
		return 0, err
	}
	defer func() { _ = insert.Close() }()
	for _, v := range in.Targets {
		if _, err := insert.ExecContext(ctx, id, v.ID.VG, v.ID.LV, v.Name()); err != nil {
			return 0, err
		}
	}
	return id, nil
}

// insertStep writes a row as it is; one that has ended already has no transitions.
func insertStep(ctx context.Context, tx *sql.Tx, in Intent, r Result, created time.Time, finished int64) (int64, error) {
	argv, err := json.Marshal(in.Argv)
	if err != nil {
		return 0, err
	}
	hook := sql.NullInt64{Int64: in.HookCall, Valid: in.HookCall != 0}
	res, err := tx.ExecContext(ctx, `INSERT INTO command (kind, state, argv, hook_call, cause, boot_id, created_ms, changed_ms, finished_ms,
		exit_code, stderr, error, outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, in.Kind, r.State, string(argv), hook, in.Cause, in.BootID,
		created.UnixMilli(), max(created.UnixMilli(), finished), finished, r.ExitCode, r.Stderr, r.Error, r.Outcome)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

func finishCommand(ctx context.Context, tx *sql.Tx, id int64, r Result, now time.Time) error {
	// A program that ended before its pid was recorded skips nothing: the row passes
	// through PROCESSING here.
	if _, err := tx.ExecContext(ctx, `UPDATE command SET state = ?, changed_ms = ? WHERE id = ? AND state = ?`,
		model.StateProcessing, now.UnixMilli(), id, model.StateStarted); err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `UPDATE command SET state = ?, changed_ms = ?, finished_ms = ?, exit_code = ?, stderr = ?, error = ?, outcome = ? WHERE id = ?`,
		r.State, now.UnixMilli(), now.UnixMilli(), r.ExitCode, r.Stderr, r.Error, r.Outcome, id)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("command %d is not in the journal", id))
	}
	return nil
}

// OpenCommands returns the steps that have not ended, oldest first.
func (s *Store) OpenCommands(ctx context.Context) ([]OpenCommand, error) {
	var all []OpenCommand
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, `SELECT id, kind, state, argv, boot_id, pid, pid_start FROM command
			WHERE state <> 'COMPLETED' AND state IN ('STARTED', 'PROCESSING', 'TIMED_OUT', 'INTERRUPTED') AND side = 'step' ORDER BY id`)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var c OpenCommand
			var argv string
			var start int64
			if err := rows.Scan(&c.ID, &c.Kind, &c.State, &argv, &c.BootID, &c.PID, &start); err != nil {
				return err
			}
			c.PIDStart = uint64(start) //nolint:gosec // written from a uint64 below 2^63
			if err := json.Unmarshal([]byte(argv), &c.Argv); err != nil {
				return err
			}
			all = append(all, c)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for i := range all {
			found, err := targets(ctx, db, all[i].ID)
			if err != nil {
				return err
			}
			for _, t := range found {
				v := model.Volume{ID: t.Volume}
				v.VG, v.LV = splitName(t.Name)
				all[i].Targets = append(all[i].Targets, v)
			}
		}
		return nil
	})
	return all, err
}
