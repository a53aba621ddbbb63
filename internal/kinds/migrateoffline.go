package kinds

import (
	"context"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// planOffline checks the migration of a guest that is off: its definition goes to another
// host, and with it the locks that some host keeps on its volumes. A volume that nobody
// holds needs none before the guest starts.
func (k migrate) planOffline(ctx context.Context, p migratePlan) (command.Plan, error) {
	dom, running, err := k.guest(p.Guest)
	if err != nil {
		return command.Plan{}, err
	}
	switch {
	case running:
		return command.Plan{}, inUse("guest %s runs on %s; a cold migration is for one that is off", p.Guest, k.Host)
	case dom.Saved:
		return command.Plan{}, savedImage(p.Guest, "its disks")
	case p.AutoConverge:
		return command.Plan{}, badRequest("guest %s is off: there is nothing to slow down", p.Guest)
	}
	p.UUID, p.Persistent = dom.UUID, true
	if err := k.destinationFree(ctx, p); err != nil {
		return command.Plan{}, err
	}
	targets := []command.Target{guestTarget(p.UUID, p.Guest)}
	var volumes []api.PlannedVolume
	for _, disk := range dom.Disks {
		v, ours, err := k.volumeOf(ctx, dom, disk)
		switch {
		case err != nil:
			return command.Plan{}, err
		case !ours, disk.Role.Mode() != model.ModeEX, v.HasTag(model.TagShared):
			continue // shared by its nature
		}
		lock, err := k.Locks.Show(ctx, v.Name())
		if err != nil {
			return command.Plan{}, err
		}
		reason, err := transferReason(lock, p.To)
		if err != nil {
			return command.Plan{}, err
		}
		if len(holdersBut(lock, "")) == 0 {
			reason = "same volume group; nobody holds it: it is taken when the guest starts"
		}
		p.Volumes = append(p.Volumes, v.Name())
		targets = append(targets, volumeTarget(v, false))
		volumes = append(volumes, api.PlannedVolume{Volume: v.Name(), Guest: p.Guest, Disk: disk.Target, Tier: api.TierTransfer, To: p.To, Reason: reason})
	}
	if p.URI == "" {
		if p.URI, err = k.URI(ctx, p.To); err != nil {
			return command.Plan{}, err
		}
	}
	rec, err := record(p)
	return command.Plan{Targets: targets, Record: rec, Backend: true, Volumes: volumes}, err
}

// holdersBut are the hosts that hold a volume, but for one.
func holdersBut(lock api.Lock, host string) []string {
	var all []string
	for _, h := range lock.Hosts {
		if h.Mode != string(model.ModeOff) && h.Host != host {
			all = append(all, h.Host)
		}
	}
	return all
}

// offlineStep is the command line, see virsh(1).
func offlineStep(p migratePlan) []string {
	argv := []string{"virsh", "-c", "qemu:///system", "migrate", "--offline", "--persistent"}
	if p.UndefineSource {
		argv = append(argv, "--undefinesource")
	}
	return append(argv, p.UUID, p.URI)
}

// finishOffline: the definitions on both hosts tell, where virsh has not said that it is
// done; then the locks follow.
func (k migrate) finishOffline(ctx context.Context, c command.Command, p migratePlan, r backend.Report, began error) (command.Verdict, error) {
	if !r.OK() {
		there, err := k.isDefined(ctx, p)
		if err != nil {
			return command.Verdict{}, err
		}
		if !there {
			return notDone("cannot migrate %s to %s: %s", p.Guest, p.To, why(k.Jobs, c, r, began)), nil
		}
	}
	var moved []string
	notes := ""
	for _, volume := range p.Volumes {
		lock, err := k.Locks.Show(ctx, volume)
		if err != nil {
			return command.Verdict{}, err
		}
		if lock.Known == api.KnownUnknown || lock.Converting {
			return notYet("it is not known who holds %s: %s", volume, lock.Problem), nil
		}
		if len(holdersBut(lock, p.To)) == 0 {
			if len(holdersBut(lock, "")) > 0 {
				moved = append(moved, volume) // before a crash
			}
			continue
		}
		err = moving(k).transferOf(ctx, c, volume, p.To)
		switch {
		case err == nil:
			moved = append(moved, volume)
		case api.KindOf(err) == api.KindUnknown:
			return command.Verdict{}, err
		default:
			notes += fmt.Sprintf("; the lock of %s stays with %s: %v", volume, strings.Join(holdersBut(lock, p.To), ", "), err)
		}
	}
	text := fmt.Sprintf("guest %s is defined on %s", p.Guest, p.To)
	if p.UndefineSource {
		text += ", and no longer on " + p.From
	}
	if len(moved) > 0 {
		text += "; the lock of " + strings.Join(moved, ", ") + " is there"
	}
	return done("%s%s", text, notes), nil
}

// isDefined says whether the definition has certainly arrived, though virsh has not said so:
// it is there, and gone here.
func (k migrate) isDefined(ctx context.Context, p migratePlan) (bool, error) {
	var there api.GuestAnswer
	if err := k.Peers.Call(ctx, p.To, api.RoutePeerGuest, api.GuestQuery{UUID: p.UUID}, &there); err != nil {
		return false, err
	}
	all, err := k.Definitions()
	if err != nil {
		return false, notKnown("cannot read which guests are defined on %s: %v", k.Host, err)
	}
	for _, d := range all {
		if d.UUID == p.UUID {
			return false, nil // the guest can start here as before, whatever is there
		}
	}
	return there.Defined, nil
}

// investigateOffline: a definition that is on the destination is what was asked for.
func (k migrate) investigateOffline(ctx context.Context, c command.Command, p migratePlan) (command.Verdict, error) {
	var there api.GuestAnswer
	if p.To == k.Host {
		dom, _, err := k.guest(p.Guest)
		if err != nil && !isNotFound(err) {
			return command.Verdict{}, err
		}
		there.Defined = err == nil && (p.UUID == "" || dom.UUID == p.UUID)
	} else if err := k.Peers.Call(ctx, p.To, api.RoutePeerGuest, p.query(), &there); err != nil {
		return notYet("%s cannot say whether %s is defined there: %v", p.To, p.Guest, err), nil
	}
	if there.Defined {
		return done("guest %s is defined on %s; %s is gone, and its locks free themselves with it", p.Guest, p.To, c.Executor), nil
	}
	return notDone("cannot migrate %s to %s: %s is gone, and it is not defined on %s", p.Guest, p.To, c.Executor, p.To), nil
}
