// Package virt asks libvirt by RPC what its status files do not tell: how far a job has
// come, and asks it to end, to pivot or to abort one. Pure Go, over libvirt's socket.
//
// It must never be called while a hook of libvirt is being answered: libvirt waits for the
// hook, and the call for libvirt. Every call has a deadline, because it also waits while
// somebody else's hook runs.
package virt

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"virtlvm/internal/api"
)

// DefaultTimeout bounds a call where Options name no other.
const DefaultTimeout = 10 * time.Second

// Options say where libvirt listens.
type Options struct {
	// Dir holds libvirt's sockets, "/run/libvirt".
	Dir     string
	Timeout time.Duration // of one call; 0: DefaultTimeout
}

// Virt is the libvirt of this host. Every call makes a connection of its own: there are
// few, and a restart of libvirt then costs no more than the call it interrupts. Safe for
// concurrent use. Errors are *api.Error.
type Virt struct{ o Options }

// New makes a Virt. It opens no connection.
func New(o Options) *Virt {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	return &Virt{o}
}

// Sockets in the order in which they are tried. That of libvirtd comes before that of
// virtqemud: where a host has both, connecting to the latter would start it beside the
// other. Where the daemons are modular, virtproxyd has the first name. A question is not
// worth more than the read-only socket.
var (
	writeSockets = []string{"libvirt-sock", "virtqemud-sock"}
	readSockets  = []string{"libvirt-sock-ro", "virtqemud-sock-ro", "libvirt-sock", "virtqemud-sock"}
)

func (v *Virt) dial(ctx context.Context, sockets []string) (net.Conn, error) {
	var d net.Dialer
	var failed error
	for _, name := range sockets {
		conn, err := d.DialContext(ctx, "unix", filepath.Join(v.o.Dir, name))
		if err == nil {
			return conn, nil
		}
		if failed == nil || errors.Is(failed, fs.ErrNotExist) {
			failed = err
		}
	}
	return nil, failed
}

// call makes one call, or a few that belong together, within the deadline. What do returns
// later than that is dropped.
func call[T any](ctx context.Context, v *Virt, what string, sockets []string, do func(*libvirt.Libvirt) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, v.o.Timeout)
	defer cancel()
	conn, err := v.dial(ctx, sockets)
	if err != nil {
		var none T
		return none, api.WrapError(api.KindUnreachable, fmt.Sprintf("cannot %s: libvirt cannot be reached: %v", what, err), err)
	}
	// Also what ends a call that has not come back by then: the library has no deadlines.
	defer func() { _ = conn.Close() }()
	l := libvirt.NewWithDialer(dialers.NewAlreadyConnected(conn))
	done := make(chan answer, 1)
	go func() {
		var a answer
		if a.err = l.ConnectToURI(libvirt.QEMUSystem); a.err == nil {
			a.value, a.err = do(l)
		}
		done <- a
	}()
	select {
	case a := <-done:
		return a.value, explain(what, a.err)
	case <-ctx.Done():
		var none T
		return none, explain(what, ctx.Err())
	}
}

// explain makes libvirt's error one of ours.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	var typed *api.Error
	if errors.As(err, &typed) {
		return err
	}
	kind := api.KindInternal
	text := strings.Join(strings.Fields(err.Error()), " ")
	var remote libvirt.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		kind, text = api.KindUnknown, "libvirt has not answered in time; it may be waiting for a hook or for another operation on the guest"
	case errors.As(err, &remote):
		switch libvirt.ErrorNumber(remote.Code) { //nolint:gosec // libvirt's numbers are small
		case libvirt.ErrNoDomain:
			kind = api.KindNotFound
		case libvirt.ErrOperationInvalid:
			kind = api.KindInUse
		default:
		}
		text = strings.Join(strings.Fields(remote.Message), " ")
	case errors.Is(err, libvirt.ErrInterrupted):
		kind, text = api.KindUnknown, "the connection to libvirt broke before it answered"
	}
	return api.WrapError(kind, fmt.Sprintf("cannot %s: %s", what, text), err)
}

// ask makes calls about the guest of a uuid.
func ask[T any](ctx context.Context, v *Virt, what, uuid string, sockets []string, do func(*libvirt.Libvirt, libvirt.Domain) (T, error)) (T, error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(uuid, "-", ""))
	var id libvirt.UUID
	if err != nil || len(raw) != len(id) {
		var none T
		return none, api.NewError(api.KindBadRequest, fmt.Sprintf("cannot %s: %q is not a uuid", what, uuid))
	}
	copy(id[:], raw)
	return call(ctx, v, what, sockets, func(l *libvirt.Libvirt) (T, error) {
		dom, err := l.DomainLookupByUUID(id)
		if err != nil {
			var none T
			return none, err
		}
		return do(l, dom)
	})
}

// tell is ask where nothing is answered.
func tell(ctx context.Context, v *Virt, what, uuid string, do func(*libvirt.Libvirt, libvirt.Domain) error) error {
	_, err := ask(ctx, v, what, uuid, writeSockets, func(l *libvirt.Libvirt, dom libvirt.Domain) (struct{}, error) {
		return struct{}{}, do(l, dom)
	})
	return err
}
