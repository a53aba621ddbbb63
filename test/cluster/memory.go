package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
	"virtlvm/test/san"
)

// devices are those of a host, from the SAN's memory: to read the files of /sys at each look
// was a fifth of a simulation. TestDevicesAreAsInSys compares the two.
type devices struct {
	*lvm.LVM
	host *san.Host
}

// Devices implements activation.LVM.
func (d devices) Devices() (map[string]lvm.Device, error) {
	all, err := d.host.Devices()
	byUUID := make(map[string]lvm.Device, len(all))
	for _, k := range all {
		byUUID[k.UUID] = lvm.Device(k)
	}
	return byUUID, err
}

// Memory is a Journal that outlives the daemons and not the test. It does what the database
// does with what it is given, as far as the engine can tell; TestMemoryIsAsTheDatabase
// compares the two.
type Memory struct {
	mu       sync.Mutex
	last     int64
	commands map[int64]store.OpenCommand
	holds    map[[3]string]model.Hold
	running  map[int64]string // hook calls without a verdict
	fenced   map[string]model.Fenced
	steps    []model.HandoffStep
}

func holdID(h model.Hold) [3]string { return [3]string{h.Owner, h.Volume.VG, h.Volume.LV} }

// do is a transaction.
func (m *Memory) do(holds store.HoldChange, fn func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holds == nil {
		m.commands, m.holds, m.running = map[int64]store.OpenCommand{}, map[[3]string]model.Hold{}, map[int64]string{}
	}
	if err := fn(); err != nil {
		return api.NewError(api.KindDatabase, err.Error())
	}
	for _, h := range holds.Delete {
		delete(m.holds, holdID(h))
	}
	for _, h := range holds.Put {
		h.Prepared = false // not in the database
		m.holds[holdID(h)] = h
	}
	m.steps = append(m.steps, holds.Steps...)
	return nil
}

// Begin implements activation.Journal, as do the methods that follow.
func (m *Memory) Begin(_ context.Context, in store.Intent, holds store.HoldChange) (id int64, err error) {
	err = m.do(holds, func() error {
		m.last++
		id = m.last
		c := store.OpenCommand{ID: id, Kind: in.Kind, State: model.StateStarted, Argv: in.Argv, BootID: in.BootID}
		for _, v := range in.Targets {
			c.Targets = append(c.Targets, model.Volume{ID: v.ID, VG: v.VG, LV: v.LV})
		}
		m.commands[id] = c
		return nil
	})
	return id, err
}

// Running records the process of a command.
func (m *Memory) Running(_ context.Context, id int64, pid int, start uint64) error {
	return m.do(store.HoldChange{}, func() error {
		c := m.commands[id]
		if c.State != model.StateProcessing && !c.State.CanBecome(model.StateProcessing) {
			return fmt.Errorf("command %d is %q and cannot run", id, c.State)
		}
		c.State, c.PID, c.PIDStart = model.StateProcessing, pid, start
		m.commands[id] = c
		return nil
	})
}

// Finish records what came of a command.
func (m *Memory) Finish(_ context.Context, id int64, r store.Result, holds store.HoldChange, _ ...store.Query) error {
	return m.do(holds, func() error {
		c, known := m.commands[id]
		if !known {
			return fmt.Errorf("command %d is not in the journal", id)
		}
		if c.State == model.StateStarted {
			c.State = model.StateProcessing
		}
		if c.State != r.State && !c.State.CanBecome(r.State) {
			return fmt.Errorf("command %d is %s and cannot become %s", id, c.State, r.State)
		}
		c.State = r.State
		m.commands[id] = c
		return nil
	})
}

// OpenCommands lists the commands without an end.
func (m *Memory) OpenCommands(context.Context) (all []store.OpenCommand, err error) {
	err = m.do(store.HoldChange{}, func() error {
		for _, c := range m.commands {
			if c.State.Final() {
				continue
			}
			c.Targets = append([]model.Volume(nil), c.Targets...)
			all = append(all, c)
		}
		return nil
	})
	sort.Slice(all, func(i, j int) bool { return all[i].ID < all[j].ID })
	return all, err
}

