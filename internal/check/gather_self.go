package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"virtlvm/internal/model"
)

// damageTime bounds the look through the database.
const damageTime = 15 * time.Second

func (s *Sources) gatherSelf(ctx context.Context, f *Facts) {
	f.Config = s.Config()
	f.Spool = s.Spool()
	f.BreakGlass = s.BreakGlass()
	for _, dir := range []string{s.StateDir, s.RunDir} {
		f.Spaces = append(f.Spaces, s.Space(dir))
	}
	for _, want := range []struct{ file, mode string }{{"virtlvm.sock", "0660"}, {"virtlvm-ro.sock", "0666"}, {"peer.sock", "0600"}} {
		f.Sockets = append(f.Sockets, s.socket(ctx, path.Join(s.RunDir, want.file), want.mode))
	}
}

func (s *Sources) socket(ctx context.Context, p, mode string) Socket {
	socket := Socket{Path: p, Mode: mode}
	info, err := s.Stat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		socket.Bad = "is not there"
	case err != nil:
		socket.Bad = "cannot be looked at: " + err.Error()
	case info.Mode()&fs.ModeSocket == 0:
		socket.Bad = "is no socket"
	case fmt.Sprintf("%04o", info.Mode().Perm()) != mode:
		socket.Bad = fmt.Sprintf("has mode %04o, not %s", info.Mode().Perm(), mode)
	default:
		if err := s.Version(ctx, p); err != nil {
			socket.Bad = "does not answer: " + err.Error()
		}
	}
	return socket
}

// gatherJournal reads the database; what it is asked depends on other facts.
func (s *Sources) gatherJournal(ctx context.Context, f *Facts) {
	f.HookCalls, f.Ours = map[int]Got[time.Time]{}, map[model.VolumeID]bool{}
	j, err := s.Journal()
	if errors.Is(err, fs.ErrNotExist) {
		f.NoData = true
		err = errors.New("there is no database")
	}
	if err != nil {
		f.Damage.Err = err
		for _, p := range f.Libvirt.Value {
			f.HookCalls[p.PID] = got(time.Time{}, err)
		}
		return
	}
	defer func() { _ = j.Close() }() // it was only read
	ctx, cancel := context.WithTimeout(ctx, damageTime)
	defer cancel()
	for _, p := range f.Libvirt.Value {
		f.HookCalls[p.PID] = got(j.LastHook(ctx, s.BootID, p.PID, p.Start))
	}
	for _, l := range f.leftovers() {
		if ours, err := j.Activated(ctx, l.id); err == nil {
			f.Ours[l.id] = ours
		}
	}
	f.Damage = got(j.Damage(ctx))
}

// gatherWatchdog looks at wdmd and the kernel's watchdogs (watchdog-sysfs in the kernel's
// documentation). It opens none: that would arm it.
func (s *Sources) gatherWatchdog(_ context.Context, f *Facts) {
	w := &f.Watchdog.Value
	entries, err := fs.ReadDir(s.Sys, "class/watchdog")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Watchdog.Err = err
		return
	}
	for _, e := range entries {
		w.Devices = append(w.Devices, WatchdogDevice{e.Name(), line(s.Sys, "class/watchdog/"+e.Name()+"/identity")})
	}
	running, err := processes(s.Proc, "wdmd")
	if err != nil || len(running) == 0 {
		f.Watchdog.Err = err
		return
	}
	w.Daemon = running[0].PID
	dir := fmt.Sprintf("%d/fd", w.Daemon)
	fds, err := fs.ReadDir(s.Proc, dir)
	if err != nil {
		f.Watchdog.Err = err
		return
	}
	for _, fd := range fds {
		target, err := fs.ReadLink(s.Proc, dir+"/"+fd.Name())
		if name, ok := strings.CutPrefix(target, "/dev/"); err == nil && ok && strings.HasPrefix(name, "watchdog") {
			if name == "watchdog" {
				name = "watchdog0" // the old name of the first one
			}
			w.Open = append(w.Open, name)
		}
	}
}
