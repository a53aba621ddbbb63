package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"virtlvm/internal/api"
)

// Verdicts of a hook call, as the database knows them.
const (
	VerdictRunning     = "running"
	VerdictAllowed     = "allowed"
	VerdictRefused     = "refused"
	VerdictNoted       = "noted"       // an operation libvirt does not wait for
	VerdictBypassed    = "bypassed"    // break-glass was on
	VerdictGone        = "gone"        // the hook had gone before there was a verdict
	VerdictInterrupted = "interrupted" // the daemon ended before there was a verdict
)

// HookVerdict is how a hook call ended.
type HookVerdict struct {
	Verdict string
	Message string // the refusal
}

// Query is a command that only looked; it is written after the fact.
type Query struct {
	Intent
	Result
	Started  time.Time
	Duration time.Duration
}

// AddHookCall writes that a call has come in, before anything is done for it. The first
// intent syncs it too.
func (s *Store) AddHookCall(ctx context.Context, c api.HookCall) (id int64, err error) {
	err = s.transact(ctx, soon, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `INSERT INTO hook_call (guest, uuid, op, sub_op, extra, boot_id, uptime_ms,
			libvirtd_pid, libvirtd_start, spooled, received_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			text(c.Guest), text(c.UUID), text(c.Op), text(c.SubOp), text(c.Extra), c.Stamp.BootID, c.Stamp.UptimeMillis,
			c.Stamp.LibvirtdPID, int64(c.Stamp.LibvirtdStart), c.Spooled, s.opts.Now().UnixMilli()) //nolint:gosec // clock ticks since boot fit
		if err != nil {
			return err
		}
		id, err = res.LastInsertId()
		return err
	})
	return id, err
}

// FinishHookCall writes how a call ended, what was looked at on its behalf, and what the
// verdict means for the holds. It syncs where something was changed for the call.
func (s *Store) FinishHookCall(ctx context.Context, id int64, v HookVerdict, queries []Query, holds HoldChange) error {
	return s.transact(ctx, s.verdict(), func(tx *sql.Tx) error {
		if err := changeHolds(ctx, tx, holds); err != nil {
			return err
		}
		if err := addQueries(ctx, tx, queries); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE hook_call SET verdict = ?, message = ?, finished_ms = ? WHERE id = ?`,
			v.Verdict, v.Message, s.opts.Now().UnixMilli(), id)
		return err
	})
}

// AddQueries writes what was looked at on behalf of an operator.
func (s *Store) AddQueries(ctx context.Context, queries []Query) error {
	if len(queries) == 0 {
		return nil
	}
	return s.transact(ctx, soon, func(tx *sql.Tx) error { return addQueries(ctx, tx, queries) })
}

// InterruptHookCalls closes the calls that an earlier daemon left running.
func (s *Store) InterruptHookCalls(ctx context.Context) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE hook_call SET verdict = ?, finished_ms = ? WHERE verdict = ?`,
			VerdictInterrupted, s.opts.Now().UnixMilli(), VerdictRunning)
		return err
	})
}

// HookCalls lists the newest calls, at most limit; guest "" means all guests.
func (s *Store) HookCalls(ctx context.Context, limit int, guest string) ([]api.HookRecord, error) {
	all := []api.HookRecord{}
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, `SELECT id, guest, uuid, op, sub_op, extra, received_ms, finished_ms, verdict, message, spooled
			FROM hook_call WHERE ? = '' OR guest = ? ORDER BY id DESC LIMIT ?`, guest, guest, limit)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var r api.HookRecord
			var received, finished int64
			if err := rows.Scan(&r.ID, &r.Guest, &r.UUID, &r.Op, &r.SubOp, &r.Extra, &received, &finished, &r.Verdict, &r.Message, &r.Spooled); err != nil {
				return err
			}
			r.Received = fromMillis(received)
			if finished > 0 {
				r.Duration = time.Duration(finished-received) * time.Millisecond
			}
			all = append(all, r)
		}
		return rows.Err()
	})
	return all, err
}

// Prune removes rows that ended before a time, a bounded number at once so that no hook
// waits for it. What has not ended, or is not acknowledged, stays. Then it gives free pages
// back. It reports whether there may be more.
func (s *Store) Prune(ctx context.Context, before time.Time) (more bool, err error) {
	const batch = 500
	err = s.write(ctx, func(tx *sql.Tx) error {
		for _, q := range []string{
			`DELETE FROM command WHERE id IN (SELECT id FROM command WHERE created_ms < ?1 AND finished_ms < ?1
				AND state IN ('COMPLETED', 'FAILED', 'RECONCILED') AND acknowledged = 1 LIMIT ?2)`,
			`DELETE FROM hook_call WHERE id IN (SELECT id FROM hook_call WHERE received_ms < ?1 AND verdict <> 'running' LIMIT ?2)`,
			`DELETE FROM handoff_step WHERE id IN (SELECT id FROM handoff_step WHERE at_ms < ?1 LIMIT ?2)`,
		} {
			res, err := tx.ExecContext(ctx, q, before.UnixMilli(), batch)
			if err != nil {
				return err
			}
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			more = more || n == batch
		}
		return nil
	})
	if err != nil || more {
		return more, err
	}
	return s.shrink(ctx)
}

// shrink gives a bounded number of free pages back to the disk; some are kept for what is
// written next.
func (s *Store) shrink(ctx context.Context) (more bool, err error) {
	const atOnce, keep = 128, 1024 // pages of 4 KiB
	err = s.write(ctx, func(tx *sql.Tx) error {
		var free, all int64
		if err := tx.QueryRowContext(ctx, `SELECT (SELECT * FROM pragma_freelist_count), (SELECT * FROM pragma_page_count)`).Scan(&free, &all); err != nil {
			return err
		}
		surplus := free - keep - all/10
		if surplus <= 0 {
			return nil
		}
		more = surplus > atOnce
		// It frees a page with each row that is read.
		rows, err := tx.QueryContext(ctx, fmt.Sprintf(`PRAGMA incremental_vacuum(%d)`, min(surplus, atOnce)))
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() { // see above
		}
		return rows.Err()
	})
	return more, err
}

func addQueries(ctx context.Context, tx *sql.Tx, queries []Query) error {
	for _, q := range queries {
		if _, err := insertStep(ctx, tx, q.Intent, q.Result, q.Started, q.Started.Add(q.Duration).UnixMilli()); err != nil {
			return err
		}
	}
	return nil
}

// text makes any bytes a valid SQLite text: a guest's name is whatever its owner typed.
func text(s string) string { return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "�"), "�") }

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func splitName(name string) (vg, lv string) {
	vg, lv, _ = strings.Cut(name, "/")
	return vg, lv
}
