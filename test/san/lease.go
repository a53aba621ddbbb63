package san

import (
	"slices"
	"time"
)

// lease is a resource lease on disk (sanlock's paxos lease with its mode blocks).
type lease struct {
	Resource  string // LV uuid; empty: unused
	Timestamp int64  // 0: not held exclusively, Own and Gen are those of the last owner
	Own       int
	Gen       int64
	Lver      int64
	SH        []shRow
}

// shRow is a shared holder.
type shRow struct {
	ID  int
	Gen int64
}

// deltaSlot is a host's lease of its host id in one lockspace: proof that it lives.
type deltaSlot struct {
	Name     string
	Gen      int64
	BootedAt int64 // of the host when it took the id; timestamps count from it
	SilentAt int64 // when renewals ended; 0 while they go on
	Free     bool  // given up in order: timestamp 0
}

// HostLiveness is how sanlock sees another host.
type HostLiveness string

// Liveness, as `sanlock client gets -h 1` prints it.
const (
	Live    HostLiveness = "LIVE"
	Fail    HostLiveness = "FAIL"
	Dead    HostLiveness = "DEAD"
	Unknown HostLiveness = "UNKNOWN"
	Free    HostLiveness = "FREE"
)

// expiry is the age at which a silent host counts as dead; failAfter that of FAIL.
func (st *state) expiry() time.Duration {
	if st.Expiry > 0 {
		return st.Expiry
	}
	return time.Duration(8*st.IOTimeout+60) * time.Second
}

func (st *state) failAfter() time.Duration {
	return min(time.Duration(8*st.IOTimeout)*time.Second, st.expiry()/2)
}

// renewal is the time between two renewals.
func (st *state) renewal() time.Duration { return time.Duration(2*st.IOTimeout) * time.Second }

// liveness is what observer thinks of the host with that id: sanlock's get_host_flag.
// An observer that has just joined counts from then and says UNKNOWN until it has seen a
// renewal or enough time has gone by.
func (st *state) liveness(now time.Time, vg *vgState, observer *hostState, id int) HostLiveness {
	d := vg.Deltas[id]
	if d == nil || d.Free {
		return Free
	}
	if id == observer.ID {
		return Live
	}
	joined := now
	if sp := observer.Spaces[vg.Name]; sp != nil {
		joined = time.Unix(0, sp.JoinedAt)
	}
	last := now
	if d.SilentAt != 0 {
		last = time.Unix(0, d.SilentAt)
	}
	seen := last.Sub(joined) >= st.renewal()
	if !seen {
		last = joined
	}
	switch age := now.Sub(last); {
	case age > st.expiry():
		return Dead
	case age > st.failAfter():
		return Fail
	case !seen:
		return Unknown
	}
	return Live
}

// timestamp is a host's uptime in seconds at the last renewal of its host id, as the
// host table shows it.
func (d *deltaSlot) timestamp(now time.Time, renewal time.Duration) int64 {
	if d.Free {
		return 0
	}
	at := now
	if d.SilentAt != 0 {
		at = time.Unix(0, d.SilentAt)
	}
	return max(1, int64(at.Sub(time.Unix(0, d.BootedAt)).Truncate(renewal)/time.Second))
}

// holds reports whether a lease that names (id, gen) still protects, as host sees it.
func (st *state) holds(now time.Time, vg *vgState, host *hostState, id int, gen int64) bool {
	d := vg.Deltas[id]
	return d != nil && !d.Free && d.Gen == gen && st.liveness(now, vg, host, id) != Dead
}

// sharedElsewhere drops the rows of hosts that are gone for good and tells whether
// another host's row stays.
func (st *state) sharedElsewhere(now time.Time, vg *vgState, h *hostState, l *lease) bool {
	l.SH = slices.DeleteFunc(l.SH, func(r shRow) bool {
		return r.ID == h.ID || !st.holds(now, vg, h, r.ID, r.Gen)
	})
	return len(l.SH) > 0
}

// acquire takes a free lease for h in mode "ex" or "sh"; false: another host holds it.
// The owner and version fields change as sanlock changes them, also on failure.
func (st *state) acquire(now time.Time, vg *vgState, h *hostState, l *lease, mode string) bool {
	d := vg.Deltas[h.ID]
	if l.Timestamp != 0 && l.Own != h.ID && st.holds(now, vg, h, l.Own, l.Gen) {
		return false
	}
	l.Own, l.Gen, l.Timestamp = h.ID, d.Gen, 0
	l.Lver++
	if mode == "sh" {
		l.share(h.ID, d.Gen)
		return true
	}
	if st.sharedElsewhere(now, vg, h, l) {
		return false
	}
	l.Timestamp = max(1, int64(now.Sub(time.Unix(0, d.BootedAt))/time.Second))
	return true
}

// convert changes the mode of a lease that h holds. A failing sh->ex keeps the shared
// row.
func (st *state) convert(now time.Time, vg *vgState, h *hostState, l *lease, mode string) bool {
	d := vg.Deltas[h.ID]
	if mode == "sh" {
		l.Timestamp = 0
		l.share(h.ID, d.Gen)
		return true
	}
	l.Own, l.Gen = h.ID, d.Gen
	l.Lver++
	if st.sharedElsewhere(now, vg, h, l) {
		l.share(h.ID, d.Gen)
		return false
	}
	l.Timestamp = max(1, int64(now.Sub(time.Unix(0, d.BootedAt))/time.Second))
	return true
}

// release gives up what h holds of the lease under its current generation.
func (l *lease) release(h *hostState, gen int64) {
	l.SH = slices.DeleteFunc(l.SH, func(r shRow) bool { return r.ID == h.ID && r.Gen == gen })
	if l.Own == h.ID && l.Gen == gen {
		l.Timestamp = 0
	}
}

// share writes h's row; rows stand in the order of host ids, one for each.
func (l *lease) share(id int, gen int64) {
	l.SH = slices.DeleteFunc(l.SH, func(r shRow) bool { return r.ID == id })
	l.SH = append(l.SH, shRow{ID: id, Gen: gen})
	slices.SortFunc(l.SH, func(a, b shRow) int { return a.ID - b.ID })
}

// touch counts a use of the VG's or the global lock.
func (l *lease) touch(h *hostState, gen int64) {
	l.Own, l.Gen = h.ID, gen
	l.Lver++
}

// Generation is the host's current sanlock generation in a VG, 0 before it joined.
func (h *Host) Generation(vg string) int64 {
	var gen int64
	_ = h.san.view(func(st *state) error {
		if v, hs := st.VGs[vg], st.Hosts[h.name]; v != nil && hs != nil && v.Deltas[hs.ID] != nil {
			gen = v.Deltas[hs.ID].Gen
		}
		return nil
	})
	return gen
}
