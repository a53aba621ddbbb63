package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"virtlvm/internal/api"
)

// Commands lists the journal, newest first. Limit 0: as many as the daemon thinks fit.
func (c *Client) Commands(ctx context.Context, f api.CommandFilter) ([]api.Command, error) {
	query := limited(f.Limit)
	if f.Before > 0 {
		query.Set("before", strconv.FormatInt(f.Before, 10))
	}
	if len(f.States) > 0 {
		query["state"] = f.States
	}
	if !f.Since.IsZero() {
		query.Set("since", f.Since.UTC().Format(time.RFC3339))
	}
	return get[[]api.Command](ctx, c, api.RouteCommands, query)
}

// Command asks for one row of the journal.
func (c *Client) Command(ctx context.Context, id int64) (api.Command, error) {
	return get[api.Command](ctx, c, commandRoute(api.RouteCommand, id), nil)
}

// FreshCommand is Command, and asks the host that runs the command first.
func (c *Client) FreshCommand(ctx context.Context, id int64) (api.Command, error) {
	return get[api.Command](ctx, c, commandRoute(api.RouteCommand, id), url.Values{"fresh": {"1"}})
}

// Run asks for a command, and returns when it is in the journal.
func (c *Client) Run(ctx context.Context, req api.CommandRequest) (api.Command, error) {
	return post[api.Command](ctx, c, api.RouteCommands, req)
}

// Plan tells what a command would do.
func (c *Client) Plan(ctx context.Context, req api.CommandRequest) (api.CommandPlan, error) {
	return post[api.CommandPlan](ctx, c, api.RouteCommandPlan, req)
}

// Cancel asks a command to end, and returns when it knows that it shall.
func (c *Client) Cancel(ctx context.Context, id int64, req api.CancelRequest) (api.Command, error) {
	return post[api.Command](ctx, c, commandRoute(api.RouteCommandCancel, id), req)
}

// Resolve says how a command has ended whose outcome could not be found out.
func (c *Client) Resolve(ctx context.Context, id int64, req api.ResolveRequest) (api.Command, error) {
	return post[api.Command](ctx, c, commandRoute(api.RouteCommandResolve, id), req)
}

// Events lists the transitions after an event, or with after below 0 the newest, oldest first.
// limit as in Commands.
func (c *Client) Events(ctx context.Context, after int64, limit int) ([]api.Event, error) {
	query := limited(limit)
	if after >= 0 {
		query.Set("after", strconv.FormatInt(after, 10))
	}
	return get[[]api.Event](ctx, c, api.RouteEvents, query)
}

// Follow calls each for the transitions after an event, or with after below 0 for those from
// now on, until ctx ends, each fails or the connection ends, which is an error.
func (c *Client) Follow(ctx context.Context, after int64, each func(api.Event) error) error {
	query := url.Values{"follow": {"1"}}
	if after >= 0 {
		query.Set("after", strconv.FormatInt(after, 10))
	}
	req, err := newRequest(ctx, http.MethodGet, api.RouteEvents, query, nil)
	if err != nil {
		return api.NewError(api.KindInternal, fmt.Sprintf("cannot ask virtlvmd: %v", err))
	}
	resp, err := c.look.http.Do(req)
	if err != nil {
		return c.look.explain(ctx, http.MethodGet, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return c.look.explain(ctx, http.MethodGet, err)
		}
		return refusal(resp, data)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		if !isData {
			continue
		}
		var e api.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return api.NewError(api.KindInternal, fmt.Sprintf("cannot understand an event of virtlvmd: %v", err))
		}
		if err := each(e); err != nil {
			return err
		}
	}
	err = lines.Err()
	if err == nil {
		err = errors.New("the stream has ended")
	}
	return c.look.explain(ctx, http.MethodGet, err)
}

func commandRoute(route string, id int64) string {
	return strings.Replace(route, "{id}", strconv.FormatInt(id, 10), 1)
}
