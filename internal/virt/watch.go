package virt

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"golang.org/x/sys/unix"
)

// deviceEvents are those after which a guest may have other volumes than before.
var deviceEvents = []libvirt.DomainEventID{
	libvirt.DomainEventIDDeviceAdded, libvirt.DomainEventIDDeviceRemoved, libvirt.DomainEventIDDeviceRemovalFailed,
	libvirt.DomainEventIDBlockJob, libvirt.DomainEventIDJobCompleted,
}

// Watch calls changed whenever libvirt says that a guest was given a device or has lost one, or
// that a job on it has ended, until ctx ends: a hint to look at the status files. It is connected
// only while libvirt's daemon runs, which a connection would start, and while worth says so, since
// one with a client does not end by itself. What is missed by that is seen in the status files.
func (v *Virt) Watch(ctx context.Context, worth func() bool, pause time.Duration, changed func()) {
	for {
		if sockets := v.serving(); len(sockets) > 0 && worth() {
			// A libvirt that cannot be listened to is tried again.
			_ = v.listen(ctx, sockets, worth, pause, changed)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// serving are the sockets of the daemon of libvirt that runs.
func (v *Virt) serving() []string {
	for daemon, sockets := range map[string][]string{
		"libvirtd":  {"libvirt-sock-ro", "libvirt-sock"},
		"virtqemud": {"virtqemud-sock-ro", "virtqemud-sock"},
	} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(v.o.Dir), daemon+".pid"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil && pid > 0 && !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return sockets
		}
	}
	return nil
}

// listen returns when the connection is lost, or not worth it any more.
func (v *Virt) listen(ctx context.Context, sockets []string, worth func() bool, pause time.Duration, changed func()) error {
	conn, err := v.dial(ctx, sockets)
	if err != nil {
		return err
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	defer func() { _ = conn.Close() }() // ends all streams
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	l, err := v.subscribe(conn, &readers, changed)
	if err != nil {
		return err
	}
	changed() // what happened before
	ticks := time.NewTicker(pause)
	defer ticks.Stop()
	for {
		select {
		case <-l.Disconnected():
			return nil
		case <-ticks.C:
			if !worth() {
				return nil
			}
		}
	}
}

// subscribe asks for the events, within the time of one call.
func (v *Virt) subscribe(conn net.Conn, readers *sync.WaitGroup, changed func()) (*libvirt.Libvirt, error) {
	defer time.AfterFunc(v.o.Timeout, func() { _ = conn.Close() }).Stop()
	l := libvirt.NewWithDialer(dialers.NewAlreadyConnected(conn))
	if err := l.ConnectToURI(libvirt.QEMUSystem); err != nil {
		return nil, err
	}
	for _, id := range deviceEvents {
		// Not with a context that ends: what ends the streams is the end of the connection.
		events, err := l.SubscribeEvents(context.Background(), id, nil)
		if err != nil {
			return nil, err
		}
		readers.Go(func() {
			for range events {
				changed()
			}
		})
	}
	return l, nil
}
