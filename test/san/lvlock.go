package san

import "fmt"

// lockResult is lvmlockd's answer.
type lockResult int

const (
	lockGiven   lockResult = iota
	lockHeld               // by another host
	lockNoShare            // the type cannot be shared
	lockClash              // held SH here, EX needed for the moment
)

// noShare reports whether lvmlockd refuses SH for an LV: no type that only one host may
// write, and since 2.03.31 no origin of a snapshot.
func (st *state) noShare(vg *vgState, lv *lvState) bool {
	switch lv.Seg {
	case "raid1", "mirror", "thin-pool", "cache":
		return true
	case "writecache":
		return st.LVM >= LVM33
	}
	return lv.isSnapshot() || st.LVM >= LVM31 && len(vg.snapshots(lv)) > 0
}

// lockLV takes the persistent lock that an activation of lv needs, in mode "ex" or "sh".
func (c *call) lockLV(st *state, hs *hostState, vg *vgState, lv *lvState, mode string) lockResult {
	if !vg.shared() {
		return lockGiven
	}
	lv = vg.locker(lv)
	if mode == "sh" && st.noShare(vg, lv) {
		return lockNoShare
	}
	l := vg.Leases[lv.Offset]
	if l == nil {
		return lockGiven // a hidden part: its owner's lock is held
	}
	now, held := c.san.now(st), hs.lockOf(vg.Name, lv.UUID)
	switch {
	case held != nil && held.Mode == mode:
		return lockGiven
	case held != nil && held.Mode != "un":
		if !st.convert(now, vg, hs, l, mode) {
			return lockHeld
		}
	default:
		if !st.acquire(now, vg, hs, l, mode) {
			return lockHeld
		}
	}
	hs.setLock(vg.Name, lv.UUID, mode)
	return lockGiven
}

// holdEX takes the lock that a change of lv needs while the command runs; undo gives
// back what was not held before. A persistent one converts SH, a transient one does not.
func (c *call) holdEX(st *state, hs *hostState, vg *vgState, lv *lvState, persistent bool) (res lockResult, undo func()) {
	undo = func() {}
	if !vg.leased() || vg.locker(lv) == nil || vg.locker(lv).Offset == 0 {
		return lockGiven, undo
	}
	lock, before := vg.locker(lv), "un"
	if held := hs.lockOf(vg.Name, lock.UUID); held != nil {
		before = held.Mode
	}
	if before == "sh" && !persistent {
		return lockClash, undo
	}
	if res = c.lockLV(st, hs, vg, lv, "ex"); res != lockGiven {
		return res, undo
	}
	switch before {
	case "un":
		undo = func() { c.unlockLV(st, hs, vg, lock) }
	case "sh":
		undo = func() { c.lockLV(st, hs, vg, lv, "sh") }
	}
	return res, undo
}

// unlockLV drops the lock of a deactivated LV. A pool's stays while a part of the pool is
// active.
func (c *call) unlockLV(st *state, hs *hostState, vg *vgState, lv *lvState) {
	lv = vg.locker(lv)
	if lv == nil || lv.Seg == "thin-pool" && hs.active(vg, lv) {
		return
	}
	held := hs.lockOf(vg.Name, lv.UUID)
	if held == nil {
		return
	}
	if l, d := vg.Leases[lv.Offset], vg.Deltas[hs.ID]; l != nil && d != nil {
		l.release(hs, d.Gen)
	}
	if st.LVM < LVM31 {
		held.Mode = "un"
		return
	}
	hs.dropLock(vg.Name, lv.UUID)
}

// refuse prints why a lock was not given. lv is the LV that was asked for.
func (c *call) refuse(st *state, vg *vgState, lv *lvState, res lockResult) {
	lock := vg.locker(lv)
	switch res {
	case lockHeld:
		c.warn("LV locked by other host: %s/%s%s", vg.Name, lock.Name, st.ownerHint(vg, lock))
	case lockNoShare:
		c.warn("Shared activation not compatible with LV type %s of %s/%s", lock.Seg, vg.Name, lock.Name)
	case lockClash:
		c.warn("LV is already locked with incompatible mode: %s/%s", vg.Name, lock.Name)
	case lockGiven:
	}
}

// ownerHint names the holder as newer versions of LVM do.
func (st *state) ownerHint(vg *vgState, lock *lvState) string {
	l := vg.Leases[lock.Offset]
	if st.LVM < LVM33 || l == nil {
		return ""
	}
	if id := l.Own; l.Timestamp != 0 {
		return fmt.Sprintf(" (host_id %d)", id)
	}
	if len(l.SH) > 0 {
		return fmt.Sprintf(" (host_id %d)", l.SH[0].ID)
	}
	return ""
}
