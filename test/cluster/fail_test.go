package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/san"
)

// one makes a cluster of one host with volume vm1 and its guest.
func one(t *testing.T) (*Cluster, *Host) {
	t.Helper()
	c := New(t, "kvm-a")
	lvs(t, c, "vm1")
	define(t, c.Hosts["kvm-a"], "vm1", 1, Disk{Path: "vm1"})
	return c, c.Hosts["kvm-a"]
}

func fault(t *testing.T, c *Cluster, f san.Fault) int {
	t.Helper()
	id, err := c.SAN.AddFault(f)
	require.NoError(t, err)
	return id
}

// refused starts vm1, which must fail with a text, and nothing may be left of it.
func refused(t *testing.T, h *Host, text string) {
	t.Helper()
	err := h.Virt.Start(ctx, "vm1")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "virtlvm: cannot start vm1: ")
	assert.Contains(t, err.Error(), text)
}

func TestToolsMisbehave(t *testing.T) {
	for name, f := range map[string]struct {
		san.Fault
		text string // "" : the start succeeds all the same
		left string // lock mode afterwards, while the fault is there
	}{
		"lvs missing":                {san.Fault{Kind: san.FaultMissing, Tool: "lvs"}, "cannot run lvs", "un"},
		"lvs garbage":                {san.Fault{Kind: san.FaultGarbage, Tool: "lvs"}, "cannot understand the answer of lvs", "un"},
		"lvs warns":                  {san.Fault{Kind: san.FaultWarnings, Tool: "lvs"}, "", "ex"},
		"lvs hangs":                  {san.Fault{Kind: san.FaultHang, Tool: "lvs"}, "cannot read volume group vg_san", "un"},
		"lvchange missing":           {san.Fault{Kind: san.FaultMissing, Tool: "lvchange", Times: 1}, "cannot run lvchange", "un"},
		"lvchange fails":             {san.Fault{Kind: san.FaultExit, Tool: "lvchange", Times: 1, Stderr: "  device-mapper: reload ioctl failed"}, "device-mapper: reload ioctl failed", "un"},
		"lock but no device":         {san.Fault{Kind: san.FaultActivate, Tool: "lvchange", Times: 1}, "vg_san/vm1", "un"},
		"lvmlockctl garbage":         {san.Fault{Kind: san.FaultGarbage, Tool: "lvmlockctl", Stdout: "what?\n", Times: 1}, "locks", "un"},
		"lvmlockctl missing":         {san.Fault{Kind: san.FaultMissing, Tool: "lvmlockctl"}, "lvmlock", "un"},
		"killed by SIGTERM mid-way":  {san.Fault{Kind: san.FaultHang, Tool: "lvchange", Match: "-aey", Times: 1}, "was ended by its deadline", "un"},
		"done, but the answer hangs": {san.Fault{Kind: san.FaultHang, After: true, Tool: "lvchange", Match: "-aey", Times: 1}, "was ended by its deadline", "un"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, h := one(t)
				id := fault(t, c, f.Fault)
				if f.text == "" {
					require.NoError(t, h.Virt.Start(ctx, "vm1"))
					assert.Equal(t, f.left, h.Mode("vm1"))
					return
				}
				refused(t, h, f.text)
				require.Eventually(t, func() bool { return h.Mode("vm1") == f.left }, patience, 10*time.Millisecond, "nothing is left half-activated")
				require.NoError(t, c.SAN.ClearFaults(id))
				h.Engine().Kick()
				settled(t, h)
				assert.False(t, h.LVM.Active("vg_san", "vm1"))
				require.NoError(t, h.Virt.Start(ctx, "vm1"), "and then it works")
				assert.Equal(t, "ex", h.Mode("vm1"))
				ended(t, h)
			})
		})
	}
}

// ended: every command of the journal has a final state.
func ended(t *testing.T, h *Host) {
	t.Helper()
	require.Eventually(t, func() bool {
		h.Engine().Kick()
		open, err := h.Store().OpenCommands(ctx)
		return err == nil && len(open) == 0
	}, patience, 20*time.Millisecond, "every command ends in a final state")
}

func TestStuckCommandStopsItsGroupAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, h := one(t)
		require.NoError(t, c.SAN.AddVG(san.VGSpec{Name: "vg_two"}))
		_, err := c.SAN.AddLV("vg_two", san.LVSpec{Name: "other"})
		require.NoError(t, err)
		define(t, h, "vm2", 2, Disk{Path: "/dev/vg_two/other"})
		lvs(t, c, "vm3")
		define(t, h, "vm3", 3, Disk{Path: "vm3"})
		require.NoError(t, h.Virt.Start(ctx, "vm3"))
		id := fault(t, c, san.Fault{Kind: san.FaultHang, Stuck: true, Tool: "lvchange", Match: "vg_san/vm1", Times: 1})

		refused(t, h, "has passed its deadline and still runs")
		began := time.Now()
		refused(t, h, "vg_san is stuck: 'lvchange -aey vg_san/vm1'")
		assert.Less(t, time.Since(began), time.Second, "at once")
		require.NoError(t, h.Virt.Start(ctx, "vm2"), "other volume groups go on")
		assert.Contains(t, h.Engine().Status(ctx).VGs[1].Stuck+h.Engine().Status(ctx).VGs[0].Stuck, "has not ended")

		// Of what ends there meanwhile is not known that it is off.
		before := h.now()
		require.NoError(t, h.Virt.Destroy(ctx, "vm3"))
		var pending []string
		for _, u := range h.Engine().Status(ctx).Pending {
			pending = append(pending, u.Volume)
			if u.Volume == "vg_san/vm3" {
				assert.Equal(t, "vm3 off unknown lvchange -an", u.Guest+" "+u.Wanted+" "+u.Actual+" "+u.Next)
				assert.Contains(t, u.Reason, "vg_san is stuck: 'lvchange -aey vg_san/vm1'")
				assert.False(t, u.Since.Before(before.Truncate(time.Millisecond)))
			}
		}
		assert.Contains(t, pending, "vg_san/vm3")

		require.NoError(t, c.SAN.ClearFaults(id))
		require.Eventually(t, func() bool { return h.Virt.Start(ctx, "vm1") == nil }, patience, 20*time.Millisecond, "when the command ends it goes on by itself")
		ended(t, h)
	})
}

// Of two commands that hang on a volume group the one that was given up last ends first: the other
// one may still activate something.
func TestStuckByTwoCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, h := one(t)
		id := fault(t, c, san.Fault{Kind: san.FaultHang, Stuck: true, Tool: "lvchange", Match: "vg_san/vm1", Times: 1})
		started := make(chan error, 1)
		go func() { started <- h.Virt.Start(ctx, "vm1") }()
		time.Sleep(time.Second)
		reads := fault(t, c, san.Fault{Kind: san.FaultHang, Stuck: true, Tool: "lvs", Times: 1})
		_, err := h.Engine().Lookup(ctx, "vg_san/vm1")
		require.Equal(t, api.KindUnknown, api.KindOf(err), "%v", err)
		require.Error(t, <-started)
		require.NoError(t, c.SAN.ClearFaults(reads))
		time.Sleep(time.Second)
		_, err = h.Engine().Lookup(ctx, "vg_san/vm1")
		require.ErrorContains(t, err, "vg_san is stuck: 'lvchange -aey vg_san/vm1'")

		require.NoError(t, c.SAN.ClearFaults(id))
		require.Eventually(t, func() bool { return h.Virt.Start(ctx, "vm1") == nil }, patience, 20*time.Millisecond)
		ended(t, h)
	})
}

func TestFailedUnlockIsNotCalledReleased(t *testing.T) {
	c, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	id := fault(t, c, san.Fault{Kind: san.FaultUnlock, Tool: "lvchange", Match: "-an"})
	require.NoError(t, h.Virt.Destroy(ctx, "vm1"), "a stop is never refused")
	assert.Equal(t, "ex", h.Mode("vm1"))
	s := h.Engine().Status(ctx)
	require.Len(t, s.Pending, 1)
	assert.Equal(t, "vg_san/vm1", s.Pending[0].Volume)
	assert.Equal(t, "lock without dm", s.Pending[0].Actual)
	assert.Contains(t, s.Pending[0].Reason, "could not be dropped")
	require.NoError(t, c.SAN.ClearFaults(id))
	settled(t, h)
	assert.Equal(t, "un", h.Mode("vm1"))
}

func TestOpenVolumeIsKept(t *testing.T) {
	c, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	require.NoError(t, h.LVM.Open("vg_san", "vm1", 1)) // a backup, say
	require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
	assert.Equal(t, "ex", h.Mode("vm1"))
	s := h.Engine().Status(ctx)
	require.Len(t, s.Pending, 1)
	assert.Contains(t, s.Pending[0].Reason, "open on this host")

	// Since when it should be off is known to the next daemon as well.
	since := s.Pending[0].Since.Truncate(time.Millisecond)
	c.Advance(time.Hour)
	h.StopDaemon()
	h.StartDaemon()
	s = h.Engine().Status(ctx)
	require.Len(t, s.Pending, 1)
	assert.WithinDuration(t, since, s.Pending[0].Since, time.Minute)
	require.NoError(t, h.LVM.CloseVolume("vg_san", "vm1", 1))
	settled(t, h)
	assert.Equal(t, "un", h.Mode("vm1"))
}

func TestLockdDown(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.LVM.StopLvmlockd())
	refused(t, h, "lvmlockd is not running on this host")
	require.NoError(t, h.LVM.StartLvmlockd(true))
	require.NoError(t, h.Virt.Start(ctx, "vm1"))

	// It dies under a guest: the lease goes on protecting, and the device is kept with it.
	require.NoError(t, h.LVM.StopLvmlockd())
	require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
	assert.True(t, h.LVM.Active("vg_san", "vm1"), "deactivating now would lose the device and keep the lease")
	s := h.Engine().Status(ctx)
	assert.Equal(t, "lvmlockd is not running", s.Lockd)
	require.Len(t, s.Pending, 1)
	assert.Contains(t, s.Pending[0].Actual, "orphaned lock")
	assert.Contains(t, s.Pending[0].Reason, "--adopt 1")
	require.NoError(t, h.LVM.StartLvmlockd(true))
	settled(t, h)
	assert.Equal(t, "un", h.Mode("vm1"))
}

