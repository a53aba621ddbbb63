package cluster

import (
	"maps"
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

// table is what every host has: SAN.Table, and of VGs without lvmlockd what is active, with
// what the host claims of it as its lock.
func (c *Cluster) table() (map[string][]san.Held, error) {
	table, err := c.SAN.Table()
	if err != nil {
		return nil, err
	}
	for name, h := range c.Hosts {
		if len(h.claims()) == 0 {
			continue
		}
		all, err := h.LVM.Held()
		if err != nil {
			return nil, err
		}
		claimed := h.memory.claimed()
		for _, held := range all {
			vg, _, _ := strings.Cut(held.Volume, "/")
			if len(h.claims()[vg]) == 0 {
				continue
			}
			if held.Lock = string(claimed[held.Volume]); held.Lock == "" {
				held.Lock = "un"
			}
			held.Open = 0
			table[name] = append(table[name], held)
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
