package locks

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// HostList lists the hosts of the lockspaces and the peers of the configuration: what sanlock
// thinks of each, what it holds, and what its daemon says of itself. A host that is
// another thing in one lockspace than in the next has a row for each.
func (l *Locks) HostList(ctx context.Context) ([]api.Host, error) {
	vgs, err := l.Engine.ManagedVGs(ctx, "")
	if err != nil {
		return nil, err
	}
	rows := map[rowKey]*api.Host{}
	unread := map[string]error{}
	for _, vg := range vgs {
		if l.Engine.Members(vg) != nil {
			continue
		}
		hosts, err := l.Leases.Hosts(ctx, vg)
		if err != nil {
			unread[vg] = err
			continue
		}
		held, err := l.heldBy(ctx, vg)
		for _, h := range hosts {
			l.addHost(rows, vg, h, held, err)
		}
	}
	l.addPeers(ctx, rows)
	l.addMembers(ctx, rows, vgs)
	unreadVGs := slices.Sorted(maps.Keys(unread))
	if len(rows) == 0 && len(unread) > 0 {
		return nil, unread[unreadVGs[0]]
	}
	for _, vg := range unreadVGs {
		l.addUnread(rows, vg, unread[vg])
	}
	all := make([]api.Host, 0, len(rows))
	for _, row := range rows {
		all = append(all, *row)
	}
	slices.SortFunc(all, func(a, b api.Host) int {
		return cmp.Or(cmp.Compare(a.HostID, b.HostID), cmp.Compare(a.Name, b.Name), cmp.Compare(a.State, b.State))
	})
	clashes(all)
	l.helloAll(ctx, all)
	return all, nil
}

type rowKey struct {
	id    int
	name  string
	state model.HostState
}

// count of volumes by mode.
type count struct{ exclusive, shared int }

// heldBy counts the locks of each host in a VG.
func (l *Locks) heldBy(ctx context.Context, vg string) (map[int]count, error) {
	vols, err := l.Engine.Inventory(ctx, vg)
	if err != nil {
		return nil, err
	}
	offsets := map[string]int64{}
	for _, v := range vols {
		offsets[v.LockLV] = v.LeaseOffset
	}
	leases, err := l.Leases.HoldersAll(ctx, vg, offsets)
	if err != nil {
		return nil, err
	}
	held := map[int]count{}
	for _, holders := range leases {
		for _, h := range holders {
			n := held[h.HostID]
			if h.Mode == model.ModeEX {
				n.exclusive++
			} else {
				n.shared++
			}
			held[h.HostID] = n
		}
	}
	return held, nil
}

func (l *Locks) addHost(rows map[rowKey]*api.Host, vg string, h lease.Host, held map[int]count, heldErr error) {
	k := rowKey{h.ID, h.Name, h.State}
	row := rows[k]
	if row == nil {
		name := h.Name
		if name == "" {
			name = fmt.Sprintf("host_id %d", h.ID)
		}
		row = &api.Host{Name: name, HostID: h.ID, Self: h.Self, State: string(h.State), Age: -1}
		rows[k] = row
	}
	row.VGs = append(row.VGs, vg)
	if h.LastLive > 0 {
		row.Age = max(row.Age, int(l.Monotonic()/time.Second)-h.LastLive, 0)
	}
	row.FreeIn = max(row.FreeIn, h.FreeIn)
	n := held[h.ID]
	if h.State == model.HostDead {
		n = count{}
	}
	if heldErr != nil {
		row.Exclusive, row.Shared = -1, -1
		row.Problem = "its volumes are not known: " + heldErr.Error()
	}
	if row.Exclusive >= 0 {
		row.Exclusive += n.exclusive
		row.Shared += n.shared
	}
}

// addPeers adds the hosts of the configuration that are in no lockspace of ours.
func (l *Locks) addPeers(ctx context.Context, rows map[rowKey]*api.Host) {
	if l.Peers == nil {
		return
	}
	names, err := l.Peers.Names(ctx)
	if err != nil {
		l.Log.Debug("not all peers are known", "err", err)
	}
	known := map[string]bool{}
	for k := range rows {
		known[k.name] = true
	}
	for _, name := range names {
		if !known[name] {
			rows[rowKey{0, name, ""}] = &api.Host{Name: name, VGs: []string{}, Age: -1}
		}
	}
}

