package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
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
	return d.site.ask(ctx, d.outDir(), command, host, fenceTimeout)
}

// site asks the site's command. One that has not ended after all is not joined by others,
// of which each look would start one.
type site struct {
	mu    sync.Mutex
	hangs map[string]<-chan struct{} // by host; closed when it has ended
}

func (s *site) ask(ctx context.Context, outDir, command, host string, timeout time.Duration) (off bool, err error) {
	s.mu.Lock()
	hangs := s.hangs[host]
	s.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		default:
			return false, fmt.Errorf("%s %s has been asked before, and has not ended", command, host)
		}
	}
	runner := run.NewExec(run.ExecOptions{Dirs: []string{filepath.Dir(command)}, OutDir: outDir, Grace: fenceGrace})
	res, err := runner.Run(ctx, run.Cmd{Name: filepath.Base(command), Args: []string{host}, Timeout: timeout})
	var late *run.TimeoutError
	var exit *run.ExitError
	switch {
	case errors.As(err, &late):
		s.mu.Lock()
		if s.hangs == nil {
			s.hangs = map[string]<-chan struct{}{}
		}
		s.hangs[host] = late.Done
		s.mu.Unlock()
	case errors.As(err, &exit) && res.ExitCode == 1:
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
