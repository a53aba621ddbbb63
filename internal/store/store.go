// Package store keeps the journal and the holds in SQLite. It is a journal and a hint:
// LVM, the lease on disk and libvirt's status files are the truth. The database is opened
// when it is first needed and again after a failure, so that a full or read-only disk
// costs starts (they need the journal) but never the daemon.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"virtlvm/internal/api"
)

// reopenPause is the least time between two tries to open a database that failed.
const reopenPause = 2 * time.Second

// Options inject what tests vary.
type Options struct {
	Path string           // database file; its directory exists
	Now  func() time.Time // default time.Now
	// Notice is told once about something an administrator should know, such as a
	// corrupt database that was set aside. May be nil.
	Notice func(string)
}

// Store is the database. Safe for concurrent use.
type Store struct {
	opts Options

	mu      sync.Mutex
	pools   *pools // nil: not open
	lastTry time.Time
	lastErr error
	// generation counts the databases begun anew in place of a corrupt one.
	generation int
}

// pools are one writer, so that writes queue in the process rather than in SQLite, and
// readers that never wait for it (WAL).
type pools struct {
	writer, reader *sql.DB
	unsynced       unsynced
}

// New makes a store without touching the disk.
func New(opts Options) *Store {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Notice == nil {
		opts.Notice = func(string) {}
	}
	return &Store{opts: opts}
}

// Open opens the database now. Errors: *NewerSchemaError, which must stop the daemon;
// anything else leaves a Store that tries again by itself.
func (s *Store) Open(ctx context.Context) error {
	_, err := s.open(ctx)
	return err
}

// Health is nil while the database can be written; it really writes.
func (s *Store) Health(ctx context.Context) error {
	return s.write(ctx, touch(ctx))
}

// Close checkpoints and closes the database.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pools == nil {
		return nil
	}
	err := errors.Join(s.pools.reader.Close(), s.pools.writer.Close())
	s.pools = nil
	return err
}

func (s *Store) open(ctx context.Context) (*pools, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pools != nil {
		return s.pools, nil
	}
	if s.lastErr != nil && s.opts.Now().Sub(s.lastTry) < reopenPause {
		return nil, s.lastErr
	}
	s.lastTry = s.opts.Now()
	var anew bool
	s.pools, anew, s.lastErr = openDatabase(ctx, s.opts)
	if anew {
		s.generation++
	}
	return s.pools, s.lastErr
}

// Generation changes when a corrupt database was replaced by an empty one: what was in
// it must be written again.
func (s *Store) Generation() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// write runs fn in one transaction that is on the disk when write returns. Every failure is
// api.KindDatabase.
func (s *Store) write(ctx context.Context, fn func(*sql.Tx) error) error {
	return s.transact(ctx, atOnce, fn)
}

// read runs fn on a reader connection.
func (s *Store) read(ctx context.Context, fn func(*sql.DB) error) error {
	p, err := s.open(ctx)
	if err != nil {
		return err
	}
	if err := fn(p.reader); err != nil {
		return s.failed(err)
	}
	return nil
}

// failed types an error. A database found corrupt while in use is closed, so that the
// next use sets it aside and starts a new one.
func (s *Store) failed(err error) error {
	var typed *api.Error
	if errors.As(err, &typed) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &api.Error{Kind: api.KindDatabase, Message: fmt.Sprintf("the journal %s did not answer in time", s.opts.Path)}
	}
	if isCorrupt(err) {
		_ = s.Close()
	}
	return &api.Error{Kind: api.KindDatabase, Message: fmt.Sprintf(
		"cannot use the journal %s: %v; free or mount its disk, then see 'virtlvm status'", s.opts.Path, err)}
}
