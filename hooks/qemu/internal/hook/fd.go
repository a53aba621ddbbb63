package hook

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// fd is a file descriptor, read and written by plain system calls. os.File and net.Conn
// prepare the runtime's poller and further threads, which takes longer than all that this
// program does with them. Whoever blocks here is ended by run.cut.
type fd int

// Read implements io.Reader.
func (f fd) Read(p []byte) (int, error) {
	n, err := again(func() (int, error) { return syscall.Read(int(f), p) })
	switch {
	case err != nil:
		return 0, err
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements io.Writer. Where nobody reads any more it is EPIPE, not a signal:
// Go only gives way to SIGPIPE in os.File.
func (f fd) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := again(func() (int, error) { return syscall.Write(int(f), p[written:]) })
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// Close closes the descriptor.
func (f fd) Close() error { return syscall.Close(int(f)) }

// again repeats a system call that a signal has interrupted, or that would block on a
// descriptor that somebody has set not to.
func again(call func() (int, error)) (int, error) {
	const pause = 10 * time.Millisecond
	for {
		n, err := call()
		switch {
		case errors.Is(err, syscall.EAGAIN):
			time.Sleep(pause)
		case !errors.Is(err, syscall.EINTR):
			return n, err
		}
	}
}

// dialError says that there is no connection.
type dialError struct{ errno error }

func (e *dialError) Error() string { return e.errno.Error() }
func (e *dialError) Unwrap() error { return e.errno }

// dial connects to a unix socket. Where more hooks wait than its queue takes, as when all
// guests of a host end at once, it waits for a place.
func dial(path string) (fd, error) {
	s, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, &dialError{err}
	}
	if _, err := again(func() (int, error) { return 0, syscall.Connect(s, &syscall.SockaddrUnix{Name: path}) }); err != nil {
		_ = syscall.Close(s)
		return -1, &dialError{err}
	}
	return fd(s), nil
}

// smallFile is more than any file has that is read here, in bytes.
const smallFile = 4 << 10

// readFile reads a small file, at most smallFile bytes of it.
func readFile(path string) ([]byte, error) {
	f, err := again(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	defer func() { _ = fd(f).Close() }()
	data := make([]byte, smallFile)
	n, err := io.ReadFull(fd(f), data)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return data[:n], err
}
