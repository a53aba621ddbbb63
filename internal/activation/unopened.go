package activation

import (
	"context"
	"fmt"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/lvm"
)

// Unopened is a path that libvirt could not open because it was not there.
type Unopened struct {
	At   time.Time
	Path string
}

// unopenedFor is how long `virtlvm status` tells of a disk that libvirt could not open.
const unopenedFor = 15 * time.Minute

// unopened tells of our volumes that libvirt could not open, and that are still not active here:
// libvirt calls no hook for a disk that is attached to a running guest.
func (m *Manager) unopened(ctx context.Context) []api.Incident {
	if m.Unopened == nil {
		return nil
	}
	all, err := m.Unopened(ctx, m.Now().Add(-unopenedFor))
	if err != nil || len(all) == 0 {
		if err != nil {
			m.Log.Debug("cannot tell what libvirt could not open", "err", err)
		}
		return nil
	}
	devices, err := m.LVM.Devices()
	if err != nil {
		return nil
	}
	told := map[string]bool{}
	for _, d := range devices {
		told[d.Name] = true // it is there by now
	}
	var found []api.Incident
	for _, u := range all {
		ref, isLV, err := m.Disks.Resolver.Resolve(domain.Source{Path: u.Path})
		if err != nil || !isLV || ref.VG == "" || !m.isOurs(ref.VG) || told[lvm.MapperName(ref.VG, ref.LV)] {
			continue
		}
		told[lvm.MapperName(ref.VG, ref.LV)] = true
		found = append(found, api.Incident{At: u.At, Kind: api.EventUnopened, Subject: ref.String(), Text: fmt.Sprintf(
			"libvirt could not open %s, which is not active on this host: 'virsh attach-disk' activates no volume, 'virtlvm guest attach GUEST %s' does", ref, ref)})
	}
	return found
}

// isOurs reports whether a VG is managed, as of the last full look.
func (m *Manager) isOurs(name string) bool {
	m.mu.Lock()
	lockType := m.lockTypes[name]
	m.mu.Unlock()
	ours, err := m.managed(name, lockType)
	return ours && err == nil
}