func TestLockspaceNotStarted(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.LVM.LockStop("vg_san"))
	refused(t, h, "run 'vgchange --lockstart vg_san'")
	require.NoError(t, h.LVM.LockStart("vg_san"))
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
}

func TestUnknownStatusFileKeepsEverything(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	path := filepath.Join(h.Virt.RunDir(), "vm1.xml")
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("<future><shape/></future>"), 0o600))
	h.qemus.EndAll() // even though no QEMU is to be seen
	h.c.Advance(10 * time.Minute)
	h.Engine().Kick()
	require.Eventually(t, func() bool { return len(h.Engine().Status(ctx).Problems) > 0 }, patience, 5*time.Millisecond)
	assert.Contains(t, h.Engine().Status(ctx).Problems[0], "its guest counts as running")
	assert.Equal(t, "ex", h.Mode("vm1"), "unknown is never gone")
	require.NoError(t, os.WriteFile(path, good, 0o600))
}

func TestDatabaseUnwritable(t *testing.T) {
	_, h := one(t)
	require.NoError(t, h.Virt.Start(ctx, "vm1"))
	lvs(t, h.c, "vm2")
	define(t, h, "vm2", 2, Disk{Path: "vm2"})
	h.breakDatabase(t)
	err := h.Virt.Start(ctx, "vm2")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "the journal")
	assert.Equal(t, "un", h.Mode("vm2"))
	assert.NotEqual(t, "ok", h.Engine().Status(ctx).Database)
	require.NoError(t, h.Virt.Destroy(ctx, "vm1"), "a guest that stops is released all the same")
	assert.Equal(t, "un", h.Mode("vm1"))
	h.mendDatabase(t)
	require.NoError(t, h.Virt.Start(ctx, "vm2"))
	h.StopDaemon()
	h.StartDaemon()
	settled(t, h)
	assert.Equal(t, "ex", h.Mode("vm2"))
	assert.Equal(t, 1, h.Engine().Status(ctx).Holds.Exclusive)
}

// breakDatabase makes every write fail, as on a full or read-only disk.
func (h *Host) breakDatabase(t *testing.T) {
	t.Helper()
	require.NoError(t, h.Store().Close())
	require.NoError(t, os.Rename(filepath.Join(h.dir, "state"), filepath.Join(h.dir, "state.away")))
}

func (h *Host) mendDatabase(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Rename(filepath.Join(h.dir, "state.away"), filepath.Join(h.dir, "state")))
	h.c.Advance(time.Minute)
}

func TestDatabaseLost(t *testing.T) {
	for _, how := range []string{"missing", "corrupt"} {
		t.Run(how, func(t *testing.T) {
			_, h := one(t)
			require.NoError(t, h.Virt.Start(ctx, "vm1"))
			h.StopDaemon()
			db := filepath.Join(h.dir, "state", "virtlvm.db")
			require.NoError(t, os.Remove(db))
			_ = os.Remove(db + "-wal")
			if how == "corrupt" {
				require.NoError(t, os.WriteFile(db, make([]byte, 8192), 0o600))
				require.NoError(t, os.WriteFile(db, []byte("SQLite format 3\x00 and then nothing sensible"), 0o600))
			}
			h.StartDaemon()
			assert.Equal(t, "ex", h.Mode("vm1"))
			assert.Equal(t, 1, h.Engine().Status(ctx).Holds.Exclusive, "found again by looking")
			require.NoError(t, h.Virt.Destroy(ctx, "vm1"))
			assert.Equal(t, "un", h.Mode("vm1"))
		})
	}
}

func TestBadDomains(t *testing.T) {
	_, h := one(t)
	for name, xml := range map[string]string{
		"empty": "", "truncated": "<domain type='kvm'><name>vm1</na", "not XML": "\xff\xfe\x00", "entities": "<!DOCTYPE d [<!ENTITY x 'y'>]><domain><name>&x;</name></domain>",
	} {
		call := api.HookCall{Guest: "vm 1\n-x", Op: "prepare", SubOp: "begin", Extra: "-", XML: []byte(xml), Stamp: h.stamp()}
		v := h.Engine().Hook(ctx, call)
		assert.False(t, v.Allow, name)
		assert.Contains(t, v.Message, `cannot start "vm 1\n-x": `)
		assert.NotContains(t, v.Message, "\n")
		call.Op = "release"
		assert.True(t, h.Engine().Hook(ctx, call).Allow, name)
		call.Op = "something-new"
		assert.True(t, h.Engine().Hook(ctx, call).Allow, name)
	}
}
