package daemon

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/config"
	"virtlvm/internal/metrics"
	"virtlvm/internal/run"
	"virtlvm/internal/run/runtest"
	"virtlvm/internal/store"
)

func TestProgramsAreCounted(t *testing.T) {
	f := runtest.New(t)
	f.Expect("lvchange", "-aey", "vg/lv").Exit(5).Stderr("  LV locked by other host: vg/lv\n  Failed to lock logical volume vg/lv.\n")
	f.Expect("lvs", "-o", "lv_name")
	c := newCounters()
	r := meteredRunner{f, c}
	_, err := r.Run(t.Context(), run.Cmd{Name: "lvchange", Args: []string{"-aey", "vg/lv"}})
	require.Error(t, err, "what a program says goes on")
	_, err = r.Run(t.Context(), run.Cmd{Name: "lvs", Args: []string{"-o", "lv_name"}})
	require.NoError(t, err)
	c.called("kvm-b", time.Second, nil)
	c.called("kvm-b", time.Second, api.NewError(api.KindUnreachable, "kvm-b cannot be reached"))
	var b strings.Builder
	require.NoError(t, c.set.Write(&b, func(*metrics.Scrape) {}))
	for _, want := range []string{
		`virtlvm_program_duration_seconds_count{program="lvchange -aey"} 1`,
		`virtlvm_program_duration_seconds_count{program="lvs"} 1`,
		`virtlvm_program_failures_total{program="lvchange -aey",class="held"} 1`,
		`virtlvm_peer_call_duration_seconds_count{host="kvm-b"} 2`,
		`virtlvm_peer_errors_total{host="kvm-b",kind="unreachable"} 1`,
	} {
		assert.Contains(t, b.String(), want+"\n")
	}
	assert.NotContains(t, b.String(), `program="lvs",class`)
	assert.Equal(t, "other", opLabel("--x"))
}

func TestTextfile(t *testing.T) {
	dir := t.TempDir()
	cfg := config.Default()
	cfg.Paths.StateDir = dir
	d := &Daemon{
		host: "kvm-a", counters: newCounters(), store: store.New(store.Options{Path: filepath.Join(dir, "virtlvm.db")}),
		engine: activation.New(activation.Deps{Now: time.Now, Settings: func() activation.Settings { return activation.Settings{} }}),
	}
	d.config.Store(cfg)
	require.NoError(t, d.store.Open(t.Context()))
	path := filepath.Join(dir, "virtlvm.prom")
	require.NoError(t, d.writeTextfile(t.Context(), path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, want := range []string{
		"virtlvm_ready 0", `virtlvm_holds{mode="ex"} 0`, "virtlvm_promotions_pending 0", "virtlvm_unwanted_oldest_seconds 0",
		`virtlvm_journal_rows{table="command"} 0`, `virtlvm_spool_events{state="waiting"} 0`,
	} {
		assert.Contains(t, string(text), want+"\n")
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.new"))
	require.NoError(t, err)
	assert.Empty(t, left)
	require.Error(t, d.writeTextfile(t.Context(), filepath.Join(dir, "nowhere", "virtlvm.prom")))
	// A database that does not answer takes its rows away, not the rest.
	require.NoError(t, d.store.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, d.writeTextfile(ctx, path))
	text, err = os.ReadFile(path)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "virtlvm_journal_rows")
}

func TestPendingVolumes(t *testing.T) {
	now := time.Now()
	var c counters
	var b strings.Builder
	require.NoError(t, c.set.Write(&b, func(s *metrics.Scrape) {
		pending(s, []api.Unwanted{
			{Wanted: "ex", Actual: "sh", Since: now.Add(-time.Minute)},
			{Wanted: "ex", Actual: "sh", Since: now.Add(-time.Hour)},
			{Wanted: "off", Actual: "ex", Since: now},
		}, now)
	}))
	for _, want := range []string{
		`virtlvm_unwanted_volumes{wanted="ex",actual="sh"} 2`, `virtlvm_unwanted_volumes{wanted="off",actual="ex"} 1`,
		"virtlvm_unwanted_oldest_seconds 3600", "virtlvm_promotions_pending 2",
	} {
		assert.Contains(t, b.String(), want+"\n")
	}
}
