package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
)

// migrate is guest.migrate: virsh in a job. The hooks do the locking, as for any other
// migration; the command only sees to it that somebody knows how it ended. Of a guest that
// is off the definition goes, and the locks follow.
type migrate struct{ Deps }

// migratePlan is what Plan keeps.
type migratePlan struct {
	api.MigrateArgs
	UUID   string `json:"uuid"`
	From   string `json:"from"`             // host
	Paused bool   `json:"paused,omitempty"` // it did not run before, and will not there
	// Volumes are those whose locks follow a guest that is off.
	Volumes []string `json:"volumes,omitempty"`
}

// libvirt's words in its status files.
const (
	statePaused  = "paused"
	stateRunning = "running"
	jobOut       = "migration out"
	jobIn        = "migration in"
)

// Plan implements command.Kind.
func (k migrate) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var a api.MigrateArgs
	if err := decode(args, &a); err != nil {
		return command.Plan{}, err
	}
	return k.plan(ctx, a)
}

func (k migrate) plan(ctx context.Context, a api.MigrateArgs) (command.Plan, error) {
	p := migratePlan{From: k.Host, MigrateArgs: a}
	if err := api.CheckHostName(p.To); err != nil {
		return command.Plan{}, badRequest("%v", err)
	}
	if err := checkBandwidth(p.Bandwidth); err != nil {
		return command.Plan{}, err
	}
	if p.UndefineSource && !p.Persistent && !p.Offline {
		return command.Plan{}, badRequest("--undefine-source without --persistent would leave no definition of %s anywhere", p.Guest)
	}
	if p.To == k.Host {
		return command.Plan{}, badRequest("guest %s is on %s already", p.Guest, p.To)
	}
	if p.Offline {
		return k.planOffline(ctx, p)
	}
	g, err := runningGuest(k.Guests, p.Guest, k.Host)
	if err != nil {
		return command.Plan{}, err
	}
	p.UUID, p.Paused = g.UUID, g.State == statePaused
	if err := k.destinationFree(ctx, p); err != nil {
		return command.Plan{}, err
	}
	if p.URI == "" {
		if p.URI, err = k.URI(ctx, p.To); err != nil {
			return command.Plan{}, err
		}
	}
	rec, err := record(p)
	return command.Plan{
		Targets: []command.Target{guestTarget(p.UUID, p.Guest)}, Record: rec, Backend: true, Volumes: k.goWith(p),
	}, err
}

// goWith tells of the volumes that go with a guest that runs.
func (k migrate) goWith(p migratePlan) []api.PlannedVolume {
	var all []api.PlannedVolume
	for _, h := range k.Engine.HoldsBy(p.UUID) {
		all = append(all, api.PlannedVolume{
			Volume: h.Name, Guest: p.Guest, Tier: api.TierTransfer, To: p.To,
			Reason: "same volume group; the guest runs: its locks are shared while its memory moves, then go with it",
		})
	}
	return all
}

// runningGuest finds a guest of this host that runs and with which libvirt does nothing.
func runningGuest(look Guests, name, host string) (guests.Guest, error) {
	snap, err := look.Observe()
	if err != nil {
		return guests.Guest{}, notKnown("cannot tell which guests run on %s: %v", host, err)
	}
	for _, u := range snap.Unknown {
		if u.Name == name {
			return guests.Guest{}, notKnown("cannot tell whether guest %s runs on %s: its status file is not understood (%s)", name, host, u.Reason)
		}
	}
	for _, g := range snap.ByUUID {
		if g.Name != name {
			continue
		}
		switch {
		case g.Alive == guests.Gone:
		case g.Alive == guests.Unknown:
			return g, notKnown("cannot tell whether guest %s runs on %s: %s", name, host, g.Note)
		case g.Job.Async != "" && g.Job.Async != "none":
			return g, inUse("libvirt is busy with guest %s (%s); try again when that has ended", name, g.Job.Async)
		case g.BlockJobs:
			return g, inUse("a block job is under way on a disk of guest %s; try again when that has ended ('virsh blockjob %s DISK' shows it)", name, name)
		case g.State != stateRunning && g.State != statePaused:
			return g, inUse("guest %s is %s", name, g.State)
		default:
			return g, nil
		}
	}
	return guests.Guest{}, api.NewError(api.KindNotFound, fmt.Sprintf("guest %s does not run on %s; 'virtlvm guests' lists those that do, --host HOST asks another host", name, host))
}

