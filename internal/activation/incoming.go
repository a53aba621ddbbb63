package activation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
)

// migrate decides the `migrate` hook, which libvirt calls on the destination alone. Where
// another host holds the guest's volumes it is asked to lend them; then they are taken
// shared, and the domain gets the grant, by which the `prepare` of this migration is told
// from that of a plain start. Where nobody holds them, or the source says that no live
// migration is under way, only a definition is being copied: nothing is taken.
func (m *Manager) migrate(ctx context.Context, t taker, call api.HookCall, d *domain.Domain) (xml []byte, err error) {
	var found []located
	source := m.guessSource(ctx, t, d)
	if source == "" {
		if found, err = m.next(ctx, m.walks(d)); err != nil {
			return nil, err
		}
		if source, err = m.sourceOf(ctx, t, found, m.Leases.HoldersAll); err != nil || source == "" {
			return nil, err
		}
	}
	if m.Peers == nil {
		return nil, api.NewError(api.KindUnsupported, fmt.Sprintf("its volumes are held by %s, and %s", source, errNoPeers))
	}
	if err := m.awaitEnded(ctx, t); err != nil {
		return nil, err
	}
	m.followStories(ctx)
	s := m.beginStory(model.SideDestination, t.owner, call.Guest, source, "")
	defer m.rest(s)
	m.tell(ctx, t.owner, model.StepAsked, source)
	defer func() {
		if err != nil {
			m.tell(ctx, t.owner, model.StepRefused, err.Error())
		}
	}()
	var lent api.LendAnswer
	asking, done := context.WithTimeout(ctx, lendPatience)
	defer done()
	wait := m.lookWhile(ctx, t, d, source, found)
	err = m.call(asking, source, api.RoutePeerLend, api.LendRequest{UUID: t.owner, Guest: call.Guest, Attempt: s.Attempt}, &lent)
	here := wait()
	if here.err != nil {
		return nil, here.err
	}
	if err != nil {
		return nil, api.NewError(api.KindOf(err), fmt.Sprintf("%s holds its volumes and does not lend them: %v", source, err))
	}
	if !lent.Migrating {
		m.tell(ctx, t.owner, model.StepNothingLent, source+" says that no live migration of it is under way")
		return nil, nil
	}
	if !plainName(lent.Grant) {
		return nil, api.NewError(api.KindInternal, fmt.Sprintf("%s lends its volumes without a grant that could be used (%q); compare `virtlvm version` on both hosts", source, clip(lent.Grant)))
	}
	t.incoming, t.grant, t.seen = true, model.Grant{ID: lent.Grant, Peer: source}, here.seen
	if err := m.takeLent(ctx, t, here.found, lent); err != nil {
		return nil, err
	}
	m.tell(ctx, t.owner, model.StepTaken, lentNames(lent.Volumes))
	xml, err = domain.WithGrant(call.XML, domain.Grant{ID: lent.Grant, From: source})
	if err != nil {
		m.abandon(context.WithoutCancel(ctx), t.owner)
		return nil, err
	}
	return xml, nil
}

// lendPatience bounds the question to the source, which runs LVM commands before it
// answers; it leaves the hook time to take the volumes.
const lendPatience = 45 * time.Second

// sourceOf is the one other host that holds the volumes the guest writes, "" if nobody
// does; read reads the leases.
func (m *Manager) sourceOf(ctx context.Context, t taker, found []located, read reader) (string, error) {
	byVG := map[string][]model.Volume{}
	for _, f := range found {
		if f.managed && f.Role.Mode() == model.ModeEX {
			byVG[f.need.Volume.VG] = append(byVG[f.need.Volume.VG], f.need.Volume)
		}
	}
	source := ""
	for _, vg := range sortedKeys(byVG) {
		holders, err := m.holdersBy(ctx, vg, byVG[vg], read)
		if err != nil {
			return "", err
		}
		for _, v := range byVG[vg] {
			if source, err = m.sourceAmong(ctx, t, v, holders[v.LockLV], source); err != nil {
				return "", err
			}
		}
	}
	return source, nil
}

// holdersOf reads who holds each of some volumes of a VG, by the uuid of the volume whose
// lock it is. One that cannot be told is an error.
func (m *Manager) holdersOf(ctx context.Context, vg string, vols []model.Volume) (map[string][]model.Holder, error) {
	return m.holdersBy(ctx, vg, vols, m.Leases.HoldersAll)
}

// reader reads leases, as Leases.HoldersAll does.
type reader func(ctx context.Context, vg string, offsets map[string]int64) (map[string][]model.Holder, error)

