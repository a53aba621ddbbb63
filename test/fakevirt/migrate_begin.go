package fakevirt

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Reasons of a guest whose post-copy goes on, or has broken off.
const (
	reasonPostCopy       = "post-copy"
	reasonPostCopyFailed = "post-copy failed"
)

// begin is Begin on the source (qemuMigrationSrcBegin).
func (m *migration) begin(ctx context.Context) error {
	h := m.src
	return h.withGuest(ctx, m.name, func() error {
		if h.dead() {
			return ErrHostGone
		}
		if err := h.notice(ctx, m.name); err != nil {
			return err
		}
		s, runs, err := h.readStatus(m.name)
		if err != nil {
			return err
		}
		if !runs {
			return m.beginInactive()
		}
		if kind, _ := s.async(); strings.HasPrefix(kind, "migration ") {
			return fmt.Errorf("Requested operation is not valid: another migration job is already running for domain '%s'", m.name) //nolint:staticcheck // libvirt's words
		}
		m.active, m.out, m.paused = true, s, s.State == "paused"
		m.out.Job = migrationJob(migrationOut, "", 0, m.begun, m.out)
		if err := h.writeStatus(m.out); err != nil {
			return err
		}
		if err := m.phase(phaseBegin); err != nil {
			return err
		}
		refused := m.o.refused(false)
		if refused == nil {
			refused = m.o.unsafe(m.out.Domain, h.o.OldQEMU)
		}
		if refused == nil && m.o.P2P {
			refused = m.sameHost()
		}
		if refused != nil {
			m.out.Job = jobNone
			return errors.Join(refused, h.writeStatus(m.out))
		}
		m.xml = h.migratable(m.out.Domain)
		return nil
	})
}

// beginInactive begins with a guest that does not run, of which there is no status file.
func (m *migration) beginInactive() error {
	def, err := m.src.definition(m.name)
	if err != nil {
		return failed(fmt.Sprintf("failed to get domain '%s'", m.name), err)
	}
	if err := m.o.refused(false); err != nil {
		return err
	}
	if !m.o.Offline {
		return errors.New("Requested operation is not valid: domain is not running") //nolint:staticcheck // libvirt's words
	}
	m.xml = def
	return nil
}

// migratable is a live domain as it is sent to another host: without all that libvirt
// has found out or given out here. (libvirt leaves out some devices that every machine
// has as well; they do not matter here.)
func (h *Host) migratable(live *libvirtxml.Domain) *libvirtxml.Domain {
	dom := h.o.Documents.clone(live)
	h.ended(dom)
	dom.SecLabel = nil
	if origin, err := h.origin(dom.Name); err == nil {
		dom.SecLabel = origin.SecLabel
	}
	for i := range disksOf(dom) {
		d := &dom.Devices.Disks[i]
		d.Alias = nil
		if d.Source != nil {
			d.Source.Index = 0
			if d.Source.File != nil && d.Source.File.File == "" {
				d.Source = nil
			}
		}
		for b := d.BackingStore; b != nil; b = b.BackingStore {
			b.Index = 0
		}
	}
	return dom
}

// phase writes the source's status file with another phase.
func (m *migration) phase(phase string) error {
	m.out.Job = migrationJob(migrationOut, phase, m.flags, m.begun, m.out)
	return m.src.writeStatus(m.out)
}
