package locks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// Where says on which host an operation on a volume should run, and why: the one that is
// named (on), else the one that holds the volume, else one whose guest uses it, else the
// first that is up in its VG. op "" means api.OpWrite.
func (l *Locks) Where(ctx context.Context, name, op, on string) (api.Endpoint, error) {
	if op == "" {
		op = api.OpWrite
	}
	switch op {
	case api.OpRead, api.OpWrite, api.OpResize, api.OpSnapshot, api.OpDelete:
	default:
		return api.Endpoint{}, refused(api.KindBadRequest, "there is no operation %q; known: read, write, resize, snapshot, delete", op)
	}
	v, err := l.Engine.VolumeNamed(ctx, name)
	if err != nil {
		return api.Endpoint{}, err
	}
	hosts, err := l.Leases.Hosts(ctx, v.VG)
	if err != nil {
		return api.Endpoint{}, err
	}
	e := api.Endpoint{Volume: v.Name(), Op: op}
	if on != "" {
		find := up
		if l.Engine.Members(v.VG) != nil {
			find = member
		}
		h, err := find(v.VG, hosts, on)
		if err != nil {
			return api.Endpoint{}, err
		}
		return endpoint(e, h, api.ReasonExplicit, on+" was asked for"), nil
	}
	seen := l.look(ctx, v.VG, []model.Volume{v}, askNobody)[0]
	switch {
	case seen.Known == api.KnownUnknown:
		return api.Endpoint{}, refused(api.KindUnknown, "it is not known who holds %s: %s%s", v.Name(), seen.Problem, unheard(seen.Silent))
	case seen.Converting:
		return api.Endpoint{}, refused(api.KindUnknown, "the lock of %s is changing hands at this moment: ask again", v.Name())
	}
	found, err := l.holderFor(e, seen, hosts)
	if err != nil || found.Host != "" {
		return found, err
	}
	return l.idleHost(ctx, e, v, hosts)
}

// holderFor is the holder that the operation runs on; without a host: nobody holds it.
func (l *Locks) holderFor(e api.Endpoint, seen sighting, hosts map[int]lease.Host) (api.Endpoint, error) {
	var sharing []api.LockHost
	for _, h := range seen.Hosts {
		switch {
		case h.Mode == string(model.ModeOff):
			continue
		case h.State != string(model.HostLive):
			silent := model.Holder{HostID: h.HostID, Host: h.Host, Mode: model.LockMode(h.Mode), State: model.HostState(h.State), FreeIn: h.FreeIn}
			return e, refused(api.KindHeld, "%s is held %s", e.Volume, silent.Text(l.Now()))
		case h.Mode == string(model.ModeEX):
			return endpoint(e, hosts[h.HostID], api.ReasonHolder, h.Host+" holds it exclusively"), nil
		}
		sharing = append(sharing, h)
	}
	if len(sharing) == 0 {
		return e, nil
	}
	names := make([]string, len(sharing))
	chosen := sharing[0]
	for i, h := range sharing {
		names[i] = h.Host
		if h.Self {
			chosen = h
		}
	}
	if len(sharing) > 1 && e.Op != api.OpRead {
		return e, refused(api.KindHeld, "%s is shared by %s: to %s it one host must have it alone", e.Volume, strings.Join(names, ", "), e.Op)
	}
	return endpoint(e, hosts[chosen.HostID], api.ReasonHolder, chosen.Host+" holds it shared"), nil
}

// idleHost is where a volume that nobody holds is worked on.
func (l *Locks) idleHost(ctx context.Context, e api.Endpoint, v model.Volume, hosts map[int]lease.Host) (api.Endpoint, error) {
	r := l.newRound(v.VG)
	r.hosts = hosts
	r.self(ctx)
	r.askAll(ctx)
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		h := hosts[id]
		name := h.Name
		if h.Self {
			name = ""
		}
		answer, asked := r.said[name]
		if !asked || answer.err != nil || h.State != model.HostLive {
			continue
		}
		if local := answer.locks[v.ID.LV]; local.Use == api.UseGuest {
			return endpoint(e, h, api.ReasonGuest, fmt.Sprintf("guest %s uses it on %s, though nobody holds its lock", strings.Join(local.Guests, ", "), h.Name)), nil
		}
	}
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		if h := hosts[id]; h.State == model.HostLive && h.Name != "" {
			return endpoint(e, h, api.ReasonUp, "nobody holds it; "+h.Name+" is the first host that is up in "+v.VG+unheard(r.silent())), nil
		}
	}
	return e, refused(api.KindLocking, "no host is up in the lockspace of %s", v.VG)
}

func endpoint(e api.Endpoint, h lease.Host, reason, text string) api.Endpoint {
	e.Host, e.HostID, e.Self, e.Reason, e.Text = h.Name, h.ID, h.Self, reason, text
	return e
}

func unheard(silent []string) string {
	if len(silent) == 0 {
		return ""
	}
	return fmt.Sprintf(" (no answer from %s)", strings.Join(silent, ", "))
}

// member finds a member of a VG without lvmlockd that answers.
func member(vg string, hosts map[int]lease.Host, name string) (lease.Host, error) {
	for _, h := range hosts {
		switch {
		case h.Name == name && h.State == model.HostLive:
			return h, nil
		case h.Name == name:
			return h, refused(api.KindUnreachable, "%s is a member of %s and does not answer", name, vg)
		}
	}
	return lease.Host{}, refused(api.KindNotFound, "%s is no member of %s", name, vg)
}

// up finds the one live host of that name in a lockspace.
func up(vg string, hosts map[int]lease.Host, name string) (lease.Host, error) {
	if err := whichHost(vg, hosts, name, 0); err != nil {
		return lease.Host{}, err
	}
	var names []string
	var found lease.Host
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		h := hosts[id]
		if h.Name == name && (found.ID == 0 || h.State != model.HostDead) {
			found = h
		}
		if h.Name != "" && h.State == model.HostLive {
			names = append(names, h.Name)
		}
	}
	switch found.State {
	case model.HostLive:
		return found, nil
	case model.HostDead:
		return found, refused(api.KindLocking, "%s is not up in the lockspace of %s: it is down, or the lockspace is not started there ('vgchange --lockstart %s')", name, vg, vg)
	case model.HostFail:
		return found, refused(api.KindLocking, "%s does not renew its leases in the lockspace of %s (sanlock: fail)", name, vg)
	case model.HostUnknown:
		return found, refused(api.KindLocking, "sanlock on this host has not watched %s for long enough to know whether it lives: try again in a minute", name)
	}
	return found, refused(api.KindNotFound, "there is no host %s in the lockspace of %s; those that are up: %s", name, vg, strings.Join(names, ", "))
}
