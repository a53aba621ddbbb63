package locks

import (
	"context"
	"fmt"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// Pauses between two looks at the hosts of the lockspaces: sanlock takes more than a
// minute to give a host up.
const (
	watchPause     = 20 * time.Second
	watchPauseBusy = 5 * time.Second // while one is silent
)

// hostKey is a host in one lockspace.
type hostKey struct {
	vg string
	id int
}

// WatchHosts notices, until ctx ends, that another host has become silent, has died, has
// left or has come. sanlock knows it from the leases that all hosts renew: there is no
// heartbeat of our own.
func (l *Locks) WatchHosts(ctx context.Context) {
	seen := map[hostKey]lease.Host{}
	for {
		pause := watchPause
		if l.lookAtHosts(ctx, seen) {
			pause = watchPauseBusy
		}
		if l.pause(ctx, pause) != nil {
			return
		}
	}
}

// lookAtHosts compares the hosts with those seen before; true: one of them is silent.
func (l *Locks) lookAtHosts(ctx context.Context, seen map[hostKey]lease.Host) (silent bool) {
	for _, vg := range l.Engine.KnownVGs() {
		hosts, err := l.Leases.Hosts(ctx, vg)
		if err != nil {
			continue // this host's own trouble, which the status shows
		}
		for id, h := range hosts {
			if h.Self || h.State == model.HostUnknown {
				continue // sanlock has not watched it for long enough
			}
			k := hostKey{vg, id}
			was, known := seen[k]
			seen[k] = h
			silent = silent || h.State == model.HostFail
			if text := change(vg, was, h, known); text != "" {
				l.Engine.Event(api.EventHost, label(h), text)
			}
		}
	}
	return silent
}

// change says what has become of a host, "" if nothing that is worth telling. known: it
// has been seen before; else only trouble is told.
func change(vg string, was, is lease.Host, known bool) string {
	switch {
	case known && was.State == is.State && was.Gen == is.Gen:
		return ""
	case is.State == model.HostFail:
		text := fmt.Sprintf("%s has stopped renewing its leases in %s", label(is), vg)
		if is.FreeIn > 0 {
			text += fmt.Sprintf("; sanlock frees them in about %s", time.Duration(is.FreeIn)*time.Second)
		}
		return text
	case !known:
		return ""
	case is.State == model.HostDead && was.State == model.HostFail:
		return fmt.Sprintf("%s is dead to sanlock in %s: what it held is free", label(is), vg)
	case is.State == model.HostDead:
		return fmt.Sprintf("%s has left the lockspace of %s", label(is), vg)
	case is.State == model.HostLive && (was.State == model.HostDead || was.Gen != is.Gen):
		return fmt.Sprintf("%s has joined the lockspace of %s", label(is), vg)
	case is.State == model.HostLive && was.State == model.HostFail:
		return fmt.Sprintf("%s renews its leases in %s again", label(is), vg)
	}
	return ""
}

func label(h lease.Host) string {
	if h.Name == "" {
		return fmt.Sprintf("host_id %d", h.ID)
	}
	return h.Name
}
