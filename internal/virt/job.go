package virt

import (
	"context"

	"github.com/digitalocean/go-libvirt"
)

// Job is what libvirt is doing with a guest for a long time, such as migrating it.
type Job struct {
	Active                 bool
	Total, Done, Remaining int64 // bytes: memory, and disks where they are copied
	// Speed is that of the transfer in bytes per second; 0: not known.
	Speed int64
	// Iteration counts the passes over a memory that the guest goes on writing; 0: the first.
	Iteration int64
}

// JobStats tells how far the job of a guest has come (virDomainGetJobStats).
func (v *Virt) JobStats(ctx context.Context, uuid string) (Job, error) {
	return ask(ctx, v, "ask how far the job of the guest has come", uuid, readSockets, func(l *libvirt.Libvirt, dom libvirt.Domain) (Job, error) {
		kind, params, err := l.DomainGetJobStats(dom, 0)
		return jobOf(libvirt.DomainJobType(kind), params), err
	})
}

func jobOf(kind libvirt.DomainJobType, params []libvirt.TypedParam) Job {
	n := map[string]int64{}
	for _, p := range params {
		switch value := p.Value.I.(type) {
		case int32:
			n[p.Field] = int64(value)
		case uint32:
			n[p.Field] = int64(value)
		case int64:
			n[p.Field] = value
		case uint64:
			n[p.Field] = int64(value) //nolint:gosec // bytes of a guest fit
		}
	}
	if n[libvirt.DomainJobDataTotal] == 0 { // a backup tells of its disk alone
		n[libvirt.DomainJobDataTotal], n[libvirt.DomainJobDataProcessed] = n[libvirt.DomainJobDiskTotal], n[libvirt.DomainJobDiskProcessed]
		n[libvirt.DomainJobDataRemaining] = n[libvirt.DomainJobDiskRemaining]
	}
	return Job{
		Active: kind == libvirt.DomainJobBounded || kind == libvirt.DomainJobUnbounded,
		Total:  n[libvirt.DomainJobDataTotal], Done: n[libvirt.DomainJobDataProcessed], Remaining: n[libvirt.DomainJobDataRemaining],
		Speed:     n[libvirt.DomainJobMemoryBps] + n[libvirt.DomainJobDiskBps],
		Iteration: n[libvirt.DomainJobMemoryIteration],
	}
}

// AbortJob asks libvirt to end the job of a guest and to leave it as it was.
func (v *Virt) AbortJob(ctx context.Context, uuid string) error {
	return tell(ctx, v, "abort the job of the guest", uuid, func(l *libvirt.Libvirt, dom libvirt.Domain) error {
		return l.DomainAbortJob(dom)
	})
}

// Thaw lets the guest agent thaw the file systems of a guest; where none is frozen nothing
// happens.
func (v *Virt) Thaw(ctx context.Context, uuid string) error {
	return tell(ctx, v, "thaw the file systems of the guest", uuid, func(l *libvirt.Libvirt, dom libvirt.Domain) error {
		_, err := l.DomainFsthaw(dom, nil, 0)
		return err
	})
}

// State is what matters of libvirt's state of a guest (virDomainState).
type State struct {
	Running bool // its CPUs run
	Off     bool // it has no QEMU
}

// State tells what a guest is doing.
func (v *Virt) State(ctx context.Context, uuid string) (State, error) {
	return ask(ctx, v, "ask for the state of the guest", uuid, readSockets, func(l *libvirt.Libvirt, dom libvirt.Domain) (State, error) {
		state, _, err := l.DomainGetState(dom, 0)
		return State{Running: state == int32(libvirt.DomainRunning), Off: state == int32(libvirt.DomainShutoff)}, err
	})
}
