package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/mattn/go-sqlite3"

	"virtlvm/internal/api"
)

// Connection settings: WAL so that readers never wait, FULL so that an intent is on disk
// before its effect, IMMEDIATE so that a transaction that will write queues at its start. The
// few statements there are stay prepared. Pages that become free are given back little by
// little (Store.shrink), never by a VACUUM that everybody would wait for.
const (
	writerParams = "_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000&_foreign_keys=on&_txlock=immediate&_stmt_cache_size=64&_auto_vacuum=incremental"
	readerParams = "mode=ro&_query_only=on&_busy_timeout=5000&_stmt_cache_size=16"
	readers      = 4
)

// openDatabase opens or makes the database; anew: in place of a corrupt one.
func openDatabase(ctx context.Context, opts Options) (p *pools, anew bool, err error) {
	p, err = connect(ctx, opts)
	if err == nil {
		return p, false, nil
	}
	if isCorrupt(err) {
		aside := fmt.Sprintf("%s.corrupt-%s", opts.Path, opts.Now().UTC().Format("20060102T150405.000"))
		if rerr := setAside(opts.Path, aside); rerr != nil {
			return nil, false, unusable(opts.Path, rerr)
		}
		opts.Notice(fmt.Sprintf("the journal %s is corrupt (%v): set aside as %s and begun anew; what runs is found out by looking", opts.Path, err, aside))
		if p, err = connect(ctx, opts); err == nil {
			return p, true, nil
		}
	}
	var newer *NewerSchemaError
	if errors.As(err, &newer) {
		return nil, false, err
	}
	return nil, false, unusable(opts.Path, err)
}

func connect(ctx context.Context, opts Options) (*pools, error) {
	writer, err := sql.Open("sqlite3", dsn(opts.Path, writerParams))
	if err != nil {
		return nil, err
	}
	writer.SetMaxOpenConns(1)
	if err := prepare(ctx, writer, opts.Path); err != nil {
		_ = writer.Close()
		return nil, err
	}
	// Secrets never reach the journal, but command lines and guest names are nobody's
	// business either.
	if err := os.Chmod(opts.Path, 0o600); err != nil {
		_ = writer.Close()
		return nil, err
	}
	reader, err := sql.Open("sqlite3", dsn(opts.Path, readerParams))
	if err != nil {
		_ = writer.Close()
		return nil, err
	}
	reader.SetMaxOpenConns(readers)
	return &pools{writer: writer, reader: reader}, nil
}

// prepare checks the file and brings its schema up to date.
func prepare(ctx context.Context, db *sql.DB, path string) error {
	var answer string
	// A big journal would delay the daemon's start: there a fault is found when a page
	// with one is used (Store.failed).
	const checkBelow = 16 << 20
	if info, err := os.Stat(path); err == nil && info.Size() > checkBelow {
		return migrate(ctx, db, path)
	}
	if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&answer); err != nil {
		return err
	}
	if answer != "ok" {
		return &corruptError{answer}
	}
	return migrate(ctx, db, path)
}

func dsn(path, params string) string {
	return (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: params}).String()
}

// corruptError is what `PRAGMA quick_check` reports.
type corruptError struct{ detail string }

func (e *corruptError) Error() string { return e.detail }

func isCorrupt(err error) bool {
	var found *corruptError
	if errors.As(err, &found) {
		return true
	}
	var se sqlite3.Error
	return errors.As(err, &se) && (se.Code == sqlite3.ErrCorrupt || se.Code == sqlite3.ErrNotADB)
}

func setAside(path, aside string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		err := os.Rename(path+suffix, aside+suffix)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot set the corrupt journal aside: %w", err)
		}
	}
	return nil
}

func unusable(path string, err error) error {
	return &api.Error{Kind: api.KindDatabase, Message: fmt.Sprintf(
		"cannot open the journal %s: %v; check that its disk is mounted, writable and not full", path, err)}
}
