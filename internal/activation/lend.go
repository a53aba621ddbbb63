package activation

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// Peers reaches the daemons of other hosts. A failed call is an *api.Error.
type Peers interface {
	Call(ctx context.Context, host, path string, in, out any) error
}

// Job of libvirt on the source, and on the destination, of a live migration.
const (
	jobOut = "migration out"
	jobIn  = "migration in"
)

// Flags of a migration (libvirt's virDomainMigrateFlags) that copy the disks, and that
// copy the definition alone.
const (
	flagsCopyDisks = 0x40 | 0x80
	flagOffline    = 0x400
)

// Lend shares a guest's volumes with peer for the one live migration that libvirt is
// making of it from here to there: ex becomes sh, in place, under the running guest. The
// status file of the guest is the proof that there is one. Lending ends when that job or
// the guest's QEMU does: nobody has to say so.
func (m *Manager) Lend(ctx context.Context, peer string, req api.LendRequest) (api.LendAnswer, error) {
	return peerRequest(ctx, m, peer, "lend "+req.UUID, func(ctx context.Context) (api.LendAnswer, error) {
		m.followStories(ctx)
		if m.lentElsewhere(req.UUID, peer) != nil {
			m.judge(ctx, req.UUID) // it may just have ended
		}
		// Before anything is told: the question must not take the place of that migration's story.
		if h := m.lentElsewhere(req.UUID, peer); h != nil {
			return api.LendAnswer{}, migratesAlready(*h)
		}
		s := m.beginStory(model.SideSource, req.UUID, m.nameOf(req.UUID, req.Guest), peer, req.Attempt)
		defer m.rest(s)
		m.tell(ctx, req.UUID, model.StepAsked, "by "+peer)
		answer, err := m.lend(ctx, peer, req)
		switch {
		case err != nil:
			m.tell(ctx, req.UUID, model.StepRefused, err.Error())
		case !answer.Migrating:
			m.tell(ctx, req.UUID, model.StepNothingLent, "no live migration of it is under way here")
		default:
			m.tell(ctx, req.UUID, model.StepLent, lentNames(answer.Volumes))
		}
		return answer, err
	})
}

// lentElsewhere is a hold of the guest that is lent to another host than peer, nil if there is none.
func (m *Manager) lentElsewhere(uuid, peer string) *model.Hold {
	for _, h := range m.holdsOf(uuid) {
		if h.Phase == model.PhaseLent && h.Grant.Peer != peer {
			return &h
		}
	}
	return nil
}

func migratesAlready(h model.Hold) error {
	return api.NewError(api.KindInUse, fmt.Sprintf("guest %s is being migrated to %s already", show(h.Guest), h.Grant.Peer))
}

func (m *Manager) lend(ctx context.Context, peer string, req api.LendRequest) (api.LendAnswer, error) {
	s, err := m.sight()
	if err != nil {
		return api.LendAnswer{}, err
	}
	g, err := m.migratingOut(ctx, req)
	if err != nil || g == nil {
		return api.LendAnswer{}, err
	}
	// What was plugged in while it ran has no hold yet, and what came by an earlier
	// migration may still be shared.
	seen, err := m.lendable(ctx, s, *g)
	if err != nil {
		return api.LendAnswer{}, err
	}
	grant := model.Grant{ID: rand.Text(), Peer: peer}
	if err := m.lendAll(context.WithoutCancel(ctx), req.UUID, grant, seen); err != nil {
		return api.LendAnswer{}, err
	}
	m.Log.Info("lent a guest's volumes for its live migration", "guest", g.Name, "to", peer, "grant", grant.ID)
	return api.LendAnswer{Migrating: true, Grant: grant.ID, Volumes: m.lentVolumes(req.UUID)}, nil
}

