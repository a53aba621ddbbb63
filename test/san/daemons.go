package san

import (
	"time"
)

// silence ends the host's renewals.
func (st *state) silence(hs *hostState, now time.Time) {
	for vg := range hs.Spaces {
		if d := st.VGs[vg].Deltas[hs.ID]; d != nil && d.SilentAt == 0 && !d.Free {
			d.SilentAt = now.UnixNano()
		}
	}
}

// StopLvmlockd kills lvmlockd. Its locks become orphans: sanlock goes on holding them.
func (h *Host) StopLvmlockd() error {
	return h.change("stop lvmlockd", func(_ *state, hs *hostState) error {
		hs.LockdDown = true
		for _, l := range hs.Locks {
			l.Orphan = l.Mode != "un"
		}
		return nil
	})
}

// StartLvmlockd starts it again. With adopt the orphans are its own again; without, the
// lockspaces stay inactive until the host is rebooted, whatever lockstart says.
func (h *Host) StartLvmlockd(adopt bool) error {
	return h.change("start lvmlockd", func(_ *state, hs *hostState) error {
		if !hs.LockdDown {
			return nil
		}
		hs.LockdDown = false
		for _, l := range hs.Locks {
			l.Orphan = l.Orphan && !adopt
		}
		for _, sp := range hs.Spaces {
			sp.Inactive = !adopt
		}
		return nil
	})
}

// KillSanlock kills sanlock where no watchdog resets the host: renewals end, devices
// stay, and lvmlockd goes on showing its locks.
func (h *Host) KillSanlock() error {
	return h.change("kill sanlock", func(st *state, hs *hostState) error {
		st.silence(hs, h.san.now(st))
		hs.SanlockDown = true
		return nil
	})
}

// Stall ends the host's renewals and nothing else: its path to the disks hangs. Resume
// lets them go on, too late or not.
func (h *Host) Stall() error {
	return h.change("stall", func(st *state, hs *hostState) error {
		st.silence(hs, h.san.now(st))
		return nil
	})
}

// Resume ends Stall.
func (h *Host) Resume() error {
	return h.change("resume", func(st *state, hs *hostState) error {
		for vg := range hs.Spaces {
			if d := st.VGs[vg].Deltas[hs.ID]; d != nil {
				d.SilentAt = 0
			}
		}
		return nil
	})
}

// LockRow is one line of the lock table: a host that a lease names.
type LockRow struct {
	Volume string // vg/lv
	Host   string
	HostID int
	Mode   string // "ex" or "sh"
	State  HostLiveness
	// Stale: the lease does not protect any more, its owner is dead or has rebooted.
	Stale bool
}

// Locks is what the leases on disk say, as a host that has always been there sees it.
func (s *SAN) Locks() ([]LockRow, error) {
	var rows []LockRow
	err := s.view(func(st *state) error {
		now := s.now(st)
		for _, vg := range st.vgsByName() {
			// An observer that has been there for ever.
			obs := &hostState{Spaces: map[string]*space{vg.Name: {}}}
			for _, lv := range vg.LVs {
				l := vg.Leases[lv.Offset]
				if l == nil {
					continue
				}
				row := func(id int, gen int64, mode string) LockRow {
					r := LockRow{Volume: vg.Name + "/" + lv.Name, HostID: id, Mode: mode}
					r.State, r.Stale = st.liveness(now, vg, obs, id), !st.holds(now, vg, obs, id, gen)
					if h := st.hostByID(id); h != nil {
						r.Host = h.Name
					}
					return r
				}
				if l.Timestamp != 0 {
					rows = append(rows, row(l.Own, l.Gen, "ex"))
				}
				for _, sh := range l.SH {
					rows = append(rows, row(sh.ID, sh.Gen, "sh"))
				}
			}
		}
		return nil
	})
	return rows, err
}
