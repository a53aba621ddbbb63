package store

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"
)

// durability is when a transaction is on the disk. Each is a whole, in its place behind
// those before it, and safe from the end of this process as soon as it is committed; what
// a sync costs is safety from a power failure. A sync covers all that came before it.
// See decision 20.
type durability int

const (
	// soon is for what nobody acts on: on the disk within syncPause.
	soon durability = iota
	// beforeVerdict is for what came of an effect: on the disk before the verdict of a hook
	// call is given, and within syncPause.
	beforeVerdict
	// atOnce is for an intent: on the disk before its effect.
	atOnce
)

// syncPause is the longest that a committed transaction waits for the disk.
const syncPause = 200 * time.Millisecond

// unsynced is what the disk may not have yet.
type unsynced struct {
	results   atomic.Bool // something that must be there before a verdict
	scheduled atomic.Bool // a sync comes within syncPause
}

// transact runs fn in one transaction on the writer. Every failure is api.KindDatabase.
func (s *Store) transact(ctx context.Context, when durability, fn func(*sql.Tx) error) error {
	p, err := s.open(ctx)
	if err != nil {
		return err
	}
	conn, err := p.writer.Conn(ctx)
	if err != nil {
		return s.failed(err)
	}
	defer func() { _ = conn.Close() }() // back to the pool
	if err := p.commit(ctx, conn, when, fn); err != nil {
		return s.failed(err)
	}
	if when != atOnce {
		p.syncSoon()
	}
	return nil
}

// commit runs fn in one transaction. SQLite syncs its log at a commit in mode FULL, and
// not in mode NORMAL, which cannot damage it either.
func (p *pools) commit(ctx context.Context, conn *sql.Conn, when durability, fn func(*sql.Tx) error) error {
	mode := "FULL"
	if when != atOnce {
		mode = "NORMAL"
	}
	// Each time: what the last one left behind is never relied on.
	if _, err := conn.ExecContext(ctx, `PRAGMA synchronous = `+mode); err != nil {
		return err
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no-op after Commit
	if err := fn(tx); err != nil {
		return err
	}
	if when == beforeVerdict {
		p.unsynced.results.Store(true) // before the commit, which may fail half-way
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if when == atOnce {
		p.unsynced.results.Store(false)
	}
	return nil
}

// verdict is the durability of a verdict: what it tells of is on the disk first.
func (s *Store) verdict() durability {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pools != nil && s.pools.unsynced.results.Load() {
		return atOnce
	}
	return soon
}

// syncSoon brings what was committed to the disk within syncPause: one sync for all that
// comes until then.
func (p *pools) syncSoon() {
	if p.unsynced.scheduled.Swap(true) {
		return
	}
	time.AfterFunc(syncPause, func() {
		p.unsynced.scheduled.Store(false)
		ctx := context.Background()
		conn, err := p.writer.Conn(ctx)
		if err != nil {
			return // closed meanwhile, which syncs
		}
		defer func() { _ = conn.Close() }()
		// Whoever writes next finds out by himself what is wrong with the disk.
		_ = p.commit(ctx, conn, atOnce, touch(ctx))
	})
}

// touch is the smallest write: the header page with the value it has.
func touch(ctx context.Context) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		var v int
		if err := tx.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&v); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA user_version = %d`, v))
		return err
	}
}
