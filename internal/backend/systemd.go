package backend

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// slice is where jobs run, so that a site can bound them all: `systemctl edit
// virtlvm.slice`.
const slice = "virtlvm.slice"

// callTimeout bounds one call of systemd; after it the outcome is unknown.
const callTimeout = 30 * time.Second

// Systemd is the host's systemd, by D-Bus. Every call has a connection of its own: there
// are few, and none must outlive a restart of the bus.
type Systemd struct {
	// Dial opens a connection; nil: the system's bus, or systemd's own socket where there
	// is no bus.
	Dial func(context.Context) (*dbus.Conn, error)
}

func (s Systemd) call(ctx context.Context, do func(context.Context, *dbus.Conn) error) error {
	ctx, done := context.WithTimeout(ctx, callTimeout)
	defer done()
	dial := s.Dial
	if dial == nil {
		dial = dbus.NewWithContext
	}
	conn, err := dial(ctx)
	if err != nil {
		return fmt.Errorf("systemd cannot be reached: %w", err)
	}
	defer conn.Close()
	return do(ctx, conn)
}

// Start implements Units. The unit is loaded when it returns without an error.
func (s Systemd) Start(ctx context.Context, u Unit) error {
	return s.call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		result := make(chan string, 1)
		_, err := conn.StartTransientUnitContext(ctx, u.Name, "fail", properties(u), result)
		var refused godbus.Error
		if errors.As(err, &refused) && refused.Name == "org.freedesktop.systemd1.UnitExists" {
			return nil
		}
		if err != nil {
			return fmt.Errorf("systemd does not start %s: %w", u.Name, err)
		}
		select {
		case word := <-result:
			if word != "done" {
				return fmt.Errorf("systemd could not start %s: %s; see 'systemctl status %s'", u.Name, word, u.Name)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("systemd has not said in time that %s is started: %w", u.Name, ctx.Err())
		}
	})
}

// properties of a unit, see systemd.service(5), systemd.exec(5), systemd.kill(5) and
// org.freedesktop.systemd1(5).
func properties(u Unit) []dbus.Property {
	prop := func(name string, value any) dbus.Property {
		return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
	}
	return []dbus.Property{
		dbus.PropDescription(u.Description),
		dbus.PropExecStart(u.Argv, false),
		dbus.PropType("exec"), // the start fails where the program cannot be executed
		dbus.PropRemainAfterExit(true),
		dbus.PropSlice(slice),
		// At shutdown it is asked to end before the daemon and the locks are stopped.
		dbus.PropAfter("virtlvmd.service", "lvmlocks.service", "lvmlockd.service", "sanlock.service"),
		prop("Environment", u.Env),
		prop("UMask", uint32(0o077)),
		// Everything of the job gets the signal, and nothing is ever killed: a virsh that
		// dies between the switch of a migration and its confirmation leaves both ends to
		// themselves.
		prop("KillMode", "control-group"),
		prop("KillSignal", int32(u.StopSignal)), //nolint:gosec // numbers of signals are small
		prop("SendSIGKILL", false),
	}
}

// State implements Units.
func (s Systemd) State(ctx context.Context, name string) (UnitState, error) {
	var u UnitState
	err := s.call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		props, err := conn.GetAllPropertiesContext(ctx, name)
		if err != nil {
			return fmt.Errorf("systemd does not tell the state of %s: %w", name, err)
		}
		u = stateOf(props)
		return nil
	})
	return u, err
}

// stateOf reads the properties of a unit.
func stateOf(props map[string]any) UnitState {
	text := func(key string) string { s, _ := props[key].(string); return s }
	number := func(key string) int { n, _ := props[key].(int32); return int(n) }
	stamp := func(key string) uint64 { n, _ := props[key].(uint64); return n }
	var u UnitState
	active := text("ActiveState")
	ended := stamp("ExecMainExitTimestamp")
	switch {
	case text("LoadState") != "loaded":
		return u
	case active == "inactive" && ended == 0: // known by name, and never run
		return u
	case active == "failed", active == "inactive", active == "active" && text("SubState") == "exited":
	default:
		return UnitState{Loaded: true, Running: true}
	}
	u = UnitState{Loaded: true, Code: number("ExecMainStatus"), Result: text("Result")}
	if ended > 0 {
		u.Ended = time.UnixMicro(int64(ended)) //nolint:gosec // microseconds since 1970 fit
	}
	if how := number("ExecMainCode"); how == cldKilled || how == cldDumped {
		u.Code, u.Signal = -1, syscall.Signal(u.Code)
	}
	return u
}

// si_code of a child that a signal ended, see sigaction(2).
const (
	cldKilled = 2
	cldDumped = 3
)

// Stop implements Units.
func (s Systemd) Stop(ctx context.Context, name string) error {
	return s.call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		_, err := conn.StopUnitContext(ctx, name, "replace", nil)
		return unlessUnknown(err)
	})
}

// Forget implements Units: a unit that has exited with 0 is active for systemd, another
// one failed.
func (s Systemd) Forget(ctx context.Context, name string) error {
	return s.call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		props, err := conn.GetAllPropertiesContext(ctx, name)
		if err != nil {
			return unlessUnknown(err)
		}
		u := stateOf(props)
		if !u.Loaded {
			return nil
		}
		if u.Running {
			return fmt.Errorf("%s runs", name)
		}
		result := make(chan string, 1)
		if _, err := conn.StopUnitContext(ctx, name, "replace", result); err != nil {
			return unlessUnknown(err)
		}
		select {
		case <-result:
		case <-ctx.Done():
			return ctx.Err()
		}
		return unlessUnknown(conn.ResetFailedUnitContext(ctx, name))
	})
}

// unlessUnknown drops the error that says that there is no such unit.
func unlessUnknown(err error) error {
	var refused godbus.Error
	if errors.As(err, &refused) && refused.Name == "org.freedesktop.systemd1.NoSuchUnit" {
		return nil
	}
	return err
}
