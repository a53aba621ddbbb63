package activation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// endPatience is how long Shutdown waits for guests that systemd is ending, endPause the time
// between two looks.
const (
	endPatience = 30 * time.Second
	endPause    = 500 * time.Millisecond
)

// Shutdown gives up, while the host goes down, what no guest uses any more, and stops the
// lockspaces of our VGs in which nothing is left. It must be called when hook calls are no
// longer taken and libvirt has ended. ctx bounds it.
//
// Without it a lease outlives the host until sanlock declares the host dead: systemd kills
// a guest that did not shut down in time, libvirt ends before it could call `release`, and
// sanlock and lvmlockd do not stop while a lockspace is there. The distribution's unit
// stops only lockspaces that it has started itself.
func (m *Manager) Shutdown(ctx context.Context) {
	m.mu.Lock()
	m.goingDown = true
	m.mu.Unlock()
	m.Log.Info("the host goes down: giving up what no guest uses")
	if !m.isReady() {
		// A command of the last daemon that still runs may activate what is off now, and would
		// keep its lockspace.
		m.awaitLeftovers(ctx)
		if ctx.Err() != nil {
			return
		}
		m.lookAtVGs(ctx)
	}
	// What is retained here, or was activated by an operator, would keep the lockspaces from
	// stopping.
	m.end(ctx, idle)
	m.giveUpGuests(ctx)
	m.mu.Lock()
	vgs := m.known
	m.mu.Unlock()
	for _, vg := range vgs {
		if ours, _ := m.managed(vg.Name, vg.LockType); !ours || m.claimed(vg.Name) {
			continue
		}
		if err := m.stopLockspace(ctx, vg.Name, vg.UUID); err != nil {
			m.Log.Error("the lockspace stays; other hosts wait until this one is declared dead for what it holds", "vg", vg.Name, "err", err)
		}
	}
}

// giveUpGuests deactivates what guests used that are gone. Not everywhere does systemd end the
// guests before libvirt, and so before us: a guest that still runs is waited for a while.
func (m *Manager) giveUpGuests(ctx context.Context) {
	deadline := m.Now().Add(endPatience)
	for {
		m.judge(ctx, "")
		for _, vg := range m.heldVGs("") {
			m.ensureVG(ctx, vg)
		}
		if !m.heldByGuests() || !m.Now().Before(deadline) {
			return
		}
		select {
		case <-m.After(endPause):
		case <-ctx.Done():
			return
		}
	}
}

func (m *Manager) heldByGuests() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.holds {
		if model.IsGuest(k.owner) {
			return true
		}
	}
	return false
}

// stopLockspace stops the lockspace of a VG. LVM refuses by itself where volumes are active.
func (m *Manager) stopLockspace(ctx context.Context, vg, uuid string) error {
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return err
	}
	defer leave()
	ctx = withCause(ctx, &cause{text: "the host goes down"})
	now, err := m.look(ctx)
	if err != nil {
		return err
	}
	if !now.started(vg) {
		return nil
	}
	if left := now.activeIn(vg, uuid); left != "" {
		return errors.New(left)
	}
	e, err := m.begin(ctx, "lockstop", lvm.LockStopCmd(vg), []model.Volume{{VG: vg}}, store.HoldChange{}, bestEffort)
	if err != nil {
		return err
	}
	if now, err = m.look(ctx); err != nil {
		m.conclude(ctx, e, false, "not seen")
		return err
	}
	stopped := !now.started(vg)
	outcome := "lockspace stopped"
	if !stopped {
		outcome = "lockspace not stopped"
	}
	m.conclude(ctx, e, stopped, outcome)
	if !stopped && e.err == nil {
		return fmt.Errorf("'vgchange --lockstop %s' did not stop it", vg)
	}
	return e.err
}

// activeIn says what of a VG is active or locked here, apart from the volume of the leases;
// "" when nothing is.
func (l local) activeIn(vg, uuid string) string {
	var left []string
	prefix := "LVM-" + strings.ReplaceAll(uuid, "-", "")
	for id, d := range l.devices {
		if strings.HasPrefix(id, prefix) && d.Name != lvm.LeaseMapperName(vg) {
			left = append(left, d.Name+" is active")
		}
	}
	for lv, mode := range l.locks.VGs[vg].Locks {
		if mode != model.ModeOff {
			left = append(left, "the lock of "+lv+" is held")
		}
	}
	slices.Sort(left)
	return strings.Join(left, ", ")
}