// readKnown reads leases with what is known of the hosts, see Leases.HoldersKnown.
func (m *Manager) readKnown(age time.Duration) reader {
	return func(ctx context.Context, vg string, offsets map[string]int64) (map[string][]model.Holder, error) {
		return m.Leases.HoldersKnown(ctx, vg, offsets, age)
	}
}

// holdersBy is holdersOf by one way to read the leases.
func (m *Manager) holdersBy(ctx context.Context, vg string, vols []model.Volume, read reader) (map[string][]model.Holder, error) {
	offsets := map[string]int64{}
	for _, v := range vols {
		offsets[v.LockLV] = v.LeaseOffset
	}
	all, err := read(ctx, vg, offsets)
	if err != nil {
		return nil, api.NewError(api.KindLocking, fmt.Sprintf("cannot tell who holds %s: %v", vols[0].Name(), err))
	}
	for _, v := range vols {
		if _, known := all[v.LockLV]; !known {
			return nil, api.NewError(api.KindLocking, fmt.Sprintf("cannot tell who holds %s: its lease is not where LVM says", v.Name()))
		}
	}
	return all, nil
}

// sourceAmong finds the source among the holders of one volume; source: that of the others.
func (m *Manager) sourceAmong(ctx context.Context, t taker, v model.Volume, holders []model.Holder, source string) (string, error) {
	for _, h := range holders {
		switch {
		case h.Self && m.runsHere(t.owner):
			return "", api.NewError(api.KindHeld, fmt.Sprintf("guest %s already runs on this host", show(t.guest)))
		case h.Self:
			// An earlier migration to here is still being undone, or an operator's hold:
			// what follows waits for the one and refuses the other.
		case h.State != model.HostLive:
			return "", m.explainHeld(ctx, v)
		case h.Twin:
			return "", api.NewError(api.KindLocking, fmt.Sprintf("its volumes are held by %s, and another host has the same name, so that the right one cannot be asked; give each host an our_host_name of its own in /etc/sanlock/sanlock.conf", h.Label()))
		case source != "" && source != h.Label():
			return "", api.NewError(api.KindHeld, fmt.Sprintf("its volumes are held by two hosts, %s and %s; find out where it runs", source, h.Label()))
		default:
			source = h.Label()
		}
	}
	return source, nil
}

// runsHere: the guest has a QEMU on this host that is no migration's.
func (m *Manager) runsHere(uuid string) bool {
	snap, err := m.Guests.Observe()
	if err != nil {
		return true // cannot be told
	}
	g, listed := snap.ByUUID[uuid]
	return snap.Liveness(uuid, "") != guests.Gone && (!listed || g.Job.Async != jobIn)
}

// awaitEnded waits while older holds of the guest are ending here: the straight way back
// after a migration, or a second try after a failed one. A guest that is incoming already
// has one migration, and there can be no other.
func (m *Manager) awaitEnded(ctx context.Context, t taker) error {
	for {
		m.judge(ctx, t.owner)
		m.checkIncoming(ctx, t.owner)
		m.ensureGuest(ctx, t.owner)
		left := m.holdsOf(t.owner)
		if len(left) == 0 {
			return nil
		}
		if m.pause(ctx, time.Second) != nil {
			return api.NewError(api.KindInUse, fmt.Sprintf("%s is still %s on this host from before; see 'virtlvm status' and try again", left[0].Name, left[0].Phase))
		}
	}
}

// takeLent takes what the source lends, shared and verified, or nothing.
func (m *Manager) takeLent(ctx context.Context, t taker, found []located, lent api.LendAnswer) error {
	needs := map[string][]model.Need{}
	offered := map[model.VolumeID]bool{}
	// Those that the domain names have just been looked up.
	byName := map[string]model.Volume{}
	for _, f := range found {
		if f.managed {
			byName[f.need.Volume.Name()] = f.need.Volume
		}
	}
	for _, l := range lent.Volumes {
		v, known := byName[l.Name]
		if !known {
			var err error
			if v, err = m.volumeNamed(ctx, l.Name); err != nil {
				return api.NewError(api.KindOf(err), fmt.Sprintf("the source has a volume that this host has not: %v", err))
			}
		}
		need, err := lentNeed(v, l)
		if err != nil {
			return err
		}
		offered[need.Volume.ID] = true
		needs[need.Volume.VG] = append(needs[need.Volume.VG], need)
	}
	for _, f := range found {
		if f.managed && !offered[f.need.Volume.ID] {
			return api.NewError(api.KindHeld, fmt.Sprintf("%s names %s, but the guest does not have it on %s", show(t.guest), f.need.Volume.Name(), t.grant.Peer))
		}
	}
	var all []taken
	for _, vg := range sortedKeys(needs) {
		got, err := m.acquire(ctx, t, vg, needs[vg])
		if err != nil {
			m.release(context.WithoutCancel(ctx), all)
			return err
		}
		all = append(all, got...)
	}
	return nil
}

