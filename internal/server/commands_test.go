package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

type fakeCommands struct {
	mu     sync.Mutex
	filter api.CommandFilter
	peers  []string
}

func (c *fakeCommands) List(_ context.Context, f api.CommandFilter) ([]api.Command, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filter = f
	return []api.Command{}, nil
}

func (*fakeCommands) View(_ context.Context, id int64, fresh bool) (api.Command, error) {
	return api.Command{ID: id, Why: map[bool]string{true: "asked"}[fresh]}, nil
}

func (*fakeCommands) Summary(context.Context) (api.CommandSummary, []string, error) {
	return api.CommandSummary{Skipped: 1}, []string{"command 12 needs you"}, nil
}

func (*fakeCommands) Request(_ context.Context, req api.CommandRequest, by string) (api.Command, error) {
	if req.Kind == "refused" {
		return api.Command{}, api.NewError(api.KindBadRequest, "no such kind")
	}
	return api.Command{ID: 8, Cause: by}, nil
}

func (*fakeCommands) Preview(_ context.Context, req api.CommandRequest) (api.CommandPlan, error) {
	return api.CommandPlan{Kind: req.Kind, Targets: []string{}, Volumes: []api.PlannedVolume{}}, nil
}

func (*fakeCommands) Cancel(_ context.Context, id int64, req api.CancelRequest, by string) (api.Command, error) {
	return api.Command{ID: id, Cancelled: req.Why + " by " + by}, nil
}

func (*fakeCommands) Resolve(_ context.Context, id int64, req api.ResolveRequest, _ string) (api.Command, error) {
	return api.Command{ID: id, State: req.As}, nil
}

func (c *fakeCommands) heard(what, peer string, sequence int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peers = append(c.peers, fmt.Sprintf("%s %s %d", what, peer, sequence))
}

func (c *fakeCommands) PeerRun(_ context.Context, peer string, q api.PeerCommand) (api.PeerReport, error) {
	c.heard("run", peer, q.Sequence)
	return api.PeerReport{ID: 3}, nil
}

func (c *fakeCommands) PeerPlan(_ context.Context, peer string, q api.PeerPlan) (api.CommandPlan, error) {
	c.heard("plan "+q.Kind, peer, 0)
	return api.CommandPlan{Kind: q.Kind, Targets: []string{}, Volumes: []api.PlannedVolume{}}, nil
}

func (c *fakeCommands) PeerAsk(_ context.Context, peer string, q api.PeerCommand) (api.PeerReport, error) {
	c.heard("ask", peer, q.Sequence)
	return api.PeerReport{ID: 3}, nil
}

func (c *fakeCommands) PeerAck(_ context.Context, peer string, q api.PeerAck) error {
	c.heard("ack", peer, q.Sequence)
	return nil
}

func (c *fakeCommands) PeerNotice(_ context.Context, peer string, q api.PeerCommandNotice) (api.PeerCommandNoticeAnswer, error) {
	c.heard("notice", peer, q.Sequences[0])
	return api.PeerCommandNoticeAnswer{}, nil
}

func TestFilterOfTheList(t *testing.T) {
	client, _, c := dial(t, false)
	status, _ := ask(t, client, "GET", "/v1/commands?before=9&limit=2&state=FAILED&state=open&since=2026-01-02T03:04:05Z", "")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, api.CommandFilter{Limit: 2, Before: 9, States: []string{"FAILED", "open"}, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}, c.filter)
}

