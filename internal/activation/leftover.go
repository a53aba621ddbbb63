package activation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
)

// awaitLeftovers waits for LVM commands that an earlier daemon started and that still
// run: what is observed before they end means nothing. One that does not end in time
// makes its VG stuck.
func (m *Manager) awaitLeftovers(ctx context.Context) {
	open, err := m.Journal.OpenCommands(ctx)
	if err != nil {
		m.Log.Error("cannot read the commands of the last daemon", "err", err)
		return
	}
	deadline := m.Now().Add(m.Settings().CommandTimeout)
	for _, c := range open {
		if c.BootID != m.BootID {
			continue
		}
		if c.PID == 0 { // it may have been started a moment before the last daemon died
			found := m.Find(c.Argv)
			if len(found) == 0 {
				continue
			}
			c.PID, c.PIDStart = found[0].PID, found[0].Start
			// Else it would be taken for ended, by the next daemon as well.
			if err := m.Journal.Running(ctx, c.ID, c.PID, c.PIDStart); err != nil {
				m.Log.Warn("cannot journal the pid of a command of the last daemon", "command_id", c.ID, "err", err)
			}
		}
		for m.Alive(c.PID, c.PIDStart) && m.Now().Before(deadline) {
			select {
			case <-m.After(100 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
		if m.Alive(c.PID, c.PIDStart) && len(c.Targets) > 0 {
			ended := m.pidDone(c.PID, c.PIDStart)
			m.markStuck(c.Targets[0].VG, &run.TimeoutError{Argv: c.Argv, PID: c.PID, Done: ended}, m.Now())
			m.handmade.begin(c.Targets)
			go func() {
				<-ended
				m.handmade.end(c.Targets)
			}()
		}
	}
}

// pidDone is closed when a process that is not our child has ended.
func (m *Manager) pidDone(pid int, start uint64) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		for m.Alive(pid, start) {
			<-m.After(time.Second)
		}
		close(done)
	}()
	return done
}

// resolveLeftovers finds out by looking what became of commands whose end is not in the
// journal: those of an earlier daemon, and those that passed their deadline.
func (m *Manager) resolveLeftovers(ctx context.Context) {
	left, err := m.leftovers(ctx)
	if err != nil || len(left) == 0 {
		return
	}
	open, err := m.Journal.OpenCommands(ctx)
	if err != nil {
		return
	}
	// One of this daemon that was begun when they were read the first time has ended since.
	open = slices.DeleteFunc(open, func(c store.OpenCommand) bool { return !left[c.ID] })
	if len(open) == 0 {
		return
	}
	now, err := m.look(ctx)
	if err != nil {
		return
	}
	for _, c := range open {
		m.resolve(ctx, c, now, c.BootID == m.BootID)
	}
}

// leftovers are the commands in the journal, by id, that nobody runs or waits for; none is told
// while one of this daemon begins.
func (m *Manager) leftovers(ctx context.Context) (map[int64]bool, error) {
	open, err := m.Journal.OpenCommands(ctx)
	if err != nil {
		return nil, err
	}
	left := map[int64]bool{}
	for _, c := range open {
		if c.BootID != m.BootID || c.PID == 0 || !m.Alive(c.PID, c.PIDStart) {
			left[c.ID] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.beginning > 0 {
		return nil, nil //nolint:nilnil // the next look tells
	}
	maps.DeleteFunc(left, func(id int64, _ bool) bool { return m.own[id] })
	return left, nil
}

func (m *Manager) resolve(ctx context.Context, c store.OpenCommand, now local, sameBoot bool) {
	if c.State == model.StateStarted || c.State == model.StateProcessing {
		r := store.Result{State: model.StateInterrupted, ExitCode: -1, Error: "the daemon ended while it ran"}
		if !sameBoot {
			r.Error = "the host went down while it ran"
		}
		if err := m.Journal.Finish(ctx, c.ID, r, store.HoldChange{}); err != nil {
			return
		}
	}
	r := store.Result{State: model.StateFailed, ExitCode: -1, Error: "interrupted; not as wanted"}
	want, known := wantOf(c.Argv)
	// What a command was to make has no uuid in its row, and cannot be looked at by it.
	known = known && !slices.ContainsFunc(c.Targets, func(v model.Volume) bool { return v.ID.LV == "" })
	local := slices.Contains(c.Argv, "-ay")
	switch {
	case !sameBoot:
		r.Outcome = "the host was rebooted: nothing of it is left"
	case !known && !local:
		r.Error, r.Outcome = "interrupted", "its end was not seen"
	default:
		done := true
		for i, v := range c.Targets {
			c.Targets[i].LockLV = m.lockOf(v)
			a := now.ofVolume(c.Targets[i])
			// Without lvmlockd there is a device, and the claim is the hold's.
			done = done && (a.Is(want) || local && a.Active)
		}
		r.Outcome = "found out by looking: " + now.describe(c.Targets)
		if done {
			r.State, r.Error = model.StateCompleted, ""
		}
	}
	if err := m.Journal.Finish(ctx, c.ID, r, store.HoldChange{}); err != nil {
		m.Log.Error("cannot journal what became of a command", "command_id", c.ID, "err", err)
		return
	}
	m.Log.Info("found out what became of an interrupted command", "command_id", c.ID, "command", strings.Join(c.Argv, " "), "state", r.State, "outcome", r.Outcome)
}

// wantOf is the mode an lvchange asked for.
func wantOf(argv []string) (model.LockMode, bool) {
	for arg, mode := range map[string]model.LockMode{"-aey": model.ModeEX, "-asy": model.ModeSH, "-an": model.ModeOff} {
		if slices.Contains(argv, arg) {
			return mode, true
		}
	}
	return "", false
}

// lockOf is the LV whose lock protects a volume, as far as a hold tells; else its own.
func (m *Manager) lockOf(v model.Volume) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.holds {
		if h.Volume == v.ID {
			return h.LockLV
		}
	}
	return v.ID.LV
}

// openText is for messages about commands still running at a clean stop.
func openText(n int) string { return fmt.Sprintf("%d LVM commands still run", n) }

// Drain waits until no LVM command of ours runs, or ctx ends; what still runs then is in
// the journal and goes on.
func (m *Manager) Drain(ctx context.Context) {
	for {
		m.mu.Lock()
		busy := 0
		for _, q := range m.vgs {
			if len(q.turn) == 0 {
				busy++
			}
		}
		m.mu.Unlock()
		if busy == 0 {
			return
		}
		select {
		case <-ctx.Done():
			m.Log.Warn(openText(busy) + "; they go on and are looked at by the next daemon")
			return
		case <-m.After(20 * time.Millisecond):
		}
	}
}
