package store

import (
	"context"
	"database/sql"
	"slices"

	"virtlvm/internal/model"
)

const stepColumns = `attempt, uuid, guest, side, peer, step, detail, at_ms`

// HandoffSteps lists the newest steps of the migrations of a guest, by its name or uuid, or of all with "",
// oldest first, at most limit.
func (s *Store) HandoffSteps(ctx context.Context, guest string, limit int) ([]model.HandoffStep, error) {
	var all []model.HandoffStep
	err := s.read(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, `SELECT `+stepColumns+` FROM handoff_step WHERE ?1 = '' OR guest = ?1 OR uuid = ?1 ORDER BY id DESC LIMIT ?2`, guest, limit)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var st model.HandoffStep
			if err := rows.Scan(&st.Attempt, &st.UUID, &st.Guest, &st.Side, &st.Peer, &st.Step, &st.Detail, &st.AtMillis); err != nil {
				return err
			}
			all = append(all, st)
		}
		return rows.Err()
	})
	slices.Reverse(all)
	return all, err
}

func addSteps(ctx context.Context, tx *sql.Tx, steps []model.HandoffStep) error {
	for _, st := range steps {
		if _, err := tx.ExecContext(ctx, `INSERT INTO handoff_step (`+stepColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			st.Attempt, text(st.UUID), text(st.Guest), st.Side, st.Peer, st.Step, text(st.Detail), st.AtMillis); err != nil {
			return err
		}
	}
	return nil
}
