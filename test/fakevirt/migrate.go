package fakevirt

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"
)

// MigrateOptions are the options of `virsh migrate`, and a test's hand in it.
type MigrateOptions struct {
	Offline        bool // copies the definition only, of a running guest as well; needs Persistent
	Suspend        bool // the guest is paused on the destination
	CopyStorageAll bool // as if the hosts shared no disks (0x40); nothing is copied here
	Persistent     bool // the destination gets a definition
	UndefineSource bool // the source loses its own
	Unsafe         bool // also where the page cache of the source's host may hold what was written
	PostCopy       bool // the CPUs switch before the memory has moved
	P2P, Tunnelled bool // the source's libvirtd drives it, and carries the memory
	DName          string
	// Step is called between the steps, without any guest being locked but at
	// StepStopped, where the source's is. An error lets the migration fail at that point,
	// as a fault there would, but from StepSwitched on, where nothing can fail any more:
	// there it becomes Migrate's result at the end. ErrAborted, ErrClientGone and
	// ErrReplyLost are faults of their own; others are caused by what Step does to the
	// hosts and their guests.
	Step func(Step) error
}

// Step is a place between two steps of a migration.
type Step string

// Steps in their order. Each names what has just happened.
const (
	StepBegun       Step = "begun"        // source: job begun, begin3
	StepMigrateHook Step = "migrate hook" // destination: hook `migrate`; it has no guest yet
	StepPrepareHook Step = "prepare hook"
	StepStartHook   Step = "start hook"
	StepLaunched    Step = "launched"     // destination: QEMU runs, paused, its disks open
	StepStartedHook Step = "started hook" // destination: all is prepared
	StepPerforming  Step = "performing"   // source: perform3, memory moves
	StepPaused      Step = "paused"       // source: CPUs stopped
	StepPerformed   Step = "performed"    // source: memory has moved, perform3_done
	StepPostCopy    Step = "post-copy"    // with PostCopy only: destination: CPUs run, memory moves
	StepSwitched    Step = "switched"     // destination: CPUs run, job gone
	StepConfirming  Step = "confirming"   // source: confirm3
	StepStopped     Step = "stopped"      // source: QEMU gone, hook `stopped`
	StepDone        Step = "done"         // source: hook `release`, definition gone where asked for
)

// Steps are those of a live migration without PostCopy, in order.
func Steps() []Step {
	return []Step{
		StepBegun, StepMigrateHook, StepPrepareHook, StepStartHook, StepLaunched, StepStartedHook,
		StepPerforming, StepPaused, StepPerformed, StepSwitched, StepConfirming, StepStopped, StepDone,
	}
}

var (
	// ErrAborted is `virsh domjobabort`, or ^C in virsh.
	ErrAborted = errors.New("operation aborted: migration out: canceled by client")
	// ErrClientGone is the end of the virsh that drives a migration: returned by Step, and
	// then by Migrate. Before StepPerformed both hosts undo what they did. At StepPerformed
	// the source stays paused without a job and the destination's guest is destroyed; at
	// StepSwitched it stays paused while the destination's runs. With P2P the migration
	// goes on without virsh.
	ErrClientGone = errors.New("client has gone")
	// ErrReplyLost is for Step to return at StepSwitched: a connection to the destination
	// that breaks before its answer has come: the guest runs there, and libvirt lets it
	// run again on the source ("the lock manager plugins should take care of safety in
	// this scenario").
	ErrReplyLost = errors.New("Cannot recv data: Connection reset by peer") //nolint:staticcheck // libvirt's words
	// ErrHostGone is the power failure of a host. Of a source, and with it of the virsh
	// there, it ends Migrate at once: the destination notices by Host.ConnectionLost.
	ErrHostGone = errors.New("End of file while reading data: Input/output error")
)

