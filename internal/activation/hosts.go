package activation

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// LiveHosts lists the names of the live hosts in the lockspaces of our VGs, this one
// included, as sanlock knows them. With an error it lists those that it could find out, and
// there may be more.
func (m *Manager) LiveHosts(ctx context.Context) ([]string, error) {
	byVG, failed := m.lockspaces(ctx)
	names := map[string]bool{}
	for vg, hosts := range byVG {
		for _, h := range hosts {
			switch {
			case h.State == model.HostDead:
			case h.Name == "":
				failed = errors.Join(failed, fmt.Errorf("the name of host_id %d in the lockspace of %s is not known", h.ID, vg))
			default:
				names[h.Name] = true
			}
		}
	}
	return sortedKeys(names), failed
}

// Off reports whether a host is certainly off: sanlock calls it dead in each lockspace of our
// VGs in which it knows it, or it is silent and counts as fenced.
func (m *Manager) Off(ctx context.Context, host string) bool {
	hosts, err := m.Hosts(ctx)
	if err != nil {
		return false
	}
	for _, h := range hosts[host] {
		if h.State != model.HostDead {
			return false
		}
	}
	return len(hosts[host]) > 0 || m.isFenced(ctx, host)
}

// lockspaces are the hosts of the lockspaces of our VGs, by VG and host id. With an error those
// that are known.
func (m *Manager) lockspaces(ctx context.Context) (map[string]map[int]lease.Host, error) {
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	byVG := map[string]map[int]lease.Host{}
	var failed error
	if known == nil { // that is not nobody
		failed = api.NewError(api.KindUnknown, "this host has not listed its volume groups yet; see 'virtlvm status'")
	}
	for _, vg := range known {
		if ours, err := m.managed(vg.Name, vg.LockType); !ours || err != nil || m.claimed(vg.Name) {
			continue
		}
		hosts, err := m.Leases.Hosts(ctx, vg.Name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		byVG[vg.Name] = hosts
	}
	return byVG, failed
}

// Hosts lists the hosts in the lockspaces of our VGs that have a name, by it and by the VG. With
// an error those of the lockspaces that could be read.
func (m *Manager) Hosts(ctx context.Context) (map[string]map[string]lease.Host, error) {
	byVG, failed := m.lockspaces(ctx)
	all := map[string]map[string]lease.Host{}
	for vg, hosts := range byVG {
		for _, h := range hosts {
			if h.Name == "" {
				continue
			}
			if all[h.Name] == nil {
				all[h.Name] = map[string]lease.Host{}
			}
			all[h.Name][vg] = h
		}
	}
	return all, failed
}

// random: a name that sanlock makes where our_host_name is not set: a uuid, a dot and the
// start of the host's name (sanlock(8)).
func random(name string) bool {
	const uuid = 36
	return len(name) > uuid && name[uuid] == '.' && strings.Count(name[:uuid], "-") == 4
}

// checkHostNames reports hosts that cannot be told apart. What cannot be read is reported
// elsewhere.
func (m *Manager) checkHostNames(ctx context.Context) {
	byVG, _ := m.lockspaces(ctx)
	m.problem("host names", confused(byVG, m.Host))
}

// confused says which hosts share a name, or a host id in two lockspaces, nil if none do:
// a host that holds a volume could not be asked then.
func confused(byVG map[string]map[int]lease.Host, self string) error {
	var wrong error
	ids, names := map[int]string{}, map[string]int{}
	told := map[string]bool{}
	complain := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if !told[text] {
			told[text] = true
			wrong = errors.Join(wrong, errors.New(text))
		}
	}
	for _, vg := range sortedKeys(byVG) {
		byID := map[string]lease.Host{}
		for id, h := range byVG[vg] {
			byID[fmt.Sprintf("%05d", id)] = h
		}
		for _, key := range sortedKeys(byID) {
			h := byID[key]
			if h.State == model.HostDead || h.Name == "" {
				continue
			}
			if id, ok := names[h.Name]; ok && id != h.ID {
				complain("two hosts have the name %s (host_id %d and %d): set our_host_name in /etc/sanlock/sanlock.conf of each; guests cannot be migrated from or to them", h.Name, id, h.ID)
			}
			if name, ok := ids[h.ID]; ok && name != h.Name {
				complain("host_id %d is %s in one lockspace and %s in another (%s): give each host a host_id of its own in /etc/lvm/lvmlocal.conf, or sanlock cannot tell which of them is dead", h.ID, name, h.Name, vg)
			}
			names[h.Name], ids[h.ID] = h.ID, h.Name
			if h.Self && h.Name != self && !random(h.Name) {
				complain("this host is %s to virtlvm and %s to sanlock (host_id %d): virtlvmd must be restarted after a change of our_host_name, and so must sanlock", self, h.Name, h.ID)
			}
		}
	}
	return wrong
}
