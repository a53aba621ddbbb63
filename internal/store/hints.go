package store

import (
	"context"
	"database/sql"

	"virtlvm/internal/model"
)

// LockHints lists the hints of a VG by its uuid; "" means all.
func (s *Store) LockHints(ctx context.Context, vgUUID string) ([]model.LockHint, error) {
	var all []model.LockHint
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, `SELECT vg_uuid, lv_uuid, name, host, mode, since_ms, was, wrong_ms
			FROM lock_hint WHERE ? = '' OR vg_uuid = ? ORDER BY name`, vgUUID, vgUUID)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var h model.LockHint
			if err := rows.Scan(&h.Volume.VG, &h.Volume.LV, &h.Name, &h.Host, &h.Mode, &h.Since, &h.Was, &h.WrongAt); err != nil {
				return err
			}
			all = append(all, h)
		}
		return rows.Err()
	})
	return all, err
}

// ChangeLockHints writes hints and removes those of volumes that are gone.
func (s *Store) ChangeLockHints(ctx context.Context, put []model.LockHint, gone []model.VolumeID) error {
	if len(put)+len(gone) == 0 {
		return nil
	}
	return s.write(ctx, func(tx *sql.Tx) error {
		for _, id := range gone {
			if _, err := tx.ExecContext(ctx, `DELETE FROM lock_hint WHERE vg_uuid = ? AND lv_uuid = ?`, id.VG, id.LV); err != nil {
				return err
			}
		}
		insert, err := tx.PrepareContext(ctx, `INSERT OR REPLACE INTO lock_hint (vg_uuid, lv_uuid, name, host, mode, since_ms, was, wrong_ms)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`)
		if err != nil {
			return err
		}
		defer func() { _ = insert.Close() }()
		for _, h := range put { // thousands, at the first look at a large VG
			if _, err := insert.ExecContext(ctx, h.Volume.VG, h.Volume.LV, h.Name, h.Host, h.Mode, h.Since, h.Was, h.WrongAt); err != nil {
				return err
			}
		}
		return nil
	})
}
