// Package backendtest stands in for systemd: Processes runs units as real processes that
// outlive whoever has started them.
package backendtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"virtlvm/internal/backend"
)

// Processes implements backend.Units on a folder: another Processes on the same folder,
// also in another process, knows the same units.
type Processes struct {
	Dir string
	// Env is added to the environment of units.
	Env []string
}

// supervisor is what systemd does: it waits for the unit, whatever signal the unit gets,
// and keeps its exit code.
const supervisor = `
dir=$1; shift
exec 8>>"$dir/running"
flock -n 8 || exit 99
trap : TERM INT HUP
echo $$ >"$dir/pid.new"; mv "$dir/pid.new" "$dir/pid"
"$@" 8>&-
echo "$? $(date +%s)" >"$dir/exit.new"
mv "$dir/exit.new" "$dir/exit"
`

func (p Processes) dir(name string) string { return filepath.Join(p.Dir, name) }

// Start implements backend.Units.
func (p Processes) Start(ctx context.Context, u backend.Unit) error {
	err := os.MkdirAll(p.Dir, 0o700)
	if err == nil {
		err = os.Mkdir(p.dir(u.Name), 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir(u.Name), "signal"), []byte(strconv.Itoa(int(u.StopSignal))), 0o600)
	}
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: "/bin/sh", Args: append([]string{"sh", "-c", supervisor, "sh", p.dir(u.Name)}, u.Argv...),
		Env: append(append([]string(nil), u.Env...), p.Env...), Dir: "/", SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // for this process it is a child, and would be a zombie
	for {
		if _, err := p.pid(u.Name); err == nil {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p Processes) pid(name string) (int, error) {
	text, err := os.ReadFile(filepath.Join(p.dir(name), "pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// State implements backend.Units.
func (p Processes) State(_ context.Context, name string) (backend.UnitState, error) {
	dir := p.dir(name)
	// The lock before the exit code, which is written under it.
	running, err := locked(filepath.Join(dir, "running"))
	if errors.Is(err, fs.ErrNotExist) {
		return backend.UnitState{}, nil
	}
	if running || err != nil {
		return backend.UnitState{Loaded: true, Running: true}, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "exit"))
	words := strings.Fields(string(text))
	if err != nil || len(words) != 2 {
		return backend.UnitState{Loaded: true, Code: -1, Signal: syscall.SIGKILL, Result: "signal"}, nil
	}
	code, _ := strconv.Atoi(words[0])
	at, _ := strconv.ParseInt(words[1], 10, 64)
	return backend.UnitState{Loaded: true, Code: code, Ended: time.Unix(at, 0), Result: "exit-code"}, nil
}

func locked(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// Stop implements backend.Units.
func (p Processes) Stop(_ context.Context, name string) error {
	text, err := os.ReadFile(filepath.Join(p.dir(name), "signal"))
	if err != nil {
		return nil //nolint:nilerr // no such unit
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	return p.signal(name, syscall.Signal(n))
}

// signal reaches every process of the unit, as its control group does.
func (p Processes) signal(name string, sig syscall.Signal) error {
	running, err := locked(filepath.Join(p.dir(name), "running"))
	if err != nil || !running {
		return err
	}
	pid, err := p.pid(name)
	if err != nil {
		return err
	}
	if err := unix.Kill(-pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// Forget implements backend.Units.
func (p Processes) Forget(ctx context.Context, name string) error {
	switch u, err := p.State(ctx, name); {
	case err != nil:
		return err
	case u.Running:
		return fmt.Errorf("%s runs", name)
	}
	return os.RemoveAll(p.dir(name))
}

// Kill ends a unit with all its processes at once, as the kernel does when memory is
// short.
func (p Processes) Kill(name string) error { return p.signal(name, syscall.SIGKILL) }

// Lose forgets every unit, as a reboot does; their processes are killed.
func (p Processes) Lose() error {
	entries, err := os.ReadDir(p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, p.Kill(e.Name()))
	}
	return errors.Join(err, os.RemoveAll(p.Dir))
}
