package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/version"
)

// maxAnswer bounds what is read of an answer: far above 100,000 volumes, and a wrong
// program behind the socket cannot fill the memory.
const maxAnswer = 256 << 20

// door is a pool of connections to the first of some sockets that can be opened.
type door struct {
	sockets []string
	where   string // "", or " on HOST" where the daemon is another host's
	http    *http.Client
}

func newDoor(sockets []string) *door {
	d := &door{sockets: sockets}
	d.open(d.dial)
	return d
}

// newRemoteDoor is a pool of connections to the daemon of another host.
func newRemoteDoor(dial func(context.Context) (net.Conn, error), name string) *door {
	d := &door{where: " on " + name}
	d.open(func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, &dialError{name, err}
		}
		return conn, nil
	})
	return d
}

func (d *door) open(dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	d.http = &http.Client{
		Transport: &http.Transport{DialContext: dial, DisableCompression: true},
		// The daemon never redirects; following one would leave the socket.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dialError is a connection that could not be made: nothing has been asked yet.
type dialError struct {
	socket string
	err    error
}

func (e *dialError) Error() string { return fmt.Sprintf("cannot connect to %s: %v", e.socket, e.err) }
func (e *dialError) Unwrap() error { return e.err }

// dial opens the first socket that lets us in. The first failure is the one to report:
// it is about the socket that an administrator is meant to use.
func (d *door) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var first error
	for _, socket := range d.sockets {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = &dialError{socket, err}
		}
	}
	return nil, first
}

func get[T any](ctx context.Context, c *Client, route string, query url.Values) (T, error) {
	return roundTrip[T](ctx, c.look, http.MethodGet, route, query, nil)
}

func post[T any](ctx context.Context, c *Client, route string, body any) (T, error) {
	return roundTrip[T](ctx, c.change, http.MethodPost, route, nil, body)
}

func roundTrip[T any](ctx context.Context, d *door, method, route string, query url.Values, body any) (T, error) {
	var out T
	req, err := newRequest(ctx, method, route, query, body)
	if err != nil {
		return out, api.NewError(api.KindInternal, fmt.Sprintf("cannot ask virtlvmd: %v", err))
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return out, d.explain(ctx, method, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return out, d.explain(ctx, method, err)
	}
	if resp.StatusCode/100 != 2 {
		return out, refusal(resp, data)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return out, api.NewError(api.KindInternal, fmt.Sprintf("cannot understand the answer of virtlvmd to %s %s: %v", method, route, err))
	}
	return out, nil
}

func newRequest(ctx context.Context, method, route string, query url.Values, body any) (*http.Request, error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	// The host part is needed by HTTP only; the dialer ignores it.
	u := url.URL{Scheme: "http", Host: "virtlvmd", Path: route, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "virtlvm/"+version.Version)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// refusal turns an answer that is not 2xx into the error it carries.
func refusal(resp *http.Response, data []byte) error {
	var e api.Error
	if json.Unmarshal(data, &e) == nil && e.Kind != "" && e.Message != "" {
		return &e
	}
	what := fmt.Sprintf("%s to %s %s", resp.Status, resp.Request.Method, resp.Request.URL.Path)
	if resp.StatusCode == http.StatusNotFound && !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		return api.NewError(api.KindInternal, fmt.Sprintf("virtlvmd answered %s: another version runs there; compare `virtlvm version`", what))
	}
	return api.NewError(api.KindInternal, fmt.Sprintf("virtlvmd answered %s without a reason; see `journalctl -u virtlvmd`", what))
}
