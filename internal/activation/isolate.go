package activation

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// isolate cuts a left-over guest off from the volumes that it could write: the devices
// get an error table, so that a `virsh resume` here writes nothing while the guest runs on
// the other host. The kernel keeps the table, whatever becomes of this daemon; it goes
// with the device when the left-over has gone and the volume is deactivated.
//
// Only volumes that a hold of ours has lent are touched, and only those that are linear:
// others have devices below them that LVM looks at.
func (m *Manager) isolate(ctx context.Context, uuid string, grant model.Grant) error {
	var failed error
	for _, h := range m.holdsOf(uuid) {
		if h.Phase != model.PhaseLent || h.Grant != grant || !m.inScope(h) {
			continue
		}
		if err := m.isolateOne(ctx, h); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s is not cut off: %w", h.Name, err))
		}
	}
	return failed
}

func (m *Manager) isolateOne(ctx context.Context, h model.Hold) error {
	vg, lv, _ := strings.Cut(h.Name, "/")
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	// What was true when the other host was asked may not be any more.
	if !m.isLeftover(h.Owner) || !m.stillHolds(h) {
		return nil
	}
	table, name, err := m.tableOf(ctx, h)
	if err != nil || table.All(lvm.TargetError) {
		return err
	}
	if name != lvm.MapperName(vg, lv) {
		return fmt.Errorf("its device is called %s", name)
	}
	if !table.All(lvm.TargetLinear) {
		return fmt.Errorf("its device is not linear but %s", strings.Join(table, ", "))
	}
	vols := []model.Volume{{ID: h.Volume, VG: vg, LV: lv, LockLV: h.LockLV}}
	e, err := m.begin(ctx, "cut off", lvm.CutOffCmd(vg, lv), vols, store.HoldChange{}, journalled)
	if err != nil {
		return err
	}
	table, _, err = m.tableOf(ctx, h)
	done := err == nil && table.All(lvm.TargetError)
	m.conclude(ctx, e, done, h.Name+" table: "+strings.Join(table, ", "))
	if !done {
		return errors.Join(e.err, err, errors.New("see 'virtlvm commands'"))
	}
	return nil
}

// isLeftover: the guest is paused here, without a job. Whether it runs elsewhere is not
// told by that.
func (m *Manager) isLeftover(uuid string) bool {
	snap, err := m.Guests.Observe()
	g, listed := snap.ByUUID[uuid]
	return err == nil && listed && g.Alive == guests.Alive && g.State == "paused" && (g.Job.Async == "" || g.Job.Async == "none")
}

func (m *Manager) stillHolds(h model.Hold) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.holds[holdKey{h.Owner, h.Volume}]
	return now.Phase == h.Phase && now.Grant == h.Grant
}

// tableOf reads the table and the name of a volume's device, found by its uuid.
func (m *Manager) tableOf(ctx context.Context, h model.Hold) (lvm.Table, string, error) {
	devices, err := m.LVM.Devices()
	if err != nil {
		return nil, "", fmt.Errorf("cannot read this host's devices: %w", err)
	}
	dev, active := devices[h.Volume.DMUUID()]
	if !active {
		return nil, "", errors.New("it has no device here")
	}
	table, err := m.LVM.Table(ctx, dev.Name)
	if err != nil {
		return nil, "", fmt.Errorf("cannot read the table of its device: %w", err)
	}
	return table, dev.Name, nil
}

// isolated: every volume that the guest could write here has been cut off.
func (m *Manager) isolated(ctx context.Context, uuid string) bool {
	all := false
	for _, h := range m.holdsOf(uuid) {
		if h.Mode != model.ModeEX {
			continue
		}
		table, _, err := m.tableOf(ctx, h)
		if err != nil || !table.All(lvm.TargetError) {
			return false
		}
		all = true
	}
	return all
}

// refuseCutOff refuses volumes that are active here on an error table: a guest could read
// and write nothing.
func (m *Manager) refuseCutOff(ctx context.Context, needs []model.Need, before local) error {
	for _, n := range needs {
		if !before.ofVolume(n.Volume).Active {
			continue
		}
		table, _, err := m.tableOf(ctx, model.Hold{Volume: n.Volume.ID})
		if err != nil {
			return api.NewError(api.KindLocking, fmt.Sprintf("cannot tell whether %s can be used: %v", n.Volume.Name(), err))
		}
		if table.All(lvm.TargetError) {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s is cut off on this host (its device has an error table), as is done for what a migration leaves over; it comes back when it is deactivated: see 'virtlvm status', or run 'lvchange -an %s'", n.Volume.Name(), n.Volume.Name()))
		}
	}
	return nil
}
