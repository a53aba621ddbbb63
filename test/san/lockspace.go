package san

import (
	"errors"
	"slices"
	"time"
)

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
