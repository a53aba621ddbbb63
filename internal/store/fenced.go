package store

import (
	"context"
	"database/sql"

	"virtlvm/internal/model"
)

// Fenced lists the hosts that are declared off, by name.
func (s *Store) Fenced(ctx context.Context) ([]model.Fenced, error) {
	var all []model.Fenced
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, `SELECT host, boot_id, here, by, at_ms FROM fenced ORDER BY host`)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var f model.Fenced
			if err := rows.Scan(&f.Host, &f.BootID, &f.Here, &f.By, &f.At); err != nil {
				return err
			}
			all = append(all, f)
		}
		return rows.Err()
	})
	return all, err
}

// PutFenced declares a host off.
func (s *Store) PutFenced(ctx context.Context, f model.Fenced) error {
	return s.transact(ctx, atOnce, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO fenced (host, boot_id, here, by, at_ms) VALUES (?, ?, ?, ?, ?)`, f.Host, f.BootID, f.Here, f.By, f.At)
		return err
	})
}

// DropFenced forgets the declaration about a host; one that is not there is no error.
func (s *Store) DropFenced(ctx context.Context, host string) error {
	return s.transact(ctx, atOnce, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM fenced WHERE host = ?`, host)
		return err
	})
}
