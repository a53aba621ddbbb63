package kinds

import (
	"context"
	"fmt"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
)

// user is a guest that runs here, and the disk by which it has a volume for itself.
type user struct {
	Guest  string
	UUID   string
	Target string
	Format string
}

// userOf finds the running guest that writes a volume; nil: no guest of this host has it.
// Others than that are refused: a guest that is on its way, or one that has the volume below
// an image.
func (d Deps) userOf(v model.Volume) (*user, error) {
	var owner *model.Hold
	for _, h := range d.Engine.HoldsOf(v.ID) {
		switch {
		case !model.IsGuest(h.Owner):
			continue
		case owner != nil, h.Phase == model.PhaseLent, h.Phase == model.PhaseIncoming:
			return nil, inUse("%s is held on this host (%s) by %s, which shares it; try again later", v.Name(), d.Host, h.Subject())
		case h.Phase == model.PhaseEnding:
			return nil, inUse("%s of %s, which has ended, is not released yet on this host; try again", v.Name(), h.Subject())
		}
		owner = &h
	}
	if owner == nil {
		return nil, nil //nolint:nilnil // nobody is an answer, not an error
	}
	g, err := runningGuest(d.Guests, owner.Guest, d.Host)
	if err != nil {
		return nil, err
	}
	doc, err := domain.ParseStatus(g.XML)
	if err != nil {
		return nil, notKnown("cannot read the disks of guest %s: %v", g.Name, err)
	}
	for _, disk := range doc.Disks {
		at, err := d.isAt(disk.Source, v.Name(), v.ID)
		if err != nil {
			return nil, err
		}
		if at && disk.Role == model.RoleWritable {
			return &user{g.Name, g.UUID, disk.Target, formatOf(disk.Source)}, nil
		}
	}
	return nil, inUse("%s is used by guest %s as a %s volume, and not as a disk of its own", v.Name(), g.Name, owner.Role)
}

// formatOf is a source's format; libvirt takes one that is not declared for raw.
func formatOf(s domain.Source) string {
	if s.Format == "" {
		return formatRaw
	}
	return s.Format
}

// isAt reports whether a source is a volume.
func (d Deps) isAt(s domain.Source, name string, id model.VolumeID) (bool, error) {
	ref, isLV, err := d.Resolver.Resolve(s)
	if err != nil {
		return false, notKnown("%v", err)
	}
	return isLV && (ref.DMUUID == "" && ref.String() == name || ref.DMUUID != "" && ref.DMUUID == id.DMUUID()), nil
}

// current is nil for a volume with content that is complete and is the latest.
func current(v model.Volume) error {
	if key, ok := v.HasTagOf(model.TagIncomplete); ok {
		return inUse("the content of %s is not complete: command %s is at it, or has failed; see 'virtlvm commands'", v.Name(), key)
	}
	if v.HasTag(model.TagSuperseded) {
		return inUse("%s is tagged %s: its content has been moved to another volume, and is old", v.Name(), model.TagSuperseded)
	}
	return nil
}

// defined is the definition of a guest on this host, nil where there is none.
func (d Deps) defined(name string) (*domain.Domain, error) {
	all, err := d.Definitions()
	if err != nil {
		return nil, notKnown("the guests that are defined on %s cannot be read: %v", d.Host, err)
	}
	for _, g := range all {
		if g.Name == name {
			return g, nil
		}
	}
	return nil, nil //nolint:nilnil // none is an answer, not an error
}

// again reports whether an error says nothing of what became of an attempt: it is made once
// more, later.
func again(ctx context.Context, err error) bool {
	kind := api.KindOf(err)
	return err != nil && (ctx.Err() != nil || kind == api.KindUnknown || kind == api.KindStuck)
}

func unsupported(format string, args ...any) error {
	return api.NewError(api.KindUnsupported, fmt.Sprintf(format, args...))
}
