package activation

import (
	"context"
	"fmt"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// local is one look at this host's locks and devices.
type local struct {
	locks   lease.Local
	devices map[string]lvm.Device // by dm uuid
	// claimed VGs have no lvmlockd: their locks are the claims of this host's holds.
	claimed map[string]bool
	// counts are the VGs' from before the look, see goodFor.
	counts map[string]uint64
	at     time.Duration // uptime before the look
	kept   bool          // it is from an earlier turn, see lookAwaiting
}

func (m *Manager) look(ctx context.Context) (local, error) {
	m.mu.Lock()
	counts := m.counts()
	m.mu.Unlock()
	at := m.Uptime()
	locks, err := m.Leases.Local(ctx)
	if err != nil {
		return local{}, api.NewError(kindOf(err), fmt.Sprintf("cannot read this host's locks: %v", err))
	}
	devices, err := m.LVM.Devices()
	if err != nil {
		return local{}, api.NewError(api.KindLocking, fmt.Sprintf("cannot read this host's devices: %v", err))
	}
	l := local{locks: locks, devices: devices, counts: counts, at: at}
	m.addClaims(&l)
	return l, nil
}

// usable is nil where locks of a VG can be taken and given up now.
func (l local) usable(vg string) error {
	if l.claimed[vg] {
		return nil
	}
	if !l.locks.LockdRunning {
		advice := "start lvmlockd"
		if len(l.locks.Orphans) > 0 {
			advice = "its locks are orphaned and go on protecting: start it again with 'lvmlockd --adopt 1', or reboot this host"
		}
		return api.NewError(api.KindLocking, "lvmlockd is not running on this host; "+advice)
	}
	if g, ok := l.locks.VGs[vg]; !ok || !g.Started {
		return api.NewError(api.KindLocking, fmt.Sprintf("the lockspace of %s is not started on this host; run 'vgchange --lockstart %s' and look for 'LS sanlock lvm_%s' in 'lvmlockctl --info'", vg, vg, vg))
	}
	return nil
}

func (l local) started(vg string) bool { return l.usable(vg) == nil }

// actual state of one volume. A volume that shares its pool's lock does not count as
// locked while it is off and a sister is active: the lock is the sister's.
func (l local) actual(vg string, id model.VolumeID, lockLV string) model.Actual {
	a := model.Actual{Lock: model.ModeOff}
	_, a.Active = l.devices[id.DMUUID()]
	if mode, ok := l.locks.VGs[vg].Locks[lockLV]; ok && (lockLV == id.LV || a.Active || !l.inUse(model.VolumeID{VG: id.VG, LV: lockLV})) {
		a.Lock = mode
	}
	for _, o := range l.locks.Orphans {
		if o.VG == vg && o.LV == lockLV {
			a.Orphan, a.Lock = true, o.Mode
		}
	}
	return a
}

// inUse: some volume is active on a pool or an origin.
func (l local) inUse(id model.VolumeID) bool {
	prefix := id.DMUUID()
	for uuid := range l.devices {
		if strings.HasPrefix(uuid, prefix) {
			return true
		}
	}
	return false
}

func (l local) ofVolume(v model.Volume) model.Actual { return l.actual(v.VG, v.ID, v.LockLV) }

func (l local) ofHold(h model.Hold) model.Actual {
	vg, _, _ := strings.Cut(h.Name, "/")
	return l.actual(vg, h.Volume, h.LockLV)
}

// describe tells what was observed of some volumes, for the journal.
func (l local) describe(vols []model.Volume) string {
	parts := make([]string, 0, len(vols))
	for _, v := range vols {
		parts = append(parts, v.Name()+" "+l.ofVolume(v).String())
	}
	return strings.Join(parts, ", ")
}
