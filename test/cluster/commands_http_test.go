package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	"virtlvm/internal/model"
	"virtlvm/internal/server"
)

// door is the real server before the commands of host a: what came by a socket is all that
// they are told.
type door struct {
	t     *testing.T
	r     *rig
	rw    *http.Client
	peers string // the peer socket
}

func (r *rig) door(m *manager) *door {
	r.t.Helper()
	s := server.New(server.Options{Commands: m.Manager, Log: slog.New(slog.DiscardHandler), Version: api.Version{Host: r.a.Name}})
	dir := r.t.TempDir()
	d := &door{t: r.t, r: r, peers: filepath.Join(dir, "peer")}
	rw := filepath.Join(dir, "rw")
	serve := func(srv *http.Server, path string, wrap func(net.Listener) net.Listener) {
		l, err := net.Listen("unix", path)
		require.NoError(r.t, err)
		go func() { _ = srv.Serve(wrap(l)) }()
		r.t.Cleanup(func() { _ = srv.Close() })
	}
	serve(s.HTTP(true), rw, func(l net.Listener) net.Listener { return l })
	serve(s.HTTPPeer(), d.peers, server.PeerListener)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", rw)
	}}
	r.t.Cleanup(transport.CloseIdleConnections)
	d.rw = &http.Client{Transport: transport}
	return d
}

// operator posts as root on this host.
func (d *door) operator(path, body string) (int, string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://virtlvm"+path, strings.NewReader(body))
	require.NoError(d.t, err)
	resp, err := d.rw.Do(req)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	return d.answer(resp)
}

