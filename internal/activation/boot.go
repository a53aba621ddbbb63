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

// StartLockspaces starts the lockspaces of our VGs after a boot, trying until they are
// started or the boot window has passed.
func (m *Manager) StartLockspaces(ctx context.Context) {
	for m.Uptime() < bootWindow {
		if m.startLockspaces(ctx) {
			return
		}
		select {
		case <-m.After(m.Settings().LockstartRetry):
		case <-ctx.Done():
			return
		}
	}
}

func (m *Manager) startLockspaces(ctx context.Context) (all bool) {
	vgs, err := m.groups(ctx)
	if err != nil {
		return false
	}
	all = true
	for _, vg := range vgs {
		if ours, _ := m.managed(vg.Name, vg.LockType); !ours || m.claimed(vg.Name) {
			continue
		}
		if err := m.startLockspace(ctx, vg.Name); err != nil {
			all = false
			m.reportVG(vg.Name, err)
			continue
		}
		m.reportVG(vg.Name, nil)
	}
	if all {
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
