package locks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// askPatience bounds one host's answer to a question about its locks: somebody waits for
// the table.
const askPatience = 5 * time.Second

// round is what the hosts have said about one VG, asked as far as it was needed.
type round struct {
	l     *Locks
	vg    string
	said  map[string]said    // by name; this host's under ""
	hosts map[int]lease.Host // of the lockspace; see readHosts
	// hostsErr: sanlock could not tell which hosts there are.
	hostsErr error
	// everybody: all hosts that are known have been asked; knownErr: they may not be all.
	everybody bool
	knownErr  error
}

// said is what one host has answered.
type said struct {
	api.LocksAnswer
	locks map[string]api.LocalLock // by LV uuid
	err   error
}

func (l *Locks) newRound(vg string) *round { return &round{l: l, vg: vg, said: map[string]said{}} }

// readHosts reads which hosts are in the lockspace, once.
func (r *round) readHosts(ctx context.Context) {
	if r.hosts == nil && r.hostsErr == nil {
		r.hosts, r.hostsErr = r.l.Leases.Hosts(ctx, r.vg)
	}
}

// self asks this host.
func (r *round) self(ctx context.Context) said {
	if s, done := r.said[""]; done {
		return s
	}
	answer, err := r.l.Engine.LocksHere(ctx, api.LocksQuery{VG: r.vg})
	r.said[""] = index(answer, err)
	return r.said[""]
}

// ask asks other hosts that have not been asked yet, all at once.
func (r *round) ask(ctx context.Context, names []string) {
	var unasked []string
	for _, name := range names {
		if _, done := r.said[name]; !done && name != "" && name != r.l.Host && !slices.Contains(unasked, name) {
			unasked = append(unasked, name)
		}
	}
	if len(unasked) == 0 {
		return
	}
	r.readHosts(ctx)
	answers := r.l.askEach(ctx, r.vg, unasked)
	for name, s := range answers {
		if s.err == nil {
			s.err = r.impostor(name, s.HostID)
		}
		r.said[name] = s
	}
}

// askAll asks every host that is known.
func (r *round) askAll(ctx context.Context) {
	if r.everybody {
		return
	}
	r.everybody = true
	names := r.l.Engine.Members(r.vg)
	if names != nil {
		// One that is fenced and silent is not asked: it has nothing.
		r.readHosts(ctx)
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(r.hosts)), func(h lease.Host) bool { return h.Name == name && h.State == model.HostDead })
		})
	} else if r.l.Peers != nil {
		names, r.knownErr = r.l.Peers.Names(ctx)
	}
	r.ask(ctx, names)
}

func (l *Locks) askEach(ctx context.Context, vg string, names []string) map[string]said {
	all := make(map[string]said, len(names))
	if l.Peers == nil {
		for _, name := range names {
			all[name] = said{err: refused(api.KindUnreachable, "%s is no peer of this host; see 'virtlvm peer authorize'", name)}
		}
		return all
	}
	var mu sync.Mutex
	failed := l.Peers.Each(ctx, names, func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(ctx, askPatience)
		defer cancel()
		var answer api.LocksAnswer
		err := l.Peers.Call(ctx, name, api.RoutePeerLocks, api.LocksQuery{VG: vg}, &answer)
		mu.Lock()
		defer mu.Unlock()
		all[name] = index(answer, err)
		return err
	})
	for name, err := range failed {
		if _, answered := all[name]; !answered { // its turn did not come
			all[name] = said{err: errors.Join(err, ctx.Err())}
		}
	}
	return all
}

func index(answer api.LocksAnswer, err error) said {
	s := said{LocksAnswer: answer, locks: make(map[string]api.LocalLock, len(answer.Volumes)), err: err}
	for _, v := range answer.Volumes {
		switch model.LockMode(v.Mode) {
		case model.ModeOff, model.ModeSH, model.ModeEX:
			s.locks[v.UUID] = v
		default:
			s.err = errors.Join(err, fmt.Errorf("it names a lock mode %q", v.Mode))
		}
	}
	return s
}

// impostor refuses the answer of a host that is not the one of that name in the lockspace:
// two hosts have one name, or one has another host's address.
func (r *round) impostor(name string, hostID int) error {
	if r.hostsErr != nil {
		return nil // then the name that its key has given it must do
	}
	return whichHost(r.vg, r.hosts, name, hostID)
}

// whichHost is nil if hostID is the one host called name that may be alive; hostID 0 is a
// host that does not know its own.
func whichHost(vg string, hosts map[int]lease.Host, name string, hostID int) error {
	var ids []int
	for id, h := range hosts {
		if h.Name == name && h.State != model.HostDead {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	switch {
	case len(ids) > 1:
		return refused(api.KindLocking, "two hosts in the lockspace of %s are called %s (host_id %d and %d); give each its own our_host_name in /etc/sanlock/sanlock.conf", vg, name, ids[0], ids[1])
	case len(ids) == 1 && hostID != 0 && hostID != ids[0]:
		return refused(api.KindLocking, "what answers as %s has host_id %d in the lockspace of %s, but %s is host_id %d; correct [peers] hosts in virtlvm.toml, or our_host_name in /etc/sanlock/sanlock.conf there", name, hostID, vg, name, ids[0])
	}
	return nil
}

// complete reports whether every host that may hold a lock has answered.
func (r *round) complete() bool {
	if !r.everybody || r.knownErr != nil || r.hostsErr != nil || r.said[""].err != nil {
		return false
	}
	for _, s := range r.said {
		if s.err != nil {
			return false
		}
	}
	for _, h := range r.hosts {
		if _, asked := r.said[h.Name]; !h.Self && h.State != model.HostDead && (!asked || h.Name == "") {
			return false
		}
	}
	return true
}

// silent lists the hosts that were asked and have not answered.
func (r *round) silent() []string {
	var names []string
	for name, s := range r.said {
		if s.err == nil {
			continue
		}
		if name == "" {
			name = r.l.Host
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
