package fakevirt

import (
	"context"
	"errors"
	"fmt"
)

// Suspend stops a guest's CPUs, as `virsh suspend`. The error is *Error.
func (h *Host) Suspend(ctx context.Context, name string) error {
	return failed(fmt.Sprintf("Failed to suspend domain '%s'", name), h.withGuest(ctx, name, func() error {
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		kind, _ := s.async()
		if kind == migrationIn {
			return errBusy
		}
		if s.State == "paused" {
			return nil
		}
		s.State, s.Reason = "paused", "user"
		if kind == migrationOut {
			// libvirt takes it for the migration's own pause: it ends with it.
			s.Reason = "migration"
		}
		return h.writeStatus(*s)
	}))
}

// Resume lets the CPUs of a paused guest run, as `virsh resume`: also those of one that a
// migration has left behind. The error is *Error.
func (h *Host) Resume(ctx context.Context, name string) error {
	return failed(fmt.Sprintf("Failed to resume domain '%s'", name), h.withGuest(ctx, name, func() error {
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		if s.Job != jobNone {
			return errBusy
		}
		if s.State == "running" {
			return errors.New("Requested operation is not valid: domain is already running") //nolint:staticcheck // libvirt's words
		}
		s.State, s.Reason = "running", "unpaused"
		return h.writeStatus(*s)
	}))
}
