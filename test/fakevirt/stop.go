package fakevirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Destroy ends a guest at once, as `virsh destroy`. The error is *Error.
func (h *Host) Destroy(ctx context.Context, name string) error {
	return failed(fmt.Sprintf("Failed to destroy domain '%s'", name), h.stop(ctx, name, reasonDestroyed))
}

// Shutdown ends a guest as if its system had done so, as `virsh shutdown` and then some
// waiting. The error is *Error.
func (h *Host) Shutdown(ctx context.Context, name string) error {
	return failed(fmt.Sprintf("Failed to shutdown domain '%s'", name), h.stop(ctx, name, reasonShutdown))
}

func (h *Host) stop(ctx context.Context, name, why string) error {
	return h.withGuest(ctx, name, func() error {
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		return h.terminate(ctx, s, destroying(s.Job), why)
	})
}

// terminate ends a guest that nobody's start or migration ends: under a job of its own.
func (h *Host) terminate(ctx context.Context, s *status, job, why string) error {
	s.Job = job
	if err := h.writeStatus(*s); err != nil {
		return err
	}
	if err := h.kill(s, false); err != nil {
		return err
	}
	// QEMU says SHUTDOWN when it gets SIGTERM.
	s.State, s.Reason = "shutdown", "unknown"
	if err := h.writeStatus(*s); err != nil {
		return err
	}
	return h.end(ctx, s, why)
}

// Crash kills a guest's QEMU and lets libvirt notice. The error is *Error.
func (h *Host) Crash(ctx context.Context, name string) error {
	return failed(fmt.Sprintf("Failed to crash domain '%s'", name), h.withGuest(ctx, name, func() error {
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		if err := h.kill(s, true); err != nil {
			return err
		}
		return h.notice(ctx, name)
	}))
}

// KillQEMU kills a guest's QEMU and nothing else: libvirt is not there to notice. The
// status file stays. See Notice.
func (h *Host) KillQEMU(ctx context.Context, name string) error {
	return failed("", h.withGuest(ctx, name, func() error {
		s, err := h.running(ctx, name)
		if err != nil {
			return err
		}
		return h.kill(s, true)
	}))
}

// Notice is libvirt seeing that a guest's QEMU has ended, if it has.
func (h *Host) Notice(ctx context.Context, name string) error {
	return failed("", h.withGuest(ctx, name, func() error { return h.notice(ctx, name) }))
}

func (h *Host) notice(ctx context.Context, name string) error {
	if h.hasQEMU(name) {
		return nil
	}
	s, found, err := h.readStatus(name)
	if err != nil || !found || h.o.Launcher.Alive(s.PID, s.Domain.UUID) {
		return err
	}
	s.Job = destroying(s.Job)
	if err := h.writeStatus(s); err != nil {
		return err
	}
	return h.end(ctx, &s, reasonCrashed)
}

// Reconnect is libvirtd starting anew: a migration that was under way is given up or left
// to others (see recoverJob), then comes the hook `reconnect`, for every running guest. One
// whose hook fails is killed, as libvirt does.
func (h *Host) Reconnect(ctx context.Context) error {
	guests, err := h.List()
	if err != nil {
		return failed("", err)
	}
	var errs []error
	for _, g := range guests {
		errs = append(errs, h.withGuest(ctx, g.Name, func() error {
			if err := h.notice(ctx, g.Name); err != nil {
				return err
			}
			s, runs, err := h.readStatus(g.Name)
			if err != nil || !runs {
				return err
			}
			if !recoverJob(&s) {
				return h.end(ctx, &s, reasonDaemon)
			}
			if err := h.writeStatus(s); err != nil {
				return err
			}
			if err := h.hook(ctx, g.Name, "reconnect", "begin", "-", h.xmlOf(s.Domain)); err != nil {
				return errors.Join(err, h.end(ctx, &s, reasonDaemon))
			}
			return nil
		}))
	}
	return failed("", errors.Join(errs...))
}

// running is the status of a guest that runs; libvirt's error where it does not.
func (h *Host) running(ctx context.Context, name string) (*status, error) {
	if err := h.notice(ctx, name); err != nil {
		return nil, err
	}
	s, found, err := h.readStatus(name)
	if err != nil {
		return nil, err
	}
	if !found {
		if _, err := h.definition(name); err != nil {
			return nil, err
		}
		return nil, errors.New("Requested operation is not valid: domain is not running") //nolint:staticcheck // libvirt's words
	}
	return &s, nil
}

// kill ends a QEMU and takes back the markers of its open disks.
func (h *Host) kill(s *status, force bool) error {
	if err := h.o.Launcher.End(s.PID, s.Domain.UUID, force); err != nil {
		return err
	}
	markers, err := filepath.Glob(filepath.Join(escapeGlob(h.o.Root), "open/*", strconv.Itoa(s.PID)))
	if err != nil {
		return err
	}
	for _, m := range markers {
		if err := os.Remove(m); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// Guest is a guest as `virsh list --all` shows it.
type Guest struct {
	Name, UUID string
	ID         int    // 0: not running
	State      string // libvirt's word in the status file, or "shut off"
	PID        int
}

// List shows all guests, those without a definition too, in the order of their names.
func (h *Host) List() ([]Guest, error) {
	names, err := h.defined()
	if err != nil {
		return nil, fmt.Errorf("cannot list domains: %w", err)
	}
	running, err := namesIn(h.o.RunDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list domains: %w", err)
	}
	names = append(names, running...)
	slices.Sort(names)
	var guests []Guest
	for _, name := range slices.Compact(names) {
		s, found, err := h.readStatus(name)
		if err != nil {
			return nil, err
		}
		if found {
			g := Guest{Name: name, UUID: s.Domain.UUID, State: s.State, PID: s.PID}
			if s.Domain.ID != nil {
				g.ID = *s.Domain.ID
			}
			guests = append(guests, g)
			continue
		}
		dom, err := h.definition(name)
		if errors.Is(err, errNotFound) {
			continue // has ended, or was undefined, since
		}
		if err != nil {
			return nil, err
		}
		guests = append(guests, Guest{Name: name, UUID: dom.UUID, State: "shut off"})
	}
	return guests, nil
}