// migratingOut is the guest if a live migration of it is under way, nil if there is none.
func (m *Manager) migratingOut(ctx context.Context, req api.LendRequest) (*guests.Guest, error) {
	for {
		snap, err := m.Guests.Observe()
		if err != nil {
			return nil, api.NewError(api.KindUnknown, fmt.Sprintf("cannot tell whether guest %s is migrating: %v", show(req.Guest), err))
		}
		g, listed := snap.ByUUID[req.UUID]
		switch snap.Liveness(req.UUID, "") {
		case guests.Gone:
			return nil, nil //nolint:nilnil // no migration is an answer, not an error
		case guests.Unknown:
			return nil, api.NewError(api.KindUnknown, fmt.Sprintf("cannot tell whether guest %s is migrating: its status file is not understood", show(req.Guest)))
		case guests.Alive:
		}
		if !listed || g.Job.Async != jobOut || g.Job.Flags&flagOffline != 0 {
			return nil, nil //nolint:nilnil // as above
		}
		if g.Job.Flags&flagsCopyDisks != 0 {
			return nil, api.NewError(api.KindUnsupported, fmt.Sprintf("guest %s is migrated with --copy-storage, which would copy its volumes onto themselves; leave that option out", show(g.Name)))
		}
		if g.Job.Phase != "" {
			return &g, nil
		}
		// libvirt writes the flags a moment after the job.
		if err := m.pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func (m *Manager) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-m.After(d):
		return nil
	case <-ctx.Done():
		return api.NewError(api.KindUnknown, "no answer in time")
	}
}

// AwaitReady waits for the first look at this host.
func (m *Manager) AwaitReady(ctx context.Context) error { return m.awaitReady(ctx) }

func (m *Manager) awaitReady(ctx context.Context) error {
	select {
	case <-m.ready:
		return nil
	default:
	}
	select {
	case <-m.ready:
		return nil
	case <-ctx.Done():
		return api.NewError(api.KindUnknown, "virtlvmd has not finished its first look at this host; see 'virtlvm status' and try again")
	}
}

// lendable waits until every volume of the guest has its hold and is as wanted - straight
// back after a migration the promotion may still be under way - and can be shared. It returns
// the look that has shown so.
func (m *Manager) lendable(ctx context.Context, s sight, g guests.Guest) (*local, error) {
	for {
		read := withInventories(ctx)
		m.recallHeld(read, g.UUID)
		if err := m.adoptNow(read, s, g); err != nil {
			return nil, api.NewError(kindOf(err), err.Error())
		}
		m.judge(ctx, g.UUID)
		seen, waiting, err := m.notAsWanted(ctx, g.UUID)
		if err == nil && waiting != "" {
			m.ensureGuest(ctx, g.UUID)
			for _, vg := range m.claimVGs() {
				m.claimDue(ctx, vg)
			}
			seen, waiting, err = m.notAsWanted(ctx, g.UUID)
		}
		if err != nil {
			return nil, err
		}
		if waiting == "" {
			return seen, m.shareable(read, g.UUID)
		}
		if m.pause(ctx, time.Second) != nil {
			return nil, api.NewError(api.KindLocking, fmt.Sprintf("%s of guest %s is not yet held exclusively on %s; try again in a moment, and see 'virtlvm status' there", waiting, show(g.Name), m.Host))
		}
	}
}

// notAsWanted names a volume that a guest does not have as it should before it is lent, ""
// if there is none, and the look that it is seen by.
func (m *Manager) notAsWanted(ctx context.Context, uuid string) (*local, string, error) {
	now, err := m.look(ctx)
	if err != nil {
		return nil, "", err
	}
	for _, h := range m.holdsOf(uuid) {
		if h.Phase == model.PhaseIncoming || h.Phase != model.PhaseEnding && !now.ofHold(h).Is(h.Wanted()) {
			return &now, h.Name, nil
		}
	}
	return &now, "", nil
}

