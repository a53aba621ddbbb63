package activation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
)

// located is an image of a disk and, where it is managed, the volume it is on.
type located struct {
	domain.Found
	disk    string // target name
	managed bool   // on an LV of a VG in scope
	need    model.Need
}

// walk is the walk of a disk's chain, which names more images each time those it has
// named are active.
type walk struct {
	disk string
	*domain.Walk
}

func (m *Manager) walks(d *domain.Domain) []walk {
	all := make([]walk, 0, len(d.Disks))
	for _, disk := range d.Disks {
		all = append(all, walk{disk.Target, m.Disks.Start(disk)})
	}
	return all
}

// next asks each walk for the images it can name now, and finds their volumes.
func (m *Manager) next(ctx context.Context, walks []walk) ([]located, error) {
	var all []located
	for _, w := range walks {
		found, err := w.Next(ctx)
		if err != nil {
			return nil, api.NewError(api.KindBadRequest, err.Error())
		}
		for _, f := range found {
			all = append(all, located{Found: f, disk: w.disk})
		}
	}
	return all, m.locate(ctx, all)
}

// locate finds the volumes of images. It reads each VG once, one lvs per VG so that a
// hanging one spares the others.
func (m *Manager) locate(ctx context.Context, images []located) error {
	byVG := map[string][]*located{}
	for i := range images {
		im := &images[i]
		if !im.LV {
			continue
		}
		var err error
		if im.Ref, err = m.named(im.Ref); err != nil {
			return err
		}
		byVG[im.Ref.VG] = append(byVG[im.Ref.VG], im)
	}
	for _, vg := range sortedKeys(byVG) {
		inv, err := m.inventoryFor(ctx, vg, byVG[vg])
		if err != nil {
			return err
		}
		if inv != nil && inv.unlocked {
			// While the host boots: what was read without a lock may be out of date.
			if err := m.awaitLockspace(ctx, vg); err != nil {
				return err
			}
			if inv, err = m.inventory(ctx, vg); err != nil {
				return err
			}
		}
		if inv == nil { // no such VG: the path is something else, unless there was one
			if err := m.vanished(byVG[vg][0].Ref); err != nil {
				return err
			}
			continue
		}
		for _, im := range byVG[vg] {
			if im.need, im.managed, err = m.needFor(inv, im); err != nil {
				return err
			}
		}
	}
	return nil
}

// named turns a reference by device-mapper uuid into names, from the active device.
func (m *Manager) named(ref domain.Ref) (domain.Ref, error) {
	if ref.VG != "" || ref.DMUUID == "" {
		return ref, nil
	}
	devices, err := m.LVM.Devices()
	if err != nil {
		return ref, err
	}
	dev, ok := devices[ref.DMUUID]
	if !ok {
		return ref, api.NewError(api.KindBadRequest, fmt.Sprintf(
			"a disk names its volume by the device uuid %s, which is not active here; name it as /dev/VG/LV", ref.DMUUID))
	}
	vg, lv, ok := lvm.SplitMapperName(dev.Name)
	if !ok {
		return ref, api.NewError(api.KindBadRequest, fmt.Sprintf("the device %s of a disk is no ordinary logical volume", dev.Name))
	}
	return domain.Ref{VG: vg, LV: lv, DMUUID: ref.DMUUID}, nil
}

// inventory of one VG by volume name; nil if there is no such VG.
type inventory struct {
	vg       string
	byName   map[string]model.Volume // by LV name
	lockType string                  // of the VG
	unlocked bool                    // read without a lock: may be out of date
	// active are the devices by dm uuid where the inventory is remembered: it is good for
	// their volumes alone. nil: it has just been read.
	active map[string]lvm.Device
}

// knows reports whether the inventory can be relied on for a volume.
func (inv *inventory) knows(lv string) bool {
	v, found := inv.byName[lv]
	if !found || inv.active == nil {
		return found
	}
	_, found = inv.active[v.ID.DMUUID()]
	return found
}

func (m *Manager) inventory(ctx context.Context, vg string) (*inventory, error) {
	m.mu.Lock()
	err := m.stuckError(vg, m.queue(vg))
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	began := m.Now()
	vols, missing, unlocked, err := m.LVM.Inventory(ctx, vg)
	var te *run.TimeoutError
	if errors.As(err, &te) {
		m.markStuck(vg, te, began)
	}
	if err != nil {
		return nil, api.NewError(kindOf(err), fmt.Sprintf("cannot read volume group %s: %v", vg, err))
	}
	if len(missing) > 0 {
		return nil, nil //nolint:nilnil // no such VG is an answer, not an error
	}
	inv := &inventory{vg: vg, byName: map[string]model.Volume{}, unlocked: len(unlocked) > 0}
	for _, v := range vols {
		inv.byName[v.LV], inv.lockType = v, v.LockType
	}
	if len(vols) == 0 { // lvs says nothing of a VG without volumes
		if inv.lockType, err = m.lockTypeOf(ctx, vg); err != nil {
			return nil, err
		}
	}
	m.setLockType(vg, inv.lockType)
	for name, v := range inv.byName {
		v.LockLV = v.ID.LV
		// A thin volume is protected by its pool's lock, a snapshot by its origin's.
		for _, other := range []string{v.Pool, v.Origin} {
			if o, ok := inv.byName[other]; ok && v.LeaseOffset < 0 {
				v.LockLV, v.LeaseOffset = o.ID.LV, o.LeaseOffset
			}
		}
		inv.byName[name] = v
	}
	m.keepLeases(inv)
	return inv, nil
}

