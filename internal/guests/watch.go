package guests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Watch sends on changed when it is worth looking again: a status file came, changed or
// went, or the QEMU of a guest of the latest Observe has ended. It says no more than
// that, joins hints that come faster than they are taken, and loses none, whether changed
// has a buffer or not. It also sends every 10 s, for what cannot be watched: a directory
// that is not there yet, a kernel without pidfd.
//
// It returns when ctx ends, with ctx's error, or at once where the kernel gives no
// inotify instance.
func (o *Observer) Watch(ctx context.Context, changed chan<- struct{}) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("cannot watch guests: %w", err)
	}
	w := watcher{
		observer: o,
		notify:   notify,
		ended:    make(chan int),
		qemus:    map[int]*os.File{},
	}
	defer w.close()
	news, unsubscribe := o.subscribe()
	defer unsubscribe()
	fallback := time.NewTicker(o.fallback)
	defer fallback.Stop()

	w.addDir()
	w.follow(ctx)
	// What happened before the watch was there is news as well.
	pending := true
	for {
		var hint chan<- struct{}
		if pending {
			hint = changed
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case hint <- struct{}{}:
			pending = false
		case e := <-notify.Events:
			pending = w.event(e) || pending
		case err := <-notify.Errors:
			// The queue has overflown, or worse: anything may have happened.
			pending = err != nil || pending
		case pid := <-w.ended:
			w.forget(pid)
			pending = true
		case <-news:
			w.follow(ctx)
		case <-fallback.C:
			w.addDir()
			pending = true
		}
	}
}

// subscribe registers for news of Observe.
func (o *Observer) subscribe() (news <-chan struct{}, unsubscribe func()) {
	c := make(chan struct{}, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.watchers[c] = struct{}{}
	return c, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.watchers, c)
	}
}

// watcher is the state of one Watch.
type watcher struct {
	observer *Observer
	notify   *fsnotify.Watcher
	watching bool             // the directory
	ended    chan int         // pids whose process has ended
	qemus    map[int]*os.File // pidfds by pid
}

// addDir watches the directory if that is not done yet and it is there.
func (w *watcher) addDir() {
	if !w.watching {
		w.watching = w.notify.Add(w.observer.dir) == nil
	}
}

// event reports whether an event of the file system is about guests.
func (w *watcher) event(e fsnotify.Event) bool {
	if filepath.Clean(e.Name) == filepath.Clean(w.observer.dir) {
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			// The watch has gone with it; a new one comes with the next tick.
			_ = w.notify.Remove(w.observer.dir)
			w.watching = false
		}
		return true
	}
	return strings.HasSuffix(e.Name, statusSuffix)
}

// follow opens a pidfd for every guest of the latest look and closes those of others.
func (w *watcher) follow(ctx context.Context) {
	wanted := map[int]bool{}
	for _, g := range w.observer.known() {
		if g.PID == 0 {
			continue
		}
		wanted[g.PID] = true
		if w.qemus[g.PID] != nil {
			continue
		}
		f, err := openPidfd(w.observer.proc, g)
		if err != nil {
			// Left to the regular look.
			continue
		}
		w.qemus[g.PID] = f
		go wait(ctx, f, g.PID, w.ended)
	}
	for pid := range w.qemus {
		if !wanted[pid] {
			w.forget(pid)
		}
	}
}

func (w *watcher) forget(pid int) {
	if f := w.qemus[pid]; f != nil {
		_ = f.Close()
		delete(w.qemus, pid)
	}
}

func (w *watcher) close() {
	for pid := range w.qemus {
		w.forget(pid)
	}
	_ = w.notify.Close()
}

// errReused is a pid that has become another process's since the guest was looked at.
var errReused = errors.New("the process is another one by now")

// openPidfd refers to the guest's process as it was looked at.
func openPidfd(proc string, g Guest) (*os.File, error) {
	fd, err := unix.PidfdOpen(g.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.EINVAL) {
		// Before Linux 5.10 the flag is not known.
		if fd, err = unix.PidfdOpen(g.PID, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot watch process %d: %w", g.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// The pid could have been given to another process before the pidfd was there.
	stat, err := readStat(filepath.Join(proc, strconv.Itoa(g.PID), "stat"))
	if err == nil && stat.start != g.seen {
		err = errReused
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// wait reports pid when its process has ended, which makes a pidfd readable
// (pidfd_open(2)). It ends when f is closed.
func wait(ctx context.Context, f *os.File, pid int, ended chan<- int) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a file descriptor fits
		n, err := unix.Poll(fds, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
	if err != nil {
		return
	}
	select {
	case ended <- pid:
	case <-ctx.Done():
	}
}
