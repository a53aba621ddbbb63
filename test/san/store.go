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

// lockFile is flocked, and its 16 bytes say which version of the state is the current one
// and how long it is. Versions take turns in two files, written in place: a writer that is
// killed leaves the version before it whole. (Writing a new file and renaming it would do
// as well, but makes ext4 flush it each time.)
const (
	lockFile  = "san.lock"
	stateFile = "san.state." // and the version modulo 2
)

// update runs fn on the state under the exclusive lock and saves it, unless fn fails.
func (s *SAN) update(fn func(*state) error) error {
	return s.locked(unix.LOCK_EX, func(st *state) error {
		var before *state
		if s.alone {
			before = st.clone()
		}
		if err := fn(st); err != nil {
			s.cache = before // st is half changed
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
	if s.alone {
		return nil
	}
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
	if s.alone {
		return
	}
	// Closing the file would unlock as well; there is nothing to do about a failure.
	_ = unix.Flock(int(s.lock.Fd()), unix.LOCK_UN)
}

// load reads the state. While the lock file names the version that this process knows,
// the cached state is the current one.
func (s *SAN) load() (*state, error) {
	if s.alone {
		return s.cache, nil
	}
	gen, size, err := s.version()
	if err != nil {
		return nil, err
	}
	if s.cache != nil && s.gen == gen {
		return s.cache, nil
	}
	f, err := s.slot(gen)
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("cannot read the SAN's state: %w", err)
	}
	st := &state{}
	if err := json.Unmarshal(data, st); err != nil {
		return nil, fmt.Errorf("cannot read the SAN's state: %w", err)
	}
	s.cache, s.gen = st, gen
	return st, nil
}

// save writes the state as the next version.
func (s *SAN) save(st *state) error {
	if s.alone {
		s.cache = st
		return nil
	}
	data, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("cannot save the SAN's state: %w", err)
	}
	gen, _, err := s.version()
	if err != nil {
		return err
	}
	gen++
	f, err := s.slot(gen)
	if err != nil {
		return err
	}
	s.cache = nil
	if _, err := f.WriteAt(data, 0); err != nil {
		return fmt.Errorf("cannot save the SAN's state: %w", err)
	}
	head := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, gen), uint64(len(data)))
	if _, err := s.lock.WriteAt(head, 0); err != nil {
		return fmt.Errorf("cannot save the SAN's version: %w", err)
	}
	s.cache, s.gen = st, gen
	return nil
}

// version reads the lock file: 0 before the first state.
func (s *SAN) version() (gen, size uint64, err error) {
	var b [16]byte
	if _, err := s.lock.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, fmt.Errorf("cannot read the SAN's version: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]), nil
}

// slot opens the file of a version, once.
func (s *SAN) slot(gen uint64) (*os.File, error) {
	i := gen % 2
	if s.slots[i] == nil {
		f, err := os.OpenFile(fmt.Sprintf("%s/%s%d", s.dir, stateFile, i), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return nil, fmt.Errorf("cannot open the SAN's state: %w", err)
		}
		s.slots[i] = f
	}
	return s.slots[i], nil
}
