package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
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
