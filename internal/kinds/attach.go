package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
	"virtlvm/internal/virt"
)

// guestAttach is guest.attach: the volume is taken for the guest, then libvirt attaches it,
// then the guest holds it itself. libvirt calls no hook for that. Finish does it all, and does
// only what is missing: whether the guest has the disk is read in its status file and its
// definition.
type guestAttach struct{ Deps }

// attachPlan is what Plan keeps.
type attachPlan struct {
	api.AttachArgs
	UUID string
	ID   model.VolumeID
}

func (p attachPlan) work(key string) activation.Work { return activation.Work{Key: key, Guest: p.UUID} }

func (p attachPlan) disk() virt.Disk {
	return virt.Disk{Device: device(p.Volume), Target: p.Target, Format: p.Format, ReadOnly: p.ReadOnly}
}

func (p attachPlan) role() model.Role {
	if p.ReadOnly {
		return model.RoleReadOnly
	}
	return model.RoleWritable
}

// subject is a guest as this host has it.
type subject struct {
	running *domain.Domain // nil: it does not run here
	defined *domain.Domain // nil: it is not defined here
	uuid    string
}

// subjectOf finds a guest by its name, and settles what --live and --config mean for it. One
// that libvirt is busy with is refused.
func (d Deps) subjectOf(name string, live, config *bool) (subject, error) {
	var s subject
	var err error
	if s.defined, err = d.defined(name); err != nil {
		return s, err
	}
	snap, err := d.Guests.Observe()
	if err != nil {
		return s, notKnown("cannot tell which guests run on %s: %v", d.Host, err)
	}
	if snap.Liveness("", name) != guests.Gone {
		g, err := runningGuest(d.Guests, name, d.Host)
		if err != nil {
			return s, err
		}
		s.uuid = g.UUID
		if s.running, err = domain.ParseStatus(g.XML); err != nil {
			return s, notKnown("cannot read the disks of guest %s: %v", name, err)
		}
	}
	switch {
	case s.running == nil && s.defined == nil:
		return s, api.NewError(api.KindNotFound, fmt.Sprintf("guest %s neither runs on %s nor is defined there; name its host with --host", name, d.Host))
	case s.running == nil:
		s.uuid = s.defined.UUID
	}
	return s, s.where(name, d.Host, live, config)
}

// where settles what --live and --config mean for a guest.
func (s subject) where(name, host string, live, config *bool) error {
	switch {
	case !*live && !*config:
		*live, *config = s.running != nil, s.running == nil
	case *live && s.running == nil:
		return badRequest("guest %s does not run on %s; say --config to change its definition", name, host)
	case *config && s.defined == nil:
		return badRequest("guest %s has no definition on %s; say --live to change it as it runs", name, host)
	}
	return nil
}

// Plan implements command.Kind.
func (k guestAttach) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var p attachPlan
	if err := decode(args, &p.AttachArgs); err != nil {
		return command.Plan{}, err
	}
	s, err := k.subjectOf(p.Guest, &p.Live, &p.Config)
	if err != nil {
		return command.Plan{}, err
	}
	v, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil {
		return command.Plan{}, err
	}
	p.Volume, p.ID, p.UUID = v.Name(), v.ID, s.uuid
	if err := k.planVolume(&p, v); err != nil {
		return command.Plan{}, err
	}
	if err := k.planTarget(&p, s); err != nil {
		return command.Plan{}, err
	}
	rec, err := record(p)
	return command.Plan{Targets: []command.Target{volumeTarget(v, p.ReadOnly), guestTarget(p.UUID, p.Guest)}, Record: rec}, err
}

// planVolume is nil if a guest may have the volume.
func (k guestAttach) planVolume(p *attachPlan, v model.Volume) error {
	if err := current(v); err != nil {
		return err
	}
	if v.HasTag(model.TagShared) && !p.ReadOnly {
		return unsupported("%s is tagged %s (a template or cluster disk) and is not written by one guest; say --read-only", v.Name(), model.TagShared)
	}
	if p.Format == "" {
		p.Format = v.Format()
	}
	if err := checkFormat(&p.Format, formatRaw); err != nil {
		return err
	}
	for _, h := range k.Engine.HoldsOf(v.ID) {
		if h.Owner != p.UUID && model.IsGuest(h.Owner) && (!p.ReadOnly || h.Mode == model.ModeEX) {
			return api.NewError(api.KindHeld, fmt.Sprintf("%s is used on this host (%s) by %s as a %s disk", v.Name(), k.Host, h.Subject(), h.Role))
		}
	}
	return nil
}

