package activation

import (
	"context"
	"fmt"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// strangers refuses volumes that something on this host has open although no hold of ours
// says who: a mount, a backup, a QEMU that we could not make out. To share the volume
// with it, or to convert its lock, would be as bad as on two hosts.
func (m *Manager) strangers(ctx context.Context, needs []model.Need, before local) error {
	for try := 0; ; try++ {
		open, err := m.openUnheld(ctx, needs, before)
		if err != nil || open == "" {
			return err
		}
		// udev opens a device for a moment whenever it changes.
		if try == 4 {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s is open on this host (%s) by something that is no guest virtlvm knows of: a mount, a backup, another QEMU; 'lsof /dev/%s' and 'lsblk /dev/%s' tell", open, m.Host, open, open))
		}
		<-m.After(250 * time.Millisecond)
	}
}

func (m *Manager) openUnheld(ctx context.Context, needs []model.Need, before local) (string, error) {
	held := map[model.VolumeID]bool{}
	m.mu.Lock()
	for _, h := range m.holds {
		// A retained volume is used by nobody: whoever has it open is a stranger.
		held[h.Volume] = held[h.Volume] || h.Owner != model.OwnerRetained
	}
	m.mu.Unlock()
	var counts map[string]int
	for _, n := range needs {
		if held[n.Volume.ID] || !before.ofVolume(n.Volume).Active {
			continue
		}
		if counts == nil {
			var err error
			if counts, err = m.LVM.OpenCounts(ctx); err != nil {
				return "", api.NewError(kindOf(err), fmt.Sprintf("cannot tell whether %s is open: %v", n.Volume.Name(), err))
			}
		}
		if counts[n.Volume.ID.DMUUID()] > 0 {
			return n.Volume.Name(), nil
		}
	}
	return "", nil
}

// leased is nil if the leases on disk say that this host holds what lvmlockd lists.
func (m *Manager) leased(ctx context.Context, all []taken) error {
	if len(all) == 0 {
		return nil
	}
	offsets := map[string]int64{}
	for _, t := range all {
		offsets[t.volume.LockLV] = t.volume.LeaseOffset
	}
	holders, err := m.Leases.HoldersAll(ctx, all[0].vg, offsets)
	if err != nil {
		return api.NewError(api.KindLocking, fmt.Sprintf("lvmlockd lists the locks, but sanlock cannot confirm them: %v", err))
	}
	for _, t := range all {
		confirmed := false
		for _, h := range holders[t.volume.LockLV] {
			confirmed = confirmed || h.Self && h.Mode.Covers(t.hold.Wanted())
		}
		if !confirmed {
			return api.NewError(api.KindLocking, fmt.Sprintf("lvmlockd lists a lock of %s that its lease on disk does not have; see 'sanlock client status' and 'lvmlockctl --info'", t.volume.Name()))
		}
	}
	return nil
}

// vanished refuses a path whose volume group LVM does not see although there is, or was,
// one: unknown is not unmanaged.
func (m *Manager) vanished(ref domain.Ref) error {
	devices, err := m.LVM.Devices()
	if err != nil {
		return api.NewError(api.KindLocking, fmt.Sprintf("cannot read this host's devices: %v", err))
	}
	known := false
	for _, d := range devices {
		if vg, _, ok := lvm.SplitMapperName(d.Name); ok && vg == ref.VG && strings.HasPrefix(d.UUID, "LVM-") {
			known = true
		}
	}
	m.mu.Lock()
	known = known || len(m.Settings().Claims[ref.VG]) > 0
	for _, vg := range m.known {
		known = known || vg.Name == ref.VG && vg.LockType != "none"
	}
	m.mu.Unlock()
	if !known {
		return nil
	}
	return api.NewError(api.KindLocking, fmt.Sprintf("LVM does not see volume group %s, although this host has devices of it or had it before; check its paths, and the devices file or filter of lvm.conf ('vgs %s')", ref.VG, ref.VG))
}
