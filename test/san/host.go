package san

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// SetID gives the host another sanlock host id, for the lockspaces that are started later.
func (h *Host) SetID(id int) error {
	return h.change("set the host id", func(_ *state, hs *hostState) error {
		hs.ID = id
		return nil
	})
}
