package lease

import (
	"fmt"
	"strconv"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// hostStatus is a host in `sanlock client host_status -D`.
type hostStatus struct {
	id, gen, timestamp             int64
	lastCheck, lastLive, ioTimeout int64
	name                           string
}

// parseHostStatus reads the part of one lockspace:
//
//	lockspace lvm_VG
//	1 timestamp 433
//	    last_check=437
//	    ...
//	    owner_name=kvm-a
func parseHostStatus(out, lockspace string) ([]hostStatus, error) {
	var all []hostStatus
	inside, found := false, false
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "lockspace" && len(f) == 2:
			inside = f[1] == lockspace
			found = found || inside
		case !inside:
		case len(f) == 3 && f[1] == "timestamp":
			var h hostStatus
			if err := numbers(f, map[int]*int64{0: &h.id, 2: &h.timestamp}); err != nil || h.id <= 0 {
				return nil, unclear("cannot understand the answer of sanlock client host_status: %s", quoted(line))
			}
			all = append(all, h)
		case len(all) > 0 && line[0] == ' ':
			if err := all[len(all)-1].field(f[0]); err != nil {
				return nil, unclear("cannot understand the answer of sanlock client host_status: %s", quoted(line))
			}
		default:
			return nil, unclear("cannot understand the answer of sanlock client host_status: %s", quoted(line))
		}
	}
	if !found {
		return nil, notStarted(lockspace)
	}
	return all, nil
}

func notStarted(lockspace string) error {
	vg := strings.TrimPrefix(lockspace, lockspacePrefix)
	return api.NewError(api.KindLocking, fmt.Sprintf("its lockspace is not started on this host; run 'vgchange --lockstart %s'", vg))
}

// field takes a "key=value" of a host; keys that are not needed are skipped.
func (h *hostStatus) field(s string) error {
	key, value, _ := strings.Cut(s, "=")
	var target *int64
	switch key {
	case "owner_name":
		h.name = value
		return nil
	case "owner_generation":
		target = &h.gen
	case "last_check":
		target = &h.lastCheck
	case "last_live":
		target = &h.lastLive
	case "io_timeout":
		target = &h.ioTimeout
	default:
		return nil
	}
	n, err := number(value)
	*target = n
	return err
}

// gets is the part of one lockspace in `sanlock client gets -h 1`.
type gets struct {
	self  int  // host id of this host
	ready bool // sanlock has looked at the other hosts at least once
	hosts map[int]seenHost
}

type seenHost struct {
	gen   int64
	state model.HostState
}

// parseGets reads
//
//	s lvm_VG:2:/dev/mapper/VG-lvmlock:0
//	h 1 gen 1 timestamp 433 LIVE
//
// or "hosts not ready" in place of the hosts.
func parseGets(out, lockspace string) (gets, error) {
	g := gets{hosts: map[int]seenHost{}}
	inside, found := false, false
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "s" && len(f) > 1:
			parts := strings.Split(f[1], ":")
			inside = parts[0] == lockspace
			if !inside {
				continue
			}
			found = true
			id, err := number(parts[min(1, len(parts)-1)])
			if err != nil || id <= 0 {
				return gets{}, unclear("cannot understand the answer of sanlock client gets: %s", quoted(line))
			}
			g.self, g.ready = int(id), true
		case !inside:
		case f[0] == "hosts":
			g.ready = false
		case f[0] == "h" && len(f) == 7 && f[2] == "gen":
			var id, gen int64
			if err := numbers(f, map[int]*int64{1: &id, 3: &gen}); err != nil || id <= 0 {
				return gets{}, unclear("cannot understand the answer of sanlock client gets: %s", quoted(line))
			}
			g.hosts[int(id)] = seenHost{gen: gen, state: hostState(f[6])}
		default:
			return gets{}, unclear("cannot understand the answer of sanlock client gets: %s", quoted(line))
		}
	}
	if !found {
		return gets{}, notStarted(lockspace)
	}
	return g, nil
}

func hostState(s string) model.HostState {
	switch s {
	case "LIVE":
		return model.HostLive
	case "FAIL":
		return model.HostFail
	case "DEAD", "FREE":
		return model.HostDead
	}
	return model.HostUnknown
}

// numbers parses some fields of a row, by index.
func numbers(f []string, into map[int]*int64) error {
	for i, target := range into {
		n, err := number(f[i])
		if err != nil {
			return err
		}
		*target = n
	}
	return nil
}

// number is a count that sanlock prints; all of them fit and none is negative.
func number(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err
}
