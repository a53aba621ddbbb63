package command

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// Pace of the watch over origins. It runs only while there is a command that shall be
// cancelled when its origin is lost.
const (
	checkOrigins = 20 * time.Second // between two looks at an origin that answers
	checkSilent  = 2 * time.Second  // and at one that does not
	// How long an origin may be silent before it counts as lost; less where a link or an
	// address on the way to it is gone.
	patience      = 30 * time.Second
	shortPatience = 5 * time.Second
	probeTimeout  = 5 * time.Second
	hookDeadline  = 10 * time.Second // of all disconnect hooks together
)

// OriginMayBeLost says that a connection from that host has ended, or that a link or an address on
// the way to it is gone (network true). Its commands are looked after at once.
func (m *Manager) OriginMayBeLost(host string, network bool) {
	patience := patience
	if network {
		patience = shortPatience
	}
	m.Log.Debug("an origin may be lost", "host", host, "network", network)
	select {
	case m.watch <- patience:
	default:
	}
}

// watchOrigins runs the disconnect hooks of commands whose origin is lost.
func (m *Manager) watchOrigins(ctx context.Context) {
	pause, wait := checkOrigins, patience
	for {
		select {
		case <-ctx.Done():
			return
		case wait = <-m.watch:
		case <-m.After(pause):
		}
		pause = checkOrigins
		if m.checkOrigins(ctx, wait) {
			pause = checkSilent
			continue
		}
		wait = patience
	}
}

// Origins are the hosts whose loss would cancel a command here.
func (m *Manager) Origins() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	hosts := map[string]bool{}
	for _, t := range m.tasks {
		if t.frail && t.peer != "" {
			hosts[t.peer] = true
		}
	}
	return slices.Sorted(maps.Keys(hosts))
}

// contact is what is known of the connection to an origin.
type contact struct {
	answers bool      // it has answered this host before: its silence means something
	silent  time.Time // since when it does not; zero: it does
	heard   time.Time // when it last asked something of this host
}

// heardFrom notes that an origin is there.
func (m *Manager) heardFrom(host string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.origins[host]; c != nil {
		c.heard = m.Now()
	}
}

// checkOrigins asks the origins whether they are there, and reports whether one is silent.
func (m *Manager) checkOrigins(ctx context.Context, patience time.Duration) (silent bool) {
	if len(m.Origins()) == 0 {
		return false
	}
	all, err := m.Journal.Disconnectable(ctx)
	if err != nil {
		return false
	}
	hosts := map[string][]store.Entry{}
	for _, e := range all {
		if e.Side == model.SideExecutor && e.Cancelled == "" {
			hosts[e.Origin] = append(hosts[e.Origin], e)
		}
	}
	m.forgetOrigins(hosts)
	for host, entries := range hosts {
		quiet, lost := m.silence(ctx, host, patience)
		silent = silent || quiet
		if lost && ctx.Err() == nil {
			m.disconnect(ctx, entries, "the relay to its origin "+host+" was lost")
		}
	}
	return silent
}

func (m *Manager) forgetOrigins(wanted map[string][]store.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for host := range m.origins {
		if wanted[host] == nil {
			delete(m.origins, host)
		}
	}
	for host := range wanted {
		if m.origins[host] == nil {
			m.origins[host] = &contact{heard: m.Now()}
		}
	}
}

// silence asks an origin whether it is there. quiet: it does not answer; lost: for longer than
// patience. Where this host never could reach it, what counts is whether it still asks.
func (m *Manager) silence(ctx context.Context, host string, patience time.Duration) (quiet, lost bool) {
	within, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := m.Peers.Call(within, host, api.RoutePeerCommandNotice, api.PeerCommandNotice{Sequences: []int64{}}, &api.PeerCommandNoticeAnswer{})
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.origins[host]
	if c == nil {
		return false, false
	}
	if kind := api.KindOf(err); err == nil || kind != api.KindUnreachable && kind != api.KindUnknown {
		c.answers, c.silent = true, time.Time{}
		return false, false
	}
	if c.silent.IsZero() {
		c.silent = m.Now()
	}
	if !c.answers {
		return true, m.Now().Sub(c.heard) >= m.Interval+patience
	}
	return true, m.Now().Sub(c.silent) >= patience
}

// Stop runs the disconnect hooks because the daemon stops. Run must be ended afterwards.
func (m *Manager) Stop(ctx context.Context) {
	all, err := m.Journal.Disconnectable(ctx)
	if err != nil {
		m.Log.Error("cannot tell which commands shall be cancelled when virtlvmd stops", "err", err)
		return
	}
	m.disconnect(ctx, all, "virtlvmd stops")
}

// disconnect runs the hooks of some commands in parallel, under one deadline. One that fails
// is recorded and stops none of the others.
func (m *Manager) disconnect(ctx context.Context, all []store.Entry, why string) {
	within, cancel := context.WithTimeout(ctx, hookDeadline)
	defer cancel()
	var hooks sync.WaitGroup
	for _, e := range all {
		if e.Cancelled != "" {
			continue
		}
		hooks.Go(func() {
			if err := m.hook(within, e, why); err != nil {
				m.Log.Error("a disconnect hook failed", "command_id", e.ID, "kind", e.Kind, "why", why, "err", err)
				m.remark(context.WithoutCancel(ctx), e, "disconnect hook failed ("+why+"): "+oneLine(err.Error()))
			}
		})
	}
	hooks.Wait()
}

// hook asks one command to end, and does not wait longer than ctx for a kind that hangs.
func (m *Manager) hook(ctx context.Context, e store.Entry, why string) error {
	done := make(chan error, 1)
	go func() {
		_, err := m.cancel(ctx, e, why)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