// addMembers adds the members of VGs without lvmlockd, of which sanlock knows nothing, with
// what they say that they have claimed, and which hosts are declared fenced here.
func (l *Locks) addMembers(ctx context.Context, rows map[rowKey]*api.Host, vgs []string) {
	named := func(name string) (found []*api.Host) {
		for k, row := range rows {
			if k.name == name && k.state != model.HostDead {
				found = append(found, row)
			}
		}
		return found
	}
	for _, vg := range vgs {
		members := l.Engine.Members(vg)
		if len(members) == 0 {
			continue
		}
		said := l.claims(ctx, vg, members)
		for _, name := range members {
			if len(named(name)) == 0 {
				rows[rowKey{0, name, ""}] = &api.Host{Name: name, Self: name == l.Host, VGs: []string{}, Age: -1}
			}
			for _, row := range named(name) {
				row.VGs = append(row.VGs, vg)
				addClaims(row, said[name])
			}
		}
	}
	for _, f := range l.Engine.FencedHosts() {
		for _, row := range named(f.Host) {
			row.Problem = fmt.Sprintf("declared fenced by %s at %s: while it is silent, it keeps nobody here from its volume groups without lvmlockd", f.By, time.UnixMilli(f.At).Local().Format(time.DateTime))
		}
	}
}

// addUnread notes on this host a lockspace that it cannot read: who is in it is not known, nor
// what anybody holds there.
func (l *Locks) addUnread(rows map[rowKey]*api.Host, vg string, err error) {
	var row *api.Host
	for k, other := range rows {
		if other.Self && k.state != model.HostDead {
			row = other
		}
	}
	if row == nil {
		row = &api.Host{Name: l.Host, Self: true, VGs: []string{}, Age: -1}
		rows[rowKey{0, l.Host, ""}] = row
	}
	row.Exclusive, row.Shared = -1, -1
	if row.Problem != "" {
		row.Problem += "; "
	}
	row.Problem += fmt.Sprintf("cannot tell who is in the lockspace of %s: %v", vg, err)
}

// claims asks the members of a VG without lvmlockd what they have.
func (l *Locks) claims(ctx context.Context, vg string, members []string) map[string]said {
	others := slices.DeleteFunc(slices.Clone(members), func(name string) bool { return name == l.Host })
	all := l.askEach(ctx, vg, others)
	all[l.Host] = index(l.Engine.LocksHere(ctx, api.LocksQuery{VG: vg}))
	return all
}

// addClaims counts what a host has said; one that is silent may have anything.
func addClaims(row *api.Host, s said) {
	if s.err != nil {
		row.Exclusive, row.Shared = -1, -1
	}
	if row.Exclusive < 0 {
		return
	}
	for _, lock := range s.locks {
		switch modeOf(lock) {
		case model.ModeEX:
			row.Exclusive++
		case model.ModeSH:
			row.Shared++
		case model.ModeOff:
		}
	}
}

// clashes notes hosts that cannot be told apart.
func clashes(all []api.Host) {
	ids := map[string]map[int]bool{}
	for _, h := range all {
		if h.State != string(model.HostDead) && h.HostID != 0 {
			if ids[h.Name] == nil {
				ids[h.Name] = map[int]bool{}
			}
			ids[h.Name][h.HostID] = true
		}
	}
	for i := range all {
		if two := slices.Sorted(maps.Keys(ids[all[i].Name])); len(two) > 1 {
			all[i].Problem = fmt.Sprintf("host_id %d and %d have this name; give each its own our_host_name in /etc/sanlock/sanlock.conf", two[0], two[1])
		}
	}
}

// helloAll asks the daemons of all that may be up.
func (l *Locks) helloAll(ctx context.Context, all []api.Host) {
	var mu sync.Mutex
	heard := map[string]*api.HostDaemon{}
	var names []string
	for i := range all {
		h := &all[i]
		switch {
		case h.Self:
			heard[h.Name] = &api.HostDaemon{Version: l.Version}
		case h.State != string(model.HostDead) && api.CheckHostName(h.Name) == nil && !slices.Contains(names, h.Name):
			names = append(names, h.Name)
		}
	}
	failed := map[string]error{}
	if l.Peers != nil {
		failed = l.Peers.Each(ctx, names, func(ctx context.Context, name string) error {
			d, err := l.hello(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			heard[name] = d
			return err
		})
	}
	for i := range all {
		h := &all[i]
		if h.State == string(model.HostDead) {
			continue
		}
		h.Daemon = heard[h.Name]
		if err := failed[h.Name]; err != nil && h.Problem == "" {
			h.Problem = err.Error()
		}
	}
}

// hello asks twice: the first question may have to wait for a connection.
func (l *Locks) hello(ctx context.Context, name string) (*api.HostDaemon, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*askPatience)
	defer cancel()
	var d *api.HostDaemon
	for range 2 {
		var answer api.Hello
		began := l.Now()
		if err := l.Peers.Call(ctx, name, api.RoutePeerHello, struct{}{}, &answer); err != nil {
			return nil, err
		}
		took := l.Now().Sub(began)
		d = &api.HostDaemon{Version: answer.Version.Version, Latency: took, Clock: answer.Now.Sub(began.Add(took / 2))}
	}
	return d, nil
}
