package activation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

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

// claimPatience bounds one member's answer, which may have to wait for a connection.
const claimPatience = 15 * time.Second

// A host waits so long for the intent of a member that comes after it to be withdrawn.
const (
	tiePatience = 10 * time.Second
	tiePause    = 200 * time.Millisecond
)

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

// mostAsked volumes are asked about at a time: a question between hosts is small.
const mostAsked = 500

// askMembers asks all other members of a VG at once; those that are fenced are left out
// where they do not answer. Any other silence is an error.
func (m *Manager) askMembers(ctx context.Context, vg string, lvs []string) (map[string][]api.Claim, error) {
	said, err := m.askAbout(ctx, vg, lvs[:min(len(lvs), mostAsked)])
	for rest := lvs; err == nil && len(rest) > mostAsked; {
		rest = rest[mostAsked:]
		var more map[string][]api.Claim
		more, err = m.askAbout(ctx, vg, rest[:min(len(rest), mostAsked)])
		for host, claims := range more {
			said[host] = append(said[host], claims...)
		}
	}
	return said, err
}

func (m *Manager) askAbout(ctx context.Context, vg string, lvs []string) (map[string][]api.Claim, error) {
	members := m.Settings().Claims[vg]
	if !slices.Contains(members, m.Host) || len(members) < 2 {
		return nil, api.NewError(api.KindLocking, fmt.Sprintf("this host (%s) is not among the members of %s in virtlvm.toml (%s)", m.Host, vg, strings.Join(members, ", ")))
	}
	q := api.ClaimsQuery{VG: vg, Members: members, BootID: m.BootID, LVs: lvs}
	var mu sync.Mutex
	var all sync.WaitGroup
	said, failed := map[string][]api.Claim{}, map[string]error{}
	for _, host := range members {
		if host == m.Host {
			continue
		}
		all.Go(func() {
			ctx := m.Branch(ctx, "asks "+host+" about "+vg)
			claims, counts, err := m.askMember(ctx, host, q)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				failed[host] = err
			case counts:
				said[host] = claims
			}
		})
	}
	all.Wait()
	for _, host := range members {
		if err := failed[host]; err != nil {
			return nil, err
		}
	}
	return said, nil
}

// askMember asks one; counts false: it is fenced, and silent.
func (m *Manager) askMember(ctx context.Context, host string, q api.ClaimsQuery) (claims []api.Claim, counts bool, err error) {
	short, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	var answer api.ClaimsAnswer
	err = m.call(short, host, api.RoutePeerClaims, q, &answer)
	if err == nil || answered(err) {
		if err := m.heardOf(ctx, host, answer.BootID); err != nil {
			return nil, false, err
		}
	}
	switch kind := api.KindOf(err); {
	case err == nil:
	case answered(err), kind != api.KindUnreachable && kind != api.KindUnknown:
		return nil, false, api.NewError(kind, fmt.Sprintf("%s is a member of %s and refuses: %v", host, q.VG, err))
	case m.isFenced(ctx, host):
		return nil, false, nil
	default:
		return nil, false, api.NewError(api.KindUnknown, fmt.Sprintf(
			"%s is a member of %s and does not say what it has of it (%v), so that nothing of it is activated here; bring that host back or, if it is surely off, run 'virtlvm host fenced %s' on %s", host, q.VG, err, host, m.Host))
	}
	if !sensible(answer) {
		return nil, false, api.NewError(api.KindUnknown, fmt.Sprintf("%s is a member of %s, and what it says it has of it makes no sense; compare `virtlvm version` on both hosts", host, q.VG))
	}
	m.noteBoot(host, answer.BootID)
	return answer.Claims, true, nil
}

// sensible: an answer that names its boot, and modes that there are. Nothing else is an
// answer: one that is empty would say that all is free.
func sensible(a api.ClaimsAnswer) bool {
	known := func(mode string) bool {
		switch model.LockMode(mode) {
		case model.ModeOff, model.ModeSH, model.ModeEX:
			return true
		}
		return false
	}
	return a.BootID != "" && !slices.ContainsFunc(a.Claims, func(c api.Claim) bool { return !known(c.Wanted) || !known(c.Claimed) })
}

// wish is a volume that this host wants to claim.
type wish struct {
	volume model.Volume
	mode   model.LockMode
}

// ask asks the other members whether this host, whose intents are published, may have
// volumes; refused says why not, by volume. Where two hosts want the same and neither has
// it, the one that comes first in the order of their names waits for the other to
// withdraw, patient, and the other is refused. An error is about all of them.
func (m *Manager) ask(ctx context.Context, vg string, wishes []wish, patient bool) (refused map[model.VolumeID]error, err error) {
	lvs := make([]string, 0, len(wishes))
	for _, w := range wishes {
		lvs = append(lvs, w.volume.ID.LV)
	}
	for deadline := m.Now().Add(tiePatience); ; {
		said, err := m.askMembers(ctx, vg, lvs)
		if err != nil {
			return nil, err
		}
		refused, waits := m.judgeClaims(wishes, said)
		if !patient || !waits || m.Now().After(deadline) {
			return refused, nil
		}
		if err := m.pause(ctx, tiePause); err != nil {
			return nil, err
		}
	}
}

// judgeClaims decides by what the others have said; waits: all that refuses are intents that
// will be withdrawn.
func (m *Manager) judgeClaims(wishes []wish, said map[string][]api.Claim) (refused map[model.VolumeID]error, waits bool) {
	refused = map[model.VolumeID]error{}
	waits = true
	for _, w := range wishes {
		for _, host := range sortedKeys(said) {
			for _, c := range said[host] {
				if c.LV != w.volume.ID.LV || compatible(w.mode, c) {
					continue
				}
				if refused[w.volume.ID] == nil {
					refused[w.volume.ID] = claimRefusal(w.volume, host, c)
				}
				waits = waits && intent(c) && m.Host < host
			}
		}
	}
	return refused, waits && len(refused) > 0
}