// peer posts as kvm-b.
func (d *door) peer(path string, body any) (int, string) {
	d.t.Helper()
	conn, err := net.Dial("unix", d.peers)
	require.NoError(d.t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(d.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	doc, err := json.Marshal(body)
	require.NoError(d.t, err)
	_, err = fmt.Fprintf(conn, "PEER kvm-b\nPOST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(doc), doc)
	require.NoError(d.t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	return d.answer(resp)
}

// answer is the status, and the message of an error.
func (d *door) answer(resp *http.Response) (int, string) {
	d.t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(d.t, err)
	var e api.Error
	require.NoError(d.t, json.Unmarshal(body, &e))
	return resp.StatusCode, e.Message
}

// journal is all that the database of host a has of commands, their history included; not of
// the single LVM commands that they run.
func (d *door) journal() string {
	d.t.Helper()
	all, err := d.r.a.Store().Commands(ctx, api.CommandFilter{Limit: 1000})
	require.NoError(d.t, err)
	rows := make([]api.Command, 0, len(all))
	for _, c := range all {
		c, err := d.r.a.Store().Command(ctx, c.ID)
		require.NoError(d.t, err)
		c.Progress = nil // of one that runs
		if c.Side != "" {
			rows = append(rows, c)
		}
	}
	doc, err := json.MarshalIndent(rows, "", " ")
	require.NoError(d.t, err)
	return string(doc)
}

// refused: that status, one line, and nothing has changed in the database.
func (d *door) refused(status int, want string, ask func() (int, string)) {
	d.t.Helper()
	before := d.journal()
	got, message := ask()
	assert.Equal(d.t, status, got, message)
	assert.Equal(d.t, want, message)
	assert.NotContains(d.t, message, "\n")
	assert.Equal(d.t, before, d.journal())
}

// What the table of states does not allow cannot be had over the API, whoever asks.
func TestIllegalTransitionsOverTheAPI(t *testing.T) {
	r := newRig(t)
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	r.jobs["kvm-a"].Gate = func(string, int) { <-gate }
	m := r.manage()
	defer m.stop()
	d := r.door(m)

	// One of this host, and one that kvm-b has asked for. Both run.
	here := m.ask(t, api.KindVolumeCopy, copyArgs)
	q := api.PeerCommand{Sequence: 5, Kind: api.KindVolumeErase, Args: json.RawMessage(`{"volume":"vg_two/old"}`), Cause: "operator uid 0", Timeout: 3600}
	r.volume("vg_two", "old", rigSize)
	status, message := d.peer(api.RoutePeerCommand, q)
	require.Equal(t, http.StatusOK, status, message)
	there, _, err := r.a.Store().EntryOf(ctx, "kvm-b", 5)
	require.NoError(t, err)
	m.until(t, here.ID, model.StateBackend)
	m.until(t, there.ID, model.StateBackend)
	path := func(id int64, what string) string { return fmt.Sprintf("/v1/commands/%d/%s", id, what) }
	operator := func(id int64, what, body string) func() (int, string) {
		return func() (int, string) { return d.operator(path(id, what), body) }
	}
	ack := func(found string) func() (int, string) {
		return func() (int, string) {
			return d.peer(api.RoutePeerCommandAck, api.PeerAck{Sequence: 5, Found: found, Why: "I say so"})
		}
	}

	runs := "command %d is PROCESSING_IN_BACKEND: only a command whose outcome is not known can be resolved"
	for _, as := range []string{"completed", "failed"} {
		d.refused(http.StatusBadRequest, fmt.Sprintf(runs, here.ID), operator(here.ID, "resolve", `{"as":"`+as+`","why":"x"}`))
		d.refused(http.StatusBadRequest, fmt.Sprintf(runs, there.ID), operator(there.ID, "resolve", `{"as":"`+as+`","why":"x"}`))
		d.refused(http.StatusBadRequest, fmt.Sprintf(runs, there.ID), ack(as))
	}
	d.refused(http.StatusBadRequest, `a command can be resolved as completed or as failed, not as "RECONCILED"`, operator(here.ID, "resolve", `{"as":"RECONCILED","why":"x"}`))
	d.refused(http.StatusBadRequest, "say why: it is kept in the journal", operator(here.ID, "resolve", `{"as":"failed","why":" \n"}`))
	d.refused(http.StatusBadRequest, fmt.Sprintf("command %d has not ended on kvm-a (PROCESSING_IN_BACKEND)", there.ID), ack(""))
	d.refused(http.StatusBadRequest, `a command can be resolved as completed or as failed, not as "RECONCILE_SKIPPED"`, ack("RECONCILE_SKIPPED"))
	d.refused(http.StatusNotFound, "there is no command 4711 that goes on by itself; 'virtlvm commands' lists the journal", operator(4711, "cancel", `{}`))
	d.refused(http.StatusNotFound, "there is no command 4711 that goes on by itself; 'virtlvm commands' lists the journal", operator(4711, "resolve", `{"as":"failed","why":"x"}`))
	// The same request, and it is another one.
	other := q
	other.Args = json.RawMessage(`{"volume":"vg_san/vm1"}`)
	taken := fmt.Sprintf("command %d of this journal has the same origin and sequence, and is another one (volume.erase)", there.ID)
	for _, route := range []string{api.RoutePeerCommand, api.RoutePeerCommandAsk} {
		d.refused(http.StatusBadRequest, taken, func() (int, string) { return d.peer(route, other) })
	}
	other = q
	other.Sequence, other.Kind = 6, "rm"
	d.refused(http.StatusBadRequest, `virtlvmd on kvm-a does not know commands of kind "rm"`, func() (int, string) { return d.peer(api.RoutePeerCommand, other) })

	// Both have ended.
	open()
	m.until(t, here.ID, model.StateCompleted)
	m.until(t, there.ID, model.StateCompleted)
	ended := "command %d has ended (COMPLETED); there is nothing to cancel"
	for _, id := range []int64{here.ID, there.ID} {
		d.refused(http.StatusBadRequest, fmt.Sprintf(ended, id), operator(id, "cancel", `{}`))
		d.refused(http.StatusBadRequest, fmt.Sprintf("command %d is COMPLETED: only a command whose outcome is not known can be resolved", id), operator(id, "resolve", `{"as":"failed","why":"x"}`))
	}
	d.refused(http.StatusBadRequest, `a command can be resolved as completed or as failed, not as "nonsense"`, ack("nonsense"))
	// A wish to cancel that comes with the question is too late, and no error.
	late := q
	late.Cancelled = "operator uid 0"
	d.refused(http.StatusOK, "", func() (int, string) { return d.peer(api.RoutePeerCommandAsk, late) })

	// The answer, again and again, with another outcome: the first one stays.
	status, message = ack("failed")()
	require.Equal(t, http.StatusOK, status, message)
	c := m.until(t, there.ID, model.StateCompleted)
	assert.Empty(t, c.Error)
	assert.False(t, c.Unacknowledged)
	assert.Equal(t, "kvm-b takes it for failed (I say so), which it is not here: look at both journals", c.History[len(c.History)-1].Cause)
	for _, found := range []string{"failed", "", "completed"} {
		d.refused(http.StatusOK, "", ack(found))
	}
	d.refused(http.StatusOK, "", func() (int, string) { // a row that is gone
		return d.peer(api.RoutePeerCommandAck, api.PeerAck{Sequence: 77, Found: "completed"})
	})
	assert.Equal(t, pattern(), r.content("vg_two/copy")[:rigSize])
}
