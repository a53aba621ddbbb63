// Package spool keeps hook events on disk that the daemon could not take, until it can.
//
// A spool is a directory with one file per event, named
//
//	TIME-PID-RANDOM.json
//
// where TIME is nanoseconds since 1970 in 20 digits, so that names sort by time. The
// name never holds anything that came from outside, such as a guest's name. The content
// is an api.HookCall as JSON, without the domain XML: secrets must not reach the disk.
// Files that cannot be read are renamed to *.broken and kept for an administrator.
//
// Standard library and internal/api only: the hook is linked with it.
package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"virtlvm/internal/api"
)

// MaxFileSize is the most that one event may take, in bytes.
const MaxFileSize = 1 << 20

// tempMaxAge is how long a temporary file may be somebody's work in progress; the hook
// lives far shorter.
const tempMaxAge = time.Hour

const (
	eventSuffix  = ".json"
	brokenSuffix = ".broken"
	tempPrefix   = ".tmp-"
)

// Write adds an event to the spool in dir, making dir where it is missing. The event is
// on stable storage, complete, once Write has returned nil. The XML of call is left out.
func Write(dir string, call api.HookCall) error {
	call.XML = nil
	data, err := json.Marshal(call)
	if err != nil {
		return fmt.Errorf("cannot encode hook event: %w", err)
	}
	if len(data) > MaxFileSize {
		return fmt.Errorf("cannot spool hook event: %d bytes are more than %d", len(data), MaxFileSize)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make spool: %w", err)
	}
	name := eventName(time.Now(), os.Getpid())
	temp := filepath.Join(dir, tempPrefix+name)
	if err := writeSynced(temp, data); err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("cannot spool hook event: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("cannot spool hook event: %w", err)
	}
	// Without this the name, and with it the event, can be lost in a power cut.
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("cannot spool hook event: %w", err)
	}
	return nil
}

// Read returns the event in one file of a spool, marked as spooled. Links and anything
// else that is no plain file are refused, as is a file over MaxFileSize.
func Read(path string) (api.HookCall, error) {
	var call api.HookCall
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return call, fmt.Errorf("cannot read spooled event: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return call, fmt.Errorf("cannot read spooled event: %w", err)
	}
	if !info.Mode().IsRegular() {
		return call, fmt.Errorf("cannot read spooled event %s: not a plain file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return call, fmt.Errorf("cannot read spooled event: %w", err)
	}
	if len(data) > MaxFileSize {
		return call, fmt.Errorf("cannot read spooled event %s: more than %d bytes", path, MaxFileSize)
	}
	if err := json.Unmarshal(data, &call); err != nil {
		return api.HookCall{}, fmt.Errorf("cannot read spooled event %s: %w", path, err)
	}
	// Valid JSON that says nothing, such as {}, is garbage as well.
	if call.Guest == "" && call.Op == "" {
		return api.HookCall{}, fmt.Errorf("cannot read spooled event %s: neither guest nor operation", path)
	}
	call.Spooled = true
	return call, nil
}

// eventName only has to keep apart what is written at the same moment: the folder is
// root's alone, so nobody can make use of a name that is guessed. crypto/rand would make
// the hook larger and slower to start.
func eventName(now time.Time, pid int) string {
	random := rand.Uint64() //nolint:gosec // no secret
	return fmt.Sprintf("%020d-%d-%016x%s", now.UnixNano(), pid, random, eventSuffix)
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// isEvent reports whether a directory entry is an event that waits.
func isEvent(e fs.DirEntry) bool {
	return strings.HasSuffix(e.Name(), eventSuffix) && !strings.HasPrefix(e.Name(), ".")
}
