package san

import (
	"errors"
	"fmt"
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
		return h.san.startLockspace(hs, g, h.san.now(st))
	})
}

// startLockspace takes the host id: the generation grows each time.
func (s *SAN) startLockspace(hs *hostState, vg *vgState, at time.Time) error {
	if !vg.leased() || hs.Spaces[vg.Name] != nil {
		return nil
	}
	if err := s.activate(hs, vg, vg.LockLV); err != nil {
		return err
	}
	d := vg.Deltas[hs.ID]
	if d != nil && d.Name != hs.Name && !d.Free && d.SilentAt == 0 {
		return fmt.Errorf("host id %d is that of %s", hs.ID, d.Name)
	}
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
	lost := hs.Spaces[vg.Name].Lost
	delete(hs.Spaces, vg.Name)
	if d := vg.Deltas[hs.ID]; d != nil && !lost {
		d.Free, d.SilentAt = true, 0
	}
	hs.Locks = slices.DeleteFunc(hs.Locks, func(l *localLock) bool { return l.VG == vg.Name })
	return s.unlink(hs, dmName(vg.Name, lockLVName))
}

// LoseLockspace is what follows a failure to renew where the kill command says that all
// is well: sanlock drops the lockspace, lvmlockd goes on showing it without its LV locks,
// devices stay active and writable. The leases on disk protect until they expire. A
// lockstop ends the state.
func (h *Host) LoseLockspace(vg string) error {
	return h.change("lose the lockspace of "+vg, func(st *state, hs *hostState) error {
		sp := hs.Spaces[vg]
		if sp == nil {
			return errors.New("not started")
		}
		if d := st.VGs[vg].Deltas[hs.ID]; d.SilentAt == 0 {
			d.SilentAt = h.san.now(st).UnixNano()
		}
		sp.Lost = true
		hs.Locks = slices.DeleteFunc(hs.Locks, func(l *localLock) bool { return l.VG == vg })
		return nil
	})
}