// intent: that host asks the others, too, and has nothing yet.
func intent(c api.Claim) bool { return c.Claimed == string(model.ModeOff) && !c.Active }

// compatible: both hosts share the volume, with what the other has of it claimed.
func compatible(mode model.LockMode, c api.Claim) bool {
	ex := string(model.ModeEX)
	return mode == model.ModeSH && c.Wanted != ex && c.Claimed != ex && (!c.Active || c.Claimed == string(model.ModeSH))
}

func claimRefusal(v model.Volume, host string, c api.Claim) error {
	by := ""
	if c.By != "" {
		by = " for " + c.By
	}
	switch {
	case c.Claimed == string(model.ModeOff) && c.Active && c.By == "":
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is active on %s, and virtlvm has not activated it there; whoever did can run 'lvchange -an %s' on %s", v.Name(), host, v.Name(), host))
	case intent(c):
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is about to be activated on %s%s; try again if that comes to nothing", v.Name(), host, by))
	case c.Claimed == string(model.ModeSH):
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is claimed shared by %s%s; stop what uses it there", v.Name(), host, by))
	}
	return api.NewError(api.KindHeld, fmt.Sprintf("%s is claimed exclusively by %s%s; stop the guest that uses it there, or migrate it", v.Name(), host, by))
}

// claimLeases answers for VGs without lvmlockd what leases answer for others: the members
// are asked. One that is silent makes it unknown.
type claimLeases struct {
	Leases
	m *Manager
}

// Hosts implements Leases. State and Gen are not sanlock's: whether the host has answered.
func (c claimLeases) Hosts(ctx context.Context, vg string) (map[int]lease.Host, error) {
	if !c.m.claimed(vg) {
		return c.Leases.Hosts(ctx, vg)
	}
	return c.m.memberHosts(ctx, vg), nil
}

// Holders implements Leases.
func (c claimLeases) Holders(ctx context.Context, vg string, offset int64, lvUUID string) ([]model.Holder, error) {
	if !c.m.claimed(vg) {
		return c.Leases.Holders(ctx, vg, offset, lvUUID)
	}
	all, err := c.HoldersAll(ctx, vg, map[string]int64{lvUUID: offset})
	return all[lvUUID], err
}

// HoldersKnown implements Leases: of members nothing is remembered.
func (c claimLeases) HoldersKnown(ctx context.Context, vg string, offsets map[string]int64, age time.Duration) (map[string][]model.Holder, error) {
	if !c.m.claimed(vg) {
		return c.Leases.HoldersKnown(ctx, vg, offsets, age)
	}
	return c.HoldersAll(ctx, vg, offsets)
}

// HoldersAll implements Leases.
func (c claimLeases) HoldersAll(ctx context.Context, vg string, offsets map[string]int64) (map[string][]model.Holder, error) {
	if !c.m.claimed(vg) {
		return c.Leases.HoldersAll(ctx, vg, offsets)
	}
	lvs := sortedKeys(offsets)
	said, err := c.m.askMembers(ctx, vg, lvs)
	if err != nil {
		return nil, err
	}
	if said[c.m.Host], err = c.m.claimsHere(vg, lvs); err != nil {
		return nil, err
	}
	all := map[string][]model.Holder{}
	for _, lv := range lvs {
		all[lv] = []model.Holder{}
	}
	for _, host := range sortedKeys(said) {
		for _, claim := range said[host] {
			h := model.Holder{Host: host, Mode: model.LockMode(claim.Claimed), State: model.HostLive, Self: host == c.m.Host}
			if h.Mode == model.ModeOff { // an intent, or active for who knows whom: in doubt alone
				h.Mode = model.ModeEX
			}
			all[claim.LV] = append(all[claim.LV], h)
		}
	}
	return all, nil
}

// AskMembers asks each other member of a VG without lvmlockd whether it is there and means
// the same members; nil: it does.
func (m *Manager) AskMembers(ctx context.Context, vg string) map[string]error {
	members := m.Settings().Claims[vg]
	q := api.ClaimsQuery{VG: vg, Members: members, BootID: m.BootID, LVs: []string{}}
	said := make([]error, len(members))
	var all sync.WaitGroup
	for i, host := range members {
		if host == m.Host {
			continue
		}
		all.Go(func() {
			_, counts, err := m.askMember(m.Branch(ctx, "asks "+host+" whether it is there"), host, q)
			if said[i] = err; err == nil && !counts {
				said[i] = ErrFenced
			}
		})
	}
	all.Wait()
	answers := map[string]error{}
	for i, host := range members {
		if host != m.Host {
			answers[host] = said[i]
		}
	}
	return answers
}

// ErrFenced is what AskMembers says of a member that is silent and counts as off.
var ErrFenced = errors.New("it does not answer, and counts as off")

// memberHosts lists the members of a VG: live is who answers, fail who does not, dead who is
// fenced and does not.
func (m *Manager) memberHosts(ctx context.Context, vg string) map[int]lease.Host {
	said := m.AskMembers(ctx, vg)
	hosts := map[int]lease.Host{}
	for i, host := range m.Settings().Claims[vg] {
		h := lease.Host{ID: i + 1, Name: host, Self: host == m.Host, State: model.HostLive}
		switch err := said[host]; {
		case errors.Is(err, ErrFenced):
			h.State = model.HostDead
		case err != nil:
			h.State = model.HostFail
		}
		hosts[h.ID] = h
	}
	return hosts
}
