package kinds

import (
	"context"
	"encoding/json"
	"strings"

	"virtlvm/internal/api"
)

// Place implements command.Placer: a volume moves where it is held; one that nobody holds,
// where a guest that has it as a disk is defined.
func (k volumeMove) Place(ctx context.Context, args json.RawMessage) (string, error) {
	var a api.MoveArgs
	if decode(args, &a) != nil || a.Volume == "" || a.ToVG == "" && a.ToPool == "" {
		return "", nil // Plan says what is wrong; the lock alone is moved from anywhere
	}
	v, err := k.Engine.Lookup(ctx, a.Volume)
	if err != nil {
		return "", nil //nolint:nilerr // Plan finds the same
	}
	if host := k.holderOf(ctx, v.Name()); host != "" {
		return host, nil
	}
	all, err := k.Definitions()
	if err != nil {
		return "", nil //nolint:nilerr // Plan finds the same
	}
	for _, dom := range all {
		for _, disk := range dom.Disks {
			if at, err := k.isAt(disk.Source, v.Name(), v.ID); err != nil || at {
				return "", nil //nolint:nilerr // it may be here
			}
		}
	}
	hosts, _ := k.Engine.LiveHosts(ctx) // without others it is done here
	q := api.WritersQuery{Volumes: []api.LentVolume{{VGUUID: v.ID.VG, LVUUID: v.ID.LV, Name: v.Name()}}}
	for _, host := range hosts {
		var answer api.WritersAnswer
		if host != k.Host && k.Peers.Call(ctx, host, api.RoutePeerNamed, q, &answer) == nil && answer.Guest != "" {
			return host, nil
		}
	}
	return "", nil
}

// Place implements command.Placer.
func (k guestMove) Place(ctx context.Context, args json.RawMessage) (string, error) {
	var a api.GuestMoveArgs
	if decode(args, &a) != nil {
		return "", nil
	}
	return k.hostOf(ctx, a.Guest)
}

// Place implements command.Placer.
func (k migrate) Place(ctx context.Context, args json.RawMessage) (string, error) {
	var a api.MigrateArgs
	if decode(args, &a) != nil {
		return "", nil
	}
	return k.hostOf(ctx, a.Guest)
}

// Place implements command.Placer.
func (k guestAttach) Place(ctx context.Context, args json.RawMessage) (string, error) {
	var a api.AttachArgs
	if decode(args, &a) != nil {
		return "", nil
	}
	return k.hostOf(ctx, a.Guest)
}

// Place implements command.Placer.
func (k guestDetach) Place(ctx context.Context, args json.RawMessage) (string, error) {
	var a api.DetachArgs
	if decode(args, &a) != nil {
		return "", nil
	}
	return k.hostOf(ctx, a.Guest)
}

// Place implements command.Placer: a snapshot is made where the volume is held. A file is made
// where it was asked for, or nowhere.
func (k volumeSnapshot) Place(ctx context.Context, args json.RawMessage) (string, error) {
	var a api.SnapshotArgs
	if decode(args, &a) != nil || strings.HasPrefix(a.To, "/") {
		return "", nil
	}
	return k.holderOf(ctx, a.Volume), nil
}

// Place implements command.Placer.
func (k volumeErase) Place(ctx context.Context, args json.RawMessage) (string, error) {
	p, err := k.arguments(args)
	if err != nil {
		return "", nil //nolint:nilerr // Plan says what is wrong
	}
	return k.holderOf(ctx, p.Volume), nil
}

// Place implements command.Placer.
func (k volumeResize) Place(ctx context.Context, args json.RawMessage) (string, error) {
	var a api.ResizeArgs
	if decode(args, &a) != nil {
		return "", nil
	}
	return k.holderOf(ctx, a.Volume), nil
}

// Place implements command.Placer: where the source is held, else where what is written over is.
func (k volumeCopy) Place(ctx context.Context, args json.RawMessage) (string, error) {
	var a api.CopyArgs
	if decode(args, &a) != nil {
		return "", nil
	}
	if host := k.holderOf(ctx, a.Source); host != "" {
		return host, nil
	}
	return k.holderOf(ctx, a.Destination), nil
}

// holderOf is the host that holds a volume, or whose guest uses it; "": none that is known.
func (d Deps) holderOf(ctx context.Context, volume string) string {
	where, err := d.Locks.Where(ctx, volume, api.OpWrite, "")
	if err != nil || where.Reason != api.ReasonHolder && where.Reason != api.ReasonGuest {
		return ""
	}
	return where.Host
}

// hostOf is where a guest runs, else where it is defined; "": here, or nowhere that is known.
func (d Deps) hostOf(ctx context.Context, guest string) (string, error) {
	_, running, err := d.guest(guest)
	if running || err != nil && api.KindOf(err) != api.KindNotFound {
		return "", nil //nolint:nilerr // Plan finds the same
	}
	here := err == nil
	hosts, _ := d.Engine.LiveHosts(ctx) // without others it is done here
	var defined []string
	for _, host := range hosts {
		var g api.GuestAnswer
		if host == d.Host || guest == "" || d.Peers.Call(ctx, host, api.RoutePeerGuest, api.GuestQuery{Name: guest}, &g) != nil {
			continue
		}
		switch {
		case g.Present && g.State != "unknown":
			return host, nil
		case g.Defined:
			defined = append(defined, host)
		}
	}
	switch {
	case here || len(defined) == 0:
		return "", nil
	case len(defined) > 1:
		return "", badRequest("guest %s is off, and defined on %s: say with --host which of them", guest, strings.Join(defined, " and "))
	}
	return defined[0], nil
}
