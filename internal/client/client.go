// Package client is the Go client of virtlvmd's API over a unix socket. Every error is
// an *api.Error that tells an administrator in one line what to do.
package client

import (
	"context"
	"net"
	"net/url"
	"strconv"

	"virtlvm/internal/api"
)

// Options say where the daemon listens.
type Options struct {
	// Socket takes every request. Empty: api.SocketPath, with ReadOnlySocket set to
	// api.ReadOnlySocketPath if that is empty too.
	Socket string
	// ReadOnlySocket is tried for requests that only look, when Socket cannot be
	// opened. Empty: there is none.
	ReadOnlySocket string
	// Dial, where not nil, replaces the sockets: it opens a connection to the daemon of
	// the host Name. An *api.Error of its own is what a caller gets to see.
	Dial func(context.Context) (net.Conn, error)
	Name string
}

// Client talks to one daemon. Safe for concurrent use. The deadline of a call is that of
// its context.
type Client struct {
	look, change *door
}

// New makes a client. It opens no connection.
func New(o Options) *Client {
	if o.Dial != nil {
		return &Client{look: newRemoteDoor(o.Dial, o.Name), change: newRemoteDoor(o.Dial, o.Name)}
	}
	if o.Socket == "" {
		o.Socket = api.SocketPath
		if o.ReadOnlySocket == "" {
			o.ReadOnlySocket = api.ReadOnlySocketPath
		}
	}
	look := []string{o.Socket}
	if o.ReadOnlySocket != "" {
		look = append(look, o.ReadOnlySocket)
	}
	// Two pools of connections: a request that changes something must never go out on a
	// connection to the read-only socket.
	return &Client{look: newDoor(look), change: newDoor([]string{o.Socket})}
}

// Close drops idle connections.
func (c *Client) Close() {
	c.look.http.CloseIdleConnections()
	c.change.http.CloseIdleConnections()
}

// Version asks the daemon for its version.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return get[api.Version](ctx, c, api.RouteVersion, nil)
}

// Status asks for this host at a glance.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return get[api.Status](ctx, c, api.RouteStatus, nil)
}

// Volumes lists volumes, of one volume group where vg is not empty.
func (c *Client) Volumes(ctx context.Context, vg string) ([]api.Volume, error) {
	query := url.Values{}
	if vg != "" {
		query.Set("vg", vg)
	}
	return get[[]api.Volume](ctx, c, api.RouteVolumes, query)
}

// Volume is one volume, "vg/lv", with what is above and below it.
func (c *Client) Volume(ctx context.Context, name string) (api.Volume, error) {
	return get[api.Volume](ctx, c, api.RouteVolume, url.Values{"volume": {name}})
}

// Guests lists the guests that run or have holds here.
func (c *Client) Guests(ctx context.Context) ([]api.Guest, error) {
	return get[[]api.Guest](ctx, c, api.RouteGuests, nil)
}

// Handoff asks how the live migrations of a guest went, by its name or uuid.
func (c *Client) Handoff(ctx context.Context, guest string) (api.GuestHandoff, error) {
	return get[api.GuestHandoff](ctx, c, api.RouteHandoff, url.Values{"guest": {guest}})
}

// Hooks lists the hook calls received, newest first, of one guest where guest is not
// empty. limit as in Commands.
func (c *Client) Hooks(ctx context.Context, limit int, guest string) ([]api.HookRecord, error) {
	query := limited(limit)
	if guest != "" {
		query.Set("guest", guest)
	}
	return get[[]api.HookRecord](ctx, c, api.RouteHooks, query)
}

// Peers lists the other hosts that the daemon knows.
func (c *Client) Peers(ctx context.Context) (api.Peers, error) {
	return get[api.Peers](ctx, c, api.RoutePeers, nil)
}

// Activate activates a volume on this host for an operator and waits for the outcome.
func (c *Client) Activate(ctx context.Context, req api.VolumeRequest) (api.Command, error) {
	return post[api.Command](ctx, c, api.RouteActivate, req)
}

// Deactivate ends an operator's activation and waits for the outcome.
func (c *Client) Deactivate(ctx context.Context, req api.VolumeRequest) (api.Command, error) {
	return post[api.Command](ctx, c, api.RouteDeactivate, req)
}

// Check runs the checks of this host, or with cluster those of all hosts, this one first.
func (c *Client) Check(ctx context.Context, cluster bool) ([]api.CheckReport, error) {
	query := url.Values{}
	if cluster {
		query.Set("cluster", "true")
	}
	return get[[]api.CheckReport](ctx, c, api.RouteCheck, query)
}

// Repair runs one repair that a check has offered and waits for the outcome.
func (c *Client) Repair(ctx context.Context, id string) (api.Command, error) {
	return post[api.Command](ctx, c, api.RouteRepair, api.RepairRequest{ID: id})
}

func limited(limit int) url.Values {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return query
}

// Lock tells who holds a volume.
func (c *Client) Lock(ctx context.Context, volume string) (api.Lock, error) {
	return get[api.Lock](ctx, c, api.RouteLock, url.Values{"volume": {volume}})
}

// Locks tells who holds each volume, of one volume group where vg is not empty. cluster:
// every host is asked what it has of them.
func (c *Client) Locks(ctx context.Context, vg string, cluster bool) ([]api.Lock, error) {
	query := ofVG(vg)
	if cluster {
		query.Set("cluster", "true")
	}
	return get[[]api.Lock](ctx, c, api.RouteLocks, query)
}

// StaleHints lists recorded holders that were found wrong.
func (c *Client) StaleHints(ctx context.Context, vg string) ([]api.StaleHint, error) {
	return get[[]api.StaleHint](ctx, c, api.RouteStale, ofVG(vg))
}

// Where asks on which host an operation on a volume should run. op and on may be empty.
func (c *Client) Where(ctx context.Context, volume, op, on string) (api.Endpoint, error) {
	query := url.Values{"volume": {volume}}
	if op != "" {
		query.Set("op", op)
	}
	if on != "" {
		query.Set("on", on)
	}
	return get[api.Endpoint](ctx, c, api.RouteWhere, query)
}

// Transfer moves the locks of volumes to a host and waits for the outcome of each.
func (c *Client) Transfer(ctx context.Context, req api.TransferRequest) (api.TransferResult, error) {
	return post[api.TransferResult](ctx, c, api.RouteTransfer, req)
}

// Hosts lists the hosts of the lockspaces.
func (c *Client) Hosts(ctx context.Context) ([]api.Host, error) {
	return get[[]api.Host](ctx, c, api.RouteHosts, nil)
}

// DeclareFenced declares a host off, for the host that is asked.
func (c *Client) DeclareFenced(ctx context.Context, r api.FencedRequest) (api.Command, error) {
	return post[api.Command](ctx, c, api.RouteFenced, r)
}

func ofVG(vg string) url.Values {
	query := url.Values{}
	if vg != "" {
		query.Set("vg", vg)
	}
	return query
}