// migration is one call of Migrate: libvirt's protocol version 3 (virDomainMigrateVersion3Full
// and qemu_migration.c), by its five calls:
//
//	Begin    source       job begin3; the XML for the destination
//	Prepare  destination  hook `migrate`, then the guest is added, hooks `prepare`, `start`,
//	                      QEMU, hook `started`
//	Perform  source       perform3, CPUs stop, perform3_done
//	Finish   destination  finish3, CPUs run, or the guest is ended as failed
//	Confirm  source       confirm3, the guest is ended as migrated; or it runs again
//
// Neither side hears anything of the other but by them. After a failed Prepare come no
// Perform and Finish, after a failed Perform no Confirm: the source is in order by then.
type migration struct {
	src, dst *Host
	name, to string
	o        MigrateOptions
	flags    uint
	xml      *libvirtxml.Domain // as the source sends it, then as the hook filters it
	begun    time.Time

	active bool   // the source's guest runs
	paused bool   // and was paused before
	out    status // the source's guest
	in     status // the destination's
	up     *startup

	gone bool  // no step is called any more: nobody is there
	late error // what a step said when it was too late, or to no effect
}

// Migrate moves a guest from one host to another, as `virsh migrate --live` does. The
// error is *Error but for ErrClientGone, and wraps what Step returned.
func Migrate(ctx context.Context, src, dst *Host, name string, o MigrateOptions) error {
	m := &migration{src: src, dst: dst, name: name, to: name, o: o, flags: o.flags(), begun: src.o.Now()}
	if o.DName != "" {
		m.to = o.DName
	}
	err := m.run(ctx)
	if errors.Is(err, ErrClientGone) {
		return err
	}
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	return failed("", err)
}

// step asks the test, then for an end of ctx.
func (m *migration) step(ctx context.Context, s Step) error {
	if m.gone {
		return nil
	}
	var err error
	if m.o.Step != nil {
		err = m.o.Step(s)
	}
	if err == nil && ctx.Err() != nil {
		err = ErrAborted
	}
	if m.o.P2P && errors.Is(err, ErrClientGone) {
		m.late, err = err, nil
	}
	return err
}

func (m *migration) run(ctx context.Context) error {
	work := context.WithoutCancel(ctx) // an abort waits for the hook, and for the undoing
	if err := validName(m.to); err != nil {
		return err
	}
	if err := m.begin(work); err != nil {
		return err
	}
	switch err := m.step(ctx, StepBegun); {
	case errors.Is(err, ErrClientGone):
		return errors.Join(err, m.forget(work))
	case err != nil:
		return m.cancel(work, err)
	}
	if m.o.Offline {
		return m.offline(ctx, work)
	}
	if err := m.prepare(ctx, work); m.gone {
		return errors.Join(ErrClientGone, m.dst.ConnectionLost(work, m.to))
	} else if err != nil {
		return m.cancel(work, err)
	}
	err := m.step(ctx, StepStartedHook)
	if err == nil {
		err = m.perform(ctx, work)
	}
	if err != nil {
		return m.performFailed(work, err)
	}
	return m.complete(ctx, work)
}

// complete is what follows a Perform that has not failed.
func (m *migration) complete(ctx, work context.Context) error {
	err := m.step(ctx, StepPerformed)
	switch {
	case m.src.dead():
		return ErrHostGone
	case errors.Is(err, ErrClientGone):
		return errors.Join(err, m.dst.ConnectionLost(work, m.to), m.forget(work))
	case err != nil:
		err = errors.Join(err, m.finishCancelled(work))
	default:
		err = m.finish(ctx, work)
	}
	if m.src.dead() {
		return ErrHostGone
	}
	if err != nil {
		return m.cancel(work, err)
	}
	err = m.step(ctx, StepSwitched)
	switch {
	case m.src.dead():
		return ErrHostGone
	case errors.Is(err, ErrClientGone) && !m.o.PostCopy:
		return errors.Join(err, m.forget(work))
	case errors.Is(err, ErrReplyLost):
		return m.cancel(work, err)
	}
	m.note(err)
	return m.confirm(ctx, work)
}

// note keeps what came too late to change anything.
func (m *migration) note(err error) {
	if m.late == nil {
		m.late = err
	}
}

// sameHost is what the destination finds in the source's cookie.
func (m *migration) sameHost() error {
	if m.src.o.RunDir != m.dst.o.RunDir {
		return nil
	}
	if m.o.P2P {
		return errors.New("Attempt to migrate guest to the same host") //nolint:staticcheck // libvirt's words
	}
	return fmt.Errorf("internal error: Attempt to migrate guest to the same host %s", hostUUID(m.src.o.Name))
}

// hostUUID makes a host's uuid from its name.
func hostUUID(name string) string {
	id := strings.Repeat("0", 32) + hex.EncodeToString([]byte(name))
	id = id[len(id)-32:]
	return strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-")
}
