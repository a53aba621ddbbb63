package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/san"
)

var ctx = context.Background()

// lvs makes volumes in vg_san.
func lvs(t *testing.T, c *Cluster, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := c.SAN.AddLV("vg_san", san.LVSpec{Name: name})
		require.NoError(t, err)
	}
}

func define(t *testing.T, h *Host, name string, n int, disks ...Disk) {
	t.Helper()
	_, err := h.Virt.Define(ctx, XML(name, UUID(n), disks...))
	require.NoError(t, err)
}

// settled waits until nothing of a host is on its way.
func settled(t *testing.T, h *Host) {
	t.Helper()
	h.Engine().Kick() // rather than wait for the next try
	require.Eventually(t, func() bool {
		s := h.Engine().Status(ctx)
		return len(s.Pending) == 0 && s.Holds.Ending == 0
	}, patience, 5*time.Millisecond, "%+v", h.Engine().Status(ctx))
}

func TestExclusiveWhileItRuns(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	define(t, b, "vm1", 1, Disk{Path: "vm1"})

	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "ex", a.Mode("vm1"))
	err := b.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "virtlvm: cannot start vm1: vg_san/vm1 is held exclusively by kvm-a; stop the guest that uses it there, or run 'lvchange -an vg_san/vm1' on kvm-a if nothing does")
	assert.Equal(t, "un", b.Mode("vm1"))
	assert.Equal(t, "ex", a.Mode("vm1"))

	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, "un", a.Mode("vm1"), "released when virsh returns")
	assert.False(t, a.LVM.Active("vg_san", "vm1"))
	require.NoError(t, b.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "ex", b.Mode("vm1"))

	calls, err := b.Store().HookCalls(ctx, 100, "vm1")
	require.NoError(t, err)
	verdicts := map[string]int{}
	for _, call := range calls {
		verdicts[call.Verdict]++
	}
	assert.Equal(t, map[string]int{"refused": 1, "noted": 2, "allowed": 3}, verdicts)
}

func TestBothAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds := 1000
		if raceOn {
			rounds = 25 // make test runs them all without
		}
		if testing.Short() {
			rounds = 50
		}
		c := New(t, "kvm-a", "kvm-b")
		a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
		lvs(t, c, "vm1")
		define(t, a, "vm1", 1, Disk{Path: "vm1"})
		define(t, b, "vm1", 1, Disk{Path: "vm1"})
		won := map[string]int{}
		for i := range rounds {
			errs := make([]error, 2)
			var wg sync.WaitGroup
			for n, h := range []*Host{a, b} {
				wg.Go(func() { errs[n] = h.Virt.Start(ctx, "vm1") })
			}
			wg.Wait()
			winner, loser, err := a, b, errs[1]
			if errs[0] != nil {
				winner, loser, err = b, a, errs[0]
			}
			require.True(t, (errs[0] == nil) != (errs[1] == nil), "round %d: exactly one runs: %v, %v", i, errs[0], errs[1])
			require.Contains(t, err.Error(), "by "+winner.Name, "round %d: the loser is told who won", i)
			require.Equal(t, "ex", winner.Mode("vm1"))
			require.Equal(t, "un", loser.Mode("vm1"))
			won[winner.Name]++
			require.NoError(t, winner.Virt.Destroy(ctx, "vm1"))
			require.Equal(t, "un", winner.Mode("vm1"))
		}
		t.Logf("%d rounds, won by %v", rounds, won)
	})
}

func qcow2(t *testing.T, c *Cluster, lv, backing, format string) {
	t.Helper()
	require.NoError(t, writeQcow2(c.SAN, lv, backing, format))
}

func TestQcow2Chain(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "top", "mid", "base", "top2")
	qcow2(t, c, "top", "/dev/vg_san/mid", "qcow2")
	qcow2(t, c, "top2", "/dev/vg_san/mid", "qcow2")
	qcow2(t, c, "mid", "/dev/vg_san/base", "qcow2")
	qcow2(t, c, "base", "", "")
	define(t, a, "vm1", 1, Disk{Path: "top", Format: "qcow2"})
	define(t, b, "vm2", 2, Disk{Path: "top2", Format: "qcow2"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	assert.Equal(t, []string{"ex", "sh", "sh"}, []string{a.Mode("top"), a.Mode("mid"), a.Mode("base")})
	require.NoError(t, b.Virt.Start(ctx, "vm2"), "a template is shared by guests on two hosts")
	assert.Equal(t, []string{"ex", "sh", "sh"}, []string{b.Mode("top2"), b.Mode("mid"), b.Mode("base")})
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, []string{"un", "un", "un"}, []string{a.Mode("top"), a.Mode("mid"), a.Mode("base")})
	assert.Equal(t, "sh", b.Mode("base"))
}

func TestRawDiskIsNeverRead(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "raw", "victim")
	qcow2(t, c, "raw", "/dev/vg_san/victim", "raw") // what a guest could write itself
	define(t, a, "vm1", 1, Disk{Path: "raw"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	assert.Equal(t, "un", a.Mode("victim"))
}

func TestChainWithCycle(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "one", "two")
	qcow2(t, c, "one", "/dev/vg_san/two", "qcow2")
	qcow2(t, c, "two", "/dev/vg_san/one", "qcow2")
	define(t, a, "vm1", 1, Disk{Path: "one", Format: "qcow2"})
	err := a.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "cycle")
	settled(t, a)
	assert.Equal(t, []string{"un", "un"}, []string{a.Mode("one"), a.Mode("two")}, "nothing is left half-activated")
}

