package activation

import (
	"context"
	"errors"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

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
