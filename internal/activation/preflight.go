package activation

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// obstacles says why a guest could not be migrated live now; none: it could, as far as
// this host can tell. It asks no other host, and LVM only where the devices of a VG have
// changed since it was read: a volume whose lock is held here can change its type, or get
// a snapshot, on this host alone, and not without a device that comes or goes.
func (m *Manager) obstacles(ctx context.Context, g guests.Guest, now local) []string {
	switch g.Alive {
	case guests.Gone:
		return []string{"it does not run here"}
	case guests.Unknown:
		return []string{"it cannot be told whether it runs here"}
	case guests.Alive:
	}
	var why []string
	if busy := m.occupied(g); busy != "" {
		why = append(why, busy)
	}
	m.mu.Lock()
	if note := m.report.general["guest "+g.Name]; note != "" {
		why = append(why, note)
	}
	m.mu.Unlock()
	holds, alone := m.holdsOf(g.UUID), false
	for _, h := range holds {
		alone = alone || h.Mode == model.ModeEX
		if a := now.ofHold(h); !a.Is(h.Wanted()) {
			why = append(why, fmt.Sprintf("%s should be %s and is %s", h.Name, h.Wanted(), a))
		}
	}
	fixed, err := cannotBeShared(holds, func(vg, uuid string) (*inventory, error) { return m.remembered(ctx, vg, uuid, now) })
	if err != nil {
		fixed = []string{fmt.Sprintf("it cannot be told whether LVM can share its volumes: %v", err)}
	}
	why = append(why, fixed...)
	why = append(why, unsafeDisks(g)...)
	if alone && m.OtherHosts != nil && len(m.OtherHosts(ctx)) == 0 {
		why = append(why, "virtlvm knows no other host; see 'virtlvm peer test'")
	}
	return why
}

// occupied says what is being done with a guest that a migration would have to wait for.
func (m *Manager) occupied(g guests.Guest) string {
	for _, h := range m.holdsOf(g.UUID) {
		switch h.Phase {
		case model.PhaseLent:
			if g.Job.Async != jobOut {
				return "it may have been left over from its migration to " + h.Grant.Peer + "; see 'virtlvm status'"
			}
			return "it is being migrated to " + h.Grant.Peer
		case model.PhaseIncoming:
			return "it is being migrated to here from " + h.Grant.Peer
		case model.PhaseHeld, model.PhaseEnding:
		}
	}
	switch {
	case g.Job.Async != "" && g.Job.Async != "none":
		return "libvirt is busy with it (" + g.Job.Async + ")"
	case g.BlockJobs:
		return "a block job runs on one of its disks, and libvirt migrates it only when that has ended"
	}
	return ""
}

// cannotBeShared names the volumes that LVM would not share for the time of a migration.
func cannotBeShared(holds []model.Hold, read func(vg, uuid string) (*inventory, error)) ([]string, error) {
	var why []string
	for _, h := range holds {
		if h.Mode != model.ModeEX {
			continue
		}
		vg, lv, _ := strings.Cut(h.Name, "/")
		inv, err := read(vg, h.Volume.VG)
		switch {
		case err != nil:
			return nil, err
		case inv == nil || inv.byName[lv].ID != h.Volume:
			why = append(why, "LVM does not list "+h.Name+" any more")
		default:
			if is := inv.unshareable(inv.byName[lv]); is != "" {
				why = append(why, h.Name+" is "+is+", which LVM cannot share between two hosts")
			}
		}
	}
	return why, nil
}

// shareable refuses before anything has changed where LVM cannot share a volume.
func (m *Manager) shareable(ctx context.Context, uuid string) error {
	why, err := cannotBeShared(m.holdsOf(uuid), func(vg, _ string) (*inventory, error) {
		return m.inventoryFor(ctx, vg, nil)
	})
	if err != nil || len(why) == 0 {
		return err
	}
	return api.NewError(api.KindUnsupported, why[0]+"; shut the guest down to move it")
}

// memory is what LVM has said of a VG, and the devices it had then.
type memory struct {
	inv     *inventory
	devices []string // see devicesOf
}