func (m *Manager) holdsOf(uuid string) []model.Hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []model.Hold
	for k, h := range m.holds {
		if k.owner == uuid {
			all = append(all, h)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// lendAll turns the guest's exclusive holds into lent ones and converts their locks. On
// any failure all of them are wanted exclusively again, and the ensure loop sees to it. seen is
// the look from which they can be lent.
func (m *Manager) lendAll(ctx context.Context, uuid string, grant model.Grant, seen *local) error {
	byVG := map[string][]model.Hold{}
	var change store.HoldChange
	m.mu.Lock()
	for k, h := range m.holds {
		if k.owner != uuid || h.Mode != model.ModeEX || h.Phase != model.PhaseHeld && h.Phase != model.PhaseLent {
			continue
		}
		if h.Phase == model.PhaseLent && h.Grant.Peer != grant.Peer {
			m.mu.Unlock()
			return migratesAlready(h)
		}
		h.Phase, h.Grant, h.Since = model.PhaseLent, grant, m.Now().UnixMilli()
		change.Put = append(change.Put, h)
		vg, _, _ := strings.Cut(h.Name, "/")
		byVG[vg] = append(byVG[vg], h)
	}
	for _, h := range change.Put { // all or none
		m.holds[holdKey{h.Owner, h.Volume}] = h
	}
	m.mu.Unlock()
	var err error
	for _, vg := range sortedKeys(byVG) {
		if err == nil {
			err = m.share(ctx, vg, byVG[vg], seen, &change)
		}
	}
	if err == nil && !change.Empty() {
		err = m.writeHolds(ctx, change)
	}
	if err != nil {
		m.reclaim(ctx, uuid)
		m.Kick()
	}
	return err
}

// share converts lent volumes that are held exclusively here, verified. Its guest may have
// ended while the turn was waited for: what is off by then stays off. The journal gets change, if it
// has not yet, before a lock is shared.
func (m *Manager) share(ctx context.Context, vg string, lent []model.Hold, seen *local, change *store.HoldChange) error {
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return err
	}
	defer leave()
	if m.claimed(vg) {
		if err := m.writeHolds(ctx, *change); err != nil {
			return err
		}
		*change = store.HoldChange{}
		return m.shareClaims(ctx, lent)
	}
	now, err := m.lookFor(ctx, vg, seen)
	if err != nil {
		return err
	}
	if err := now.usable(vg); err != nil {
		return err
	}
	var convert []model.Volume
	for _, h := range lent {
		if !m.stillHolds(h) {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s is not there to be lent any more: guest %s has ended on %s", h.Name, show(h.Guest), m.Host))
		}
		_, lv, _ := strings.Cut(h.Name, "/")
		v := model.Volume{ID: h.Volume, VG: vg, LV: lv, LockLV: h.LockLV}
		if !now.ofVolume(v).Is(model.ModeSH) {
			convert = append(convert, v)
		}
	}
	if len(convert) == 0 {
		return nil
	}
	sort.Slice(convert, func(i, j int) bool { return convert[i].LV < convert[j].LV })
	change.Steps = causeOf(ctx).takeSteps()
	e, err := m.begin(ctx, "convert", lvm.ActivateCmd(model.ModeSH, names(convert)...), convert, *change, journalled)
	if err != nil {
		return err
	}
	*change = store.HoldChange{}
	return m.verify(ctx, e, model.ModeSH, convert)
}

// reclaim wants a guest's lent volumes exclusively again.
func (m *Manager) reclaim(ctx context.Context, uuid string) {
	var change store.HoldChange
	m.mu.Lock()
	for k, h := range m.holds {
		if k.owner == uuid && h.Phase == model.PhaseLent {
			h.Phase, h.Grant, h.Since = model.PhaseHeld, model.Grant{}, m.Now().UnixMilli()
			m.holds[k] = h
			change.Put = append(change.Put, h)
		}
	}
	m.mu.Unlock()
	m.persist(ctx, change)
}

func (m *Manager) lentVolumes(uuid string) []api.LentVolume {
	var all []api.LentVolume
	for _, h := range m.holdsOf(uuid) {
		if h.Phase != model.PhaseEnding {
			all = append(all, api.LentVolume{VGUUID: h.Volume.VG, LVUUID: h.Volume.LV, Name: h.Name, Role: string(h.Role)})
		}
	}
	return all
}

func lentNames(vols []api.LentVolume) string {
	names := make([]string, 0, len(vols))
	for _, v := range vols {
		names = append(names, v.Name)
	}
	return strings.Join(names, " ")
}

// nameOf is a guest's name on this host where it is known.
func (m *Manager) nameOf(uuid, otherwise string) string {
	for _, h := range m.holdsOf(uuid) {
		return h.Guest
	}
	return otherwise
}

// GrantGood answers the destination: is the migration the grant was given for under way?
func (m *Manager) GrantGood(ctx context.Context, peer string, q api.GrantQuery) (api.GrantAnswer, error) {
	return peerRequest(ctx, m, peer, "grant "+q.UUID, func(ctx context.Context) (api.GrantAnswer, error) {
		return m.grantGood(ctx, peer, q)
	})
}

func (m *Manager) grantGood(ctx context.Context, peer string, q api.GrantQuery) (api.GrantAnswer, error) {
	ours := false
	for _, h := range m.holdsOf(q.UUID) {
		ours = ours || h.Phase == model.PhaseLent && h.Grant == (model.Grant{ID: q.Grant, Peer: peer})
	}
	if !ours {
		return api.GrantAnswer{Reason: m.Host + " has not lent it, or taken it back"}, nil
	}
	g, err := m.migratingOut(ctx, api.LendRequest{UUID: q.UUID, Guest: q.UUID})
	if err != nil {
		return api.GrantAnswer{}, err
	}
	if g == nil {
		return api.GrantAnswer{Reason: "the migration has ended on " + m.Host}, nil
	}
	if q.Prepare {
		m.tell(ctx, q.UUID, model.StepConfirmed, "")
	}
	return api.GrantAnswer{Good: true}, nil
}

// Writers answers whether a hold here writes one of the volumes exclusively.
func (m *Manager) Writers(ctx context.Context, peer string, q api.WritersQuery) (api.WritersAnswer, error) {
	return peerQuery(ctx, m, peer, "writers", func(context.Context) (api.WritersAnswer, error) { return m.writers(q), nil })
}

func (m *Manager) writers(q api.WritersQuery) api.WritersAnswer {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range q.Volumes {
		for _, h := range m.holds {
			if h.Volume == (model.VolumeID{VG: v.VGUUID, LV: v.LVUUID}) && h.Mode == model.ModeEX {
				return api.WritersAnswer{Volume: h.Name, Guest: h.Guest}
			}
		}
	}
	return api.WritersAnswer{}
}

// GuestState answers what a guest is doing here.
func (m *Manager) GuestState(ctx context.Context, peer string, q api.GuestQuery) (api.GuestAnswer, error) {
	return peerQuery(ctx, m, peer, "guest "+q.UUID+q.Name, func(context.Context) (api.GuestAnswer, error) {
		uuid, defined := m.defined(q)
		if q.UUID == "" {
			q.UUID = uuid
		}
		a := m.guestState(q)
		a.Defined = defined
		return a, nil
	})
}

// defined finds a guest among those that are defined here.
func (m *Manager) defined(q api.GuestQuery) (uuid string, found bool) {
	if m.Definitions == nil {
		return "", false
	}
	all, err := m.Definitions()
	for _, d := range all {
		if err == nil && (q.UUID != "" && d.UUID == q.UUID || q.UUID == "" && d.Name == q.Name) {
			return d.UUID, true
		}
	}
	return "", false
}

func (m *Manager) guestState(q api.GuestQuery) api.GuestAnswer {
	snap, err := m.Guests.Observe()
	if err != nil {
		return api.GuestAnswer{Present: true, State: "unknown"}
	}
	for uuid, g := range snap.ByUUID {
		if q.UUID == "" && q.Name != "" && g.Name == q.Name {
			q.UUID = uuid
		}
	}
	if q.UUID == "" && snap.Liveness("", q.Name) != guests.Unknown { // a name that no guest has here
		return api.GuestAnswer{State: "gone"}
	}
	switch snap.Liveness(q.UUID, "") {
	case guests.Gone:
		return api.GuestAnswer{State: "gone"}
	case guests.Alive:
		if g, ok := snap.ByUUID[q.UUID]; ok {
			return api.GuestAnswer{Present: true, State: g.State, Runs: g.State == "running" && g.Job.Async != jobIn}
		}
	case guests.Unknown:
	}
	return api.GuestAnswer{Present: true, State: "unknown"}
}

// Notice takes a peer's hint: look, now. It has let go of what a guest here waits for.
func (m *Manager) Notice(peer string, n api.PeerNotice) {
	mark(m.awaited)
	m.Kick()
	c := &cause{text: "peer " + peer, record: true}
	m.notePeer(context.Background(), c, "notice "+n.UUID, m.Now(), struct{}{}, nil)
}

// peerRequest journals what another host asked us to do, from its arrival to its answer.
func peerRequest[A any](ctx context.Context, m *Manager, peer, what string, do func(context.Context) (A, error)) (A, error) {
	var none A
	if err := m.awaitReady(ctx); err != nil {
		return none, err
	}
	c := &cause{text: "peer " + peer, record: true}
	id, err := m.beginOwn(ctx, store.Intent{Kind: "peer request", Argv: strings.Fields(what), Cause: c.text, BootID: m.BootID}, store.HoldChange{})
	if err != nil {
		return none, err
	}
	defer m.disown(id)
	c.text = fmt.Sprintf("peer %s, command %d", peer, id)
	answer, err := do(withCause(ctx, c))
	r := store.Result{State: model.StateCompleted, Outcome: fmt.Sprintf("%+v", answer)}
	if err != nil {
		r = store.Result{State: model.StateFailed, ExitCode: -1, Error: oneLine(err.Error())}
	}
	ctx = context.WithoutCancel(ctx)
	if jerr := m.Journal.Finish(ctx, id, r, store.HoldChange{Steps: c.takeSteps()}, c.take()...); jerr != nil {
		m.Log.Error("cannot journal a peer's request", "command_id", id, "err", jerr)
	}
	return answer, err
}

// peerQuery journals a question of another host when it is answered: it changes nothing.
func peerQuery[A any](ctx context.Context, m *Manager, peer, what string, do func(context.Context) (A, error)) (A, error) {
	if err := m.awaitReady(ctx); err != nil {
		var none A
		return none, err
	}
	c := &cause{text: "peer " + peer, record: true}
	began := m.Now()
	answer, err := do(withCause(ctx, c))
	m.notePeer(context.WithoutCancel(ctx), c, what, began, answer, err)
	return answer, err
}

// notePeer writes what was asked and answered, and the looks made for it.
func (m *Manager) notePeer(ctx context.Context, c *cause, what string, began time.Time, answer any, err error) {
	q := store.Query{
		Intent:  store.Intent{Kind: "peer request", Argv: strings.Fields(what), Cause: c.text, BootID: m.BootID},
		Result:  store.Result{State: model.StateCompleted, ExitCode: -1, Outcome: clip(fmt.Sprintf("%+v", answer))},
		Started: began, Duration: m.Now().Sub(began),
	}
	if err != nil {
		q.State, q.Outcome, q.Error = model.StateFailed, "", oneLine(err.Error())
	}
	if jerr := m.Journal.AddQueries(ctx, append(c.take(), q)); jerr != nil {
		m.Log.Error("cannot journal a peer's request", "request", what, "err", jerr)
	}
}

// call asks another host something. Asked for a hook call or another host, it becomes a
// row of the journal, as all other looks made for that.
func (m *Manager) call(ctx context.Context, host, path string, in, out any) error {
	if m.Peers == nil {
		return errNoPeers
	}
	began := m.Now()
	err := m.Peers.Call(ctx, host, path, in, out)
	c := causeOf(ctx)
	if !c.record {
		return err
	}
	q := store.Query{
		Intent: store.Intent{
			Kind: "peer call", Argv: []string{host, strings.TrimPrefix(path, "/v1/peer/")}, HookCall: c.hookCall, Cause: c.text, BootID: m.BootID,
		},
		Result:  store.Result{State: model.StateCompleted, ExitCode: -1, Outcome: clip(fmt.Sprintf("%+v", out))},
		Started: began, Duration: m.Now().Sub(began),
	}
	if err != nil {
		q.State, q.Outcome, q.Error = model.StateFailed, "", oneLine(err.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queries = append(c.queries, q)
	return err
}

var errNoPeers = errors.New("no other host is set up to be asked; see 'virtlvm peer authorize'")
