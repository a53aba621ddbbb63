package kinds

import (
	"context"
	"errors"
	"fmt"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
	"virtlvm/internal/virt"
)

// definedAt says on which volume a guest's disk is in its definition on this host, and how
// that names it; noGuest where there is none.
func (k moving) definedAt(d moveDisk, u diskUser, destID model.VolumeID) (at diskAt, s domain.Source, err error) {
	all, err := k.Definitions()
	if err != nil {
		return "", s, notKnown("cannot read the definition of guest %s: %v", u.Guest, err)
	}
	for _, dom := range all {
		if dom.UUID == u.UUID {
			see, s, err := k.seeDisk(dom, d, u.Target, destID)
			return see.disk, s, err
		}
	}
	return noGuest, s, nil
}

// redefine sees to it that a guest starts from the destination next time. Of one that runs
// libvirt itself has changed the definition when it pivoted, but for a crash just then.
func (k moving) redefine(ctx context.Context, d moveDisk, u diskUser, destID model.VolumeID) (note string, err error) {
	at, from, err := k.definedAt(d, u, destID)
	if err != nil {
		return "", err
	}
	switch at {
	case onDest, noGuest:
		return "", nil
	case onSource:
	default:
		return fmt.Sprintf("; its definition has disk %s on another volume: see 'virsh dumpxml --inactive %s'", u.Target, u.Guest), nil
	}
	return k.rewrite(ctx, d, u, from, virt.DiskSource{Path: device(d.Dest), Format: d.ToFormat})
}

// rewrite changes the definition of a guest. What libvirt refuses is left to a person.
func (k moving) rewrite(ctx context.Context, d moveDisk, u diskUser, from domain.Source, to virt.DiskSource) (note string, err error) {
	was := virt.DiskSource{Path: from.Path, Pool: from.Pool, Volume: from.Volume}
	if was.Pool != "" {
		was.Path = ""
	}
	err = k.Virt.RedefineDisk(ctx, u.UUID, u.Target, was, to)
	var refused *api.Error
	if errors.As(err, &refused) && refused.Kind == api.KindInUse {
		return fmt.Sprintf("; the definition of guest %s still names %s: change it with 'virsh edit %s' (%v)", u.Guest, d.Volume, u.Guest, err), nil
	}
	return "", err
}
