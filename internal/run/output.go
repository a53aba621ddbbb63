package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Limits of a program's output, in bytes.
const (
	// maxOutput is the most that is read back from each of stdout and stderr.
	maxOutput = 16 << 20
	// reserved is the room made sure of before a program starts: it must not lose the
	// reason of a failure to a full disk.
	reserved = 64 << 10
)

// output is the pair of files that a program writes to, mode 0600: error messages name
// the volumes of other people.
type output struct{ stdout, stderr *os.File }

// newOutput makes DIR/N.out and DIR/N.err with the first free N: files of programs that
// outlived an earlier daemon are left alone.
func newOutput(dir string, serial *atomic.Uint64) (*output, error) {
	for {
		base := filepath.Join(dir, strconv.FormatUint(serial.Add(1), 10))
		stdout, err := create(base + ".out")
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		stderr, err := create(base + ".err")
		if err == nil {
			return &output{stdout: stdout, stderr: stderr}, nil
		}
		err = errors.Join(err, unlink(stdout))
		if !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
}

// create makes a new file and reserves room in it. Appending keeps the order of what a
// program and its children write.
func create(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot create it: %w", err)
	}
	if err := reserve(f); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot reserve room in %s: %w", name, err), unlink(f))
	}
	return f, nil
}

// reserve allocates without changing the size. Where the filesystem cannot do that, it
// writes and cuts back, which at least finds a full disk now.
func reserve(f *os.File) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, reserved)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if _, err := f.Write(make([]byte, reserved)); err != nil {
		return err
	}
	return f.Truncate(0)
}

// read returns what has been written so far.
func (o *output) read() (stdout, stderr []byte, err error) {
	stdout, err = readAll(o.stdout)
	stderr, errErr := readAll(o.stderr)
	return stdout, stderr, errors.Join(err, errErr)
}

func readAll(f *os.File) ([]byte, error) {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxOutput+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxOutput {
		return data[:maxOutput], fmt.Errorf("it wrote more than %d MiB", maxOutput>>20)
	}
	return data, nil
}

// remove closes and deletes both files.
func (o *output) remove() error {
	return errors.Join(unlink(o.stdout), unlink(o.stderr))
}

func unlink(f *os.File) error {
	err := os.Remove(f.Name())
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// Sweep deletes the output files that an earlier daemon left in OutDir, and returns how
// many. A program that still runs goes on writing to its file unharmed. Call it before
// the first Run.
func (e *Exec) Sweep() (int, error) {
	entries, err := os.ReadDir(e.outDir)
	if err != nil {
		return 0, fmt.Errorf("cannot look for left-over output files: %w", err)
	}
	var errs []error
	removed := 0
	for _, entry := range entries {
		stem, isOut := strings.CutSuffix(entry.Name(), ".out")
		if !isOut {
			stem, isOut = strings.CutSuffix(entry.Name(), ".err")
		}
		if _, err := strconv.ParseUint(stem, 10, 64); !isOut || err != nil {
			continue
		}
		if err := os.Remove(filepath.Join(e.outDir, entry.Name())); err != nil {
			errs = append(errs, err)
			continue
		}
		removed++
	}
	return removed, errors.Join(errs...)
}
