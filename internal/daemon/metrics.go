package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/metrics"
	"virtlvm/internal/run"
	"virtlvm/internal/version"
)

// textfilePause is how often the file for node_exporter is written.
const textfilePause = 15 * time.Second

// counters are what the daemon counts; docs/metrics.md lists them.
type counters struct {
	set      metrics.Set
	hooks    *metrics.Durations
	programs *metrics.Durations
	failures *metrics.Counter
	peers    *metrics.Durations
	peerErrs *metrics.Counter
}

func newCounters() *counters {
	ms := func(all ...int) (bounds []time.Duration) {
		for _, n := range all {
			bounds = append(bounds, time.Duration(n)*time.Millisecond)
		}
		return bounds
	}
	c := &counters{}
	c.hooks = c.set.Durations("virtlvm_hook_duration_seconds", "Hook calls by operation and verdict.", ms(5, 25, 100, 500, 1000, 2500, 5000, 10000, 30000, 60000), "op", "verdict")
	c.programs = c.set.Durations("virtlvm_program_duration_seconds", "Programs that were run: LVM's, lvmlockctl, sanlock, dmsetup, qemu-img.", ms(5, 25, 100, 500, 1000, 2500, 5000, 10000, 30000, 60000), "program")
	c.failures = c.set.Counter("virtlvm_program_failures_total", "Programs that failed, by class.", "program", "class")
	c.peers = c.set.Durations("virtlvm_peer_call_duration_seconds", "Requests to other hosts.", ms(5, 25, 100, 500, 1000, 5000, 15000), "host")
	c.peerErrs = c.set.Counter("virtlvm_peer_errors_total", "Requests to other hosts that failed, by kind.", "host", "kind")
	return c
}

// meteredRunner counts programs.
type meteredRunner struct {
	run.Runner
	c *counters
}

func (r meteredRunner) Run(ctx context.Context, cmd run.Cmd) (run.Result, error) {
	began := time.Now()
	res, err := r.Runner.Run(ctx, cmd)
	program := programLabel(cmd)
	r.c.programs.Observe(time.Since(began), program)
	if failed := lvm.Classify(cmd, res, err); failed != nil {
		r.c.failures.Add(1, program, classOf(failed))
	}
	return res, err
}

// programLabel is a program, with what it is to do where it does several things.
func programLabel(cmd run.Cmd) string {
	switch cmd.Name {
	case "lvchange", "vgchange", "dmsetup", "sanlock", "lvmlockctl":
		if len(cmd.Args) > 0 {
			return cmd.Name + " " + cmd.Args[0]
		}
	}
	return cmd.Name
}

func classOf(err error) string {
	var typed interface{ Kind() api.Kind }
	if errors.As(err, &typed) {
		return string(typed.Kind())
	}
	return string(api.KindOf(err))
}

// meteredEngine counts hook calls.
type meteredEngine struct {
	*activation.Manager
	c *counters
}

// Hook implements server.Engine.
func (e meteredEngine) Hook(ctx context.Context, call api.HookCall) api.HookVerdict {
	began := time.Now()
	v := e.Manager.Hook(ctx, call)
	verdict := "allowed"
	switch {
	case call.Bypassed:
		verdict = "bypassed"
	case !api.Verdicting(call.Op):
		verdict = "noted"
	case ctx.Err() != nil:
		verdict = "gone" // the hook has not waited for it
	case !v.Allow:
		verdict = "refused"
	}
	e.c.hooks.Observe(time.Since(began), opLabel(call.Op), verdict)
	return v
}

// opLabel keeps unknown operations from making metrics without end.
func opLabel(op string) string {
	switch op {
	case "prepare", "start", "started", "stopped", "release", "migrate", "restore", "reconnect", "attach":
		return op
	}
	return "other"
}

// called counts a request to another host.
func (c *counters) called(host string, took time.Duration, err error) {
	c.peers.Observe(took, host)
	if err != nil {
		c.peerErrs.Add(1, host, classOf(err))
	}
}

