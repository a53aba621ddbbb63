package store

import (
	"context"
	"database/sql"
)

// Rows counts the rows of the tables that grow.
func (s *Store) Rows(ctx context.Context) (map[string]int64, error) {
	rows := map[string]int64{}
	err := s.read(ctx, func(db *sql.DB) error {
		for _, table := range []string{"command", "hook_call", "handoff_step"} {
			var n int64
			if err := db.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&n); err != nil {
				return err
			}
			rows[table] = n
		}
		return nil
	})
	return rows, err
}
