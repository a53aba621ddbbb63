package san

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Host is one host on the SAN.
type Host struct {
	san  *SAN
	name string
}

// Name is the host's name, sanlock's our_host_name.
func (h *Host) Name() string { return h.name }

// Dir is the host's folder.
func (h *Host) Dir() string { return h.san.hostDir(h.name) }

// SysDir stands for /sys.
func (h *Host) SysDir() string { return filepath.Join(h.Dir(), "sys") }

// DevDir stands for /dev.
func (h *Host) DevDir() string { return filepath.Join(h.Dir(), "dev") }

// change updates the host's state.
func (h *Host) change(what string, fn func(*state, *hostState) error) error {
	err := h.san.update(func(st *state) error {
		hs := st.Hosts[h.name]
		if hs == nil {
			return errors.New("no such host")
		}
		return fn(st, hs)
	})
	if err != nil {
		return fmt.Errorf("cannot %s on %s: %w", what, h.name, err)
	}
	return nil
}

// ID is the host's sanlock host id.
func (h *Host) ID() int {
	id := 0
	_ = h.san.view(func(st *state) error { id = st.Hosts[h.name].ID; return nil })
	return id
}

// Open marks an active volume as open by a process, as QEMU has its disks; the pid need
// not exist unless SAN.CheckPids is set. The same pid opens a volume once.
func (h *Host) Open(vg, lv string, pid int) error {
	return h.change("open "+vg+"/"+lv, func(_ *state, hs *hostState) error {
		name := dmName(vg, lv)
		if hs.Devs[name] == nil {
			return errors.New("no such device")
		}
		if err := os.MkdirAll(h.san.openDir(h.name, name), 0o755); err != nil {
			return err
		}
		start := ""
		if h.san.CheckPids {
			start = startTime(pid)
		}
		return os.WriteFile(filepath.Join(h.san.openDir(h.name, name), strconv.Itoa(pid)), []byte(start), 0o644)
	})
}

// CloseVolume undoes Open; pid 0 closes it for every process.
func (h *Host) CloseVolume(vg, lv string, pid int) error {
	return h.change("close "+vg+"/"+lv, func(*state, *hostState) error {
		dir := h.san.openDir(h.name, dmName(vg, lv))
		if pid == 0 {
			return os.RemoveAll(dir)
		}
		err := os.Remove(filepath.Join(dir, strconv.Itoa(pid)))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

// Active reports whether the volume's device is there.
func (h *Host) Active(vg, lv string) bool {
	found := false
	_ = h.san.view(func(st *state) error {
		if hs := st.Hosts[h.name]; hs != nil {
			found = hs.Devs[dmName(vg, lv)] != nil
		}
		return nil
	})
	return found
}

// LockMode is what lvmlockd on this host holds of the volume: "ex", "sh", "un", or
// "orphan ex", "orphan sh" where a lvmlockd that is gone took it.
func (h *Host) LockMode(vg, lv string) string {
	mode := "un"
	_ = h.san.view(func(st *state) error {
		g, hs := st.VGs[vg], st.Hosts[h.name]
		if g == nil || hs == nil || g.find(lv) == nil {
			return nil
		}
		if l := hs.lockOf(vg, g.locker(g.find(lv)).UUID); l != nil {
			mode = l.Mode
			if l.Orphan {
				mode = "orphan " + mode
			}
		}
		return nil
	})
	return mode
}

// Crash is a power failure: devices, locks and processes of the host are gone at once,
// its leases stay on disk until they expire.
func (h *Host) Crash() error {
	return h.change("crash", func(st *state, hs *hostState) error { return h.san.crash(st, hs) })
}

func (s *SAN) crash(st *state, hs *hostState) error {
	st.silence(hs, s.now(st))
	for name := range hs.Devs {
		if err := s.unlink(hs, name); err != nil {
			return err
		}
	}
	hs.Down, hs.Locks, hs.Spaces = true, nil, map[string]*space{}
	hs.Boots++
	return os.RemoveAll(filepath.Join(s.hostDir(hs.Name), "open"))
}

// Reboot crashes the host if it is up and boots it: lvmlockd and sanlock run, no
// lockspace is started, nothing is active.
func (h *Host) Reboot() error {
	return h.change("reboot", func(st *state, hs *hostState) error {
		if !hs.Down {
			if err := h.san.crash(st, hs); err != nil {
				return err
			}
		}
		hs.Down, hs.LockdDown, hs.SanlockDown = false, false, false
		hs.BootedAt = h.san.now(st).Add(-time.Second).UnixNano()
		hs.Boots++
		return nil
	})
}

// LockStart starts a VG's lockspace as `vgchange --lockstart` does.
func (h *Host) LockStart(vg string) error {
	return h.change("start locking of "+vg, func(st *state, hs *hostState) error {
		g := st.VGs[vg]
		if g == nil || hs.Down || hs.LockdDown || hs.SanlockDown {
			return errors.New("not possible")
		}
		return h.san.startLockspace(st, hs, g, h.san.now(st))
	})
}

// startLockspace takes the host id: the generation grows each time.
func (s *SAN) startLockspace(st *state, hs *hostState, vg *vgState, at time.Time) error {
	if !vg.leased() || hs.Spaces[vg.Name] != nil {
		return nil
	}
	if err := s.activate(hs, vg, vg.LockLV); err != nil {
		return err
	}
	d := vg.Deltas[hs.ID]
	if d == nil {
		d = &deltaSlot{}
		vg.Deltas[hs.ID] = d
	}
	d.Name, d.Gen, d.BootedAt, d.SilentAt, d.Free = hs.Name, d.Gen+1, hs.BootedAt, 0, false
	hs.Spaces[vg.Name] = &space{JoinedAt: at.UnixNano()}
	return nil
}

// LockStop stops a VG's lockspace; it fails while an LV lock is held.
func (h *Host) LockStop(vg string) error {
	return h.change("stop locking of "+vg, func(st *state, hs *hostState) error {
		g := st.VGs[vg]
		if g == nil || hs.Spaces[vg] == nil {
			return nil
		}
		if hs.holdsLocks(vg) {
			return errors.New("LVs must first be deactivated")
		}
		return h.san.stopLockspace(hs, g)
	})
}

func (h *hostState) holdsLocks(vg string) bool {
	return slices.ContainsFunc(h.Locks, func(l *localLock) bool { return l.VG == vg && l.Mode != "un" })
}

func (s *SAN) stopLockspace(hs *hostState, vg *vgState) error {
	delete(hs.Spaces, vg.Name)
	if d := vg.Deltas[hs.ID]; d != nil {
		d.Free, d.SilentAt = true, 0
	}
	hs.Locks = slices.DeleteFunc(hs.Locks, func(l *localLock) bool { return l.VG == vg.Name })
	return s.unlink(hs, dmName(vg.Name, lockLVName))
}
