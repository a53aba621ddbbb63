package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"virtlvm/internal/config"
	"virtlvm/internal/run"
)

// fenceTimeout bounds the site's fence_status: a start waits for it. fenceGrace is for one
// that does not end when it is told to.
const (
	fenceTimeout = 10 * time.Second
	fenceGrace   = time.Second
)

// fenceStatus runs the site's command, if there is one, with a host's name. Exit code 0 says
// that the host is off, 1 that it is not; anything else says nothing.
func (d *Daemon) fenceStatus(ctx context.Context, host string) (off bool, err error) {
	command := d.config.Load().Peers.FenceStatus
	if command == "" {
		return false, nil
	}
	return askSite(ctx, d.outDir(), command, host, fenceTimeout)
}

func askSite(ctx context.Context, outDir, command, host string, timeout time.Duration) (off bool, err error) {
	runner := run.NewExec(run.ExecOptions{Dirs: []string{filepath.Dir(command)}, OutDir: outDir, Grace: fenceGrace})
	res, err := runner.Run(ctx, run.Cmd{Name: filepath.Base(command), Args: []string{host}, Timeout: timeout})
	var exit *run.ExitError
	if errors.As(err, &exit) && res.ExitCode == 1 {
		return false, nil
	}
	return err == nil, err
}

// members are the hosts of the VGs without lvmlockd, which no lockspace knows.
func members(cfg *config.Config) []string {
	var all []string
	for _, names := range cfg.Claims() {
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
