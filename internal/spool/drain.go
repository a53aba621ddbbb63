package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"virtlvm/internal/api"
)

// Listing is what lies in a spool: paths, oldest first.
type Listing struct {
	Waiting []string // events not yet taken
	Broken  []string // set aside because they could not be read
}

// List tells what lies in the spool in dir. A missing directory is an empty spool.
func List(dir string) (Listing, error) {
	entries, err := readDir(dir)
	if err != nil {
		return Listing{}, err
	}
	var l Listing
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case isEvent(e):
			l.Waiting = append(l.Waiting, path)
		case strings.HasSuffix(e.Name(), brokenSuffix):
			l.Broken = append(l.Broken, path)
		}
	}
	return l, nil
}

// Drain hands every event to take, oldest first, and removes it once take has returned
// nil. An error of take ends the drain and keeps that event and all younger ones. Files
// that cannot be read are set aside as *.broken. It returns the number of events taken
// and of files set aside by this call.
//
// An event whose file cannot be removed is returned as an error after take has had it:
// it will come again, so take must bear the same event twice.
func Drain(dir string, take func(api.HookCall) error) (taken, broken int, err error) {
	entries, err := readDir(dir)
	if err != nil {
		return 0, 0, err
	}
	var failed []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), tempPrefix) {
			removeStaleTemp(path, time.Now())
			continue
		}
		if !isEvent(e) {
			continue
		}
		call, err := Read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			broken++
			if err := os.Rename(path, path+brokenSuffix); err != nil {
				failed = append(failed, fmt.Errorf("cannot set broken spool file aside: %w", err))
			}
			continue
		}
		if err := take(call); err != nil {
			failed = append(failed, fmt.Errorf("cannot take spooled event %s: %w", path, err))
			return taken, broken, errors.Join(failed...)
		}
		taken++
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, fmt.Errorf("cannot remove spooled event: %w", err))
			return taken, broken, errors.Join(failed...)
		}
	}
	return taken, broken, errors.Join(failed...)
}

// readDir returns the entries of dir in the order of their names, none where dir is
// missing.
func readDir(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read spool: %w", err)
	}
	return entries, nil
}

// removeStaleTemp deletes what a hook that was killed half-way has left. Its event is
// lost either way: it was never complete.
func removeStaleTemp(path string, now time.Time) {
	info, err := os.Lstat(path)
	if err == nil && now.Sub(info.ModTime()) > tempMaxAge {
		_ = os.Remove(path)
	}
}
