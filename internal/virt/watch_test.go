package virt

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/run"
)

const (
	procRegisterAny = 316
	procDeviceAdded = 354
)

// event is a message of libvirt's about a device of vm1.
func event(proc, callback uint32) []byte {
	body := xdr(callback, "vm1", [16]byte{1, 2, 3}, uint32(5), "virtio-disk1")
	head := xdr(uint32(28+len(body)), uint32(0x20008086), uint32(1), proc, uint32(2), uint32(0), uint32(0))
	return append(head, body...)
}

// A connection is there only while libvirtd runs and it is worth it; each event is a hint, and
// so is each beginning.
func TestWatch(t *testing.T) {
	run := t.TempDir()
	dir := filepath.Join(run, "libvirt")
	require.NoError(t, os.Mkdir(dir, 0o700))
	f := newFakeIn(t, dir, both...)
	var callbacks atomic.Uint32
	f.set(procRegisterAny, func() []byte { return xdr(callbacks.Add(1)) })
	conns := make(chan net.Conn, 8)
	f.onCall = func(proc uint32, conn net.Conn) {
		if proc == procRegisterAny {
			conns <- conn
		}
	}
	var worth atomic.Bool
	hints := make(chan struct{}, 100)
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		New(Options{Dir: dir}).Watch(within, worth.Load, 5*time.Millisecond, func() { hints <- struct{}{} })
	}()
	quiet := func() {
		t.Helper()
		time.Sleep(50 * time.Millisecond)
		require.Empty(t, conns)
	}
	quiet()
	worth.Store(true)
	pidFile := filepath.Join(run, "libvirtd.pid")
	require.NoError(t, os.WriteFile(pidFile, []byte("4194304\n"), 0o600)) // above the greatest pid
	quiet()
	require.NoError(t, os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600))
	connect := func() net.Conn {
		t.Helper()
		var conn net.Conn
		for range deviceEvents {
			select {
			case conn = <-conns:
			case <-time.After(20 * time.Second):
				require.Fail(t, "not subscribed")
			}
		}
		<-hints
		return conn
	}
	conn := connect()
	assert.Equal(t, "libvirt-sock-ro", f.last(procRegisterAny).socket)
	assert.Equal(t, uint32(19), binary.BigEndian.Uint32(f.calls[2].args), "device added")
	_, err := conn.Write(event(procDeviceAdded, 1))
	require.NoError(t, err)
	<-hints
	// libvirtd is restarted.
	require.NoError(t, conn.Close())
	connect()
	// The last guest has ended: libvirtd may end, too.
	worth.Store(false)
	require.Eventually(t, func() bool { return f.open.Load() == 0 }, 20*time.Second, time.Millisecond)
	quiet()
	worth.Store(true)
	connect()
	cancel()
	<-ended
	require.Eventually(t, func() bool { return f.open.Load() == 0 }, 20*time.Second, time.Millisecond)
}

type journal struct {
	out string
	err error
	cmd run.Cmd
}

func (j *journal) Run(_ context.Context, c run.Cmd) (run.Result, error) {
	j.cmd = c
	return run.Result{Stdout: []byte(j.out)}, j.err
}

func TestUnopened(t *testing.T) {
	since := time.Unix(1_800_000_000, 0)
	j := &journal{out: `{"__REALTIME_TIMESTAMP":"1800000020000000","MESSAGE":"Cannot access storage file '/dev/vg_two/data': No such file or directory"}
{"__REALTIME_TIMESTAMP":"1800000010000000","MESSAGE":"Cannot access storage file '/dev/vg_two/old' (as uid:64055, gid:64055): No such file or directory"}
{"__REALTIME_TIMESTAMP":"1800000009000000","MESSAGE":"Cannot access storage file '/dev/vg_two/mine': Permission denied"}
{"__REALTIME_TIMESTAMP":"1800000008000000","MESSAGE":"End of file while reading data: Input/output error"}
{"__REALTIME_TIMESTAMP":"1800000007000000","MESSAGE":[67,97,110]}
{"__REALTIME_TIMESTAMP":"1799999999000000","MESSAGE":"Cannot access storage file '/dev/vg_two/before': No such file or directory"}
not JSON
`}
	all, err := UnopenedSince(ctx, j, since)
	require.NoError(t, err)
	assert.Equal(t, []Unopened{{since.Add(20 * time.Second), "/dev/vg_two/data"}, {since.Add(10 * time.Second), "/dev/vg_two/old"}}, all)
	assert.Equal(t, "journalctl", j.cmd.Name)
	assert.Contains(t, j.cmd.Args, "--since=@1800000000")
	j.err = &run.NotFoundError{Name: "journalctl"}
	_, err = UnopenedSince(ctx, j, since)
	require.Error(t, err)
}
