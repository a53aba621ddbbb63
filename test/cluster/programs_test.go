package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// many makes a guest with n volumes on two hosts.
func many(t *testing.T, n int) (a, b *Host) {
	t.Helper()
	c := New(t, "kvm-a", "kvm-b")
	a, b = c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	var disks []Disk
	for i := range n {
		name := fmt.Sprintf("lv%02d", i)
		lvs(t, c, name)
		disks = append(disks, Disk{Path: name})
	}
	define(t, a, "vm1", 1, disks...)
	define(t, b, "vm1", 1, disks...)
	return a, b
}

// atMost checks what the newest hook call for an operation has run. A look in the background
// can take some of it off the call.
func atMost(t *testing.T, h *Host, op string, most map[string]int) {
	t.Helper()
	calls, err := h.Store().HookCalls(ctx, 20, "")
	require.NoError(t, err)
	commands, err := h.Store().Commands(ctx, api.CommandFilter{Limit: 200})
	require.NoError(t, err)
	for _, call := range calls {
		if call.Op != op {
			continue
		}
		ran := map[string]int{}
		for _, c := range commands {
			if c.HookCall == call.ID && c.Kind != "peer call" { // that runs nothing here
				ran[c.Argv[0]]++
			}
		}
		for name, n := range ran {
			assert.LessOrEqual(t, n, most[name], "%s at %s: %v", name, op, ran)
		}
		return
	}
	t.Fatalf("no call for %s", op)
}

// Each program that a hook call runs is waited for by libvirt.
func TestProgramsOfAStartAndAStop(t *testing.T) {
	for _, n := range []int{1, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			a, _ := many(t, n)
			require.NoError(t, a.Virt.Start(ctx, "vm1"))
			require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
			atMost(t, a, "prepare", map[string]int{"lvs": 1, "lvmlockctl": 2, "lvchange": 1})
			atMost(t, a, "start", map[string]int{"lvmlockctl": 1})
			atMost(t, a, "started", map[string]int{"lvmlockctl": 1})
			atMost(t, a, "stopped", nil)
			atMost(t, a, "release", map[string]int{"dmsetup": 1, "lvmlockctl": 2, "lvchange": 1})
		})
	}
}

// A guest without a volume of ours costs one look at its volume group, and one without any
// volume nothing.
func TestProgramsOfAnUnmanagedGuest(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	_, err := c.SAN.AddLV("vg_plain", san.LVSpec{Name: "local"})
	require.NoError(t, err)
	_, err = a.Run("lvchange", "-ay", "vg_plain/local")
	require.NoError(t, err)
	file := filepath.Join(a.dir, "disk.raw")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, disk := range []string{"/dev/vg_plain/local", "/disk.raw"} {
		define(t, a, "vm1", 1, Disk{Path: disk})
		require.NoError(t, a.Virt.Start(ctx, "vm1"))
		require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
		looks := map[string]int{}
		if disk == "/dev/vg_plain/local" {
			looks["lvs"] = 1
		}
		atMost(t, a, "prepare", looks)
		for _, op := range []string{"start", "started", "stopped", "release"} {
			atMost(t, a, op, nil)
		}
	}
}

// The programs that a migration runs do not grow with the volumes of the guest.
func TestProgramsOfAMigration(t *testing.T) {
	for _, n := range []int{1, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			a, b := many(t, n)
			a.programs.take()
			require.NoError(t, a.Virt.Start(ctx, "vm1"))
			lvs := 0 // for the hook, and when the guest is looked at
			require.Eventually(t, func() bool {
				lvs += a.programs.take()["lvs"]
				s := a.Engine().Status(ctx)
				return lvs >= 2 && s.Holds == api.HoldCounts{Exclusive: n} && len(s.Pending) == 0
			}, patience, 10*time.Millisecond)
			b.programs.take()
			require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
			require.Eventually(t, func() bool { return b.Mode(fmt.Sprintf("lv%02d", n-1)) == "ex" }, patience, 10*time.Millisecond)
			settled(t, b)
			// They read a lease or a volume group at a time, not a volume, and change all
			// volumes with one command; but a look in the background may come in between.
			for _, h := range []*Host{a, b} {
				ran := h.programs.take()
				assert.Equal(t, 2, ran["lvchange"], "%s: %v", h.Name, ran)
				assert.LessOrEqual(t, ran["lvs"]+ran["sanlock"], 12, "%s: %v", h.Name, ran)
				// On the source what was read after the start is still true, and on the destination
				// it is read for the hook, and when the guest has come.
				assert.LessOrEqual(t, ran["lvs"], map[*Host]int{a: 0, b: 2}[h], "%s: %v", h.Name, ran)
			}
			atMost(t, b, "migrate", map[string]int{"lvs": 1, "sanlock": 3, "lvmlockctl": 2, "lvchange": 1})
			atMost(t, b, "prepare", nil)
		})
	}
}

// onTheWay counts what somebody waits for in a live migration: programs, and writes of the
// journal. What a daemon does beside that is under "beside".
type onTheWay struct {
	mu    sync.Mutex
	until map[string]Point // where each host's count ends
	ran   map[string]int
	// After its count a host that tells calls the other before it looks again: else it is late.
	tells string
	calls chan struct{}
	late  bool
}

