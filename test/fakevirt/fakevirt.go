// Package fakevirt is a fake libvirt for one host, for tests and the demo: it keeps
// definitions, runs "QEMU" processes that open their disks, writes libvirt's status files
// and calls the hook, all in libvirt's order, with its arguments, its XML and its words.
//
// A start goes as in libvirt's qemuProcessStart:
//
//	hook prepare    a refusal ends the start
//	the disks' backing chains are probed: "Cannot access storage file ..."
//	hook start      the XML has the chains now
//	QEMU is forked; status file: paused, "starting up", job async='start'
//	QEMU opens its disks
//	status file: running, "booted", still with the job
//	hook started    a refusal kills the guest
//	status file without the job
//
// and an end as in qemuProcessStop, also after a start that failed:
//
//	QEMU is killed; status file: job type='destroy', unless a start or a migration ends it
//	hook stopped    the status file is still there, naming a process that is not
//	the status file is removed
//	hook release REASON
//
// A live migration between two hosts is Migrate's; migrate.go has its order.
//
// Everything is on disk, so that one command after another can work on the same host.
// Removing the folder of the status files is a power failure to a host: until the folder
// is back no hook is called there and nothing of a guest is changed.
// A host may share its folder with the fake SAN's host of the same name: then QEMU's open
// disks count as open there (see disks.go).
package fakevirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Options describe a host. Only Dir and Launcher have to be given.
type Options struct {
	// Name is the host's, for the line that QEMU writes into its first disk.
	Name string
	// Dir holds etc/libvirt/qemu (definitions) and what the fake itself needs to know.
	Dir string
	// RunDir holds the status files; default Dir/run/libvirt/qemu.
	RunDir string
	// Root stands in front of every path of a disk and of a storage pool's definition;
	// default Dir.
	Root string
	// Hook is called for every operation; nil: no hook is installed.
	Hook HookFunc
	// Launcher makes the QEMUs.
	Launcher Launcher
	// NoReasons is libvirt before 10.5: `release` is called with "-".
	NoReasons bool
	// Documents may be shared by hosts; nil: the XML of domains is written and read each time.
	Documents *Documents
	// OldQEMU cannot forget what the host has cached of a disk (before 4.0).
	OldQEMU bool
	// Now gives migrations the time of their begin; default time.Now.
	Now func() time.Time
	// Changed is told after each change of a guest's status file; may be nil.
	Changed func(Change)
	// Lock waits for the lock of that name, on which commands on the same guest wait for
	// each other; default a file lock, which counts among processes as well.
	Lock func(name string) (unlock func(), err error)
}

// Change is what a status file has become.
type Change struct {
	Guest string
	UUID  string // empty where the file is gone
	State string // libvirt's word; empty where the file is gone
	Async string // "migration in", ...; empty for none
	PID   int
}

// Host is one host with its libvirt. Its methods may be called at the same time, also by
// several processes: those on one guest wait for each other, as libvirt's jobs do.
type Host struct {
	o Options
}

// New makes a host, or finds the one that Options.Dir holds already.
func New(o Options) (*Host, error) {
	if o.Dir == "" || o.Launcher == nil {
		return nil, errors.New("cannot make a host without a folder and a launcher")
	}
	if o.RunDir == "" {
		o.RunDir = filepath.Join(o.Dir, "run/libvirt/qemu")
	}
	if o.Root == "" {
		o.Root = o.Dir
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Host{o: o}
	// QEMU runs in another working directory.
	for _, dir := range []*string{&h.o.Dir, &h.o.RunDir, &h.o.Root} {
		var err error
		if *dir, err = filepath.Abs(*dir); err != nil {
			return nil, fmt.Errorf("cannot make a host: %w", err)
		}
	}
	if h.o.Lock == nil {
		h.o.Lock = func(name string) (func(), error) { return lockFile(filepath.Join(h.locks(), name)) }
	}
	for _, dir := range []string{h.definitions(), h.locks(), h.o.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make a host: %w", err)
		}
	}
	return h, nil
}

// RunDir is where the status files are.
func (h *Host) RunDir() string { return h.o.RunDir }

func (h *Host) definitions() string { return filepath.Join(h.o.Dir, "etc/libvirt/qemu") }

func (h *Host) locks() string { return filepath.Join(h.o.Dir, "var/lib/fakevirt") }

// dead reports whether the host has lost its power.
func (h *Host) dead() bool {
	_, err := os.Stat(h.o.RunDir)
	return errors.Is(err, fs.ErrNotExist)
}

// Error is a failed command as virsh shows it.
type Error struct {
	What string // virsh's line, such as "Failed to start domain 'vm1'"; may be empty
	Why  string // libvirt's line
	err  error
}

// Error is libvirt's line alone.
func (e *Error) Error() string { return e.Why }

// Unwrap is the cause, such as ErrHostGone.
func (e *Error) Unwrap() error { return e.err }

// Virsh is what virsh prints on standard error, one or two lines.
func (e *Error) Virsh() string {
	lines := "error: " + e.Why + "\n"
	if e.What != "" {
		lines = "error: " + e.What + "\n" + lines
	}
	return lines
}

// failed makes err the reason of a command that failed; nil stays nil.
func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{What: what, Why: err.Error(), err: err}
}

// validName is libvirt's rule for names that become files.
func validName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\n\x00") {
		return fmt.Errorf("XML error: invalid domain name %q", name)
	}
	return nil
}

// withGuest runs fn while no other command works on the guest.
func (h *Host) withGuest(ctx context.Context, name string, fn func() error) error {
	if err := validName(name); err != nil {
		return err
	}
	unlock, err := h.o.Lock(name + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return fn()
}

// lockFile waits for a lock that counts among processes and goroutines alike.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot lock: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// nextID is libvirt's number for the next guest that starts.
func (h *Host) nextID() (int, error) {
	const name = "next-id"
	path := filepath.Join(h.locks(), name)
	unlock, err := h.o.Lock(name)
	if err != nil {
		return 0, err
	}
	defer unlock()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	last, _ := strconv.Atoi(string(data)) // 0 in a new file
	return last + 1, os.WriteFile(path, []byte(strconv.Itoa(last+1)), 0o600)
}

// writeFile replaces a file as libvirt does: NAME.new, then a rename.
func writeFile(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
