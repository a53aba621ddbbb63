package fakevirt

import (
	"context"
	"errors"
	"fmt"
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
	out, err := m.dst.filter(ctx, m.to, "migrate", "begin", "-", m.dst.xmlOf(m.xml))
	if err != nil || strings.TrimSpace(out) == "" {
		return err
	}
	dom, err := m.dst.o.Documents.read(out)
	if err != nil {
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
		dom := h.o.Documents.clone(m.xml)
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
