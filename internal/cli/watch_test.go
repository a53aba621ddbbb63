package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestProgress(t *testing.T) {
	for _, tt := range []struct {
		p    *api.Progress
		want string
	}{
		{nil, ""},
		{&api.Progress{}, ""},
		{&api.Progress{Done: 5 << 20, At: noon, Moved: noon}, "5.00 MiB"},
		{&api.Progress{Done: 42, Total: 100, Speed: 1 << 20, Left: 80, Phase: "copying", At: noon, Moved: noon}, "42% of 100 B, copying, 1.00 MiB/s, 1m20s left"},
		{&api.Progress{Done: 42, Total: 100, Speed: 7, At: noon, Moved: noon.Add(-10 * time.Minute)}, "42% of 100 B, stalled for 10m"},
		{&api.Progress{Done: 42, Total: 100, Speed: 7, At: noon.Add(-time.Hour), Moved: noon.Add(-time.Hour)}, "42% of 100 B, 7 B/s, seen 1h ago"},
		{&api.Progress{Done: 200, Total: 100}, "100% of 100 B"},
		{&api.Progress{Done: -5, Total: 1 << 62}, "0% of 4.00 EiB"},
	} {
		assert.Equal(t, tt.want, progress(tt.p, noon))
	}
}

func TestBar(t *testing.T) {
	c := api.Command{ID: 7, State: "PROCESSING_IN_BACKEND", Progress: &api.Progress{Done: 42, Total: 100, At: noon, Moved: noon}}
	assert.Equal(t, "command 7  [##########...............]  42% of 100 B", bar(c, noon, 79))
	assert.Equal(t, "command 7  [######", bar(c, noon, 18))
	c.Progress.Done = 1000
	assert.Contains(t, bar(c, noon, 79), "[#########################]  100% of")
	c.Progress = nil
	assert.Equal(t, "2026-01-02 12:00:00  command 7  PROCESSING_IN_BACKEND", bar(c, noon, 79))
	c.Progress = &api.Progress{Done: 1, Total: 2, Phase: "\x1b[2J"}
	assert.NotContains(t, bar(c, noon, 79), "\x1b")
}

// watching answers with one command after the other, the last one again and again. A nil one
// breaks the connection off.
func watching(t *testing.T, answers ...*api.Command) (socket string, asked *atomic.Int64) {
	t.Helper()
	socket, asked = filepath.Join(t.TempDir(), "s"), &atomic.Int64{}
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := int(asked.Add(1)) - 1
		c := answers[min(n, len(answers)-1)]
		if c == nil {
			conn, _, err := http.NewResponseController(w).Hijack()
			if assert.NoError(t, err) {
				_ = conn.Close()
			}
			return
		}
		assert.NoError(t, json.NewEncoder(w).Encode(c))
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return socket, asked
}

func watchOf(t *testing.T, socket string, width int, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	p := &program{out: bufio.NewWriter(&out), width: width, pause: time.Millisecond}
	app := p.app(&out)
	err := app.RunContext(t.Context(), append([]string{"virtlvm", "--socket", socket}, reorder(app, append([]string{"command", "watch", "7"}, args...))...))
	require.NoError(t, p.out.Flush())
	return out.String(), err
}

func at(state string, done int64) *api.Command {
	return &api.Command{ID: 7, State: state, Side: "local", Progress: &api.Progress{Done: done, Total: 100, At: time.Now(), Moved: time.Now()}}
}

func over() *api.Command {
	return &api.Command{ID: 7, State: "COMPLETED", Side: "local", Finished: noon, Outcome: "copied"}
}

func TestWatchPrintsLines(t *testing.T) {
	socket, _ := watching(t, at("STARTED", 0), at("PROCESSING_IN_BACKEND", 1), at("PROCESSING_IN_BACKEND", 2), at("PROCESSING_IN_BACKEND", 11), nil, nil, at("PROCESSING_IN_BACKEND", 12), over())
	out, err := watchOf(t, socket, 0)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 4, out)
	assert.Contains(t, lines[0], "command 7  STARTED  0% of 100 B")
	assert.Contains(t, lines[1], "command 7  PROCESSING_IN_BACKEND  1% of 100 B")
	assert.Contains(t, lines[2], "11%", "a line for each tenth")
	assert.Equal(t, "copied (command 7)", lines[3])
}

func TestWatchDrawsABar(t *testing.T) {
	socket, _ := watching(t, at("PROCESSING_IN_BACKEND", 10), at("PROCESSING_IN_BACKEND", 20), over())
	out, err := watchOf(t, socket, 80)
	require.NoError(t, err)
	assert.Equal(t, "command 7  [##.......................]  10% of 100 B\r\x1b[Kcommand 7  [#####....................]  20% of 100 B\r\x1b[Kcopied (command 7)\n", out)
}

func TestWatchPrintsJSON(t *testing.T) {
	socket, _ := watching(t, at("STARTED", 0), at("STARTED", 0), at("STARTED", 1), over())
	out, err := watchOf(t, socket, 80, "--json")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 3)
	var c api.Command
	require.NoError(t, json.Unmarshal([]byte(lines[2]), &c))
	assert.Equal(t, "copied", c.Outcome)
}

func TestWatchIsLeft(t *testing.T) {
	socket, asked := watching(t, at("PROCESSING_IN_BACKEND", 10))
	var out bytes.Buffer
	done := make(chan int, 1)
	ctx, leave := context.WithCancel(t.Context())
	p := &program{out: bufio.NewWriter(&out), pause: time.Millisecond}
	app := p.app(&out)
	go func() {
		done <- exitCode(app.RunContext(ctx, []string{"virtlvm", "--socket", socket, "command", "watch", "7"}), &out)
	}()
	require.Eventually(t, func() bool { return asked.Load() > 2 }, 10*time.Second, time.Millisecond)
	leave()
	assert.Equal(t, api.ExitUnknown, <-done)
	assert.Contains(t, out.String(), "command 7 goes on by itself; watch it again with `virtlvm command watch 7`")
}