func TestCommandsBetweenHosts(t *testing.T) {
	c := &fakeCommands{}
	seen := map[string][]int{}
	var mu sync.Mutex
	s := New(Options{
		Engine: &fakeEngine{}, Commands: c, Journal: &fakeJournal{}, Log: slog.New(slog.DiscardHandler), Version: api.Version{Host: "kvm-b"},
		PeerConns: func(host string, n int) {
			mu.Lock()
			defer mu.Unlock()
			seen[host] = append(seen[host], n)
		},
	})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	srv := s.HTTPPeer()
	go func() { _ = srv.Serve(PeerListener(l)) }()
	t.Cleanup(func() { _ = srv.Close() })

	first, second := open(t, path, "PEER kvm-a\n"), open(t, path, "PEER kvm-a\n")
	r := bufio.NewReader(first)
	for _, tt := range []struct{ route, body string }{
		{api.RoutePeerCommand, `{"sequence":1}`},
		{api.RoutePeerCommandAsk, `{"sequence":2}`},
		{api.RoutePeerCommandAck, `{"sequence":3}`},
		{api.RoutePeerCommandNotice, `{"sequences":[4]}`},
	} {
		_, err := fmt.Fprintf(first, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", tt.route, len(tt.body), tt.body)
		require.NoError(t, err)
		status, body := response(t, r)
		assert.Equal(t, http.StatusOK, status, body)
	}
	assert.Equal(t, []string{"run kvm-a 1", "ask kvm-a 2", "ack kvm-a 3", "notice kvm-a 4"}, c.peers)
	status, body := request(t, second, bufio.NewReader(second), "POST", api.RouteCommands)
	assert.Equal(t, http.StatusForbidden, status, body)
	assert.Contains(t, body, "no request that hosts make of each other")
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen["kvm-a"]) == 4
	}, 10*time.Second, time.Millisecond)
	assert.Equal(t, []int{1, 2, 1, 0}, seen["kvm-a"])

	client, _, _ := dial(t, true)
	for _, route := range []string{api.RoutePeerCommand, api.RoutePeerCommandAsk, api.RoutePeerCommandAck, api.RoutePeerCommandNotice} {
		status, _ := ask(t, client, "POST", route, `{}`)
		assert.Equal(t, http.StatusForbidden, status, "%s is for hosts alone", route)
	}
}

// follower reads the stream of events of a server.
func follower(t *testing.T, s *Server, header string) (srv *http.Server, lines *bufio.Scanner, status int, kind string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	srv = s.HTTP(false)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://virtlvm"+api.RouteEvents+"?follow=1", nil)
	require.NoError(t, err)
	if header != "" {
		req.Header.Set("Last-Event-ID", header)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return srv, bufio.NewScanner(resp.Body), resp.StatusCode, resp.Header.Get("Content-Type")
}

func nextEvent(t *testing.T, lines *bufio.Scanner) api.Event {
	t.Helper()
	var id string
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = text
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var e api.Event
			require.NoError(t, json.Unmarshal([]byte(data), &e))
			assert.Equal(t, id, fmt.Sprint(e.ID))
			return e
		}
	}
	t.Fatal("the stream has ended")
	return api.Event{}
}

func streaming(j *fakeJournal) *Server {
	return New(Options{Engine: &fakeEngine{}, Commands: &fakeCommands{}, Journal: j, Log: slog.New(slog.DiscardHandler)})
}

func TestEventsAreFollowed(t *testing.T) {
	j := &fakeJournal{events: []api.Event{{ID: 4}, {ID: 5}}}
	srv, lines, _, kind := follower(t, streaming(j), "")
	assert.Equal(t, "text/event-stream", kind)
	require.True(t, lines.Scan())
	assert.Equal(t, ":", lines.Text(), "it says at once that it has begun")
	j.mu.Lock()
	j.events = append(j.events, api.Event{ID: 7, To: "COMPLETED"})
	j.mu.Unlock()
	assert.Equal(t, "COMPLETED", nextEvent(t, lines).To, "what happens from now on")

	// A clean stop does not wait for a client that follows.
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, srv.Shutdown(ctx))
	assert.Less(t, time.Since(began), 10*time.Second)
	for lines.Scan() { // until it ends
	}
}

func TestEventsAreTakenUpAgain(t *testing.T) {
	j := &fakeJournal{}
	for i := range int64(2*eventBatch + 3) {
		j.events = append(j.events, api.Event{ID: i + 1})
	}
	_, lines, _, _ := follower(t, streaming(j), "2")
	for i := range int64(2*eventBatch + 1) {
		require.Equal(t, i+3, nextEvent(t, lines).ID)
	}
}

func TestTooManyFollowers(t *testing.T) {
	s := streaming(&fakeJournal{})
	for range maxFollowers {
		s.follow <- struct{}{}
	}
	_, _, status, _ := follower(t, s, "")
	assert.Equal(t, http.StatusServiceUnavailable, status)
}