func (w *onTheWay) at(ctx context.Context, d *Daemon, p Point) {
	w.mu.Lock()
	host := d.Host.Name
	end, counting := w.until[host]
	switch {
	case w.ran == nil:
	case counting && p.Kind == end.Kind && strings.HasPrefix(p.What, end.What) && p.After == end.After:
		delete(w.until, host)
	case counting:
		w.count(ctx, host, p)
	case host == w.tells && p.Kind == "call":
		w.tells = ""
		close(w.calls)
	case host == w.tells && p.Kind == "look":
		w.mu.Unlock()
		select {
		case <-w.calls:
			w.mu.Lock()
		case <-time.After(time.Second):
			w.mu.Lock()
			w.late = true
		}
	}
	w.mu.Unlock()
}

func (w *onTheWay) count(ctx context.Context, host string, p Point) {
	what, _, _ := strings.Cut(p.What, " ")
	switch {
	case p.After, p.Kind == "look" && p.What == "locks": // before lvmlockctl
		return
	case p.Kind == "journal":
		what = p.Kind
	case p.Kind != "look" && p.Kind != "change":
		return
	}
	if t := taskOf(ctx); t != nil && strings.Contains(t.name, " looks for ") {
		what = "beside: " + what
	}
	w.ran[host+" "+what]++
}

// from counts anew.
func (w *onTheWay) from(until map[string]Point, tells string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran, w.until, w.tells, w.calls = map[string]int{}, until, tells, make(chan struct{})
}

func (w *onTheWay) take() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	ran := w.ran
	w.ran, w.until = nil, nil
	return ran
}

// What libvirt waits for in the migrate hook, and the guest for its exclusive lock from the
// release of its source on. Each program costs some 10 ms there, and a second on a busy host: who
// adds one finds it here. The numbers are the same for each size of a guest.
func TestProgramsOnTheWay(t *testing.T) {
	for _, n := range []int{1, 8, 32} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := NewWith(t, Options{Hosts: []string{"kvm-a", "kvm-b"}, Memory: true, Timeout: 20 * time.Second, Patience: time.Minute})
				c.o.Changed = func(host string, _ fakevirt.Change) { c.Hosts[host].Daemon().engine.Kick() }
				var disks []Disk
				for i := range n {
					name := fmt.Sprintf("lv%02d", i)
					lvs(t, c, name)
					disks = append(disks, Disk{Path: name})
				}
				a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
				for _, h := range []*Host{a, b} {
					h.StartDaemon()
					define(t, h, vm1, 1, disks...)
				}
				require.NoError(t, a.Virt.Start(ctx, vm1))
				way := &onTheWay{}
				c.At = way.at
				hook, promoted := moveCounting(t, c, way, a, b)
				assert.Equal(t, map[string]int{ // nothing is known on kvm-b
					"kvm-b lvs": 1, "kvm-b sanlock": 3, "kvm-b lvchange": 1, "kvm-b lvmlockctl": 1, "kvm-b journal": 5,
					"kvm-a lvmlockctl": 2, "kvm-a lvchange": 1, "kvm-a journal": 5,
					"kvm-b beside: lvmlockctl": 1,
				}, hook)
				assert.Equal(t, map[string]int{
					"kvm-a lvmlockctl": 1, "kvm-a dmsetup": 1, "kvm-a lvchange": 1, "kvm-a journal": 4,
					"kvm-b sanlock": 1, "kvm-b lvchange": 1, "kvm-b lvmlockctl": 1, "kvm-b journal": 3,
				}, promoted)
				hook, promoted = moveCounting(t, c, way, b, a)
				assert.Equal(t, map[string]int{
					"kvm-a sanlock": 1, "kvm-a lvchange": 1, "kvm-a lvmlockctl": 1, "kvm-a journal": 5,
					"kvm-b lvmlockctl": 2, "kvm-b lvchange": 1, "kvm-b journal": 5,
					"kvm-a beside: lvs": 1, "kvm-a beside: sanlock": 3, "kvm-a beside: lvmlockctl": 1,
				}, hook)
				assert.Equal(t, map[string]int{
					"kvm-b lvmlockctl": 1, "kvm-b dmsetup": 1, "kvm-b lvchange": 1, "kvm-b journal": 4,
					"kvm-a sanlock": 1, "kvm-a lvchange": 1, "kvm-a lvmlockctl": 1, "kvm-a journal": 3,
				}, promoted)
				assert.False(t, way.late, "the destination is told when the source has deactivated, not when it has looked")
			})
		})
	}
}

// moveCounting migrates vm1 and counts on the way of its migrate hook, and from the release of the
// source to the end of the command that makes it exclusive on the destination.
func moveCounting(t *testing.T, c *Cluster, way *onTheWay, from, to *Host) (hook, promoted map[string]int) {
	t.Helper()
	c.awaitSettled(time.Minute)
	time.Sleep(10 * time.Second)
	way.from(map[string]Point{from.Name: {Kind: "answer", What: "/v1/peer/lend"}, to.Name: {Kind: "answer", What: "migrate"}}, "")
	require.NoError(t, fakevirt.Migrate(ctx, from.Virt, to.Virt, vm1, fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		switch s {
		case fakevirt.StepMigrateHook:
			hook = way.take()
		case fakevirt.StepPerforming:
			time.Sleep(2 * time.Second)
		case fakevirt.StepSwitched:
			time.Sleep(3 * time.Second) // the destination waits for the source
		case fakevirt.StepStopped:
			way.from(map[string]Point{from.Name: {Kind: "change", What: "lvchange -an", After: true}, to.Name: {Kind: "journal", What: "finish"}}, from.Name)
		default:
		}
		return nil
	}}))
	time.Sleep(10 * time.Second)
	return hook, way.take()
}
