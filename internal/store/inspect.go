package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"virtlvm/internal/model"
)

// Inspector reads a database beside the daemon that writes it, or without one: on a
// connection of its own that can write nothing, so that neither a hook nor a reader of the
// daemon's pools ever waits for it.
type Inspector struct{ db *sql.DB }

// Inspect opens the database at path. There must be one: os.ErrNotExist if not.
func Inspect(path string) (*Inspector, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite3", dsn(path, readerParams))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return &Inspector{db}, nil
}

// Close ends the connection.
func (i *Inspector) Close() error { return i.db.Close() }

// Damage looks through every page (`PRAGMA quick_check`) and names the first faults, ""
// where there are none. It takes a while on a large database; the error of ctx when that
// ends first.
func (i *Inspector) Damage(ctx context.Context) (string, error) {
	rows, err := i.db.QueryContext(ctx, `PRAGMA quick_check(3)`)
	if err != nil {
		return i.unreadable(ctx, err)
	}
	defer func() { _ = rows.Close() }()
	var faults []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return i.unreadable(ctx, err)
		}
		if text != "ok" {
			faults = append(faults, strings.Join(strings.Fields(text), " "))
		}
	}
	if err := rows.Err(); err != nil {
		return i.unreadable(ctx, err)
	}
	return strings.Join(faults, "; "), nil
}

// unreadable tells a damaged database from one that could not be looked at.
func (i *Inspector) unreadable(ctx context.Context, err error) (string, error) {
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case isCorrupt(err):
		return err.Error(), nil
	}
	return "", fmt.Errorf("cannot read the database: %w", err)
}

// LastHook is when the libvirtd of that pid and start time (clock ticks since boot) last
// called the hook in a boot; the zero time if it never did.
func (i *Inspector) LastHook(ctx context.Context, bootID string, pid int, start uint64) (time.Time, error) {
	var at int64
	err := i.db.QueryRowContext(ctx, `SELECT received_ms FROM hook_call
		WHERE libvirtd_pid = ? AND libvirtd_start = ? AND boot_id = ? ORDER BY id DESC LIMIT 1`,
		pid, int64(start), bootID).Scan(&at) //nolint:gosec // clock ticks since boot fit
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("cannot read the hook calls: %w", err)
	}
	return fromMillis(at), nil
}

// Activated reports whether a command of ours, as far back as the journal goes, was to
// activate a volume.
func (i *Inspector) Activated(ctx context.Context, id model.VolumeID) (bool, error) {
	var n int
	err := i.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM command_target t JOIN command c ON c.id = t.command
		WHERE t.vg_uuid = ? AND t.lv_uuid = ? AND c.kind = 'activate')`, id.VG, id.LV).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("cannot read the commands: %w", err)
	}
	return n == 1, nil
}
