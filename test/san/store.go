package san

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	stateFile = "san.json"
	lockFile  = "san.lock"
)

// update runs fn on the state under the exclusive lock and saves it, unless fn fails.
func (s *SAN) update(fn func(*state) error) error {
	return s.locked(unix.LOCK_EX, func(st *state) error {
		if err := fn(st); err != nil {
			s.cache = nil // half changed
			return err
		}
		return s.save(st)
	})
}

// view runs fn on the state under the shared lock. fn must not change it.
func (s *SAN) view(fn func(*state) error) error { return s.locked(unix.LOCK_SH, fn) }

func (s *SAN) init(st *state) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.flock(unix.LOCK_EX); err != nil {
		return err
	}
	defer s.unlock()
	return s.save(st)
}

func (s *SAN) locked(how int, fn func(*state) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.flock(how); err != nil {
		return err
	}
	defer s.unlock()
	st, err := s.load()
	if err != nil {
		return err
	}
	return fn(st)
}

func (s *SAN) flock(how int) error {
	if s.lock == nil {
		f, err := os.OpenFile(filepath.Join(s.dir, lockFile), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return fmt.Errorf("cannot lock the SAN: %w", err)
		}
		s.lock = f
	}
	for {
		err := unix.Flock(int(s.lock.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cannot lock the SAN: %w", err)
		}
	}
}

func (s *SAN) unlock() {
	// Closing the file would unlock as well; there is nothing to do about a failure.
	_ = unix.Flock(int(s.lock.Fd()), unix.LOCK_UN)
}

// load reads the state. The lock file holds a counter of changes: while it stands at
// the version that this process knows, the cached state is the current one.
func (s *SAN) load() (*state, error) {
	gen, err := s.readGen()
	if err != nil {
		return nil, err
	}
	if s.cache != nil && s.gen == gen {
		return s.cache, nil
	}
	data, err := os.ReadFile(filepath.Join(s.dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("cannot read the SAN's state: %w", err)
	}
	st := &state{}
	if err := json.Unmarshal(data, st); err != nil {
		return nil, fmt.Errorf("cannot read the SAN's state: %w", err)
	}
	s.cache, s.gen = st, gen
	return st, nil
}

func (s *SAN) readGen() (uint64, error) {
	var b [8]byte
	if _, err := s.lock.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("cannot read the SAN's version: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// save counts first and writes then: a crash in between costs other processes a needless
// read, never a stale cache.
func (s *SAN) save(st *state) error {
	data, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("cannot save the SAN's state: %w", err)
	}
	gen, err := s.readGen()
	if err != nil {
		return err
	}
	s.cache = nil
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], gen+1)
	if _, err := s.lock.WriteAt(b[:], 0); err != nil {
		return fmt.Errorf("cannot save the SAN's version: %w", err)
	}
	tmp := filepath.Join(s.dir, stateFile+".new")
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("cannot save the SAN's state: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(s.dir, stateFile)); err != nil {
		return fmt.Errorf("cannot save the SAN's state: %w", err)
	}
	s.cache, s.gen = st, gen+1
	return nil
}