// lentNeed is how a lent volume is needed on this host, where v has its name: it must have
// the same uuids.
func lentNeed(v model.Volume, l api.LentVolume) (model.Need, error) {
	if v.ID != (model.VolumeID{VG: l.VGUUID, LV: l.LVUUID}) {
		return model.Need{}, api.NewError(api.KindLocking, fmt.Sprintf("%s is another volume on this host than on the source (uuid %s, there %s)", l.Name, v.ID.LV, l.LVUUID))
	}
	role := model.Role(l.Role)
	switch role {
	case model.RoleWritable, model.RoleShareable, model.RoleReadOnly, model.RoleBacking, model.RoleMirror:
	default:
		return model.Need{}, api.NewError(api.KindUnsupported, fmt.Sprintf("the source uses %s as %q, which this version does not know", l.Name, l.Role))
	}
	return model.Need{Volume: v, Role: role}, nil
}

// prepareIncoming decides a `prepare` while the guest's volumes are incoming. It is the
// migration's own only if its domain carries the grant, and good only if the source says
// so now; any other start is refused, because it would run the guest twice. A grant that
// is no longer good drops the volumes, and the call is a plain start.
func (m *Manager) prepareIncoming(ctx context.Context, t taker, call api.HookCall) (isMigration bool, err error) {
	grant := model.Grant{}
	for _, h := range m.holdsOf(t.owner) {
		if h.Phase == model.PhaseIncoming {
			grant = h.Grant
		}
	}
	if grant.ID == "" {
		return false, nil
	}
	carried, ok, err := domain.GrantOf(call.XML)
	if err != nil {
		return false, err
	}
	if !ok || carried.ID != grant.ID {
		return false, api.NewError(api.KindHeld, fmt.Sprintf("guest %s is being migrated to this host from %s; wait for that to end", show(t.guest), grant.Peer))
	}
	answer, err := m.askGrant(ctx, t.owner, grant, true)
	if err != nil {
		err = api.NewError(api.KindUnknown, fmt.Sprintf("%s cannot say whether the migration goes on: %v", grant.Peer, err))
		m.tell(ctx, t.owner, model.StepFailed, err.Error())
		return false, err
	}
	if !answer.Good {
		m.tell(ctx, t.owner, model.StepDenied, answer.Reason)
		m.abandon(context.WithoutCancel(ctx), t.owner)
		return false, nil
	}
	m.tell(ctx, t.owner, model.StepConfirmed, "")
	m.setAttempt(t)
	return true, nil
}

// askGrant asks the source of a migration whether it goes on. prepare: for the hook.
func (m *Manager) askGrant(ctx context.Context, uuid string, grant model.Grant, prepare bool) (api.GrantAnswer, error) {
	var answer api.GrantAnswer
	err := m.call(ctx, grant.Peer, api.RoutePeerGrant, api.GrantQuery{UUID: uuid, Grant: grant.ID, Prepare: prepare}, &answer)
	return answer, err
}

// setAttempt ties incoming holds to the `prepare` that became of them.
func (m *Manager) setAttempt(t taker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, h := range m.holds {
		if k.owner == t.owner && h.Phase == model.PhaseIncoming {
			h.Attempt, h.Prepared = t.attempt, true
			m.holds[k] = h
		}
	}
}

// migrationOver: the hold's guest runs here and its migration does not, so that the
// volume is wanted by this host alone again. It must be called with m.mu held.
func (m *Manager) migrationOver(h model.Hold, g guests.Guest) bool {
	switch h.Phase {
	case model.PhaseLent:
		// Paused with no job: the operator's client died between the switch and its
		// confirmation, perhaps, and the guest runs at the destination. checkLeftover asks.
		return g.Job.Async != jobOut && g.State != "paused"
	case model.PhaseIncoming:
		return g.Job.Async != jobIn && g.State != "" && h.Attempt.Seen
	case model.PhaseHeld, model.PhaseEnding:
	}
	return false
}

