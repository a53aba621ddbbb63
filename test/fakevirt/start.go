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
	reasonMigrated  = "migrated"
	reasonDaemon    = "daemon"
)

// Start starts a defined guest, as `virsh start`. The error is *Error.
func (h *Host) Start(ctx context.Context, name string) error {
	return failed(fmt.Sprintf("Failed to start domain '%s'", name), h.withGuest(ctx, name, func() error {
		// libvirt would have seen the end of a QEMU long before.
		if err := h.notice(ctx, name); err != nil {
			return err
		}
		s, runs, err := h.readStatus(name)
		if err != nil {
			return err
		}
		if kind, _ := s.async(); h.arriving(name) || kind == migrationIn {
			return errBusy
		}
		if runs {
			return errors.New("Requested operation is not valid: domain is already running") //nolint:staticcheck // libvirt's words
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
		s = status{State: "paused", Reason: "starting up", Job: jobStart, Domain: dom}
		if err := h.launch(ctx, &s); err != nil {
			return errors.Join(err, h.end(ctx, &s, reasonFailed))
		}
		return nil
	}))
}

// launch takes a guest from its definition to running CPUs. It leaves in s how far that
// came: what is to be ended where it fails.
func (h *Host) launch(ctx context.Context, s *status) error {
	u := &startup{h: h, s: s}
	for _, stage := range []func(context.Context) error{u.prepare, u.start, u.exec, u.started} {
		if err := stage(ctx); err != nil {
			return err
		}
	}
	s.Job = jobNone
	return h.writeStatus(*s)
}

// startup is a guest on its way to a QEMU. Its methods are the stages, in order.
type startup struct {
	h        *Host
	s        *status
	incoming bool // QEMU waits for a migration, its CPUs do not run
	disks    []Disk
	qemu     QEMU
}

func (u *startup) hook(ctx context.Context, op string) error {
	return u.h.hook(ctx, u.s.Domain.Name, op, "begin", "-", u.h.xmlOf(u.s.Domain))
}

func (u *startup) prepare(ctx context.Context) error {
	origin := *u.s.Domain
	origin.ID = nil
	if err := writeFile(u.h.originPath(origin.Name), u.h.xmlOf(&origin)); err != nil {
		return err
	}
	return u.hook(ctx, "prepare")
}

func (u *startup) start(ctx context.Context) error {
	var err error
	if u.disks, err = u.h.probe(u.s.Domain); err != nil {
		return err
	}
	live(u.s.Domain)
	return u.hook(ctx, "start")
}

// exec makes the QEMU and lets it open its disks.
func (u *startup) exec(context.Context) error {
	h, s := u.h, u.s
	var err error
	u.qemu, err = h.o.Launcher.Launch(Spec{
		Name: s.Domain.Name, UUID: s.Domain.UUID, Host: h.o.Name, Root: h.o.Root, Disks: u.disks, Incoming: u.incoming,
	})
	if err != nil {
		return err
	}
	s.PID = u.qemu.PID()
	if err := h.writeStatus(*s); err != nil {
		return err
	}
	if err := u.qemu.Run(); err != nil {
		return fmt.Errorf("internal error: process exited while connecting to monitor: %w", err)
	}
	s.State, s.Reason = "running", "booted"
	if u.incoming {
		s.State, s.Reason = "paused", "migration"
	}
	return h.writeStatus(*s)
}

func (u *startup) started(ctx context.Context) error { return u.hook(ctx, "started") }

// end brings a guest to its end, from wherever it is: libvirt's qemuProcessStop. What the
// hook answers counts for nothing.
func (h *Host) end(ctx context.Context, s *status, why string) error {
	return h.endWith(ctx, s, why, func() {})
}

// endWith is end, with something done between the two hooks, while QEMU is gone and the
// status file is not.
func (h *Host) endWith(ctx context.Context, s *status, why string, between func()) error {
	name := s.Domain.Name
	if s.PID != 0 {
		if err := h.kill(s, true); err != nil {
			return err
		}
	}
	h.ended(s.Domain)
	_ = h.hook(ctx, name, "stopped", "end", "-", h.xmlOf(s.Domain))
	between()
	if err := h.removeStatus(name); err != nil {
		return err
	}
	released(s.Domain)
	if h.o.NoReasons {
		why = "-"
	}
	_ = h.hook(ctx, name, "release", "end", why, h.xmlOf(s.Domain))
	return nil
}