// destinationFree asks the destination, which the hook there will need anyway.
func (k migrate) destinationFree(ctx context.Context, p migratePlan) error {
	var there api.GuestAnswer
	if err := k.Peers.Call(ctx, p.To, api.RoutePeerGuest, api.GuestQuery{UUID: p.UUID}, &there); err != nil {
		return api.NewError(api.KindOf(err), fmt.Sprintf("cannot migrate %s to %s: %v", p.Guest, p.To, err))
	}
	if there.Present {
		return inUse("guest %s has a QEMU on %s already (%s); that must end first", p.Guest, p.To, there.State)
	}
	return nil
}

// Start implements command.Kind.
func (k migrate) Start(ctx context.Context, c command.Command) error {
	var p migratePlan
	if err := recall(c, &p); err != nil {
		return err
	}
	step := migrateStep(p)
	if p.Offline {
		step = offlineStep(p)
	}
	return k.Jobs.Start(ctx, backend.Job{
		ID: c.Key, Description: fmt.Sprintf("virtlvm: migrate %s to %s", p.Guest, p.To),
		Steps: [][]string{step}, StopSignal: syscall.SIGINT,
	})
}

// migrateStep is the command line, see virsh(1). By its uuid the guest is certainly the one
// meant. On SIGINT virsh aborts the migration and waits for its end.
func migrateStep(p migratePlan) []string {
	argv := []string{"virsh", "-c", "qemu:///system", "migrate", "--live"}
	if p.Persistent {
		argv = append(argv, "--persistent")
	}
	if p.UndefineSource {
		argv = append(argv, "--undefinesource")
	}
	if p.AutoConverge {
		argv = append(argv, "--auto-converge")
	}
	if p.Bandwidth > 0 {
		argv = append(argv, "--bandwidth", strconv.FormatInt(p.Bandwidth, 10))
	}
	return append(argv, p.UUID, p.URI)
}

// Look implements command.Kind.
func (k migrate) Look(ctx context.Context, c command.Command) (command.Sight, error) {
	var p migratePlan
	if err := recall(c, &p); err != nil {
		return command.Sight{}, err
	}
	s, _ := lookAtJob(ctx, k.Jobs, c.Key)
	if s.Where != command.Running {
		return s, nil
	}
	s.Progress.Phase = "migrating"
	if p.Offline {
		return s, nil
	}
	// libvirt does not answer while a hook runs, and may be restarted: the work goes on.
	if j, err := k.Virt.JobStats(ctx, p.UUID); err == nil && j.Active {
		s.Progress.Done, s.Progress.Total, s.Progress.Speed = j.Done, j.Done+j.Remaining, j.Speed
		if j.Iteration > 1 {
			s.Progress.Phase = fmt.Sprintf("migrating, pass %d", j.Iteration)
		}
	}
	return s, nil
}

// Cancel implements command.Kind: virsh aborts the migration, or lets it end where it is
// too late for that.
func (k migrate) Cancel(ctx context.Context, c command.Command) error { return k.Jobs.Stop(ctx, c.Key) }

// Finish implements command.Kind. What counts is where the guest is.
func (k migrate) Finish(ctx context.Context, c command.Command, s command.Sight) (command.Verdict, error) {
	var p migratePlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	r, err := ended(ctx, k.Jobs, c.Key)
	if err != nil {
		return command.Verdict{}, err
	}
	if p.Offline {
		return k.finishOffline(ctx, c, p, r, s.Began)
	}
	v, err := k.judge(ctx, p)
	if err == nil && v.Outcome == command.NotDone {
		v.Reason = fmt.Sprintf("%s: %s", v.Reason, why(k.Jobs, c, r, s.Began))
	}
	return v, err
}

// Investigate implements command.Kind. Without a plan the guest is looked for by its name.
func (k migrate) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	p := migratePlan{From: c.Executor}
	if err := recallOr(c, &p, &p.MigrateArgs); err != nil {
		return command.Verdict{}, err
	}
	if p.Offline {
		return k.investigateOffline(ctx, c, p)
	}
	return k.judge(ctx, p)
}

// place is where the guest may be.
type place struct {
	api.GuestAnswer
	migrating bool // libvirt is at it, as far as this host sees
}

// as reports whether the guest is as it was, or is to be: running, or paused where it was
// paused before.
func (g place) as(p migratePlan) bool {
	return g.Present && (g.Runs || p.Paused && g.State == statePaused) && !g.migrating
}

// query names the guest to other hosts.
func (p migratePlan) query() api.GuestQuery {
	if p.UUID == "" {
		return api.GuestQuery{Name: p.Guest}
	}
	return api.GuestQuery{UUID: p.UUID}
}