// checkMigrations asks the other ends of migrations what cannot be seen from here. It does
// so beside the looks: a host that does not answer holds up nobody else's guest. No lock
// is held meanwhile.
func (m *Manager) checkMigrations(ctx context.Context) {
	m.mu.Lock()
	busy := m.asking
	m.asking = true
	m.mu.Unlock()
	if busy {
		return
	}
	m.asked.Go(func() {
		m.askOthers(m.Branch(ctx, "asks others"))
		m.mu.Lock()
		m.asking = false
		m.mu.Unlock()
	})
}

func (m *Manager) askOthers(ctx context.Context) {
	incoming, lent := map[string]bool{}, map[string]model.Hold{}
	m.mu.Lock()
	for k, h := range m.holds {
		switch {
		case h.Phase == model.PhaseIncoming && !h.Attempt.Seen:
			incoming[k.owner] = true
		case h.Phase == model.PhaseLent:
			lent[k.owner] = h
		}
	}
	m.mu.Unlock()
	found := map[string]bool{}
	for uuid := range lent {
		found[topicLeftover+uuid] = true
	}
	m.solved(topicLeftover, found)
	var all sync.WaitGroup
	for uuid := range incoming {
		all.Go(func() { m.checkIncoming(m.Branch(ctx, "incoming "+uuid), uuid) })
	}
	for uuid, h := range lent {
		all.Go(func() { m.checkLeftover(m.Branch(ctx, "left over "+uuid), uuid, h) })
	}
	all.Go(func() { m.checkTwice(m.Branch(ctx, "twice")) })
	for _, vg := range m.claimVGs() {
		all.Go(func() { m.claimDue(m.Branch(ctx, "claims of "+vg), vg) })
	}
	all.Wait()
}

// incomingPatience is how long volumes that came with `migrate` wait for their `prepare`
// after the source's last sign of life.
const incomingPatience = 60 * time.Second

