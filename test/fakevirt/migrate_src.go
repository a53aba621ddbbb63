package fakevirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// onSource runs fn with the source's guest, if that is there still and has the job.
func (m *migration) onSource(ctx context.Context, fn func() error) error {
	return m.src.withGuest(ctx, m.name, func() error {
		if err := m.src.still(ctx, &m.out, migrationOut); err != nil {
			return err
		}
		return fn()
	})
}

// perform is Perform on the source: from the first page of memory to the last.
func (m *migration) perform(ctx, work context.Context) error {
	if err := m.onSource(work, func() error { return m.phase(phasePerform) }); err != nil {
		return err
	}
	err := m.step(ctx, StepPerforming)
	if err == nil {
		err = m.moves(work, func() error {
			if m.out.State == "running" {
				m.out.State, m.out.Reason = "paused", "migration"
				if m.o.PostCopy {
					m.out.Reason = reasonPostCopy
				}
			}
			return m.phase(phasePerform)
		})
	}
	if err == nil {
		err = m.step(ctx, StepPaused)
	}
	if err == nil {
		err = m.moves(work, func() error { return m.phase(phasePerformed) })
	}
	return err
}

// moves does fn if memory can move: both QEMUs are there.
func (m *migration) moves(ctx context.Context, fn func() error) error {
	return m.onSource(ctx, func() error {
		if m.dst.dead() || !m.dst.o.Launcher.Alive(m.in.PID, m.in.Domain.UUID) {
			return errors.New("operation failed: job 'migration out' failed: Unable to write to socket: Broken pipe")
		}
		return fn()
	})
}

// performFailed cleans up after a Perform that has failed, or one that never came.
func (m *migration) performFailed(ctx context.Context, cause error) error {
	switch {
	case m.src.dead():
		return ErrHostGone
	case errors.Is(cause, ErrClientGone):
		return errors.Join(cause, m.dst.ConnectionLost(ctx, m.to), m.giveUp(ctx, ""))
	case m.o.P2P:
		// One job from Begin to Confirm.
		return errors.Join(cause, m.finishCancelled(ctx), m.giveUp(ctx, phaseCancelled))
	}
	return errors.Join(cause, m.giveUp(ctx, ""), m.finishCancelled(ctx))
}

// cancel is a Confirm that tells of a failure; cause is why.
func (m *migration) cancel(ctx context.Context, cause error) error {
	return errors.Join(cause, m.giveUp(ctx, phaseCancelled))
}

// forget is a client's connection that closes between two calls: the job goes, the
// guest's state stays.
func (m *migration) forget(ctx context.Context) error {
	return m.abandon(ctx, phaseCancelled, false)
}

// giveUp lets the source's guest run again and ends its job, by way of a phase if one is
// given.
func (m *migration) giveUp(ctx context.Context, phase string) error {
	return m.abandon(ctx, phase, true)
}

func (m *migration) abandon(ctx context.Context, phase string, run bool) error {
	if !m.active {
		return nil
	}
	err := m.onSource(ctx, func() error {
		_, at := m.out.async()
		if m.out.Reason == reasonPostCopy && at == phasePerformed {
			// Part of the memory is on the destination alone. The job stays.
			m.out.Reason = reasonPostCopyFailed
			return m.phase(phasePostCopy)
		}
		if phase != "" {
			if err := m.phase(phase); err != nil {
				return err
			}
		}
		if m.out.Reason == reasonPostCopy {
			m.out.Reason = "migration"
		}
		if run && !m.paused {
			resume(&m.out)
		}
		m.out.Job = jobNone
		return m.src.writeStatus(m.out)
	})
	return others(err)
}

// others leaves out that a guest, its job or its host has gone: then there is nothing
// more to do about it.
func others(err error) error {
	if errors.Is(err, errQuit) || errors.Is(err, errNoJob) || errors.Is(err, ErrHostGone) {
		return nil
	}
	return err
}

// confirm is Confirm on the source. If that fails there is nothing more to do: the guest
// is where it should be.
func (m *migration) confirm(ctx, work context.Context) error {
	err := m.onSource(work, func() error { return m.phase(phaseConfirm) })
	if err == nil {
		m.note(m.step(ctx, StepConfirming))
		err = m.onSource(work, func() error {
			return m.src.endWith(work, &m.out, reasonMigrated, func() { m.note(m.step(ctx, StepStopped)) })
		})
	}
	if m.src.dead() {
		return ErrHostGone
	}
	if err := others(err); err != nil {
		return err
	}
	if err == nil && m.o.UndefineSource {
		if err := m.undefine(); err != nil {
			return err
		}
	}
	m.note(m.step(ctx, StepDone))
	return m.late
}

func (m *migration) undefine() error {
	err := os.Remove(filepath.Join(m.src.definitions(), m.name+".xml"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot undefine domain '%s': %w", m.name, err)
	}
	return nil
}
