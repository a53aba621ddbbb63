package store

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	schema "virtlvm/sql"
)

// NewerSchemaError is a database written by a newer virtlvm. The daemon must not touch
// it.
type NewerSchemaError struct {
	Path       string
	Have, Know int // schema of the file, newest schema this binary knows
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("the journal %s has schema %d, this virtlvm knows %d: it was written by a newer version; install that version again, or move the file away (running guests are found again by looking)",
		e.Path, e.Have, e.Know)
}

type migration struct {
	number int
	name   string
	text   string
}

// SchemaVersion is the newest schema this binary knows.
func SchemaVersion() int {
	all, err := migrations()
	if err != nil || len(all) == 0 {
		return 0
	}
	return all[len(all)-1].number
}

func migrations() ([]migration, error) {
	entries, err := schema.Migrations.ReadDir("migrations")
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, e := range entries {
		digits, _, _ := strings.Cut(e.Name(), "_")
		number, err := strconv.Atoi(digits)
		if err != nil {
			return nil, fmt.Errorf("migration %s has no number: %w", e.Name(), err)
		}
		text, err := schema.Migrations.ReadFile("migrations/" + e.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, migration{number, e.Name(), string(text)})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].number < all[j].number })
	return all, nil
}

// migrate applies what is missing, each migration in its own transaction, after one copy
// of a database that holds anything: the old version can have it back.
func migrate(ctx context.Context, db *sql.DB, path string) error {
	all, err := migrations()
	if err != nil {
		return err
	}
	var have int
	if err := db.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&have); err != nil {
		return err
	}
	know := all[len(all)-1].number
	if have > know {
		return &NewerSchemaError{Path: path, Have: have, Know: know}
	}
	if have > 0 && have < know {
		if err := backup(ctx, db, fmt.Sprintf("%s.schema-%d", path, have)); err != nil {
			return fmt.Errorf("cannot copy the journal of schema %d before it is changed: %w", have, err)
		}
	}
	for _, m := range all {
		if m.number <= have {
			continue
		}
		if err := apply(ctx, db, m); err != nil {
			return fmt.Errorf("cannot apply migration %s: %w", m.name, err)
		}
	}
	if have > 0 && have < know {
		// A file made by an old version learns to shrink only so; nobody is served yet. Where
		// the disk has no room for it the file just stays as large as it is.
		_, _ = db.ExecContext(ctx, `VACUUM`)
	}
	return nil
}

func apply(ctx context.Context, db *sql.DB, m migration) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, m.text); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA user_version = %d`, m.number)); err != nil {
		return err
	}
	return tx.Commit()
}

func backup(ctx context.Context, db *sql.DB, to string) error {
	if err := os.Remove(to); err != nil && !os.IsNotExist(err) {
		return err
	}
	_, err := db.ExecContext(ctx, `VACUUM INTO ?`, to)
	return err
}
