package fakevirt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"libvirt.org/go/libvirtxml"
)

// onDest runs fn with the destination's guest, if that is there still and has the job.
func (m *migration) onDest(ctx context.Context, fn func() error) error {
	return m.dst.withGuest(ctx, m.to, func() error {
		if err := m.dst.still(ctx, &m.in, migrationIn); err != nil {
			return err
		}
		return fn()
	})
}

// finish is Finish on the destination (qemuMigrationDstFinish) after a Perform that went
// well.
func (m *migration) finish(ctx, work context.Context) error {
	err := m.onDest(work, func() error {
		err := m.takeOver()
		if err != nil {
			return errors.Join(err, m.dst.end(work, &m.in, reasonFailed))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if m.o.PostCopy {
		switch err := m.step(ctx, StepPostCopy); {
		case errors.Is(err, ErrClientGone):
			m.late = err // both go on by themselves
		case err != nil:
			return errors.Join(err, others(m.onDest(work, func() error {
				m.in.Reason = reasonPostCopyFailed
				m.arrived(phasePostCopy)
				return m.dst.writeStatus(m.in)
			})))
		}
	}
	return m.onDest(work, func() error {
		if m.in.State == "running" {
			m.in.Reason = "migrated"
		}
		m.in.Job = jobNone
		return m.dst.writeStatus(m.in)
	})
}

// takeOver keeps the definition and lets the CPUs run.
func (m *migration) takeOver() error {
	m.arrived(phaseFinish)
	if err := m.dst.writeStatus(m.in); err != nil {
		return err
	}
	if m.o.Persistent {
		// The source's own definition, which the hook has not seen.
		def, err := m.src.definition(m.name)
		if errors.Is(err, errNotFound) {
			def, err = m.src.migratable(m.out.Domain), nil
		}
		if err != nil {
			return err
		}
		if err := m.dst.keep(def, m.to); err != nil {
			return err
		}
	}
	paused := m.o.Suspend || m.paused
	if err := m.up.qemu.Continue(!paused); err != nil {
		return fmt.Errorf("internal error: resume operation failed: %w", err)
	}
	switch {
	case paused:
		m.in.State, m.in.Reason = "paused", "user"
	case m.o.PostCopy:
		m.in.State, m.in.Reason = "running", reasonPostCopy
	default:
		m.in.State, m.in.Reason = "running", "migrated"
	}
	return m.dst.writeStatus(m.in)
}

// keep makes a definition of dom.
func (h *Host) keep(dom *libvirtxml.Domain, name string) error {
	def := h.o.Documents.clone(dom)
	def.Name, def.ID = name, nil
	return writeFile(filepath.Join(h.definitions(), name+".xml"), h.xmlOf(def))
}

// finishCancelled is Finish after a Perform that has failed.
func (m *migration) finishCancelled(ctx context.Context) error {
	return others(m.onDest(ctx, func() error {
		m.arrived(phaseFinish)
		return errors.Join(m.dst.writeStatus(m.in), m.dst.end(ctx, &m.in, reasonFailed))
	}))
}

// offline copies the definition as the hook has made it: Begin, Prepare and Finish
// without a QEMU, and Confirm.
func (m *migration) offline(ctx, work context.Context) error {
	err := m.hookMigrate(work)
	if err == nil {
		err = m.step(ctx, StepMigrateHook)
	}
	if errors.Is(err, ErrClientGone) {
		return errors.Join(err, m.forget(work))
	}
	if err == nil {
		err = m.sameHost()
	}
	if err == nil {
		err = m.dst.withGuest(work, m.to, func() error {
			if err := m.dst.addable(work, m.xml); err != nil {
				return err
			}
			return m.dst.keep(m.xml, m.to)
		})
	}
	if err != nil {
		return m.cancel(work, err)
	}
	if err := m.giveUp(work, phaseConfirm); err != nil {
		return err
	}
	if m.o.UndefineSource && !m.active {
		if err := m.undefine(); err != nil {
			return err
		}
	}
	m.note(m.step(ctx, StepDone))
	return m.late
}

// ConnectionLost is the host's libvirtd noticing that whoever brings a guest here has gone
// without a word, after its keepalive's time: a guest that is not finished is destroyed.
// Otherwise nothing happens.
func (h *Host) ConnectionLost(ctx context.Context, name string) error {
	return failed("", h.withGuest(ctx, name, func() error {
		if h.dead() {
			return nil
		}
		if err := h.notice(ctx, name); err != nil {
			return err
		}
		s, found, err := h.readStatus(name)
		if err != nil || !found {
			return err
		}
		if kind, phase := s.async(); kind != migrationIn || phase != phasePrepare {
			return nil
		}
		return h.terminate(ctx, &s, jobDestroy, reasonDestroyed)
	}))
}
