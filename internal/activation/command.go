package activation

import (
	"context"
	"fmt"
	"sort"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// Work is a long-running command, on whose behalf the engine holds, makes and removes
// volumes. What is done for it is journalled as steps with its key as their cause.
type Work struct {
	Key string
	// Guest is the uuid of the guest whose disk the command moves: that guest may have the
	// same volumes. "": none may.
	Guest string
}

func (w Work) owner() string { return model.CommandOwner(w.Key, w.Guest) }

func (w Work) context(ctx context.Context) context.Context {
	return withCause(ctx, &cause{text: "command " + w.Key})
}

// Lookup finds a managed volume by "vg/lv".
func (m *Manager) Lookup(ctx context.Context, name string) (model.Volume, error) {
	if err := m.awaitReady(ctx); err != nil {
		return model.Volume{}, err
	}
	return m.volumeNamed(ctx, name)
}

// HoldsOf lists the holds on a volume on this host.
func (m *Manager) HoldsOf(id model.VolumeID) []model.Hold {
	return m.holdsWhere(func(h model.Hold) bool { return h.Volume == id })
}

// HoldsBy lists the holds of an owner on this host.
func (m *Manager) HoldsBy(owner string) []model.Hold {
	return m.holdsWhere(func(h model.Hold) bool { return h.Owner == owner })
}

func (m *Manager) holdsWhere(which func(model.Hold) bool) []model.Hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []model.Hold
	for _, h := range m.holds {
		if which(h) {
			all = append(all, h)
		}
	}
	sort.Slice(all, func(a, b int) bool { return all[a].Owner+all[a].Name < all[b].Owner+all[b].Name })
	return all
}

// Free is nil if the command could take the volume now in the role's mode; else it says
// who has it. It changes nothing, and promises nothing.
func (m *Manager) Free(ctx context.Context, w Work, v model.Volume, role model.Role) error {
	now, err := m.look(ctx)
	if err != nil {
		return err
	}
	if err := now.usable(v.VG); err != nil {
		return err
	}
	need := model.Need{Volume: v, Role: role}
	if err := m.strangers(ctx, []model.Need{need}, now); err != nil {
		return err
	}
	m.mu.Lock()
	err = m.conflict(w.owner(), need, now.ofVolume(v))
	m.mu.Unlock()
	if err != nil || v.LeaseOffset < 0 && !m.claimed(v.VG) {
		return err
	}
	holders, err := m.Leases.Holders(ctx, v.VG, v.LeaseOffset, v.LockLV)
	if err != nil {
		return api.NewError(api.KindLocking, fmt.Sprintf("cannot tell who holds %s: %v", v.Name(), err))
	}
	for _, h := range holders {
		if !h.Self && (h.Mode == model.ModeEX || role.Mode() == model.ModeEX) {
			return m.explainHeld(ctx, v)
		}
	}
	return nil
}

// Take holds a volume for a command and brings it to the role's mode. Another host that only
// retains it is asked to let go. Again is no error.
func (m *Manager) Take(ctx context.Context, w Work, name string, role model.Role) (model.Volume, error) {
	ctx = w.context(ctx)
	v, err := m.Lookup(ctx, name)
	if err != nil {
		return v, err
	}
	got, err := m.acquireAsking(ctx, taker{owner: w.owner()}, v.VG, []model.Need{{Volume: v, Role: role}})
	if err != nil {
		return v, err
	}
	if err := m.checkSharers(ctx, got); err != nil {
		m.release(context.WithoutCancel(ctx), got)
		return v, err
	}
	return v, nil
}

// GiveBack ends what a command holds, and waits until that is off, or somebody else's. An
// error says what is not; the ensure loop goes on with it.
func (m *Manager) GiveBack(ctx context.Context, key string) error {
	if err := m.awaitReady(ctx); err != nil {
		return err
	}
	ctx = Work{Key: key}.context(ctx)
	m.end(ctx, func(h model.Hold) bool { k, _, ok := model.CommandOf(h.Owner); return ok && k == key })
	for _, vg := range sortedKeys(m.commandVGs(key)) {
		m.ensureVG(ctx, vg)
	}
	for _, names := range m.commandVGs(key) {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s cannot be deactivated yet on this host; see 'virtlvm status'", strings.Join(names, ", ")))
	}
	return nil
}

// commandVGs are the volumes that a command holds, by VG.
func (m *Manager) commandVGs(key string) map[string][]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string][]string{}
	for _, h := range m.holds {
		if k, _, ok := model.CommandOf(h.Owner); ok && k == key {
			vg, _, _ := strings.Cut(h.Name, "/")
			all[vg] = append(all[vg], h.Name)
		}
	}
	return all
}

// Settle looks at one guest's disks at once, as the ensure loop would soon: a disk that
// has moved to another volume moves the guest's hold.
func (m *Manager) Settle(ctx context.Context, uuid string) error {
	if err := m.awaitReady(ctx); err != nil {
		return err
	}
	s, err := m.sight()
	if err != nil {
		return err
	}
	if g, ok := s.ByUUID[uuid]; ok {
		if err := m.adoptNow(ctx, s, g); err != nil {
			return err
		}
		// The ensure loop has not seen these disks: the next ones may be those that it has.
		m.mu.Lock()
		delete(m.adopted, uuid)
		m.mu.Unlock()
	}
	m.judgeBy(ctx, s, uuid)
	m.ensureGuest(ctx, uuid)
	return nil
}

// StateOf is what this host has of a volume.
func (m *Manager) StateOf(ctx context.Context, v model.Volume) (model.Actual, error) {
	now, err := m.look(ctx)
	if err != nil {
		return model.Actual{}, err
	}
	return now.ofVolume(v), nil
}
