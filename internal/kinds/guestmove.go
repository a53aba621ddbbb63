package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
)

// guestMove is guest.move: the disks of a guest go to another volume group, all of them or
// none; or the guest goes to another host, as guest.migrate does it.
type guestMove struct{ moving }

// guestMovePlan is what Plan keeps: a movePlan, or the plan of a migration.
type guestMovePlan struct {
	Migration json.RawMessage `json:"migration,omitempty"`
}

// Plan implements command.Kind.
func (k guestMove) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var a api.GuestMoveArgs
	if err := decode(args, &a); err != nil {
		return command.Plan{}, err
	}
	if err := checkBandwidth(a.Bandwidth); err != nil {
		return command.Plan{}, err
	}
	switch {
	case (a.ToVG == "") == (a.ToHost == ""):
		return command.Plan{}, badRequest("say whether guest %s shall go to another volume group or to another host; to both, one after the other", a.Guest)
	case a.ToHost != "":
		return k.toHost(ctx, a)
	}
	dom, running, err := k.guest(a.Guest)
	if err != nil {
		return command.Plan{}, err
	}
	if running {
		if _, err := runningGuest(k.Guests, a.Guest, k.Host); err != nil {
			return command.Plan{}, err
		}
	}
	p := movePlan{Tier: api.TierFull, Bandwidth: a.Bandwidth}
	stays, err := k.planDisks(ctx, &p, dom, a)
	if err != nil {
		return command.Plan{}, err
	}
	switch {
	case len(p.Disks) == 0:
		return command.Plan{}, badRequest("guest %s has no disk to move to %s: each is there already, or is no volume of its own", a.Guest, a.ToVG)
	case p.running() != running:
		return command.Plan{}, inUse("guest %s runs, and not all of its disks are what its definition says; move its volumes one by one", a.Guest)
	}
	return k.full(ctx, p, a.ToVG, stays)
}

func (k guestMove) toHost(ctx context.Context, a api.GuestMoveArgs) (command.Plan, error) {
	if len(a.Disks) > 0 || a.Format != "" {
		return command.Plan{}, badRequest("to another host a guest goes with all its disks as they are: disks and a format say nothing")
	}
	_, running, err := k.guest(a.Guest)
	if err != nil {
		return command.Plan{}, err
	}
	plan, err := migrate{k.Deps}.plan(ctx, api.MigrateArgs{
		Guest: a.Guest, To: a.ToHost, Persistent: true, UndefineSource: true, Offline: !running, Bandwidth: a.Bandwidth,
	})
	if err == nil {
		plan.Record, err = record(guestMovePlan{Migration: plan.Record})
	}
	return plan, err
}

// guest finds a guest of this host: as it runs, else as it is defined.
func (d Deps) guest(name string) (dom *domain.Domain, running bool, err error) {
	snap, err := d.Guests.Observe()
	if err != nil {
		return nil, false, notKnown("cannot tell which guests run on %s: %v", d.Host, err)
	}
	for _, g := range snap.ByUUID {
		if g.Name != name || g.Alive == guests.Gone {
			continue
		}
		dom, err := domain.ParseStatus(g.XML)
		if err != nil {
			return nil, false, notKnown("cannot read the disks of guest %s: %v", name, err)
		}
		return dom, true, nil
	}
	for _, u := range snap.Unknown {
		if u.Name == name {
			return nil, false, notKnown("cannot tell whether guest %s runs on %s: its status file is not understood (%s)", name, d.Host, u.Reason)
		}
	}
	all, err := d.Definitions()
	if err != nil {
		return nil, false, notKnown("cannot read which guests are defined on %s: %v", d.Host, err)
	}
	for _, dom := range all {
		if dom.Name == name {
			return dom, false, nil
		}
	}
	return nil, false, api.NewError(api.KindNotFound, fmt.Sprintf("guest %s neither runs on %s nor is defined there; --host HOST asks another host", name, d.Host))
}

