package virt

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Procedures of libvirt's remote protocol (src/remote/remote_protocol.x).
const (
	procOpen          = 1
	procAbortJob      = 164
	procAuthList      = 66
	procGetXML        = 14
	procLookupUUID    = 24
	procAttachDevice  = 160
	procDetachDevice  = 161
	procUpdateDevice  = 174
	procGetState      = 212
	procBlockJobAbort = 237
	procBlockResize   = 251
	procBlockJobInfo  = 238
	procJobStats      = 298
	procBlockCopy     = 345
	procFSThaw        = 336
)

// fakeLibvirt answers calls on a socket; what it is not told to answer succeeds with an
// empty answer.
type fakeLibvirt struct {
	t       *testing.T
	dir     string
	mu      sync.Mutex
	answers map[uint32]any // []byte, what makes one, or error
	hang    chan struct{}  // not nil: calls of hangOn wait for it
	hangOn  uint32
	calls   []request
	onCall  func(proc uint32, conn net.Conn) // once it is answered; may be nil
	open    atomic.Int32                     // connections
}

type request struct {
	socket string
	proc   uint32
	args   []byte
}

func newFake(t *testing.T, sockets ...string) *fakeLibvirt {
	t.Helper()
	dir, err := os.MkdirTemp("", "virt")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return newFakeIn(t, dir, sockets...)
}

func newFakeIn(t *testing.T, dir string, sockets ...string) *fakeLibvirt {
	t.Helper()
	f := &fakeLibvirt{t: t, dir: dir, answers: map[uint32]any{
		procAuthList:   xdr(uint32(1), uint32(0)),
		procLookupUUID: xdr("vm1", [16]byte{1, 2, 3}, uint32(5)),
	}}
	for _, name := range sockets {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go f.serve(name, l)
	}
	return f
}

func (f *fakeLibvirt) serve(name string, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		f.open.Add(1)
		go func() {
			defer f.open.Add(-1)
			defer conn.Close()
			for f.answer(name, conn) == nil {
			}
		}()
	}
}

func (f *fakeLibvirt) answer(name string, conn net.Conn) error {
	var head [28]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	args := make([]byte, binary.BigEndian.Uint32(head[:])-28)
	if _, err := io.ReadFull(conn, args); err != nil {
		return err
	}
	proc := binary.BigEndian.Uint32(head[12:])
	f.mu.Lock()
	f.calls = append(f.calls, request{name, proc, args})
	answer, hang := f.answers[proc], f.hang
	if proc != f.hangOn {
		hang = nil
	}
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	status, body := uint32(0), []byte(nil)
	switch a := answer.(type) {
	case []byte:
		body = a
	case func() []byte:
		body = a()
	case libvirtError:
		// code, domain, message, level: what the library reads of a remote_error.
		status, body = 1, xdr(a.code, uint32(10), uint32(1), a.message, uint32(2))
	case error:
		return a // the connection breaks
	}
	reply := xdr(uint32(28+len(body)), head[4:16], uint32(1), head[20:24], status)
	_, err := conn.Write(append(reply, body...))
	if f.onCall != nil {
		f.onCall(proc, conn)
	}
	return err
}

func (f *fakeLibvirt) set(proc uint32, answer any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[proc] = answer
}

// last is the arguments of the last call of a procedure and the socket it came by.
func (f *fakeLibvirt) last(proc uint32) request {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.calls) - 1; i >= 0; i-- {
		if f.calls[i].proc == proc {
			return f.calls[i]
		}
	}
	return request{}
}

type libvirtError struct {
	code    uint32
	message string
}

func (e libvirtError) Error() string { return e.message }

var errBreak = errors.New("the connection breaks")

// xdr encodes as RFC 4506 says; a []byte and an array stand as they are.
func xdr(values ...any) []byte {
	var b []byte
	for _, v := range values {
		switch v := v.(type) {
		case uint32:
			b = binary.BigEndian.AppendUint32(b, v)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, v)
		case string:
			b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
			b = append(b, v+strings.Repeat("\x00", (4-len(v)%4)%4)...)
		case []byte:
			b = append(b, v...)
		case [16]byte:
			b = append(b, v[:]...)
		}
	}
	return b
}
