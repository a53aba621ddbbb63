package watch

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// kernelGroup is the multicast group of what the kernel itself sends; udev sends to 2.
const kernelGroup = 1

// bufferSize holds some thousands of events: activating a whole volume group makes several
// for each volume.
const bufferSize = 4 << 20

// Open subscribes to the kernel's uevents: netlink(7), NETLINK_KOBJECT_UEVENT. It needs no
// privilege, but for root the buffer is as large as wanted.
func Open() (Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("cannot listen to the kernel's uevents: %w", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize) != nil {
		// What does not fit is noticed as ENOBUFS.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot listen to the kernel's uevents: %w", err)
	}
	return &uevents{os.NewFile(uintptr(fd), "uevents")}, nil
}

// uevents is a Socket of the kernel.
type uevents struct{ file *os.File }

// Receive implements Socket.
func (s *uevents) Receive(buf []byte) (n int, sender, groups uint32, err error) {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return 0, 0, 0, err
	}
	var from unix.Sockaddr
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		n, from, failed = unix.Recvfrom(int(fd), buf, 0)
		return failed != unix.EAGAIN
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, 0, 0, err
	}
	address, ok := from.(*unix.SockaddrNetlink)
	if !ok {
		return 0, 0, 0, fmt.Errorf("a message without a sender")
	}
	return n, address.Pid, address.Groups, nil
}

// Close implements Socket.
func (s *uevents) Close() error { return s.file.Close() }
