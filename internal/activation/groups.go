package activation

import (
	"context"
	"errors"
	"slices"

	"virtlvm/internal/lvm"
)

// groups lists the volume groups that this host sees. To list all of them LVM takes its
// global lock. Where another host keeps that, as one does whose vgremove hangs, it lists
// those whose lockspace is started here: no guest needs others, and none waits for it.
func (m *Manager) groups(ctx context.Context) ([]lvm.VG, error) {
	all, err := m.LVM.VGs(ctx)
	m.problem("volume groups", err)
	if !withoutGlobalLock(err) {
		return all, err
	}
	now, lookErr := m.look(ctx)
	if lookErr != nil {
		return nil, err
	}
	var started []string
	for _, vg := range sortedKeys(now.locks.VGs) {
		if now.started(vg) && !now.claimed[vg] { // a claimed one may not be seen here
			started = append(started, vg)
		}
	}
	if len(started) == 0 {
		return nil, err
	}
	return m.LVM.VGs(ctx, started...)
}

// withoutGlobalLock: LVM has failed for want of its global lock.
func withoutGlobalLock(err error) bool {
	var e *lvm.Error
	return errors.As(err, &e) && slices.ContainsFunc(e.Failures, func(f lvm.Failure) bool {
		return f.Kind == lvm.GlobalLockHeld || f.Kind == lvm.GlobalLockFailed
	})
}