// judge looks where the guest is: on the source, on the destination, then on all hosts.
func (k migrate) judge(ctx context.Context, p migratePlan) (command.Verdict, error) {
	from, fromErr := k.ask(ctx, p.From, p.query())
	to, toErr := k.ask(ctx, p.To, p.query())
	switch {
	case fromErr == nil && from.migrating:
		return notYet("libvirt is still migrating %s", p.Guest), nil
	case fromErr == nil && toErr == nil && from.Present && to.Present:
		return notYet("%s has a QEMU on both %s (%s) and %s (%s)", p.Guest, p.From, from.State, p.To, to.State), nil
	case fromErr == nil && toErr == nil && to.as(p):
		return done("%s runs on %s", p.Guest, p.To), nil
	case fromErr == nil && toErr == nil && from.as(p):
		return notDone("%s is still on %s", p.Guest, p.From), nil
	case fromErr == nil && from.as(p) && k.exclusive(ctx, p):
		// The destination does not answer, but LVM would not let both have them.
		return notDone("%s is still on %s, which has its volumes exclusively", p.Guest, p.From), nil
	case fromErr == nil && from.Present:
		return notYet("%s is %s on %s", p.Guest, from.State, p.From), nil
	case fromErr == nil && toErr == nil && to.Present:
		return notYet("%s is %s on %s", p.Guest, to.State, p.To), nil
	}
	return k.search(ctx, p)
}

// ask asks one host, this one without a connection.
func (k migrate) ask(ctx context.Context, host string, q api.GuestQuery) (place, error) {
	if host == k.Host {
		return k.here(q)
	}
	var g place
	err := k.Peers.Call(ctx, host, api.RoutePeerGuest, q, &g.GuestAnswer)
	return g, err
}

func (k migrate) here(q api.GuestQuery) (place, error) {
	snap, err := k.Guests.Observe()
	if err != nil {
		return place{}, err
	}
	for uuid, g := range snap.ByUUID {
		if q.UUID == "" && g.Name == q.Name {
			q.UUID = uuid
		}
	}
	g, listed := snap.ByUUID[q.UUID]
	switch snap.Liveness(q.UUID, q.Name) {
	case guests.Gone:
		return place{GuestAnswer: api.GuestAnswer{State: "gone"}}, nil
	case guests.Alive:
		if listed {
			return place{api.GuestAnswer{Present: true, State: g.State, Runs: g.State == stateRunning}, g.Job.Async == jobOut || g.Job.Async == jobIn}, nil
		}
	case guests.Unknown:
	}
	return place{}, notKnown("cannot tell whether the guest runs on %s", k.Host)
}

// exclusive: every volume that the guest writes is held exclusively by this host, on which
// it runs.
func (k migrate) exclusive(ctx context.Context, p migratePlan) bool {
	if p.From != k.Host {
		return false
	}
	all := 0
	for _, h := range k.Engine.HoldsBy(p.UUID) {
		if h.Mode != model.ModeEX {
			continue
		}
		a, err := k.Engine.StateOf(ctx, volumeOf(h))
		if err != nil || h.Phase != model.PhaseHeld || !a.Is(model.ModeEX) {
			return false
		}
		all++
	}
	return all > 0
}

// search asks every host that is alive, and the two of the migration unless they are
// certainly off: without lvmlockd nobody tells which hosts are alive. One that is off runs
// nothing; one that does not answer may, and so may one of a lockspace that cannot be read.
func (k migrate) search(ctx context.Context, p migratePlan) (command.Verdict, error) {
	live, unread := k.Engine.LiveHosts(ctx)
	if unread != nil && len(live) == 0 {
		return command.Verdict{}, notKnown("cannot tell which hosts are alive: %v", unread)
	}
	for _, host := range []string{p.From, p.To} {
		if !slices.Contains(live, host) && !k.Engine.Off(ctx, host) {
			live = append(live, host)
		}
	}
	found, at := "", place{}
	for _, host := range live {
		g, err := k.ask(ctx, host, p.query())
		if err != nil {
			return notYet("%s, which is not known to be off, cannot say whether %s runs there: %v", host, p.Guest, err), nil
		}
		if !g.Present {
			continue
		}
		if found != "" {
			return notYet("%s has a QEMU on both %s and %s", p.Guest, found, host), nil
		}
		found, at = host, g
	}
	switch {
	case found == "" && unread != nil:
		return notYet("%s runs on none of %s, and there may be other hosts: %v", p.Guest, strings.Join(live, ", "), unread), nil
	case found == "":
		return notDone("%s has stopped: it runs on no host", p.Guest), nil
	case !at.as(p):
		return notYet("%s is %s on %s", p.Guest, at.State, found), nil
	case found == p.To:
		return done("%s runs on %s", p.Guest, p.To), nil
	}
	return notDone("%s runs on %s", p.Guest, found), nil
}