// devicesOf are the devices of a VG, as dm uuids and names, sorted.
func devicesOf(uuid string, devices map[string]lvm.Device) []string {
	var all []string
	for _, d := range devices {
		if strings.HasPrefix(d.UUID, model.VolumeID{VG: uuid}.DMUUID()) {
			all = append(all, d.UUID+" "+d.Name)
		}
	}
	slices.Sort(all)
	return all
}

// remember keeps what LVM has just said of a VG; devices are those from before it was asked.
func (m *Manager) remember(inv *inventory, devices map[string]lvm.Device) {
	if inv == nil || inv.unlocked {
		return
	}
	for _, v := range inv.byName {
		m.mu.Lock()
		m.memory[inv.vg] = memory{inv, devicesOf(v.ID.VG, devices)}
		m.mu.Unlock()
		return
	}
}

// recall is what LVM has said of a VG while it had the devices that it has now; nil: nothing.
func (m *Manager) recall(vg, uuid string, devices map[string]lvm.Device) *inventory {
	m.mu.Lock()
	known, ok := m.memory[vg]
	m.mu.Unlock()
	if ok && slices.Equal(known.devices, devicesOf(uuid, devices)) {
		return known.inv
	}
	return nil
}

// remembered is the inventory of a VG, read anew only if its devices have changed.
func (m *Manager) remembered(ctx context.Context, vg, uuid string, now local) (*inventory, error) {
	if inv := m.recall(vg, uuid, now.devices); inv != nil {
		return inv, nil
	}
	inv, err := m.inventory(ctx, vg)
	if err == nil {
		m.remember(inv, now.devices)
	}
	return inv, err
}

// recallHeld lets everything under ctx, which is withInventories, use what is remembered of the
// VGs in which a guest has holds: of their volumes that are active here. Where a lock is held
// here nobody elsewhere can change, rename or remove its volume; see obstacles.
func (m *Manager) recallHeld(ctx context.Context, uuid string) {
	kept, _ := ctx.Value(inventoriesKey{}).(inventories)
	devices, err := m.LVM.Devices()
	if err != nil {
		return
	}
	for _, h := range m.holdsOf(uuid) {
		vg, _, _ := strings.Cut(h.Name, "/")
		if inv := m.recall(vg, h.Volume.VG, devices); inv != nil && kept[vg] == nil {
			recalled := *inv
			recalled.active = devices
			kept[vg] = &recalled
		}
	}
}

// unsafeDisks are those for whose page cache libvirt refuses a migration unless it is told
// --unsafe (its qemuMigrationSrcIsSafe). That the volumes are shared is no matter: what
// the source's host has cached of them would be stale on the way back.
func unsafeDisks(g guests.Guest) []string {
	d, err := domain.ParseStatus(g.XML)
	if err != nil {
		return []string{fmt.Sprintf("its disks cannot be read: %v", err)}
	}
	var why []string
	for _, disk := range d.Disks {
		switch {
		case disk.Role == model.RoleReadOnly || disk.Firmware():
		case disk.File && strings.HasPrefix(disk.Source.Path, "/dev/"):
			why = append(why, fmt.Sprintf("disk %s is declared as a file, which libvirt takes for local and migrates only with --unsafe; declare it as <disk type='block'>", disk.Target))
		case disk.File || disk.Role == model.RoleShareable || disk.Cache == "none" || disk.Cache == "directsync" || g.DropsCache:
		default:
			why = append(why, fmt.Sprintf("disk %s has cache mode %s, with which libvirt migrates only with --unsafe; use none or directsync", disk.Target, orDefault(disk.Cache)))
		}
	}
	return why
}

func orDefault(cache string) string {
	if cache == "" {
		return "default"
	}
	return cache
}

// unshareable names the type of a volume that cannot be active on two hosts, "" if it can
// (measured with LVM 2.03.31; writecache is refused by later versions).
func (inv *inventory) unshareable(v model.Volume) string {
	switch v.SegType {
	case "linear", "striped":
	default:
		return "of type " + v.SegType
	}
	if v.Origin != "" {
		return "a snapshot"
	}
	for _, other := range inv.byName {
		if other.Origin == v.LV {
			return "the origin of snapshot " + other.Name()
		}
	}
	return ""
}
