package lease

import (
	"context"
	"maps"
	"time"

	"virtlvm/internal/model"
)

// Host is a host of a lockspace as this host's sanlock sees it.
type Host struct {
	ID int
	// Name is sanlock's our_host_name of that host, or sanlock's default: a random uuid
	// and the start of the host's name. Empty where it is not known.
	Name string
	Gen  int64 // generation: counts the times the host has joined
	// State is sanlock's, with two additions: a host that has left in good order is dead
	// (it holds nothing), and one that has missed more than one renewal is called failing
	// before sanlock does so.
	State     model.HostState
	LastLive  int // when it was last seen renewing, seconds of CLOCK_MONOTONIC here; 0: never
	IOTimeout int // its io_timeout, seconds
	// FreeIn is when sanlock will free a failing host's leases, in seconds, at least 1; 0
	// for all others.
	FreeIn int
	Self   bool // this host
}

// Timing of sanlock (timeouts.c): a host is dead deadFactor x io_timeout plus the time
// its watchdog needs after its last renewal, which comes every 2 x io_timeout.
const (
	deadFactor      = 8
	watchdogSeconds = 60
	silentFactor    = 3 // more than one renewal missed, with room for jitter
	defaultIO       = 10
)

// Hosts lists the hosts of a VG's lockspace by host id, with `sanlock client
// host_status -D` and `sanlock client gets -h 1`; names and generations that sanlock does
// not know yet, just after the lockspace was started, are read from the disk. The table
// in sanlock's memory may be one renewal old (2 x io_timeout).
//
// An error of kind locking: the lockspace is not started here, or sanlock does not run.
func (r *Reader) Hosts(ctx context.Context, vg string) (map[int]Host, error) {
	hosts, err := r.hosts(ctx, vg)
	if err != nil {
		return nil, about(err, "cannot read the hosts of volume group %s", vg)
	}
	return hosts, nil
}

func (r *Reader) hosts(ctx context.Context, vg string) (map[int]Host, error) {
	at := r.monotonic()
	hosts, err := r.readHosts(ctx, vg)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, vg)
	if err == nil {
		r.known[vg] = knownHosts{maps.Clone(hosts), at}
	}
	return hosts, err
}

// knownHosts are those of a lockspace, and when they were read.
type knownHosts struct {
	hosts map[int]Host
	at    time.Duration // monotonic
}

// names reports whether a holder that a lease names is one of them for sure, in that very
// generation. Whether another host lives is known for a while only.
func (k knownHosts) names(h model.Holder, now, age time.Duration) bool {
	host, ok := k.hosts[h.HostID]
	return ok && host.Gen == h.Gen && host.Name != "" && (host.Self || host.State == model.HostLive && now-k.at <= age)
}

func (r *Reader) readHosts(ctx context.Context, vg string) (map[int]Host, error) {
	out, err := r.sanlock(ctx, "client", "host_status", "-D")
	if err != nil {
		return nil, err
	}
	table, err := parseHostStatus(out, lockspacePrefix+vg)
	if err != nil {
		return nil, err
	}
	if out, err = r.sanlock(ctx, "client", "gets", "-h", "1"); err != nil {
		return nil, err
	}
	seen, err := parseGets(out, lockspacePrefix+vg)
	if err != nil {
		return nil, err
	}
	hosts := merge(table, seen, r.monotonic())
	if complete(hosts) && seen.ready {
		return hosts, nil
	}
	if err := r.fromDisk(ctx, vg, hosts, seen.self); err != nil && !seen.ready {
		return nil, err
	}
	return hosts, nil
}

// merge makes the hosts of both answers. They were not given at the same moment: of two
// generations the newer one counts, and a state goes only with its generation.
func merge(table []hostStatus, seen gets, now time.Duration) map[int]Host {
	hosts := map[int]Host{}
	for _, s := range table {
		h := Host{
			ID: int(s.id), Name: s.name, Gen: s.gen, State: model.HostUnknown,
			LastLive: int(s.lastLive), IOTimeout: int(s.ioTimeout), Self: int(s.id) == seen.self,
		}
		if h.IOTimeout == 0 {
			h.IOTimeout = defaultIO
		}
		other, ok := seen.hosts[h.ID]
		switch {
		case ok && other.gen > h.Gen:
			h.Gen, h.State = other.gen, other.state
		case s.timestamp == 0 && s.gen > 0:
			h.State = model.HostDead // it has left: sanlock sets its timestamp to 0
		case ok && other.gen == h.Gen:
			h.State = other.state
			h.mind(s, now)
		}
		hosts[h.ID] = h
	}
	for id, s := range seen.hosts {
		if _, ok := hosts[id]; !ok {
			hosts[id] = Host{ID: id, Gen: s.gen, State: s.state, IOTimeout: defaultIO, Self: id == seen.self}
		}
	}
	return hosts
}

// mind looks how long a host has been silent.
func (h *Host) mind(s hostStatus, now time.Duration) {
	if h.Self {
		return
	}
	if h.State == model.HostLive && s.lastCheck-s.lastLive > silentFactor*int64(h.IOTimeout) {
		h.State = model.HostFail
	}
	if h.State == model.HostFail && h.LastLive > 0 {
		h.FreeIn = max(1, h.LastLive+deadFactor*h.IOTimeout+watchdogSeconds-int(now/time.Second))
	}
}

// complete reports whether every host has a name.
func complete(hosts map[int]Host) bool {
	for _, h := range hosts {
		if h.Name == "" {
			return false
		}
	}
	return len(hosts) > 0
}

// fromDisk adds what the hosts themselves have written: names, and generations newer than
// those sanlock here knows. Whether such a host lives is not told by one look.
func (r *Reader) fromDisk(ctx context.Context, vg string, hosts map[int]Host, self int) error {
	out, err := r.dump(ctx, vg, 0, leaseSize)
	if err != nil {
		return err
	}
	rows, err := parseDump(out, lockspacePrefix+vg)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if !row.delta {
			continue
		}
		h, known := hosts[row.owner]
		if !known || row.gen > h.Gen {
			h = Host{ID: row.owner, Gen: row.gen, State: model.HostUnknown, IOTimeout: defaultIO, Self: row.owner == self}
			switch {
			case row.timestamp == 0:
				h.State = model.HostDead
			case h.Self:
				h.State = model.HostLive
			}
		}
		h.Name = row.resource
		hosts[row.owner] = h
	}
	return nil
}
