// Package watch listens to what the kernel says of this host: device-mapper devices that
// come, change and go (uevents), links and addresses that go away and come back
// (rtnetlink(7)). It only ever says "look": what has happened is found out by looking, and
// whether another host can be reached by asking it.
package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settle lets the events of one LVM command become one hint; together with the look that
// follows it stays well below a second.
const settle = 100 * time.Millisecond

// maxMessage is above UEVENT_BUFFER_SIZE of the kernel (include/linux/kobject.h).
const maxMessage = 8 << 10

// Socket receives messages of the kernel's uevents.
type Socket interface {
	// Receive reads one message with the netlink port of its sender, 0 being the kernel,
	// and the multicast groups it was sent to. It returns when Close is called.
	Receive(buf []byte) (n int, sender, groups uint32, err error)
	Close() error
}

// Devices sends on changed when a device-mapper device has come, changed or gone, until
// ctx ends or the socket fails; it closes the socket. What comes faster than it is taken is
// joined, and nothing is lost: messages that the kernel had to drop are a hint like any
// other. Messages of other senders than the kernel are not believed.
func Devices(ctx context.Context, s Socket, changed chan<- struct{}) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer func() {
		if stop() {
			_ = s.Close()
		}
	}()
	heard, failed := make(chan struct{}, 1), make(chan error, 1)
	go func() { failed <- receive(s, heard) }()
	var quiet <-chan time.Time
	var hint chan<- struct{}
	for {
		select {
		case <-heard:
			if quiet == nil && hint == nil {
				quiet = time.After(settle)
			}
		case <-quiet:
			quiet, hint = nil, changed
		case hint <- struct{}{}:
			hint = nil
		case err := <-failed:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
	}
}

// receive reads messages until the socket fails.
func receive(s Socket, heard chan<- struct{}) error {
	buf := make([]byte, maxMessage)
	for {
		n, sender, groups, err := s.Receive(buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS): // some were lost: anything may have happened
		case err != nil:
			return fmt.Errorf("cannot read the kernel's uevents: %w", err)
		case sender != 0 || groups&kernelGroup == 0 || !isDevice(buf[:n]):
			continue
		}
		select {
		case heard <- struct{}{}:
		default:
		}
	}
}

// isDevice reports whether a message is about a device-mapper device:
//
//	add@/devices/virtual/block/dm-3\0ACTION=add\0SUBSYSTEM=block\0DEVNAME=dm-3\0...
//
// (kobject_uevent_env in the kernel's lib/kobject_uevent.c). udev's own messages have
// another form and come by another group.
func isDevice(message []byte) bool {
	head, rest, _ := bytes.Cut(message, []byte{0})
	if !bytes.Contains(head, []byte("@/")) {
		return false
	}
	block, dm := false, false
	for field := range strings.SplitSeq(string(rest), "\x00") {
		block = block || field == "SUBSYSTEM=block"
		dm = dm || strings.HasPrefix(field, "DEVNAME=dm-")
	}
	return block && dm
}
