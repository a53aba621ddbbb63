package watch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// message is one scripted receive.
type message struct {
	text           string
	sender, groups uint32
	err            error
}

// script is a Socket that gives its messages one by one, and then blocks.
type script struct {
	messages chan message
	closed   chan struct{}
	once     sync.Once
}

func newScript() *script {
	return &script{messages: make(chan message, 100), closed: make(chan struct{})}
}

func (s *script) Receive(buf []byte) (int, uint32, uint32, error) {
	select {
	case m := <-s.messages:
		return copy(buf, m.text), m.sender, m.groups, m.err
	case <-s.closed:
		return 0, 0, 0, errors.New("closed")
	}
}

func (s *script) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func uevent(action, device string, fields ...string) string {
	path := "/devices/virtual/block/" + device
	return strings.Join(append([]string{action + "@" + path, "ACTION=" + action, "DEVPATH=" + path, "SUBSYSTEM=block", "DEVNAME=" + device}, fields...), "\x00") + "\x00"
}

func fromKernel(text string) message { return message{text: text, groups: kernelGroup} }

// listen runs Devices on a script.
func listen(t *testing.T) (*script, chan struct{}, <-chan error, context.CancelFunc) {
	t.Helper()
	s, changed, done := newScript(), make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- Devices(ctx, s, changed) }()
	t.Cleanup(cancel)
	return s, changed, done, cancel
}

func TestDevices(t *testing.T) {
	for name, tt := range map[string]struct {
		message
		hint bool
	}{
		"activated":         {fromKernel(uevent("add", "dm-3")), true},
		"resumed":           {fromKernel(uevent("change", "dm-3", "DM_COOKIE=4711")), true},
		"deactivated":       {fromKernel(uevent("remove", "dm-3")), true},
		"lost messages":     {message{err: unix.ENOBUFS}, true},
		"a disk":            {fromKernel(uevent("add", "sda")), false},
		"a network card":    {fromKernel("add@/devices/x\x00SUBSYSTEM=net\x00DEVNAME=dm-3\x00"), false},
		"no uevent":         {fromKernel("hello"), false},
		"empty":             {fromKernel(""), false},
		"udev's":            {message{text: "libudev\x00\xfe\xed\xca\xfeSUBSYSTEM=block\x00DEVNAME=dm-3\x00", groups: 2}, false},
		"a liar":            {message{text: uevent("add", "dm-3"), sender: 4711, groups: kernelGroup}, false},
		"a liar in udev's":  {message{text: uevent("add", "dm-3"), groups: 2}, false},
		"straight at us":    {message{text: uevent("add", "dm-3")}, false},
		"interrupted":       {message{err: unix.EINTR}, false},
		"a name like dm":    {fromKernel(uevent("add", "dmraid")), false},
		"a field like dm's": {fromKernel("add@/devices/virtual/block/sdb\x00SUBSYSTEM=block\x00XDEVNAME=dm-3\x00"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, changed, _, _ := listen(t)
			s.messages <- tt.message
			patience := 5 * time.Second
			if !tt.hint {
				patience = 3 * settle
			}
			select {
			case <-changed:
				assert.True(t, tt.hint)
			case <-time.After(patience):
				assert.False(t, tt.hint)
			}
		})
	}
}

// The many events of one command are one hint, and one that comes while nobody takes it is
// not lost.
func TestDevicesJoinsAndKeeps(t *testing.T) {
	s, changed, _, _ := listen(t)
	for range 50 {
		s.messages <- fromKernel(uevent("change", "dm-1"))
	}
	require.Eventually(t, func() bool { return len(s.messages) == 0 }, 5*time.Second, time.Millisecond)
	time.Sleep(2 * settle) // nobody takes it
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Fatal("lost")
	}
	select {
	case <-changed:
		t.Fatal("joined events are one hint")
	case <-time.After(3 * settle):
	}
	s.messages <- fromKernel(uevent("remove", "dm-1"))
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Fatal("the next one is a hint again")
	}
}

func TestDevicesEnds(t *testing.T) {
	s, _, done, cancel := listen(t)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	<-s.closed

	s, _, done, _ = listen(t)
	s.messages <- message{err: unix.EBADF}
	require.ErrorIs(t, <-done, unix.EBADF)
	<-s.closed
}

// The real socket can be opened without privileges, receives nothing of ours, and its
// Close ends Receive.
func TestOpen(t *testing.T) {
	s, err := Open()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		t.Skip("the kernel gives out no such socket here: ", err)
	}
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Devices(ctx, s, make(chan struct{}, 1)) }()
	cancel()
	select {
	case err := <-done:
		assert.ErrorIs(t, err, context.Canceled)
	case <-time.After(5 * time.Second):
		t.Fatal("Receive does not end")
	}
}
