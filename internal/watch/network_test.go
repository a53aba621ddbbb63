package watch

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	toA, toB     = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2")
	wayA         = way{link: 2, source: netip.MustParseAddr("10.0.0.9")}
	wayB         = way{link: 3, source: netip.MustParseAddr("fd00::9")}
	otherAddress = netip.MustParseAddr("10.0.0.10")
)

// fakeKernel is one with two links.
type fakeKernel struct {
	mu         sync.Mutex
	changes    chan change
	subscribed int
	broken     map[way]bool
	deaf       bool
}

func (k *fakeKernel) subscribe(<-chan struct{}) (<-chan change, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.deaf {
		return nil, errors.New("no netlink")
	}
	k.subscribed++
	k.changes = make(chan change)
	return k.changes, nil
}

func (k *fakeKernel) route(to netip.Addr) (way, error) {
	w := map[netip.Addr]way{toA: wayA, toB: wayB}[to]
	if whole, _ := k.whole(w); !whole {
		return way{}, errors.New("network is unreachable")
	}
	return w, nil
}

func (k *fakeKernel) whole(w way) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.broken[w], nil
}

func (k *fakeKernel) tell(c change) {
	k.mu.Lock()
	to := k.changes
	k.mu.Unlock()
	to <- c
	synctest.Wait()
}

// drop is a kernel whose buffer was too small.
func (k *fakeKernel) drop(broken ...way) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range broken {
		k.broken[w] = true
	}
	close(k.changes)
}

func watched(t *testing.T, run func(k *fakeKernel, told func() []string)) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{broken: map[way]bool{}}
		var mu sync.Mutex
		var said []string
		say := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, what)
		}
		n := &Network{
			Hosts: func(context.Context) map[string][]netip.Addr { return map[string][]netip.Addr{"a": {toA}, "b": {toB}} },
			Lost:  func(host string) { say(host) }, Back: func() { say("back") },
			Log: slog.New(slog.DiscardHandler), kernel: k,
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); n.Run(ctx) }()
		synctest.Wait()
		run(k, func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			all := said
			said = nil
			return all
		})
		cancel()
		<-done
	})
}

func TestWhatIsOnTheWay(t *testing.T) {
	watched(t, func(k *fakeKernel, told func() []string) {
		for _, tt := range []struct {
			name string
			c    change
			want []string
		}{
			{"link", change{link: 2, gone: true}, []string{"a"}},
			{"another link", change{link: 7, gone: true}, nil},
			{"address", change{link: 3, addr: wayB.source, gone: true}, []string{"b"}},
			{"another address of the link", change{link: 2, addr: otherAddress, gone: true}, nil},
			{"the same address on another link", change{link: 3, addr: wayA.source, gone: true}, nil},
			{"a link that comes", change{link: 2}, []string{"back"}},
			{"an address that comes", change{link: 7, addr: otherAddress}, []string{"back"}},
		} {
			k.tell(tt.c)
			assert.Equal(t, tt.want, told(), tt.name)
		}
	})
}

// The kernel drops what nobody reads in time: listen again, and look what was missed.
func TestMissedChanges(t *testing.T) {
	watched(t, func(k *fakeKernel, told func() []string) {
		k.drop(wayB)
		assert.Equal(t, []string{"b"}, told())
		assert.Equal(t, 2, k.subscribed)
		k.tell(change{link: 2, gone: true})
		assert.Equal(t, []string{"a"}, told(), "it still listens")
		time.Sleep(2 * learnPause)
		k.tell(change{link: 3, gone: true})
		assert.Equal(t, []string{"b"}, told(), "a way that is broken is not forgotten")
	})
}

func TestDeafForAWhile(t *testing.T) {
	watched(t, func(k *fakeKernel, told func() []string) {
		k.mu.Lock()
		k.deaf = true
		k.mu.Unlock()
		k.drop()
		time.Sleep(10 * retryPause)
		assert.Empty(t, told())
		k.mu.Lock()
		k.deaf, k.broken[wayA] = false, true
		k.mu.Unlock()
		time.Sleep(2 * retryPause)
		assert.Equal(t, []string{"a"}, told())
	})
}

// The real kernel, as far as nothing must be changed for it.
func TestThisKernel(t *testing.T) {
	k := rtnetlink{}
	w, err := k.route(netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddr("127.0.0.1"), w.source)
	whole, err := k.whole(w)
	require.NoError(t, err)
	assert.True(t, whole)
	for _, broken := range []way{{link: w.link, source: otherAddress}, {link: 1 << 30, source: w.source}} {
		whole, err = k.whole(broken)
		require.NoError(t, err)
		assert.False(t, whole)
	}
	done := make(chan struct{})
	changes, err := k.subscribe(done)
	require.NoError(t, err)
	close(done)
	select {
	case _, open := <-changes:
		assert.False(t, open)
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
}

func TestReadsTheKernel(t *testing.T) {
	link := func(kind uint16, flags uint32) netlink.LinkUpdate {
		u := netlink.LinkUpdate{Header: unix.NlMsghdr{Type: kind}}
		u.Index, u.Flags = 4, flags
		return u
	}
	const up = unix.IFF_UP | unix.IFF_RUNNING
	assert.Equal(t, change{link: 4}, linkChange(link(unix.RTM_NEWLINK, up)))
	assert.Equal(t, change{link: 4, gone: true}, linkChange(link(unix.RTM_NEWLINK, unix.IFF_UP)), "no carrier")
	assert.Equal(t, change{link: 4, gone: true}, linkChange(link(unix.RTM_NEWLINK, 0)), "set down")
	assert.Equal(t, change{link: 4, gone: true}, linkChange(link(unix.RTM_DELLINK, up)), "removed")
	v4 := netlink.AddrUpdate{LinkIndex: 4, LinkAddress: net.IPNet{IP: net.ParseIP("10.0.0.9")}}
	assert.Equal(t, change{link: 4, addr: wayA.source, gone: true}, addrChange(v4), "however it is written")
	v4.NewAddr = true
	assert.False(t, addrChange(v4).gone)
}