// writeMetrics writes all metrics; it runs no program.
func (d *Daemon) writeMetrics(ctx context.Context, w io.Writer) error {
	return d.counters.set.Write(w, func(s *metrics.Scrape) {
		s.Gauge("virtlvm_info", "Versions.", "version", "host").Set(1, version.Version, d.host)
		now := d.engine.Summary()
		s.Gauge("virtlvm_ready", "1: the first look at this host is done.").Set(flag(now.Ready))
		holds := s.Gauge("virtlvm_holds", "Holds of guests, operators and nobody on this host, by wanted mode; retained: of the exclusive ones.", "mode")
		holds.Set(float64(now.Holds.Exclusive), "ex")
		holds.Set(float64(now.Holds.Shared), "sh")
		holds.Set(float64(now.Holds.Ending), "off")
		holds.Set(float64(now.Holds.Retained), "retained")
		pending(s, now.Pending, time.Now())
		s.Gauge("virtlvm_problems", "Problems that `virtlvm status` shows.").Set(float64(now.Problems))
		passes := s.CounterOf("virtlvm_reconcile_passes_total", "Looks at this host by what they found.", "outcome")
		for outcome, n := range now.Passes {
			passes.Set(float64(n), outcome)
		}
		changes := s.CounterOf("virtlvm_changes_total", "Commands that change something, by kind, by who wanted it, and by how they ended.", "kind", "cause", "state")
		for k, n := range now.Changes {
			changes.Set(float64(n), k.Kind, k.Cause, k.State)
		}
		spool := d.countSpool()
		files := s.Gauge("virtlvm_spool_events", "Hook events that wait on disk, or cannot be read.", "state")
		files.Set(float64(spool.Waiting), "waiting")
		files.Set(float64(spool.Broken), "broken")
		if rows, err := d.store.Rows(ctx); err == nil {
			g := s.Gauge("virtlvm_journal_rows", "Rows of the journal.", "table")
			for table, n := range rows {
				g.Set(float64(n), table)
			}
		}
	})
}

// pending are the volumes that are not in their wanted mode.
func pending(s *metrics.Scrape, all []api.Unwanted, now time.Time) {
	modes := map[[2]string]int{}
	var oldest time.Duration
	promotions := 0
	for _, u := range all {
		modes[[2]string{u.Wanted, u.Actual}]++
		oldest = max(oldest, now.Sub(u.Since))
		if u.Wanted == "ex" && u.Actual == "sh" {
			promotions++
		}
	}
	g := s.Gauge("virtlvm_unwanted_volumes", "Volumes that are not in their wanted mode.", "wanted", "actual")
	for k, n := range modes {
		g.Set(float64(n), k[0], k[1])
	}
	s.Gauge("virtlvm_unwanted_oldest_seconds", "Since when the first of them is not; 0: all are as wanted.").Set(oldest.Seconds())
	s.Gauge("virtlvm_promotions_pending", "Shared volumes that are to become exclusive.").Set(float64(promotions))
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// writeTextfiles keeps the file for node_exporter's textfile collector, where one is
// configured.
func (d *Daemon) writeTextfiles(ctx context.Context) {
	ticks := time.NewTicker(textfilePause)
	defer ticks.Stop()
	said := ""
	for {
		problem := ""
		if path := d.config.Load().Metrics.Textfile; path != "" {
			if err := d.writeTextfile(ctx, path); err != nil && ctx.Err() == nil {
				problem = err.Error()
			}
		}
		if problem != said && problem != "" {
			d.log.Warn("cannot write metrics.textfile", "err", problem)
		}
		said = problem
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}

// writeTextfile replaces the file in one step: node_exporter may read it at any time, and
// takes only names that end with .prom.
func (d *Daemon) writeTextfile(ctx context.Context, path string) error {
	var b bytes.Buffer
	if err := d.writeMetrics(ctx, &b); err != nil {
		return err
	}
	temp := strings.TrimSuffix(path, filepath.Ext(path)) + ".new"
	if err := os.WriteFile(temp, b.Bytes(), 0o644); err != nil { //nolint:gosec // node_exporter is another user
		return err
	}
	return os.Rename(temp, path)
}