func TestShareable(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "quorum")
	shared := Disk{Path: "quorum", Extra: "<shareable/>"}
	define(t, a, "vm1", 1, shared)
	define(t, a, "vm2", 2, shared)
	define(t, b, "vm3", 3, shared)
	for _, s := range []struct {
		h     *Host
		guest string
	}{{a, "vm1"}, {a, "vm2"}, {b, "vm3"}} {
		require.NoError(t, s.h.Virt.Start(ctx, s.guest))
		assert.Equal(t, "sh", s.h.Mode("quorum"))
	}
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, "sh", a.Mode("quorum"), "vm2 still uses it")
	require.NoError(t, a.Virt.Destroy(ctx, "vm2"))
	assert.Equal(t, "un", a.Mode("quorum"))
}

func TestTwoGuestsOneVolume(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	define(t, a, "vm1", 1, Disk{Path: "disk"})
	define(t, a, "clone", 2, Disk{Path: "disk"})
	define(t, a, "reader", 3, Disk{Path: "disk", Extra: "<readonly/>"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	for _, guest := range []string{"clone", "reader"} {
		err := a.Virt.Start(ctx, guest)
		require.Error(t, err)
		assert.Contains(t, err.Error(), "vg_san/disk is used on this host (kvm-a) by guest vm1 as a writable disk")
	}
	assert.Equal(t, "ex", a.Mode("disk"))
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	require.NoError(t, a.Virt.Start(ctx, "clone"))
}

func TestOneOfEightIsHeldElsewhere(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	var disks []Disk
	for i := range 8 {
		lvs(t, c, fmt.Sprintf("d%d", i))
		disks = append(disks, Disk{Path: fmt.Sprintf("d%d", i)})
	}
	define(t, a, "vm1", 1, disks...)
	_, err := b.Run("lvchange", "-aey", "vg_san/d5")
	require.NoError(t, err)
	err = a.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "vg_san/d5 is held exclusively by kvm-b")
	settled(t, a)
	for i := range 8 {
		assert.Equal(t, "un", a.Mode(fmt.Sprintf("d%d", i)), "the seven others are undone")
	}
	assert.Equal(t, "ex", b.Mode("d5"))
}

func TestAnotherVolumeGroupAtFault(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	require.NoError(t, c.SAN.AddVG(san.VGSpec{Name: "zz-2"}))
	_, err := c.SAN.AddLV("zz-2", san.LVSpec{Name: "data-1"})
	require.NoError(t, err)
	lvs(t, c, "root")
	define(t, a, "vm1", 1, Disk{Path: "root"}, Disk{Path: "/dev/mapper/zz--2-data--1"})
	_, err = b.Run("lvchange", "-asy", "zz-2/data-1")
	require.NoError(t, err)
	err = a.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "zz-2/data-1 is held shared by kvm-b")
	settled(t, a)
	assert.Equal(t, "un", a.Mode("root"), "what was taken in the first group is undone")
	_, err = b.Run("lvchange", "-an", "zz-2/data-1")
	require.NoError(t, err)
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
}

func TestUnmanagedDisks(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	_, err := c.SAN.AddLV("vg_plain", san.LVSpec{Name: "local"})
	require.NoError(t, err)
	_, err = a.Run("lvchange", "-aey", "vg_plain/local")
	require.NoError(t, err)
	define(t, a, "vm1", 1, Disk{Path: "/dev/vg_plain/local"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	assert.True(t, a.LVM.Active("vg_plain", "local"), "what is out of scope is never touched")
}

func TestMissingVolume(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	define(t, a, "vm1", 1, Disk{Path: "nosuch"})
	err := a.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "virtlvm: cannot start vm1: volume vg_san/nosuch (disk vda) does not exist")
}

func TestSameVolumeTwice(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	define(t, a, "vm1", 1, Disk{Path: "disk"}, Disk{Path: "/dev/mapper/vg_san-disk"})
	err := a.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "vg_san/disk is named twice (disk vda writable, disk vdb writable)")
	define(t, a, "vm2", 2, Disk{Path: "disk", Extra: "<readonly/>"}, Disk{Path: "disk", Extra: "<readonly/>"})
	require.NoError(t, a.Virt.Start(ctx, "vm2"), "reading it twice harms nobody")
	assert.Equal(t, "sh", a.Mode("disk"))
}

func TestHundredDisks(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	var disks []Disk
	for i := range 100 {
		lvs(t, c, fmt.Sprintf("d%d", i))
		disks = append(disks, Disk{Path: fmt.Sprintf("d%d", i)})
	}
	a.timeout = time.Minute // the fake is slow with many volumes under the race detector
	xml := XML("vm1", UUID(1), disks...)
	for i := range 100 { // targets vda to vdz are used several times: give each its own
		xml = replaceOnce(xml, fmt.Sprintf("<target dev='vd%c'", 'a'+i%26), fmt.Sprintf("<target dev='disk%d'", i))
	}
	_, err := a.Virt.Define(ctx, xml)
	require.NoError(t, err)
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	commands, err := a.Store().Commands(ctx, api.CommandFilter{Limit: 1000})
	require.NoError(t, err)
	changes := 0
	for _, cmd := range commands {
		if cmd.Kind == "activate" {
			changes++
		}
	}
	assert.Equal(t, 1, changes, "one lvchange for a volume group and mode")
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, "un", a.Mode("d99"))
}

func replaceOnce(b []byte, old, with string) []byte {
	for i := 0; i+len(old) <= len(b); i++ {
		if string(b[i:i+len(old)]) == old {
			return append(append(append([]byte{}, b[:i]...), with...), b[i+len(old):]...)
		}
	}
	return b
}