// planDisks plans the disks that shall move, and tells of those that stay.
func (k guestMove) planDisks(ctx context.Context, p *movePlan, dom *domain.Domain, a api.GuestMoveArgs) (stays []api.PlannedVolume, err error) {
	asked := slices.Clone(a.Disks)
	for _, disk := range dom.Disks {
		v, ours, err := k.volumeOf(ctx, dom, disk)
		if err != nil {
			return nil, err
		}
		wanted := func(s string) bool { return s == disk.Target || ours && s == v.Name() }
		named := slices.ContainsFunc(asked, wanted)
		asked = slices.DeleteFunc(asked, wanted)
		if !ours {
			if named {
				return nil, badRequest("disk %s of guest %s is on no volume that virtlvm manages", disk.Target, dom.Name)
			}
			continue
		}
		why := ""
		switch {
		case len(a.Disks) > 0 && !named:
			why = "it was not named"
		case v.VG == a.ToVG:
			why = "it is in that volume group already"
		case !named && disk.Role != model.RoleWritable:
			why = fmt.Sprintf("it is %s", disk.Role)
		}
		if why != "" {
			stays = append(stays, api.PlannedVolume{Volume: v.Name(), Guest: dom.Name, Disk: disk.Target, Tier: api.TierStays, Reason: why})
			continue
		}
		if err := movableVolume(v); err != nil {
			return nil, err
		}
		d := moveDisk{Volume: v.Name(), SourceID: v.ID, Size: v.Size, ToFormat: a.Format}
		if err := k.planFull(ctx, p, &d, v, a.ToVG, v.LV); err != nil {
			return nil, err
		}
	}
	if len(asked) > 0 {
		return nil, badRequest("guest %s has no disk %s", dom.Name, asked[0])
	}
	return stays, nil
}

// volumeOf is the managed volume that a disk is itself on; ours is false where it is on none.
func (d Deps) volumeOf(ctx context.Context, dom *domain.Domain, disk domain.Disk) (v model.Volume, ours bool, err error) {
	ref, isLV, err := d.Resolver.Resolve(disk.Source)
	if err != nil {
		return v, false, notKnown("disk %s of guest %s: %v", disk.Target, dom.Name, err)
	}
	if !isLV {
		return v, false, nil
	}
	name := ref.VG + "/" + ref.LV
	if ref.VG == "" {
		for _, h := range d.Engine.HoldsBy(dom.UUID) {
			if h.Volume.DMUUID() == ref.DMUUID {
				name = h.Name
			}
		}
		if name == "/" {
			return v, false, notKnown("disk %s of guest %s is named by its uuid, which tells no volume now; name it as /dev/VG/LV", disk.Target, dom.Name)
		}
	}
	v, err = d.Engine.Lookup(ctx, name)
	if api.KindOf(err) == api.KindOutOfScope {
		return v, false, nil
	}
	return v, err == nil, err
}

// migration is the plan of a command that is one of guest.migrate in truth.
func migration(c command.Command) (command.Command, bool) {
	var p guestMovePlan
	if recall(c, &p) != nil || len(p.Migration) == 0 {
		return c, false
	}
	c.Plan = p.Migration
	return c, true
}

// Start implements command.Kind.
func (k guestMove) Start(ctx context.Context, c command.Command) error {
	if c, ok := migration(c); ok {
		return migrate{k.Deps}.Start(ctx, c)
	}
	return k.moving.Start(ctx, c)
}

// Look implements command.Kind.
func (k guestMove) Look(ctx context.Context, c command.Command) (command.Sight, error) {
	if c, ok := migration(c); ok {
		return migrate{k.Deps}.Look(ctx, c)
	}
	return k.moving.Look(ctx, c)
}

// Finish implements command.Kind.
func (k guestMove) Finish(ctx context.Context, c command.Command, s command.Sight) (command.Verdict, error) {
	if c, ok := migration(c); ok {
		return migrate{k.Deps}.Finish(ctx, c, s)
	}
	return k.moving.Finish(ctx, c, s)
}

// Cancel implements command.Kind.
func (k guestMove) Cancel(ctx context.Context, c command.Command) error {
	if c, ok := migration(c); ok {
		return migrate{k.Deps}.Cancel(ctx, c)
	}
	return k.moving.Cancel(ctx, c)
}

// Investigate implements command.Kind. Where the executor has never said what it plans, only a
// guest that runs where it was to go is evidence.
func (k guestMove) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	if c, ok := migration(c); ok {
		return migrate{k.Deps}.Investigate(ctx, c)
	}
	if len(c.Plan) > 0 {
		return k.moving.Investigate(ctx, c)
	}
	var a api.GuestMoveArgs
	if err := decode(c.Args, &a); err != nil {
		return command.Verdict{}, err
	}
	if a.ToHost != "" {
		v, err := migrate{k.Deps}.judge(ctx, migratePlan{From: c.Executor, MigrateArgs: api.MigrateArgs{Guest: a.Guest, To: a.ToHost}})
		if err != nil || v.Outcome == command.Done {
			return v, err
		}
	}
	return neverHeard(c, "guest "+a.Guest), nil
}
