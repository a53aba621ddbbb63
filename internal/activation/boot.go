package activation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// bootWindow is how long after boot a lockspace that is not started is started by us: the
// distribution's own unit is known to fail then and not to try again. Later a stopped
// lockspace is somebody's will.
const bootWindow = 10 * time.Minute

// lateStorage is the pause between two looks for VGs that were not there before, in that time.
const lateStorage = 30 * time.Second

// awaitLockspace waits for a VG's lockspace while this host boots, at most
// Settings.BootWait and not longer than the hook does.
func (m *Manager) awaitLockspace(ctx context.Context, vg string) error {
	deadline := m.Now().Add(m.Settings().BootWait)
	for m.Uptime() < bootWindow && m.Now().Before(deadline) {
		now, err := m.look(ctx)
		if err != nil {
			return err
		}
		if now.started(vg) {
			return nil
		}
		select {
		case <-m.After(time.Second):
		case <-ctx.Done():
			return now.usable(vg)
		}
	}
	return nil // acquire looks again and says what is wrong
}

// StartLockspaces starts the lockspaces of our VGs after a boot, trying until the boot window has
// passed: storage may come late, and a VG is seen only with it. settled is called when those of all
// VGs seen so far are started, and at the end; more than once does no harm. What was started once
// and is stopped in the window is left alone.
func (m *Manager) StartLockspaces(ctx context.Context, settled func()) {
	started := map[string]bool{}
	for m.Uptime() < bootWindow {
		pause := m.Settings().LockstartRetry
		if m.startLockspaces(ctx, started) && len(started) > 0 {
			settled()
			pause = max(pause, lateStorage)
		}
		select {
		case <-m.After(pause):
		case <-ctx.Done():
			return
		}
	}
	settled()
}

// startLockspaces starts those of our VGs that are not in started, by uuid, and adds them.
func (m *Manager) startLockspaces(ctx context.Context, started map[string]bool) (all bool) {
	vgs, err := m.groups(ctx)
	if err != nil {
		return false
	}
	all = true
	before := len(started)
	for _, vg := range vgs {
		if ours, _ := m.managed(vg.Name, vg.LockType); !ours || m.claimed(vg.Name) || started[vg.UUID] {
			continue
		}
		if err := m.startLockspace(ctx, vg.Name); err != nil {
			all = false
			m.reportVG(vg.Name, err)
			continue
		}
		started[vg.UUID] = true
		m.reportVG(vg.Name, nil)
	}
	if all && len(started) > before {
		m.Kick()
	}
	return all
}

func (m *Manager) startLockspace(ctx context.Context, vg string) error {
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		return err
	}
	defer leave()
	ctx = withCause(context.WithoutCancel(ctx), &cause{text: "lockspace not started after boot"})
	now, err := m.look(ctx)
	if err != nil {
		return err
	}
	if now.started(vg) {
		return nil
	}
	if !now.locks.LockdRunning {
		return now.usable(vg)
	}
	e, err := m.begin(ctx, "lockstart", lvm.LockStartCmd(vg), []model.Volume{{VG: vg}}, store.HoldChange{}, bestEffort)
	if err != nil {
		return err
	}
	// Exit code 0 is no proof here either.
	now, err = m.look(ctx)
	started := err == nil && now.started(vg)
	outcome := "lockspace not started"
	if started {
		outcome = "lockspace started"
	}
	m.conclude(ctx, e, started, outcome)
	if started {
		return nil
	}
	if err == nil {
		err = errors.Join(now.usable(vg), e.err)
	}
	return api.NewError(api.KindLocking, oneLine(fmt.Sprintf("%v", err)))
}