// keepLeases remembers what LVM has listed, and where the leases of a VG lie; see leasesAt.
func (m *Manager) keepLeases(inv *inventory) {
	at := make(map[string]int64, len(inv.byName))
	for _, v := range inv.byName {
		if v.LeaseOffset > 0 {
			at[v.LockLV] = v.LeaseOffset
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leases[inv.vg], m.listed[inv.vg] = at, inv
}

// inventories keeps what one adoption has read, which asks disk by disk and guest by guest.
type inventories map[string]*inventory

type inventoriesKey struct{}

// withInventories lets everything under ctx read each VG once, unless it misses a volume.
// Not for what runs side by side.
func withInventories(ctx context.Context) context.Context {
	return context.WithValue(ctx, inventoriesKey{}, inventories{})
}

// inventoryFor is the inventory of a VG in which to find the volumes of images.
func (m *Manager) inventoryFor(ctx context.Context, vg string, images []*located) (*inventory, error) {
	kept, keep := ctx.Value(inventoriesKey{}).(inventories)
	if inv := kept[vg]; inv != nil && !inv.unlocked && !slices.ContainsFunc(images, func(im *located) bool { return !inv.knows(im.Ref.LV) }) {
		return inv, nil
	}
	if !keep {
		return m.inventory(ctx, vg)
	}
	devices, devErr := m.LVM.Devices()
	inv, err := m.inventory(ctx, vg)
	if err == nil {
		kept[vg] = inv
		if devErr == nil {
			m.remember(inv, devices)
		}
	}
	return inv, err
}

func (m *Manager) lockTypeOf(ctx context.Context, name string) (string, error) {
	vgs, err := m.groups(ctx)
	if err != nil {
		return "", api.NewError(kindOf(err), fmt.Sprintf("cannot read volume group %s: %v", name, err))
	}
	for _, vg := range vgs {
		if vg.Name == name {
			return vg.LockType, nil
		}
	}
	return "", nil
}

// needFor decides whether an image's volume is ours to manage, and how it is needed.
func (m *Manager) needFor(inv *inventory, im *located) (model.Need, bool, error) {
	ref := im.Ref
	if managed, err := m.managed(inv.vg, inv.lockType); !managed || err != nil {
		return model.Need{}, false, err
	}
	v, ok := inv.byName[ref.LV]
	if !ok {
		return model.Need{}, false, api.NewError(api.KindNotFound, fmt.Sprintf("volume %s/%s (disk %s) does not exist", ref.VG, ref.LV, im.disk))
	}
	if ref.DMUUID != "" && v.ID.DMUUID() != ref.DMUUID {
		return model.Need{}, false, api.NewError(api.KindLocking, fmt.Sprintf(
			"the device of %s belongs to another volume than the one LVM names so now; refresh it with 'dmsetup info' and 'lvs -o+lv_uuid' before the next start", v.Name()))
	}
	if m.claimed(inv.vg) {
		if err := claimTypes(inv, v); err != nil {
			return model.Need{}, false, err
		}
	} else if v.LockLV == v.ID.LV && v.LeaseOffset < 0 {
		return model.Need{}, false, api.NewError(api.KindUnsupported, fmt.Sprintf("%s has no lock of its own (type %s); virtlvm cannot protect it", v.Name(), v.SegType))
	}
	if im.Role.Mode() == model.ModeEX && v.HasTag(model.TagShared) {
		return model.Need{}, false, api.NewError(api.KindUnsupported, fmt.Sprintf(
			"%s is tagged %s (a template or cluster disk), but disk %s would write it; make the disk read-only or shareable, or remove the tag", v.Name(), model.TagShared, im.disk))
	}
	return model.Need{Volume: v, Role: im.Role, Disk: im.disk}, true, nil
}

// managed: a VG without lvmlockd is out of scope unless it is opted in; one with a lock manager we do not know
// must not be used as if it were protected.
func (m *Manager) managed(vg, lockType string) (bool, error) {
	if !m.Settings().Scope(vg) {
		return false, nil
	}
	switch lockType {
	case "sanlock":
		return true, nil
	case "none":
		return len(m.Settings().Claims[vg]) > 0, nil
	case "": // gone since it was listed
		return false, nil
	}
	return false, api.NewError(api.KindUnsupported, fmt.Sprintf(
		"volume group %s uses lock type %s, which virtlvm does not support yet; put it under [scope] exclude in virtlvm.toml to start guests on it unprotected", vg, lockType))
}

// mergeNeeds joins the needs of one guest for the same volume, keeping the strongest. A
// volume that one guest would write through two disks is refused: nothing could keep
// them apart.
func mergeNeeds(found []located) ([]model.Need, error) {
	merged := map[model.VolumeID]model.Need{}
	for _, f := range found {
		if !f.managed {
			continue
		}
		old, twice := merged[f.need.Volume.ID]
		if !twice {
			merged[f.need.Volume.ID] = f.need
			continue
		}
		if old.Disk == f.disk && old.Role != model.RoleWritable && f.need.Role != model.RoleWritable {
			// A block commit writes into an image of the disk's own chain.
			if f.need.Role.Mode() == model.ModeEX {
				merged[f.need.Volume.ID] = f.need
			}
			continue
		}
		if old.Role.Mode() == model.ModeEX || f.need.Role.Mode() == model.ModeEX {
			return nil, api.NewError(api.KindBadRequest, fmt.Sprintf(
				"%s is named twice (disk %s %s, disk %s %s) and would be written under itself; remove one", f.need.Volume.Name(), old.Disk, old.Role, f.need.Disk, f.need.Role))
		}
	}
	needs := make([]model.Need, 0, len(merged))
	for _, n := range merged {
		needs = append(needs, n)
	}
	sort.Slice(needs, func(i, j int) bool { return needs[i].Volume.Name() < needs[j].Volume.Name() })
	return needs, nil
}

func sortedKeys[V any](in map[string]V) []string {
	keys := make([]string, 0, len(in))
	for k := range in {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
