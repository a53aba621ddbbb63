package fakevirt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// prepare is Prepare on the destination (qemuMigrationDstPrepareFresh). What it has begun
// there it undoes when it fails, with the hooks of a failed start.
func (m *migration) prepare(ctx, work context.Context) error {
	// The client has told the destination of a guest that is paused.
	if err := m.o.refused(m.paused); err != nil {
		return err
	}
	if err := m.hookMigrate(work); err != nil {
		return err
	}
	if err := m.preparing(ctx, work, StepMigrateHook); err != nil {
		return err
	}
	if err := m.sameHost(); err != nil {
		return err
	}
	if err := m.arrive(work); err != nil {
		return err
	}
	// The status file says as much from now on.
	defer m.dst.unsetArriving(m.to)
	for _, stage := range []struct {
		do   func(context.Context) error
		then Step
	}{
		{m.up.prepare, StepPrepareHook}, {m.up.start, StepStartHook}, {m.up.exec, StepLaunched}, {m.up.started, ""},
	} {
		err := m.dst.withGuest(work, m.to, func() error {
			if err := m.here(work); err != nil {
				return err
			}
			return stage.do(work)
		})
		if err == nil && stage.then != "" {
			err = m.preparing(ctx, work, stage.then)
		}
		if err != nil {
			return errors.Join(err, m.prepareFailed(work))
		}
	}
	return nil
}

// preparing is step inside of Prepare, which goes on to its end when the client has gone:
// the source has forgotten the migration by then.
func (m *migration) preparing(ctx, work context.Context, s Step) error {
	err := m.step(ctx, s)
	if errors.Is(err, ErrClientGone) {
		m.gone = true
		return m.forget(work)
	}
	return err
}

// hookMigrate calls the hook `migrate`, whose standard output, if any, replaces the XML.
func (m *migration) hookMigrate(ctx context.Context) error {
	m.xml.Name = m.to
	out, err := m.dst.filter(ctx, m.to, "migrate", "begin", "-", xmlOf(m.xml))
	if err != nil || strings.TrimSpace(out) == "" {
		return err
	}
	dom := &libvirtxml.Domain{}
	if err := dom.Unmarshal(out); err != nil {
		return fmt.Errorf("XML error: %w", err)
	}
	const differs = "unsupported configuration: Target domain %s %v does not match source %v"
	switch have, want := len(disksOf(dom)), len(disksOf(m.xml)); {
	case dom.UUID != m.xml.UUID:
		return fmt.Errorf(differs, "uuid", dom.UUID, m.xml.UUID)
	case dom.Name != m.xml.Name:
		return fmt.Errorf(differs, "name", "'"+dom.Name+"'", "'"+m.xml.Name+"'")
	case have != want:
		return fmt.Errorf(differs, "disk count", have, want)
	}
	dom.ID = nil
	m.xml = dom
	return nil
}

// arrive adds the guest to the destination's: from here on it has a job there, and not
// earlier. While the hook `migrate` ran it could be started.
func (m *migration) arrive(ctx context.Context) error {
	h := m.dst
	return h.withGuest(ctx, m.to, func() error {
		if err := h.addable(ctx, m.xml); err != nil {
			return err
		}
		id, err := h.nextID()
		if err != nil {
			return err
		}
		dom := clone(m.xml)
		dom.ID = &id
		m.in = status{State: "paused", Reason: "starting up", Domain: dom}
		m.arrived(phasePrepare)
		m.up = &startup{h: h, s: &m.in, incoming: true}
		return h.setArriving(m.to)
	})
}

// arrived sets the phase of the destination's job.
func (m *migration) arrived(phase string) {
	flags := m.flags &^ flagProtection
	if m.paused {
		flags |= flagPaused
	}
	m.in.Job = migrationJob(migrationIn, phase, flags, m.begun, m.in)
}

// addable is libvirt's objection to one more domain (virDomainObjListAdd).
func (h *Host) addable(ctx context.Context, dom *libvirtxml.Domain) error {
	if h.dead() {
		return ErrHostGone
	}
	if err := h.notice(ctx, dom.Name); err != nil {
		return err
	}
	guests, err := h.List()
	if err != nil {
		return err
	}
	for _, g := range guests {
		switch {
		case g.UUID == dom.UUID && g.Name != dom.Name:
			return fmt.Errorf("operation failed: domain '%s' is already defined with uuid %s", g.Name, g.UUID)
		case g.UUID == dom.UUID && g.PID != 0:
			return fmt.Errorf("Requested operation is not valid: domain '%s' is already active", g.Name) //nolint:staticcheck // libvirt's words
		case g.UUID != dom.UUID && g.Name == dom.Name:
			return fmt.Errorf("operation failed: domain '%s' already exists with uuid %s", g.Name, g.UUID)
		}
	}
	if h.arriving(dom.Name) {
		return fmt.Errorf("Requested operation is not valid: domain '%s' is already being started", dom.Name) //nolint:staticcheck // libvirt's words
	}
	return nil
}

// here reports what has become of the guest while it was not locked.
func (m *migration) here(ctx context.Context) error {
	if m.dst.dead() || !m.dst.arriving(m.to) {
		return ErrHostGone
	}
	if m.in.PID == 0 {
		return nil
	}
	return m.dst.still(ctx, &m.in, migrationIn)
}

func (m *migration) prepareFailed(ctx context.Context) error {
	return others(m.dst.withGuest(ctx, m.to, func() error {
		if err := m.here(ctx); err != nil {
			return err
		}
		return m.dst.end(ctx, &m.in, reasonFailed)
	}))
}

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
	def := clone(dom)
	def.Name, def.ID = name, nil
	return writeFile(filepath.Join(h.definitions(), name+".xml"), xmlOf(def))
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
