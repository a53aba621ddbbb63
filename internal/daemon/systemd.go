package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// notify tells systemd a state (sd_notify(3)); without systemd it does nothing.
func (d *Daemon) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		d.log.Warn("cannot notify systemd", "state", state, "err", err)
	}
}

// reloading is the state that Type=notify-reload wants, with the time it wants.
func reloading() string {
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", sd.SdNotifyReloading, monotonic().Microseconds())
}

// watchdog tells systemd that the engine is not deadlocked: a pulse goes through its lock.
func (d *Daemon) watchdog(ctx context.Context) {
	interval, err := sd.SdWatchdogEnabled(false)
	if err != nil || interval <= 0 {
		return
	}
	ticks := time.NewTicker(interval / 3)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			d.engine.Pulse()
			d.notify(sd.SdNotifyWatchdog)
		case <-ctx.Done():
			return
		}
	}
}

// hostGoesDown reports whether systemd is shutting the host down, as opposed to stopping
// this daemon alone (is-system-running in systemctl(1)). Unknown is no. It is asked however long
// the stop has taken so far: slow storage must not cost the host its clean end.
func (d *Daemon) hostGoesDown() bool {
	// Its exit code is not 0 then.
	res, _ := d.exec.Run(context.Background(), run.Cmd{Name: "systemctl", Args: []string{"is-system-running"}, Timeout: 5 * time.Second})
	return strings.TrimSpace(string(res.Stdout)) == "stopping"
}

// startLockspaces starts the lockspaces that the boot did not. Until they are, the hook is told to
// be patient: guests that start with the host wait for theirs.
func (d *Daemon) startLockspaces(ctx context.Context) {
	d.engine.StartLockspaces(ctx, func() {
		if d.booted.Swap(true) {
			return
		}
		if err := d.writeHookSettings(); err != nil {
			d.log.Error("cannot tell the hook its settings", "err", err)
		}
	})
}

// writeHookSettings tells the hook what it must know without the daemon.
func (d *Daemon) writeHookSettings() error {
	cfg := d.config.Load()
	deadline := cfg.Hook.Deadline
	if !d.booted.Load() {
		deadline += cfg.Boot.Wait
	}
	data, err := json.Marshal(api.HookSettings{DeadlineSeconds: int(deadline.Seconds())})
	if err != nil {
		return err
	}
	path := filepath.Join(cfg.Paths.RunDir, "hook.json")
	temp := path + ".new"
	if err := os.WriteFile(temp, data, 0o644); err != nil { //nolint:gosec // no secret, and the hook may run confined
		return err
	}
	return os.Rename(temp, path)
}

// newLogger writes to stderr; under systemd that is the journal, which adds the time.
func newLogger(level *slog.LevelVar) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if os.Getenv("JOURNAL_STREAM") != "" {
		opts.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}