// Command is not needed of a journal in memory: only its id is known.
func (m *Memory) Command(_ context.Context, id int64) (api.Command, error) {
	return api.Command{ID: id}, nil
}

// AddQueries forgets them.
func (m *Memory) AddQueries(context.Context, []store.Query) error { return nil }

// Holds lists all of them.
func (m *Memory) Holds(context.Context) (all []model.Hold, err error) {
	err = m.do(store.HoldChange{}, func() error {
		for _, h := range m.holds {
			all = append(all, h)
		}
		return nil
	})
	sort.Slice(all, func(i, j int) bool {
		return all[i].Owner < all[j].Owner || all[i].Owner == all[j].Owner && all[i].Name < all[j].Name
	})
	return all, err
}

// ChangeHolds changes some of them.
func (m *Memory) ChangeHolds(_ context.Context, change store.HoldChange) error {
	return m.do(change, func() error { return nil })
}

// ReplaceHolds replaces them all.
func (m *Memory) ReplaceHolds(_ context.Context, all []model.Hold) error {
	return m.do(store.HoldChange{Put: all}, func() error {
		clear(m.holds)
		return nil
	})
}

// AddHookCall records a call.
func (m *Memory) AddHookCall(_ context.Context, call api.HookCall) (id int64, err error) {
	err = m.do(store.HoldChange{}, func() error {
		m.last++
		id = m.last
		m.running[id] = call.Op + " " + call.Guest
		return nil
	})
	return id, err
}

// FinishHookCall records its verdict.
func (m *Memory) FinishHookCall(_ context.Context, id int64, _ store.HookVerdict, _ []store.Query, holds store.HoldChange) error {
	return m.do(holds, func() error {
		delete(m.running, id)
		return nil
	})
}

// InterruptHookCalls ends those that an earlier daemon left.
func (m *Memory) InterruptHookCalls(context.Context) error {
	return m.do(store.HoldChange{}, func() error {
		clear(m.running)
		return nil
	})
}

// Fenced lists the hosts that are declared off.
func (m *Memory) Fenced(context.Context) (all []model.Fenced, err error) {
	err = m.do(store.HoldChange{}, func() error {
		for _, host := range sortedKeys(m.fenced) {
			all = append(all, m.fenced[host])
		}
		return nil
	})
	return all, err
}

// PutFenced declares a host off.
func (m *Memory) PutFenced(_ context.Context, f model.Fenced) error {
	return m.do(store.HoldChange{}, func() error {
		if m.fenced == nil {
			m.fenced = map[string]model.Fenced{}
		}
		m.fenced[f.Host] = f
		return nil
	})
}

// DropFenced forgets the declaration.
func (m *Memory) DropFenced(_ context.Context, host string) error {
	return m.do(store.HoldChange{}, func() error {
		delete(m.fenced, host)
		return nil
	})
}

// HandoffSteps lists the newest steps of migrations, oldest first.
func (m *Memory) HandoffSteps(_ context.Context, guest string, limit int) (all []model.HandoffStep, err error) {
	err = m.do(store.HoldChange{}, func() error {
		for _, s := range slices.Backward(m.steps) {
			if len(all) < limit && (guest == "" || s.Guest == guest || s.UUID == guest) {
				all = append(all, s)
			}
		}
		return nil
	})
	slices.Reverse(all)
	return all, err
}

// Prune has nothing to forget.
func (m *Memory) Prune(context.Context, time.Time) (bool, error) { return false, nil }

// Health is good.
func (m *Memory) Health(context.Context) error { return nil }

// Generation is always the first.
func (m *Memory) Generation() int { return 0 }

// left lists what has not ended: commands and hook calls.
func (m *Memory) left() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.commands {
		if c.State.Final() {
			continue
		}
		all = append(all, fmt.Sprintf("command %v is %s", c.Argv, c.State))
	}
	for call := range maps.Values(m.running) {
		all = append(all, "hook call "+call+" has no verdict")
	}
	sort.Strings(all)
	return all
}