// checkIncoming ends incoming holds that no `prepare` has followed, when the source says
// that the migration has ended, or says nothing for too long.
func (m *Manager) checkIncoming(ctx context.Context, uuid string) {
	var hold *model.Hold
	m.mu.Lock()
	busy := m.inflight[uuid] > 1 // besides the call that is asking, if one is
	for k, h := range m.holds {
		if k.owner == uuid && h.Phase == model.PhaseIncoming && !h.Attempt.Seen && !h.Prepared && h.Attempt.AnsweredMillis > 0 {
			hold = &h
		}
	}
	m.mu.Unlock()
	if hold == nil || busy {
		return
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := m.askGrant(short, uuid, hold.Grant, false)
	if err == nil && answer.Good {
		m.setConfirmed(uuid)
		return
	}
	if err != nil && m.uptimeMillis()-max(hold.Attempt.AnsweredMillis, m.confirmedAt(uuid)) < incomingPatience.Milliseconds() {
		return
	}
	m.Log.Info("gave up volumes of a migration that did not come", "guest", hold.Guest, "from", hold.Grant.Peer, "source_says", answer.Reason, "err", err)
	why := "libvirt did not go on with it: " + answer.Reason
	if err != nil {
		why = fmt.Sprintf("libvirt did not go on with it: %v", err)
	}
	m.tell(ctx, uuid, model.StepFailed, why)
	m.end(ctx, func(h model.Hold) bool {
		return h.Owner == uuid && h.Phase == model.PhaseIncoming && !h.Prepared && !h.Attempt.Seen
	})
	m.Kick()
}

func (m *Manager) setConfirmed(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.confirmed[uuid] = m.uptimeMillis()
}

func (m *Manager) confirmedAt(uuid string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.confirmed[uuid]
}

const topicLeftover = "left-over "

// checkLeftover settles a guest that is paused here with no job while its volumes are
// lent. If its CPUs run at the destination it is a left-over of the migration: it is
// reported and stays shared, and is cut off from its volumes where that is asked for. If
// it does not run there it is this host's guest again. If that cannot be told nothing is
// touched.
func (m *Manager) checkLeftover(ctx context.Context, uuid string, h model.Hold) {
	topic := topicLeftover + uuid
	if !m.isLeftover(uuid) {
		m.problem(topic, nil)
		return
	}
	guest, peer := show(h.Guest), h.Grant.Peer
	var there api.GuestAnswer
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := m.call(short, peer, api.RoutePeerGuest, api.GuestQuery{UUID: uuid}, &there)
	switch {
	case err != nil:
		m.problem(topic, fmt.Errorf("guest %s is paused here after a migration to %s that cannot be asked about: find out where it runs before resuming it here (%w)", guest, peer, err))
	case there.Runs:
		m.tell(ctx, uuid, model.StepLeftOver, "it runs on "+peer)
		m.problem(topic, m.runsThere(ctx, uuid, h))
	case m.isolated(ctx, uuid):
		// It ran there, so what is left here is out of date for ever.
		m.problem(topic, fmt.Errorf("guest %s ran on %s and does not now; what its migration left over here is out of date and cut off from its volumes: run 'virsh destroy %s' on %s, and start it anew", guest, peer, guest, m.Host))
	case there.Present:
		m.problem(topic, fmt.Errorf("guest %s is paused here and on %s: find out which is the right one", guest, peer))
	default:
		m.problem(topic, nil)
		m.reclaim(ctx, uuid)
		m.Kick()
	}
}

// runsThere is what is wrong with a left-over whose guest runs on the other host.
func (m *Manager) runsThere(ctx context.Context, uuid string, h model.Hold) error {
	guest, peer := show(h.Guest), h.Grant.Peer
	text := fmt.Sprintf("guest %s runs on %s, and a paused left-over of it is here", guest, peer)
	fix := fmt.Sprintf("run 'virsh destroy %s' on %s, never 'virsh resume'", guest, m.Host)
	var err error
	if m.Settings().IsolateLeftovers {
		err = m.isolate(ctx, uuid, h.Grant)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s that cannot be cut off from its volumes (%w): %s", text, err, fix)
	case m.isolated(ctx, uuid):
		m.tell(ctx, uuid, model.StepIsolated, "cut off from its volumes")
		return fmt.Errorf("%s, cut off from its volumes: %s", text, fix)
	}
	return fmt.Errorf("%s: %s", text, fix)
}

// notifyPeer tells the other end of a migration that something has ended here. It is a
// hint: nothing depends on it.
func (m *Manager) notifyPeer(uuid string, grant model.Grant) {
	if m.Peers == nil || grant.Peer == "" {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var none struct{}
		if err := m.Peers.Call(ctx, grant.Peer, api.RoutePeerNotice, api.PeerNotice{UUID: uuid}, &none); err != nil {
			m.Log.Debug("cannot notify a peer", "peer", grant.Peer, "err", err)
		}
	}()
}

// checkSharers asks the other hosts that share a volume whether one of their guests
// writes it (rule 5): a reader must not slip in while a writer is lent between two hosts. A
// volume tagged as shared is never written exclusively and needs no question. A host of which
// is not known whether it lives is asked like any other.
func (m *Manager) checkSharers(ctx context.Context, all []taken) error {
	if m.Peers == nil {
		return nil // without peers nothing can be lent
	}
	byVG := map[string][]model.Volume{}
	for _, t := range all {
		if t.hold.Phase == model.PhaseHeld && t.hold.Mode == model.ModeSH && !t.volume.HasTag(model.TagShared) {
			byVG[t.vg] = append(byVG[t.vg], t.volume)
		}
	}
	for _, vg := range sortedKeys(byVG) {
		holders, err := m.holdersOf(ctx, vg, byVG[vg])
		if err != nil {
			return err
		}
		for _, v := range byVG[vg] {
			for _, h := range holders[v.LockLV] {
				if h.Self { // a dead host is not among them
					continue
				}
				if err := m.askWriter(ctx, h.Label(), v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (m *Manager) askWriter(ctx context.Context, host string, v model.Volume) error {
	var answer api.WritersAnswer
	q := api.WritersQuery{Volumes: []api.LentVolume{{VGUUID: v.ID.VG, LVUUID: v.ID.LV, Name: v.Name()}}}
	if err := m.call(ctx, host, api.RoutePeerWriters, q, &answer); err != nil {
		return api.NewError(api.KindUnknown, fmt.Sprintf("%s is shared with %s, which cannot say whether a guest there writes it: %v; a volume that is only ever shared can be tagged: lvchange --addtag %s %s",
			v.Name(), host, err, model.TagShared, v.Name()))
	}
	if answer.Volume != "" {
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is written by guest %s, which is being migrated from or to %s", v.Name(), show(answer.Guest), host))
	}
	return nil
}

// notifyEnded tells the other ends of migrations whose holds have ended here, each once.
func (m *Manager) notifyEnded(ended []model.Hold, told map[model.Grant]bool) {
	for _, h := range ended {
		if !told[h.Grant] {
			told[h.Grant] = true
			m.notifyPeer(h.Owner, h.Grant)
		}
	}
}
