package cluster

import (
	"maps"
	"slices"
	"strings"

	"virtlvm/internal/model"
	"virtlvm/test/san"
)

// Members opts the hosts in to claim the volumes of a VG without lvmlockd, each with all of
// them as its members.
func (c *Cluster) Members(vg string) {
	for _, h := range c.Hosts {
		h.setMembers(vg, sortedKeys(c.Hosts)...)
	}
}

func (h *Host) setMembers(vg string, members ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := maps.Clone(h.members)
	if all == nil {
		all = map[string][]string{}
	}
	all[vg] = members
	h.members = all
}

func (h *Host) claims() map[string][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.members
}

// table is what every host has: SAN.Table, where what the host claims counts as the lock of
// a volume without lvmlockd. Volumes that nothing guards are left out.
func (c *Cluster) table() (map[string][]san.Held, error) {
	table, err := c.SAN.Table()
	if err != nil {
		return nil, err
	}
	for name, all := range table {
		claims := c.Hosts[name].claims()
		table[name] = slices.DeleteFunc(all, func(held san.Held) bool {
			vg, _, _ := strings.Cut(held.Volume, "/")
			return !held.Leased && len(claims[vg]) == 0
		})
		if len(claims) == 0 {
			continue
		}
		claimed := c.Hosts[name].memory.claimed()
		for i, held := range table[name] {
			if mode, ok := claimed[held.Volume]; ok && !held.Leased {
				table[name][i].Lock = string(mode)
			}
		}
	}
	return table, nil
}

// claimed are the claims of the holds, by "vg/lv".
func (m *Memory) claimed() map[string]model.LockMode {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]model.LockMode{}
	for _, h := range m.holds {
		if h.Claim != "" {
			all[h.Name] = all[h.Name].Max(h.Claim)
		}
	}
	return all
}
