package kinds

import (
	"context"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
	"virtlvm/internal/virt"
)

// Locks is the cluster lock manager.
type Locks interface {
	Show(ctx context.Context, volume string) (api.Lock, error)
	Where(ctx context.Context, volume, op, on string) (api.Endpoint, error)
	Transfer(ctx context.Context, req api.TransferRequest, by string) (api.TransferResult, error)
}

// planTransfer: the lock of a volume goes to another host.
func (k moving) planTransfer(ctx context.Context, p movePlan, src model.Volume) (command.Plan, error) {
	if err := api.CheckHostName(p.ToHost); err != nil {
		return command.Plan{}, badRequest("%v", err)
	}
	lock, err := k.Locks.Show(ctx, src.Name())
	if err != nil {
		return command.Plan{}, err
	}
	reason, err := transferReason(lock, p.ToHost)
	if err != nil {
		return command.Plan{}, err
	}
	p.Disks = []moveDisk{{Volume: src.Name(), SourceID: src.ID, Size: src.Size}}
	rec, err := record(p)
	return command.Plan{
		Targets: []command.Target{volumeTarget(src, false)}, Record: rec,
		Volumes: []api.PlannedVolume{{Volume: src.Name(), Tier: p.Tier, To: p.ToHost, Reason: reason}},
	}, err
}

// transferReason is why the lock alone moves; an error: it cannot, or not now.
func transferReason(lock api.Lock, to string) (string, error) {
	if lock.Known == api.KnownUnknown {
		return "", notKnown("it is not known who holds %s: %s", lock.Volume, lock.Problem)
	}
	var from []string
	for _, h := range lock.Hosts {
		if h.Mode == string(model.ModeOff) {
			continue
		}
		if h.Use == api.UseGuest && h.Host != to {
			return "", inUse("guest %s runs with %s on %s; move the guest: 'virtlvm guest move %s --to-host %s'", strings.Join(h.Guests, ", "), lock.Volume, h.Host, h.Guests[0], to)
		}
		from = append(from, h.Host)
	}
	switch {
	case len(from) == 0:
		return fmt.Sprintf("same volume group; nobody holds it, %s takes its lock", to), nil
	case len(from) == 1 && from[0] == to:
		return fmt.Sprintf("same volume group; %s has its lock already", to), nil
	}
	return fmt.Sprintf("same volume group; only its lock goes from %s to %s", strings.Join(from, ", "), to), nil
}

func (k moving) transferOf(ctx context.Context, c command.Command, volume, to string) error {
	r, err := k.Locks.Transfer(ctx, api.TransferRequest{Volumes: []string{volume}, To: to}, fmt.Sprintf("command %s, %s", c.Key, c.Cause))
	if err == nil && len(r.Volumes) == 1 && r.Volumes[0].Error != nil {
		return r.Volumes[0].Error
	}
	return err
}

// transferred: the lease says who has the lock.
func (k moving) transferred(ctx context.Context, p movePlan, began error) (command.Verdict, error) {
	volume := p.Disks[0].Volume
	lock, err := k.Locks.Show(ctx, volume)
	if err != nil {
		return command.Verdict{}, err
	}
	if lock.Known == api.KnownUnknown || lock.Converting {
		return notYet("it is not known who holds %s: %s", volume, lock.Problem), nil
	}
	var others []string
	for _, h := range lock.Hosts {
		switch {
		case h.Mode == string(model.ModeOff):
		case h.Host == p.ToHost && h.Mode == string(model.ModeEX):
			return done("the lock of %s is on %s", volume, p.ToHost), nil
		default:
			others = append(others, h.Host)
		}
	}
	has := "nobody holds it"
	if len(others) > 0 {
		has = strings.Join(others, ", ") + " has it"
	}
	if began != nil {
		return notDone("cannot move the lock of %s to %s: %v; %s", volume, p.ToHost, began, has), nil
	}
	return notDone("the lock of %s is not on %s: %s", volume, p.ToHost, has), nil
}

// poolVG is the volume group behind a storage pool of libvirt.
func (k moving) poolVG(pool string) (string, error) {
	ref, isLV, err := k.Resolver.Resolve(domain.Source{Pool: pool, Volume: "x"})
	switch {
	case err != nil:
		return "", badRequest("%v", err)
	case !isLV || ref.VG == "":
		return "", badRequest("storage pool %s is no volume group", pool)
	}
	return ref.VG, nil
}

// planLightweight: the guests that have the volume name it by another storage pool from now
// on; with ToHost its lock moves as well.
func (k moving) planLightweight(p movePlan, src model.Volume) (command.Plan, error) {
	if p.ToHost != "" {
		return command.Plan{}, badRequest("name a storage pool or a host to move to, one after the other: a guest's definition is on one host")
	}
	d := moveDisk{Volume: src.Name(), SourceID: src.ID, Size: src.Size}
	if err := k.planDefined(&d, src); err != nil {
		return command.Plan{}, err
	}
	if len(d.Users) == 0 {
		return command.Plan{}, inUse("no guest that is defined on %s has %s as a disk: there is nothing to change", k.Host, src.Name())
	}
	d.ToFormat = d.Format
	p.Disks = []moveDisk{d}
	targets := []command.Target{volumeTarget(src, true)}
	var volumes []api.PlannedVolume
	for _, u := range d.Users {
		targets = append(targets, guestTarget(u.UUID, u.Guest))
		volumes = append(volumes, api.PlannedVolume{
			Volume: src.Name(), Guest: u.Guest, Disk: u.Target, Tier: p.Tier, To: p.ToPool,
			Reason: fmt.Sprintf("storage pool %s is volume group %s as well: only the name in the guest's definition changes", p.ToPool, src.VG),
		})
	}
	rec, err := record(p)
	return command.Plan{Targets: targets, Record: rec, Volumes: volumes}, err
}

// rename changes the name in the definitions.
func (k moving) rename(ctx context.Context, c command.Command, p movePlan) (command.Verdict, error) {
	d := p.Disks[0]
	to := virt.DiskSource{Pool: p.ToPool, Volume: d.Volume[len(vgOf(d.Volume))+1:]}
	var texts []string
	for _, u := range d.Users {
		at, from, err := k.definedAt(d, u, model.VolumeID{})
		switch {
		case err != nil:
			return command.Verdict{}, err
		case at != onSource:
			return notDone("disk %s of guest %s is not on %s any more", u.Target, u.Guest, d.Volume), nil
		case from.Pool != to.Pool || from.Volume != to.Volume:
			if c.Cancelled != "" {
				return notDone("cannot rename disk %s of guest %s: it was cancelled: %s", u.Target, u.Guest, c.Cancelled), nil
			}
			note, err := k.rewrite(ctx, d, u, from, to)
			if err != nil {
				return command.Verdict{}, err
			}
			if note != "" {
				return notDone("cannot rename disk %s of guest %s: %s", u.Target, u.Guest, strings.TrimPrefix(note, "; ")), nil
			}
		}
		texts = append(texts, fmt.Sprintf("disk %s of guest %s is %s of storage pool %s", u.Target, u.Guest, to.Volume, p.ToPool))
	}
	return done("%s", strings.Join(texts, ", ")), nil
}