// target is the name of a disk in a guest.
var target = regexp.MustCompile(`^(vd|sd|hd|xvd)[a-z]{1,2}$`)

// planTarget chooses a name for the disk, and sees to it that neither the name nor the volume
// is there already.
func (k guestAttach) planTarget(p *attachPlan, s subject) error {
	taken := map[string]bool{}
	for _, doc := range []*domain.Domain{s.running, s.defined} {
		if doc == nil {
			continue
		}
		asked := doc == s.running && p.Live || doc == s.defined && p.Config
		for _, disk := range doc.Disks {
			taken[disk.Target] = true
			if !asked {
				continue
			}
			at, err := k.isAt(disk.Source, p.Volume, p.ID)
			if err != nil {
				return err
			}
			if at {
				return inUse("guest %s has %s already, as disk %s", p.Guest, p.Volume, disk.Target)
			}
		}
	}
	for c := 'a'; c <= 'z' && p.Target == ""; c++ {
		if name := "vd" + string(c); !taken[name] {
			p.Target = name
		}
	}
	switch {
	case !target.MatchString(p.Target):
		return badRequest("%q cannot be the name of a disk; write it as vdb or sdb", p.Target)
	case taken[p.Target]:
		return inUse("guest %s has a disk %s already; name another with --target", p.Guest, p.Target)
	}
	return nil
}

// Start implements command.Kind: Finish does it all.
func (guestAttach) Start(context.Context, command.Command) error { return nil }

// Look implements command.Kind.
func (guestAttach) Look(context.Context, command.Command) (command.Sight, error) {
	return command.Sight{Where: command.Gone}, nil
}

// Cancel implements command.Kind. It is seen by Finish.
func (guestAttach) Cancel(context.Context, command.Command) error { return nil }

// seeDisk is where a guest has a disk of that name with that volume now. A guest that has
// ended or is defined no more has none.
func (d Deps) seeDisk(guest, uuid, name, volume string, id model.VolumeID) (live, config bool, err error) {
	snap, err := d.Guests.Observe()
	if err != nil {
		return false, false, notKnown("cannot tell what guest %s does: %v", guest, err)
	}
	has := func(doc *domain.Domain) (bool, error) {
		for _, disk := range doc.Disks {
			if disk.Target == name {
				return d.isAt(disk.Source, volume, id)
			}
		}
		return false, nil
	}
	switch snap.Liveness(uuid, guest) {
	case guests.Unknown:
		return false, false, notKnown("cannot tell whether guest %s runs on %s", guest, d.Host)
	case guests.Alive:
		doc, err := domain.ParseStatus(snap.ByUUID[uuid].XML)
		if err != nil {
			return false, false, notKnown("cannot read the disks of guest %s: %v", guest, err)
		}
		if live, err = has(doc); err != nil {
			return false, false, err
		}
	case guests.Gone:
	}
	doc, err := d.defined(guest)
	if err != nil || doc == nil || doc.UUID != uuid {
		return live, false, err
	}
	config, err = has(doc)
	return live, config, err
}

