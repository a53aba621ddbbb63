package watch

import (
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rtnetlink is this host's kernel.
type rtnetlink struct{}

func (rtnetlink) subscribe(done <-chan struct{}) (<-chan change, error) {
	// One that ends takes the other along: both are begun anew.
	stop := make(chan struct{})
	var once sync.Once
	end := func() { once.Do(func() { close(stop) }) }
	links, addrs := make(chan netlink.LinkUpdate, 16), make(chan netlink.AddrUpdate, 16)
	ignore := func(error) {} // the channel is closed as well
	if err := netlink.LinkSubscribeWithOptions(links, stop, netlink.LinkSubscribeOptions{ErrorCallback: ignore}); err != nil {
		return nil, fmt.Errorf("cannot subscribe to links: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(addrs, stop, netlink.AddrSubscribeOptions{ErrorCallback: ignore}); err != nil {
		end()
		return nil, fmt.Errorf("cannot subscribe to addresses: %w", err)
	}
	changes := make(chan change)
	go func() {
		defer close(changes)
		defer end()
		for {
			var c change
			select {
			case u, open := <-links:
				if !open {
					return
				}
				c = linkChange(u)
			case u, open := <-addrs:
				if !open {
					return
				}
				c = addrChange(u)
			case <-done:
				return
			}
			select {
			case changes <- c:
			case <-done:
				return
			}
		}
	}()
	return changes, nil
}

// linkChange: a link has gone when it was removed, set down, or has lost its carrier
// (netdevice(7), IFF_RUNNING).
func linkChange(u netlink.LinkUpdate) change {
	return change{link: int(u.Index), gone: u.Header.Type == unix.RTM_DELLINK || u.Flags&unix.IFF_UP == 0 || u.Flags&unix.IFF_RUNNING == 0}
}

func addrChange(u netlink.AddrUpdate) change {
	addr, _ := netip.AddrFromSlice(u.LinkAddress.IP)
	return change{link: u.LinkIndex, addr: addr.Unmap(), gone: !u.NewAddr}
}

func (rtnetlink) route(to netip.Addr) (way, error) {
	routes, err := netlink.RouteGet(net.IP(to.AsSlice()))
	if err != nil {
		return way{}, err
	}
	if len(routes) == 0 {
		return way{}, fmt.Errorf("there is no route to %s", to)
	}
	source, _ := netip.AddrFromSlice(routes[0].Src)
	return way{link: routes[0].LinkIndex, source: source.Unmap()}, nil
}

func (rtnetlink) whole(w way) (bool, error) {
	iface, err := net.InterfaceByIndex(w.link)
	if err != nil {
		return false, nil //nolint:nilerr // it is not there any more
	}
	if iface.Flags&net.FlagUp == 0 || iface.Flags&net.FlagRunning == 0 {
		return false, nil
	}
	addrs, err := iface.Addrs()
	if err != nil {
		return false, fmt.Errorf("cannot list the addresses of %s: %w", iface.Name, err)
	}
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Unmap() == w.source {
			return true, nil
		}
	}
	return !w.source.IsValid(), nil
}
