package cluster

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// Guest is a guest as a test knows it.
type Guest struct {
	Name, UUID string
	XML        []byte
	// Needs is the lock of each volume, "ex" or "sh", by "vg/lv".
	Needs map[string]string
	// Reads are those of them that nobody may write meanwhile on another host: they are
	// read-only, or below an overlay.
	Reads map[string]bool
}

// Watch are the guests whose volumes Unsafe and Unsettled look at.
func (c *Cluster) Watch(guests ...Guest) {
	for _, g := range guests {
		c.guests[g.Name] = g
	}
}

// changed keeps what the status files say.
func (c *Cluster) changed(host string, change fakevirt.Change) {
	c.watch.Lock()
	defer c.watch.Unlock()
	if c.runs[host] == nil {
		c.runs[host] = map[string]fakevirt.Change{}
	}
	if change.State == "" {
		delete(c.runs[host], change.Guest)
		return
	}
	c.runs[host][change.Guest] = change
}

// qemu is a guest's QEMU on a host.
type qemu struct {
	host  *Host
	guest Guest
	fakevirt.Change
	open bool // it has its disks open
}

// runsCPUs reports whether the guest can write.
func (q qemu) runsCPUs() bool { return q.open && q.State == "running" }

// alive are all QEMUs, by host and guest.
func (c *Cluster) alive() (all []qemu) {
	c.watch.Lock()
	defer c.watch.Unlock()
	for host, guests := range c.runs {
		for name, change := range guests {
			h := c.Hosts[host]
			if g, watched := c.guests[name]; watched && h.qemus.Alive(change.PID, change.UUID) {
				all = append(all, qemu{h, g, change, h.qemus.HasOpen(change.PID)})
			}
		}
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return a.host.Name < b.host.Name || a.host == b.host && a.guest.Name < b.guest.Name
	})
	return all
}

// Unsafe is what must never be seen at any moment, "" where all is well. Allowed says
// whether two QEMUs may run although they use one volume: where libvirt lets them, see
// docs/handoff.md, Limits.
func (c *Cluster) Unsafe(allowed func(a, b qemu) bool) string {
	table, err := c.table()
	if err != nil {
		return err.Error()
	}
	return c.unsafe(table, allowed)
}

// unsafe is Unsafe, of what the hosts have.
func (c *Cluster) unsafe(table map[string][]san.Held, allowed func(a, b qemu) bool) string {
	if bad := beside(table); bad != "" {
		return bad
	}
	alive := c.alive()
	for i, q := range alive {
		if !q.open {
			continue
		}
		has := map[string]san.Held{}
		for _, held := range table[q.host.Name] {
			has[held.Volume] = held
		}
		for _, volume := range sortedKeys(q.guest.Needs) {
			if held := has[volume]; !held.Active || held.Lock == "un" || held.Lock == "" {
				return fmt.Sprintf("guest %s has %s open on %s, which is not active and locked there (%+v)", q.guest.Name, volume, q.host.Name, held)
			}
		}
		for _, other := range alive[:i] {
			if bad := together(other, q); bad != "" && !allowed(other, q) {
				return bad
			}
		}
	}
	return ""
}

// beside finds an exclusive lock that is not alone.
func beside(table map[string][]san.Held) string {
	holders := map[string][]string{}
	ex := map[string]bool{}
	for _, host := range sortedKeys(table) {
		for _, held := range table[host] {
			mode := strings.TrimPrefix(held.Lock, "orphan ")
			if mode == "ex" || mode == "sh" {
				holders[held.Volume] = append(holders[held.Volume], host+" "+held.Lock)
				ex[held.Volume] = ex[held.Volume] || mode == "ex"
			}
		}
	}
	for _, volume := range sortedKeys(holders) {
		if ex[volume] && len(holders[volume]) > 1 {
			return fmt.Sprintf("%s is locked exclusively, and not alone: %s", volume, strings.Join(holders[volume], ", "))
		}
	}
	return ""
}

// together finds a volume that the CPUs of one QEMU can write while those of another use
// it.
func together(a, b qemu) string {
	if !a.runsCPUs() || !b.runsCPUs() || a.host == b.host && a.guest.Name == b.guest.Name {
		return ""
	}
	for _, volume := range sortedKeys(a.guest.Needs) {
		ma, mb := a.guest.Needs[volume], b.guest.Needs[volume]
		if ma == "ex" && mb != "" || mb == "ex" && ma != "" {
			return fmt.Sprintf("%s can be written by %s on %s while %s uses it on %s", volume, a.guest.Name, a.host.Name, b.guest.Name, b.host.Name)
		}
	}
	return ""
}

// Unsettled lists what is not as it must be when nothing has happened for long, on the
// hosts whose daemon runs: every volume as the guests here need it and not otherwise,
// nothing pending, no problem, every command ended.
func (c *Cluster) Unsettled(ctx context.Context) (all []string) {
	table, err := c.table()
	if err != nil {
		return []string{err.Error()}
	}
	alive := c.alive()
	for _, name := range sortedKeys(c.Hosts) {
		h := c.Hosts[name]
		d := h.Daemon()
		if d == nil {
			continue
		}
		bad := func(format string, a ...any) { all = append(all, name+": "+fmt.Sprintf(format, a...)) }
		want := map[string]string{}
		for _, q := range alive {
			for volume, mode := range q.guest.Needs {
				if q.host == h && want[volume] != "ex" {
					want[volume] = mode
				}
			}
		}
		for _, held := range table[name] {
			if held.Lock != want[held.Volume] || !held.Active {
				bad("%s is %s (active %v), wanted %q", held.Volume, held.Lock, held.Active, want[held.Volume])
			}
			delete(want, held.Volume)
		}
		for _, volume := range sortedKeys(want) {
			bad("%s is off, wanted %s", volume, want[volume])
		}
		s := d.engine.Status(ctx)
		if !s.Ready {
			bad("not ready")
		}
		for _, p := range s.Pending {
			bad("pending: %s wanted %s is %s: %s", p.Volume, p.Wanted, p.Actual, p.Reason)
		}
		for _, p := range s.Problems {
			bad("problem: %s", p)
		}
		for _, left := range h.openEnds(ctx, d) {
			bad("%s", left)
		}
	}
	return all
}

// openEnds lists the commands and hook calls that have not ended.
func (h *Host) openEnds(ctx context.Context, d *Daemon) (all []string) {
	if h.c.o.Memory {
		return h.memory.left()
	}
	open, err := d.store.OpenCommands(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	for _, cmd := range open {
		all = append(all, fmt.Sprintf("command %v is %s", cmd.Argv, cmd.State))
	}
	return all
}

// awaitSettled waits until nothing is unsettled, or too long. To look takes a while, so the
// pauses grow.
func (c *Cluster) awaitSettled(patience time.Duration) {
	pause := 500 * time.Millisecond
	for end := time.Now().Add(patience); len(c.Unsettled(context.Background())) > 0 && time.Now().Before(end); pause += pause / 2 {
		time.Sleep(min(pause, 10*time.Second))
	}
}

func sortedKeys[V any](in map[string]V) []string {
	keys := make([]string, 0, len(in))
	for k := range in {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