// Finish implements command.Kind.
func (k guestAttach) Finish(ctx context.Context, c command.Command, _ command.Sight) (command.Verdict, error) {
	var p attachPlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	err := k.attach(ctx, c, p)
	if again(ctx, err) {
		return command.Verdict{}, err
	}
	if err != nil {
		return k.undo(ctx, c, p, err)
	}
	note, err := giveBack(ctx, k.Engine, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return done("guest %s has %s as disk %s%s%s", p.Guest, p.Volume, p.Target, places(p.Live, p.Config), note), nil
}

func places(live, config bool) string {
	switch {
	case live && config:
		return ", now and in its definition"
	case config:
		return " in its definition"
	}
	return ""
}

// attach does what is missing. The definition comes first: it is the easier one to undo.
func (k guestAttach) attach(ctx context.Context, c command.Command, p attachPlan) error {
	live, config, err := k.seeDisk(p.Guest, p.UUID, p.Target, p.Volume, p.ID)
	if err != nil {
		return err
	}
	if c.Cancelled != "" && !live {
		return fmt.Errorf("it was cancelled: %s", c.Cancelled)
	}
	if p.Config && !config {
		if err := k.Virt.AttachDisk(ctx, p.UUID, p.disk(), virt.InDefinition); err != nil {
			return err
		}
	}
	if !p.Live {
		return nil
	}
	if !live {
		if err := k.take(ctx, c, p); err != nil {
			return err
		}
		if err := k.Virt.AttachDisk(ctx, p.UUID, p.disk(), virt.InGuest); err != nil {
			return err
		}
	}
	if err := k.Engine.Settle(ctx, p.UUID); err != nil {
		return notKnown("%v", err)
	}
	for _, h := range k.Engine.HoldsOf(p.ID) {
		if h.Owner == p.UUID && h.Phase == model.PhaseHeld {
			return nil
		}
	}
	if live, _, err := k.seeDisk(p.Guest, p.UUID, p.Target, p.Volume, p.ID); err == nil && !live {
		return fmt.Errorf("guest %s has ended, or has lost the disk again", p.Guest)
	}
	return notKnown("guest %s has no lock of its own on %s yet", p.Guest, p.Volume)
}

// take takes the volume for the guest, and what is below the image on it.
func (k guestAttach) take(ctx context.Context, c command.Command, p attachPlan) error {
	w := p.work(c.Key)
	v, err := k.Engine.Take(ctx, w, p.Volume, p.role())
	switch {
	case err != nil:
		return err
	case v.ID != p.ID:
		return inUse("%s is another volume now than when it was asked for", p.Volume)
	case p.Format != formatQcow2:
		return nil
	}
	h, err := k.Images.Inspect(ctx, domain.Source{Path: device(p.Volume), Format: p.Format})
	if err != nil {
		return badRequest("%s is not what it was said to be: %s", p.Volume, oneLine(err.Error()))
	}
	if h.Backing == nil {
		return nil
	}
	ref, isLV, err := k.Resolver.Resolve(*h.Backing)
	if err != nil || !isLV {
		return err
	}
	_, _, err = k.takeChain(ctx, w, ref.String(), formatOf(*h.Backing))
	return err
}

// undo takes the disk out of the definition again, and gives the volume back.
func (k guestAttach) undo(ctx context.Context, c command.Command, p attachPlan, why error) (command.Verdict, error) {
	live, config, err := k.seeDisk(p.Guest, p.UUID, p.Target, p.Volume, p.ID)
	if err != nil {
		return command.Verdict{}, err
	}
	note := ""
	if p.Config && config && !live {
		if err := k.Virt.DetachDisk(ctx, p.UUID, p.disk(), virt.InDefinition); again(ctx, err) {
			return command.Verdict{}, err
		} else if err != nil {
			note = fmt.Sprintf("; it is left in the definition: %v", err)
		}
	}
	held, err := giveBack(ctx, k.Engine, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	return notDone("cannot attach %s to guest %s: %v%s%s", p.Volume, p.Guest, why, note, held), nil
}

// Investigate implements command.Kind: only the executor's libvirt knows.
func (k guestAttach) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	var p attachPlan
	if err := recallOr(c, &p, &p.AttachArgs); err != nil {
		return command.Verdict{}, err
	}
	return k.gone(ctx, c, p.Guest, p.Live && !p.Config)
}

// gone is the verdict on a change to a guest of a host that is off: the guest has ended with it.
// What its definition says is to be looked up there, unless it was not to be touched.
func (d Deps) gone(ctx context.Context, c command.Command, guest string, liveOnly bool) (command.Verdict, error) {
	if !liveOnly || !d.Engine.Off(ctx, c.Executor) {
		return notYet("only on %s it can be told what has become of the disk: look at guest %s there ('virsh dumpxml'), and tell with 'virtlvm command resolve'", c.Executor, guest), nil
	}
	return notDone("%s is off, and guest %s has ended with it", c.Executor, guest), nil
}
