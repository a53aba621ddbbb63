package fakevirt

import (
	"context"
	"errors"
	"fmt"
)

// Reasons of libvirt's `release` hook (virDomainShutoffReason).
const (
	reasonShutdown  = "shutdown"
	reasonDestroyed = "destroyed"
	reasonCrashed   = "crashed"
	reasonFailed    = "failed"
	reasonDaemon    = "daemon"
)

// Start starts a defined guest, as `virsh start`. The error is *Error.
func (h *Host) Start(ctx context.Context, name string) error {
	return failed(fmt.Sprintf("Failed to start domain '%s'", name), h.withGuest(ctx, name, func() error {
		// libvirt would have seen the end of a QEMU long before.
		if err := h.notice(ctx, name); err != nil {
			return err
		}
		if _, runs, err := h.readStatus(name); err != nil || runs {
			return errors.Join(err, errRunning(runs))
		}
		dom, err := h.definition(name)
		if err != nil {
			return err
		}
		id, err := h.nextID()
		if err != nil {
			return err
		}
		dom.ID = &id
		s := &status{State: "paused", Reason: "starting up", Job: jobStart, Domain: dom}
		if err := h.launch(ctx, s); err != nil {
			return errors.Join(err, h.end(ctx, s, reasonFailed))
		}
		return nil
	}))
}

func errRunning(runs bool) error {
	if runs {
		return errors.New("Requested operation is not valid: domain is already running") //nolint:staticcheck // libvirt's words
	}
	return nil
}

// launch takes a guest from its definition to running CPUs. It leaves in s how far that
// came: what is to be ended where it fails. An incoming migration would go the same way
// with another job, and stop before the CPUs run.
func (h *Host) launch(ctx context.Context, s *status) error {
	name := s.Domain.Name
	begin := func(op string) error { return h.hook(ctx, name, op, "begin", "-", xmlOf(s.Domain)) }
	if err := begin("prepare"); err != nil {
		return err
	}
	disks, err := h.probe(s.Domain)
	if err != nil {
		return err
	}
	live(s.Domain)
	if err := begin("start"); err != nil {
		return err
	}
	qemu, err := h.o.Launcher.Launch(Spec{
		Name: name, UUID: s.Domain.UUID, Host: h.o.Name, Root: h.o.Root, Disks: disks,
	})
	if err != nil {
		return err
	}
	s.PID = qemu.PID()
	if err := h.writeStatus(*s); err != nil {
		return err
	}
	if err := qemu.Run(); err != nil {
		return fmt.Errorf("internal error: process exited while connecting to monitor: %w", err)
	}
	s.State, s.Reason = "running", "booted"
	if err := h.writeStatus(*s); err != nil {
		return err
	}
	if err := begin("started"); err != nil {
		return err
	}
	s.Job = jobNone
	return h.writeStatus(*s)
}

// end brings a guest to its end, from wherever it is: libvirt's qemuProcessStop. What the
// hook answers counts for nothing.
func (h *Host) end(ctx context.Context, s *status, why string) error {
	name := s.Domain.Name
	if s.PID != 0 {
		if err := h.kill(s, true); err != nil {
			return err
		}
	}
	h.ended(s.Domain)
	_ = h.hook(ctx, name, "stopped", "end", "-", xmlOf(s.Domain))
	if err := h.removeStatus(name); err != nil {
		return err
	}
	released(s.Domain)
	if h.o.NoReasons {
		why = "-"
	}
	_ = h.hook(ctx, name, "release", "end", why, xmlOf(s.Domain))
	return nil
}
