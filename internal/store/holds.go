package store

import (
	"context"
	"database/sql"

	"virtlvm/internal/model"
)

// HoldChange is what one transaction does to the holds.
type HoldChange struct {
	Put    []model.Hold // inserted or replaced
	Delete []model.Hold // by owner and volume
	// Steps of live migrations that come with it.
	Steps []model.HandoffStep
}

// Empty tells that there is nothing to write.
func (c HoldChange) Empty() bool { return len(c.Put)+len(c.Delete)+len(c.Steps) == 0 }

// Holds returns every hold, of this boot and of earlier ones.
func (s *Store) Holds(ctx context.Context) ([]model.Hold, error) {
	var all []model.Hold
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, `SELECT owner, vg_uuid, lv_uuid, lock_lv, guest, name, role, mode, phase,
			boot_id, libvirtd_pid, libvirtd_start, answered_ms, seen, since_ms, grant_id, peer, claim FROM hold ORDER BY owner, name`)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var h model.Hold
			var start int64
			if err := rows.Scan(&h.Owner, &h.Volume.VG, &h.Volume.LV, &h.LockLV, &h.Guest, &h.Name, &h.Role, &h.Mode, &h.Phase,
				&h.BootID, &h.Attempt.LibvirtdPID, &start, &h.Attempt.AnsweredMillis, &h.Attempt.Seen, &h.Since, &h.Grant.ID, &h.Grant.Peer, &h.Claim); err != nil {
				return err
			}
			h.Attempt.LibvirtdStart = uint64(start) //nolint:gosec // clock ticks since boot: written from a uint64 below 2^63
			all = append(all, h)
		}
		return rows.Err()
	})
	return all, err
}

// ChangeHolds applies a change in one transaction.
func (s *Store) ChangeHolds(ctx context.Context, change HoldChange) error {
	return s.transact(ctx, beforeVerdict, func(tx *sql.Tx) error { return changeHolds(ctx, tx, change) })
}

// ReplaceHolds makes the table equal to all, after a time without a database.
func (s *Store) ReplaceHolds(ctx context.Context, all []model.Hold) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM hold`); err != nil {
			return err
		}
		return changeHolds(ctx, tx, HoldChange{Put: all})
	})
}

func changeHolds(ctx context.Context, tx *sql.Tx, change HoldChange) error {
	if len(change.Delete) > 0 {
		remove, err := tx.PrepareContext(ctx, `DELETE FROM hold WHERE owner = ? AND vg_uuid = ? AND lv_uuid = ?`)
		if err != nil {
			return err
		}
		defer func() { _ = remove.Close() }()
		for _, h := range change.Delete {
			if _, err := remove.ExecContext(ctx, h.Owner, h.Volume.VG, h.Volume.LV); err != nil {
				return err
			}
		}
	}
	if len(change.Put) > 0 {
		put, err := tx.PrepareContext(ctx, `INSERT OR REPLACE INTO hold (owner, vg_uuid, lv_uuid, lock_lv, guest, name, role, mode, phase,
			boot_id, libvirtd_pid, libvirtd_start, answered_ms, seen, since_ms, grant_id, peer, claim) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
		if err != nil {
			return err
		}
		defer func() { _ = put.Close() }()
		for _, h := range change.Put {
			if _, err := put.ExecContext(ctx, h.Owner, h.Volume.VG, h.Volume.LV, h.LockLV, h.Guest, h.Name, h.Role, h.Mode, h.Phase,
				h.BootID, h.Attempt.LibvirtdPID, int64(h.Attempt.LibvirtdStart), h.Attempt.AnsweredMillis, h.Attempt.Seen, h.Since, h.Grant.ID, h.Grant.Peer, h.Claim); err != nil { //nolint:gosec // clock ticks since boot fit
				return err
			}
		}
	}
	return addSteps(ctx, tx, change.Steps)
}
