package activation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// A VG without lvmlockd that is opted in (unsafe_claims) has no locks: there `-aey` keeps
// nobody away. Its volumes are claimed among the members of the VG instead. A host first
// writes its intent (a hold) into its journal, where whoever asks sees it, and then asks
// all other members. Whoever comes second of two finds the intent of the first; see
// docs/locks.md for what follows from that. The claim is the hold, until it is gone.
// Answers are not kept.

// claimed: the volumes of a VG are claimed among its members. Where LVM has since said
// that the VG has locks, those count and not the configuration.
func (m *Manager) claimed(vg string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isClaimed(vg)
}

// Members lists the members of a VG without lvmlockd whose volumes are claimed among them; nil
// for any other VG.
func (m *Manager) Members(vg string) []string {
	if !m.claimed(vg) {
		return nil
	}
	return m.Settings().Claims[vg]
}

// isClaimed must be called with m.mu held.
func (m *Manager) isClaimed(vg string) bool {
	return len(m.Settings().Claims[vg]) > 0 && unlocked(m.lockTypes[vg])
}

// unlocked: a VG without lvmlockd, or one of which LVM has said nothing yet.
func unlocked(lockType string) bool { return lockType == "" || lockType == "none" }

func (m *Manager) setLockType(vg, lockType string) {
	if lockType == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lockTypes[vg] = lockType
}

// claimTypes refuses what one host may have at most that is not just a table of the
// kernel's: nothing here keeps two hosts from changing its metadata.
func claimTypes(inv *inventory, v model.Volume) error {
	if is := inv.unshareable(v); is != "" {
		return api.NewError(api.KindUnsupported, fmt.Sprintf("%s is %s, which virtlvm does not protect in a volume group without lvmlockd; convert it: 'vgchange --lock-type sanlock %s'", v.Name(), is, v.VG))
	}
	return nil
}

// unchangeable refuses to change the metadata of a VG that nothing locks.
func (m *Manager) unchangeable(vg string) error {
	if !m.claimed(vg) {
		return nil
	}
	return api.NewError(api.KindUnsupported, fmt.Sprintf("volume group %s has no lvmlockd, so that no volume in it is made, resized, tagged or removed by virtlvm: two hosts could change its metadata at once; convert it: 'vgchange --lock-type sanlock %s'", vg, vg))
}

// addClaims puts the claims of this host where the locks of other VGs are. An ending hold
// claims nothing more than its device.
func (m *Manager) addClaims(l *local) {
	members := m.Settings().Claims
	if len(members) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l.claimed = map[string]bool{}
	vgs := maps.Clone(l.locks.VGs)
	if vgs == nil {
		vgs = map[string]lease.LocalVG{}
	}
	for vg := range members {
		if m.isClaimed(vg) && !vgs[vg].Started {
			l.claimed[vg] = true
			vgs[vg] = lease.LocalVG{Name: vg, Started: true, Locks: map[string]model.LockMode{}}
		}
	}
	l.locks.VGs = vgs
	for _, h := range m.holds {
		vg, _, _ := strings.Cut(h.Name, "/")
		if _, active := l.devices[h.Volume.DMUUID()]; l.claimed[vg] && (active || h.Phase != model.PhaseEnding) && h.Claim != "" {
			locks := vgs[vg].Locks
			locks[h.LockLV] = locks[h.LockLV].Max(h.Claim)
		}
	}
}

// Claims answers another member of a VG what this host has of its volumes.
func (m *Manager) Claims(ctx context.Context, peer string, q api.ClaimsQuery) (api.ClaimsAnswer, error) {
	return peerQuery(ctx, m, peer, "claims "+q.VG, func(ctx context.Context) (api.ClaimsAnswer, error) {
		// Before anything else comes of it: from now on its silence counts again.
		if err := m.heardOf(ctx, peer, q.BootID); err != nil {
			return api.ClaimsAnswer{}, err
		}
		if err := m.sameMembers(peer, q); err != nil {
			return api.ClaimsAnswer{}, err
		}
		if q.BootID == "" {
			return api.ClaimsAnswer{}, api.NewError(api.KindBadRequest, peer+" does not say from which boot it asks")
		}
		if err := m.sameHost(ctx, peer, q.BootID); err != nil {
			return api.ClaimsAnswer{}, err
		}
		claims, err := m.claimsHere(q.VG, q.LVs)
		return api.ClaimsAnswer{BootID: m.BootID, Claims: claims}, err
	})
}

func (m *Manager) sameMembers(peer string, q api.ClaimsQuery) error {
	members := m.Settings().Claims[q.VG]
	switch {
	case !m.claimed(q.VG):
		return api.NewError(api.KindLocking, fmt.Sprintf("%s has no volume group %s without lvmlockd with unsafe_claims in virtlvm.toml", m.Host, q.VG))
	case !slices.Equal(members, q.Members):
		return api.NewError(api.KindLocking, fmt.Sprintf("the members of %s are %s on %s, and %s on %s; make them the same in virtlvm.toml on all hosts",
			q.VG, strings.Join(q.Members, ", "), peer, strings.Join(members, ", "), m.Host))
	case !slices.Contains(members, peer):
		return api.NewError(api.KindForbidden, fmt.Sprintf("%s is no member of %s (%s)", peer, q.VG, strings.Join(members, ", ")))
	}
	return nil
}

// claimsHere reads the devices before the holds: what becomes active meanwhile has its hold
// already. All holds count, whatever their phase: one goes only when its volume is off.
func (m *Manager) claimsHere(vg string, lvs []string) ([]api.Claim, error) {
	devices, err := m.LVM.Devices()
	if err != nil {
		return nil, api.NewError(api.KindLocking, fmt.Sprintf("cannot read the devices of %s: %v", m.Host, err))
	}
	found := map[string]*api.Claim{}
	of := func(lv string) *api.Claim {
		if found[lv] == nil {
			found[lv] = &api.Claim{LV: lv, Wanted: string(model.ModeOff), Claimed: string(model.ModeOff)}
		}
		return found[lv]
	}
	for uuid := range devices {
		if id, ok := model.ParseDMUUID(uuid); ok && slices.Contains(lvs, id.LV) {
			of(id.LV).Active = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.stuckError(vg, m.queue(vg)); err != nil {
		return nil, err // what hangs may still activate something
	}
	for _, h := range m.holds {
		if !slices.Contains(lvs, h.Volume.LV) {
			continue
		}
		c := of(h.Volume.LV)
		c.Wanted = string(model.LockMode(c.Wanted).Max(h.Wanted()))
		c.Claimed = string(model.LockMode(c.Claimed).Max(h.Claim))
		if by := h.Subject(); c.By == "" || by < c.By {
			c.By = by
		}
	}
	claims := make([]api.Claim, 0, len(found))
	for _, lv := range sortedKeys(found) {
		claims = append(claims, *found[lv])
	}
	return claims, nil
}
