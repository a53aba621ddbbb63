package activation

import (
	"context"
	"fmt"
	"slices"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// Hook decides one call of the libvirt hook. ctx ends when the hook has gone: what was
// done for a start is then undone, because the verdict cannot reach libvirt.
func (m *Manager) Hook(ctx context.Context, call api.HookCall) api.HookVerdict {
	judged := api.Verdicting(call.Op) && !call.Bypassed && !call.Spooled
	d, parseErr := parseCall(&call, judged)
	id, journalErr := m.Journal.AddHookCall(ctx, call)
	c := &cause{text: fmt.Sprintf("hook %s %s", call.Op, show(call.Guest)), hookCall: id, record: id != 0}
	work := withCause(ctx, c)
	if !judged {
		m.notice(work, call)
		v := store.HookVerdict{Verdict: store.VerdictNoted}
		if call.Bypassed {
			v.Verdict = store.VerdictBypassed
			m.Log.Warn("BREAK GLASS: a guest passes without virtlvm", "guest", call.Guest, "op", call.Op)
		}
		m.finishCall(ctx, id, v, c, store.HoldChange{})
		return api.HookVerdict{Allow: true}
	}
	err := parseErr
	if err == nil {
		err = journalErr
	}
	xml, answered, err := m.verdict(work, call, d, err)
	v := store.HookVerdict{Verdict: store.VerdictAllowed}
	answer := api.HookVerdict{Allow: true, XML: xml}
	if err != nil {
		answer = api.HookVerdict{Message: refusal(call.Op, call.Guest, err)}
		v = store.HookVerdict{Verdict: store.VerdictRefused, Message: answer.Message}
		m.Log.Warn("refused", "op", call.Op, "guest", call.Guest, "reason", answer.Message, "hook_call", id)
	}
	if err == nil && ctx.Err() != nil {
		m.abandon(context.WithoutCancel(work), d.UUID)
		answered = store.HoldChange{} // what abandon wrote is newer
		v = store.HookVerdict{Verdict: store.VerdictGone, Message: "the hook had gone before the verdict; what was done for it is undone"}
	}
	m.finishCall(ctx, id, v, c, answered)
	if call.Op == "started" {
		m.Kick() // its QEMU is there to be seen
	}
	return answer
}

// parseCall reads the domain where there is one, and completes the call's uuid. Of a call that
// is only noted nothing else is of interest.
func parseCall(call *api.HookCall, judged bool) (*domain.Domain, error) {
	if !judged {
		if uuid, err := domain.UUID(call.XML); err == nil {
			call.UUID = uuid
		}
		return nil, nil //nolint:nilnil // nobody asks for it
	}
	if len(call.XML) == 0 && call.UUID != "" {
		return nil, api.NewError(api.KindBadRequest, "the domain XML is empty")
	}
	d, err := domain.Parse(call.XML)
	if err != nil {
		return nil, api.NewError(api.KindBadRequest, err.Error())
	}
	call.UUID = d.UUID
	return d, nil
}

func (m *Manager) finishCall(ctx context.Context, id int64, v store.HookVerdict, c *cause, holds store.HoldChange) {
	if id == 0 {
		return
	}
	holds.Steps = append(holds.Steps, c.takeSteps()...)
	err := m.writing(holds, func(holds store.HoldChange) error {
		return m.Journal.FinishHookCall(context.WithoutCancel(ctx), id, v, c.take(), holds)
	})
	if err != nil {
		m.setDirty()
		m.Log.Error("cannot journal the end of a hook call", "hook_call", id, "err", err)
	}
}

// verdict decides one start of a guest at a time, and notes that it is being decided.
func (m *Manager) verdict(ctx context.Context, call api.HookCall, d *domain.Domain, refused error) (xml []byte, answered store.HoldChange, err error) {
	if refused != nil {
		return nil, answered, refused
	}
	leave, err := m.enterGuest(ctx, d.UUID)
	if err != nil {
		return nil, answered, err
	}
	defer leave()
	m.called(d.UUID)
	m.arrive(d.UUID)
	defer func() { answered = m.answered(d.UUID, err == nil) }()
	xml, err = m.decide(ctx, call, d)
	return xml, answered, err
}

// enterGuest waits until no other start of the guest is being decided: libvirt makes them
// one after another, but one that hangs can outlive its libvirtd.
func (m *Manager) enterGuest(ctx context.Context, uuid string) (leave func(), err error) {
	m.mu.Lock()
	turn := m.deciding[uuid]
	if turn == nil {
		turn = make(chan struct{}, 1)
		m.deciding[uuid] = turn
	}
	m.mu.Unlock()
	leave = func() { <-turn }
	select {
	case turn <- struct{}{}: // is free, whether or not somebody waits for us still
		return leave, nil
	default:
	}
	select {
	case turn <- struct{}{}:
		return leave, nil
	case <-ctx.Done():
		return nil, api.NewError(api.KindUnknown, "an earlier start of it is still being decided; see 'virtlvm hooks' and try again")
	}
}

// mustBeGone refuses to start a guest that has a QEMU here already, or may have one:
// libvirt forgets a QEMU that it could not kill.
func (m *Manager) mustBeGone(d *domain.Domain) error {
	snap, err := m.Guests.Observe()
	if err != nil {
		return api.NewError(api.KindUnknown, fmt.Sprintf("cannot tell whether it runs here already: %v", err))
	}
	switch snap.Liveness(d.UUID, d.Name) {
	case guests.Gone:
		return nil
	case guests.Alive:
		return api.NewError(api.KindHeld, fmt.Sprintf("it has a QEMU on this host already (pid %d); that must end first", snap.ByUUID[d.UUID].PID))
	case guests.Unknown:
	}
	return api.NewError(api.KindUnknown, "it cannot be told whether it has a QEMU on this host already: its status file in /run/libvirt/qemu, or its process, is not understood")
}

// decide makes the verdict on a call that libvirt waits for. xml replaces the domain
// document where it is not empty.
func (m *Manager) decide(ctx context.Context, call api.HookCall, d *domain.Domain) (xml []byte, err error) {
	if err := m.awaitReady(ctx); err != nil {
		return nil, err
	}
	t := taker{owner: d.UUID, guest: call.Guest, attempt: model.Attempt{LibvirtdPID: call.Stamp.LibvirtdPID, LibvirtdStart: call.Stamp.LibvirtdStart}}
	switch call.Op {
	case "migrate":
		return m.migrate(ctx, t, call, d)
	case "restore":
		return nil, nil // `prepare` follows and takes the volumes
	case "prepare":
		m.letPass(d.UUID, nil)
		if err := m.mustBeGone(d); err != nil {
			return nil, err
		}
		isMigration, err := m.prepareIncoming(ctx, t, call)
		if isMigration || err != nil {
			return nil, err
		}
	default:
		if m.holdsAll(ctx, d) {
			return nil, nil
		}
	}
	return nil, m.acquireDomain(ctx, t, m.walks(d))
}

// arrive marks a start as being decided: its holds are not judged meanwhile.
func (m *Manager) arrive(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inflight[uuid]++
	delete(m.stopping, uuid)
}

// answered ends arrive. An allowed start has startGrace from now to become a QEMU; its
// holds are to be written together with the verdict.
func (m *Manager) answered(uuid string, allowed bool) (change store.HoldChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inflight[uuid]--; m.inflight[uuid] == 0 {
		delete(m.inflight, uuid)
	}
	if !allowed {
		return change
	}
	for k, h := range m.holds {
		if k.owner == uuid && h.Phase != model.PhaseEnding && !h.Attempt.Seen {
			h.Attempt.AnsweredMillis = m.uptimeMillis()
			m.holds[k] = h
			change.Put = append(change.Put, h)
		}
	}
	return change
}

// acquireDomain takes everything a guest needs, chain level by chain level, or nothing.
func (m *Manager) acquireDomain(ctx context.Context, t taker, walks []walk) error {
	var (
		all    []taken
		placed []located
	)
	err := func() error {
		for {
			found, err := m.next(ctx, walks)
			if err != nil || len(found) == 0 {
				return err
			}
			placed = append(placed, found...)
			// Over all levels: a volume must not turn up twice in two of them either.
			needs, err := mergeNeeds(placed)
			if err != nil {
				return err
			}
			got, err := m.acquireMissing(ctx, t, needs, all)
			all = append(all, got...)
			if err == nil {
				err = m.checkSharers(ctx, got)
			}
			if err != nil {
				return err
			}
		}
	}()
	if err != nil {
		m.release(context.WithoutCancel(ctx), all)
		placed = nil
	}
	m.letPass(t.owner, placed)
	return err
}

// acquireMissing acquires the needs that are not among those taken already, VG by VG.
func (m *Manager) acquireMissing(ctx context.Context, t taker, needs []model.Need, have []taken) ([]taken, error) {
	done := map[model.VolumeID]bool{}
	for _, h := range have {
		done[h.volume.ID] = true
	}
	for _, h := range m.holdsOf(t.owner) {
		// What came with a migration is shared until that ends.
		done[h.Volume] = done[h.Volume] || h.Phase == model.PhaseIncoming
	}
	byVG := map[string][]model.Need{}
	for _, n := range needs {
		if done[n.Volume.ID] {
			continue
		}
		if err := current(n.Volume); err != nil {
			return nil, err
		}
		byVG[n.Volume.VG] = append(byVG[n.Volume.VG], n)
	}
	var all []taken
	for _, vg := range sortedKeys(byVG) {
		got, err := m.acquireAsking(ctx, t, vg, byVG[vg])
		if err != nil {
			return all, err
		}
		all = append(all, got...)
	}
	return all, nil
}

// release undoes what a failed start took in each VG.
func (m *Manager) release(ctx context.Context, all []taken) {
	byVG := map[string][]taken{}
	for _, t := range all {
		byVG[t.vg] = append(byVG[t.vg], t)
	}
	for _, vg := range sortedKeys(byVG) {
		leave, err := m.enterVG(ctx, vg)
		if err != nil {
			m.undoHolds(ctx, byVG[vg]) // the VG is stuck: the ensure loop goes on when it is not
			m.Kick()
			continue
		}
		func() {
			defer leave()
			m.undo(ctx, vg, byVG[vg])
		}()
	}
}

// abandon ends the holds of a start whose verdict nobody received.
func (m *Manager) abandon(ctx context.Context, uuid string) {
	m.end(ctx, func(h model.Hold) bool { return h.Owner == uuid && !h.Attempt.Seen })
	m.ensureGuest(ctx, uuid)
}

// holdsAll reports whether every volume the XML names is held for the guest as wanted:
// so it is at `start` and `started` after a good `prepare`, and nothing needs to be run.
func (m *Manager) holdsAll(ctx context.Context, d *domain.Domain) bool {
	held, all := m.heldFor(d)
	if !all || len(held) == 0 {
		return all
	}
	now, err := m.look(ctx)
	if err != nil {
		return false
	}
	for _, h := range held {
		if !now.ofHold(h).Is(h.Wanted()) {
			return false
		}
	}
	return true
}

// heldFor lists the guest's holds on the volumes that the XML names. all: there is none
// without a hold, but those that its `prepare` found to be none of ours.
func (m *Manager) heldFor(d *domain.Domain) (held []model.Hold, all bool) {
	byName := map[string]model.Hold{}
	for _, h := range m.holdsOf(d.UUID) {
		if h.Phase != model.PhaseEnding {
			byName[h.Name] = h
		}
	}
	m.mu.Lock()
	passed := m.passed[d.UUID]
	m.mu.Unlock()
	for _, disk := range d.Disks {
		for _, im := range disk.Images() {
			ref, isLV, err := m.Disks.Resolver.Resolve(im.Source)
			if err != nil {
				return nil, false
			}
			name := ref.VG + "/" + ref.LV
			if !isLV || slices.Contains(passed, name) {
				continue
			}
			h, ok := byName[name]
			if !ok || !h.Mode.Covers(im.Role.Mode()) {
				return nil, false
			}
			held = append(held, h)
		}
	}
	return held, true
}

// letPass remembers the volumes of a guest that are none of ours, from its `prepare` to its
// end: `start` and `started` need not look again.
func (m *Manager) letPass(uuid string, placed []located) {
	var names []string
	for _, im := range placed {
		if im.LV && !im.managed {
			names = append(names, im.Ref.VG+"/"+im.Ref.LV)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(names) == 0 {
		delete(m.passed, uuid)
		return
	}
	m.passed[uuid] = names
}
