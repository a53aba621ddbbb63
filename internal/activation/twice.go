package activation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
)

// rival is a host that shares a volume which a guest here should have alone.
type rival struct {
	host string
	live bool
}

func (m *Manager) noteRival(id model.VolumeID, h model.Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.report.rivals[id] = rival{host: h.Label(), live: h.State == model.HostLive}
}

const topicTwice = "twice "

// rivalPatience is how long the source of a migration may take to let go before it is asked
// whether the guest runs there too.
const rivalPatience = 2 * time.Second

// checkTwice looks for guests that run on two hosts at once: libvirt lets that happen when
// the connection between the two libvirtds breaks after the guest has begun to run on the
// destination and before the source hears of it. LVM lets neither have the volumes alone
// then, and more than telling cannot be done: both run. No lock is held meanwhile.
func (m *Manager) checkTwice(ctx context.Context) {
	type pair struct{ uuid, guest, host string }
	since := map[pair]time.Time{}
	found := map[string]bool{}
	m.mu.Lock()
	for _, h := range m.holds {
		r, ok := m.report.rivals[h.Volume]
		if ok && r.live && model.IsGuest(h.Owner) && h.Phase == model.PhaseHeld {
			since[pair{h.Owner, h.Guest, r.host}] = m.report.unwanted[h.Volume].Since
		}
	}
	m.mu.Unlock()
	var all sync.WaitGroup
	for p, since := range since {
		if m.Now().Sub(since) < rivalPatience || !m.guestRuns(p.uuid) {
			continue
		}
		topic := topicTwice + p.uuid + " " + p.host
		found[topic] = true
		all.Go(func() { m.problem(topic, m.runsTwice(m.Branch(ctx, topic), p.uuid, p.guest, p.host, since)) })
	}
	all.Wait()
	m.solved(topicTwice, found)
}

func (m *Manager) guestRuns(uuid string) bool {
	snap, err := m.Guests.Observe()
	g := snap.ByUUID[uuid]
	return err == nil && g.Alive == guests.Alive && g.State == "running"
}

// runsTwice is what is wrong with a guest that runs here and shares its volumes with a
// host; nil if it does not run there.
func (m *Manager) runsTwice(ctx context.Context, uuid, guest, host string, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var there api.GuestAnswer
	err := m.call(ctx, host, api.RoutePeerGuest, api.GuestQuery{UUID: uuid}, &there)
	switch {
	case err == nil && there.Runs && m.isolated(ctx, uuid):
		return fmt.Errorf("guest %s runs on %s, and what its migration left over here has been resumed; it is cut off from its volumes and writes nothing: run 'virsh destroy %s' on %s", show(guest), host, show(guest), m.Host)
	case err == nil && there.Runs:
		return fmt.Errorf("ALARM: guest %s runs here and on %s at once, and both write to its volumes: run 'virsh destroy %s' on one of the two hosts now, and check its file systems", show(guest), host, show(guest))
	case err != nil && m.Now().Sub(since) > startGrace && !errors.Is(err, errNoPeers):
		return fmt.Errorf("guest %s runs here, and %s, which shares its volumes, cannot be asked whether it runs there too: %w", show(guest), host, err)
	}
	return nil
}
