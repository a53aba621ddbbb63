package domain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of the kernel: symbolic links followed in one path, bytes in one path.
const (
	maxLinks = 40
	maxPath  = 4096
)

// trail follows a path one symbolic link at a time, as the kernel would, but without
// stopping where something is missing: a volume that is not active has no device yet.
type trail struct {
	root  string // prefix of every file looked at
	start string // for messages
	done  []string
	rest  []string
	links int
}

func newTrail(root, path string) *trail {
	return &trail{root: root, start: path, rest: strings.Split(path, "/")}
}

// path is where the trail stands: certain up to the first component not yet looked at.
func (t *trail) path() string {
	return filepath.Clean("/" + strings.Join(append(slices.Clone(t.done), t.rest...), "/"))
}

// certain reports whether path() may be judged by its form: with ".." still ahead it may
// not, since /a/../b is not /b where a is a link.
func (t *trail) certain() bool { return !slices.Contains(t.rest, "..") }

// next goes on until path() has changed its form; false at the end.
func (t *trail) next() (bool, error) {
	for len(t.rest) > 0 {
		c := t.rest[0]
		t.rest = t.rest[1:]
		switch c {
		case "", ".":
			continue
		case "..":
			if len(t.done) > 0 {
				t.done = t.done[:len(t.done)-1]
			}
			if t.certain() {
				return true, nil
			}
			continue
		}
		t.done = append(t.done, c)
		target, err := readLink(t.root + "/" + strings.Join(t.done, "/"))
		if err != nil {
			return false, fmt.Errorf("cannot follow path %q: %w", t.start, pathReason(err))
		}
		if target == "" {
			continue
		}
		if t.links++; t.links > maxLinks {
			return false, fmt.Errorf("cannot follow path %q: more than %d symbolic links", t.start, maxLinks)
		}
		t.rest = append(strings.Split(target, "/"), t.rest...)
		t.done = t.done[:len(t.done)-1]
		if strings.HasPrefix(target, "/") {
			t.done = nil
		}
		return true, nil
	}
	return false, nil
}

// end follows the trail to its end and returns the path there, which may not exist.
func (t *trail) end() (string, error) {
	for {
		more, err := t.next()
		if err != nil || !more {
			return t.path(), err
		}
	}
}

// readLink returns the target of a symbolic link, "" for anything else and for nothing.
func readLink(path string) (string, error) {
	info, err := os.Lstat(path)
	switch {
	case missing(err):
		return "", nil
	case err != nil:
		return "", err
	case info.Mode()&fs.ModeSymlink == 0:
		return "", nil
	}
	return os.Readlink(path)
}

// missing reports whether err says that there is no such file. A path through something
// that is no directory counts: /dev/vg/lv where /dev/vg is a file names nothing.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// pathReason drops the path from an error: unlike ours it is not quoted.
func pathReason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
