package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
	"virtlvm/test/san"
)

// Each test of this file says in its comment what would go wrong, and shows that it does not.

func hookCall(h *Host, op string, disks ...Disk) api.HookCall {
	return api.HookCall{Guest: "vm1", Op: op, SubOp: "begin", Extra: "-", XML: XML("vm1", UUID(1), disks...), Stamp: h.stamp()}
}

func hit(t *testing.T, c *Cluster, id int) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, err := c.SAN.Faults()
		require.NoError(t, err)
		for _, f := range all {
			if f.ID == id {
				return f.Hit > 0
			}
		}
		return false
	}, patience, time.Millisecond, "the fault was not met")
}

func commandsWith(t *testing.T, h *Host, words string) (found []string) {
	t.Helper()
	all, err := h.Store().Commands(ctx, api.CommandFilter{Limit: 1000})
	require.NoError(t, err)
	for _, cmd := range all {
		if line := strings.Join(cmd.Argv, " "); strings.Contains(line, words) {
			found = append(found, line+" ("+string(cmd.State)+"; "+cmd.Outcome+")")
		}
	}
	return found
}

// libvirt removes the status file even where it could not kill the QEMU (it hangs in the
// kernel on storage that does not answer) and then lets the guest be started again.
func TestSafetyStartOverALivingQEMU(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.Eventually(t, func() bool { return a.Engine().Status(ctx).Guests == 1 }, patience, time.Millisecond)
	require.NoError(t, os.Remove(filepath.Join(a.Virt.RunDir(), "vm1.xml")))
	require.Equal(t, 1, a.Engine().Status(ctx).Guests, "its QEMU is still known to run")
	err := a.Virt.Start(ctx, "vm1")
	require.Error(t, err, "a second QEMU writes the volume beside the first")
}

// A pass goes on with the snapshot it made before it waited for lvs: a guest that stopped
// meanwhile is adopted again, and its lock taken back.
func TestSafetyStaleLookTakesALockBack(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "vm1")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	define(t, b, "vm1", 1, Disk{Path: "vm1"})
	hang := fault(t, c, san.Fault{Kind: san.FaultHang, Host: "kvm-a", Tool: "lvs", Nth: 2}) // 1: prepare, 2: adoption
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	hit(t, c, hang)
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	require.Equal(t, "un", a.Mode("vm1"))
	before := len(commandsWith(t, a, "lvchange -aey"))
	require.NoError(t, c.SAN.ClearFaults(hang))
	time.Sleep(300 * time.Millisecond)
	assert.Len(t, commandsWith(t, a, "lvchange -aey"), before, "nothing runs here, nothing may be locked again")
}

// The same with the snapshot older than a minute (a hung lvs takes 70 s): the hold of a
// guest that started meanwhile is ended while the guest runs.
func TestSafetyStaleLookEndsARunningGuest(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "vm1", "vm2")
	define(t, a, "vm1", 1, Disk{Path: "vm1"})
	define(t, a, "vm2", 2, Disk{Path: "vm2"})
	hang := fault(t, c, san.Fault{Kind: san.FaultHang, Host: "kvm-a", Tool: "lvs", Nth: 2})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	hit(t, c, hang)
	require.NoError(t, a.Virt.Start(ctx, "vm2"))
	c.Advance(70 * time.Second)
	require.NoError(t, c.SAN.ClearFaults(hang))
	time.Sleep(300 * time.Millisecond)
	assert.Empty(t, commandsWith(t, a, "lvchange -an"), "both guests run")
}

// One disk that cannot be judged costs a running guest the protection of all its others.
func TestSafetyAdoptionIsAllOrNothing(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "good", "bad")
	define(t, a, "vm1", 1, Disk{Path: "good"}, Disk{Path: "bad"})
	define(t, a, "clone", 2, Disk{Path: "good"})
	a.glass.Store(true)
	_, err := a.Run("lvchange", "-aey", "vg_san/good", "vg_san/bad")
	require.NoError(t, err)
	_, err = a.Run("lvchange", "--addtag", "virtlvm.shared", "vg_san/bad")
	require.NoError(t, err)
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	a.glass.Store(false)
	require.Eventually(t, func() bool { return len(a.Engine().Status(ctx).Problems) > 0 }, patience, time.Millisecond)
	err = a.Virt.Start(ctx, "clone")
	require.Error(t, err, "vm1 runs and writes vg_san/good")
}

// A volume that something on this host has open, which is no guest of ours, is handed out.
func TestSafetyOpenedBySomebodyHere(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	_, err := a.Run("lvchange", "-aey", "vg_san/disk")
	require.NoError(t, err)
	require.NoError(t, a.LVM.Open("vg_san", "disk", 4242)) // mounted, say
	define(t, a, "vm1", 1, Disk{Path: "disk"})
	require.Error(t, a.Virt.Start(ctx, "vm1"))
}

// An exclusive lock that somebody else relies on (the volume is mounted here) is turned
// into a shared one, without a word, when a guest names the volume read-only.
func TestSafetyForeignExclusiveLockIsDowngraded(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	_, err := a.Run("lvchange", "-aey", "vg_san/disk")
	require.NoError(t, err)
	require.NoError(t, a.LVM.Open("vg_san", "disk", 4242))
	define(t, a, "vm1", 1, Disk{Path: "disk", Extra: "<readonly/>"})
	_ = a.Virt.Start(ctx, "vm1")
	assert.Equal(t, "ex", a.Mode("disk"))
}

// A VG that LVM does not see for a moment (devices file, path lost) makes its volumes
// "something else", although the device is there with an LVM uuid.
func TestSafetyVanishedVGIsTakenForUnmanaged(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "disk")
	define(t, a, "vm1", 1, Disk{Path: "disk"})
	_, err := a.Run("lvchange", "-asy", "vg_san/disk")
	require.NoError(t, err)
	_, err = b.Run("lvchange", "-asy", "vg_san/disk")
	require.NoError(t, err)
	fault(t, c, san.Fault{
		Kind: san.FaultExit, Host: "kvm-a", Tool: "lvs", ExitCode: 5,
		Stderr: "  Volume group \"vg_san\" not found\n  Cannot process volume group vg_san\n",
	})
	require.Error(t, a.Virt.Start(ctx, "vm1"), "a writable disk, locked shared on two hosts")
}

// Between prepare and start the lock is lost to SH (the other hook of the field does just
// that): start and started look at the device only.
func TestSafetyStartLooksAtTheLock(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "disk")
	v := a.Engine().Hook(ctx, hookCall(a, "prepare", Disk{Path: "disk"}))
	require.True(t, v.Allow, v.Message)
	_, err := a.Run("lvchange", "-asy", "vg_san/disk")
	require.NoError(t, err)
	_, err = b.Run("lvchange", "-asy", "vg_san/disk")
	require.NoError(t, err)
	v = a.Engine().Hook(ctx, hookCall(a, "start", Disk{Path: "disk"}))
	assert.False(t, v.Allow, "a writer would run beside kvm-b's shared lock")
}

// sanlock is dead: lvmlockd still lists the lock, but it protects nothing for long.
func TestSafetySanlockDead(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	_, err := a.Run("lvchange", "-aey", "vg_san/disk")
	require.NoError(t, err)
	require.NoError(t, a.LVM.KillSanlock())
	v := a.Engine().Hook(ctx, hookCall(a, "prepare", Disk{Path: "disk"}))
	assert.False(t, v.Allow, "no lease is renewed on this host any more")
}

// A database that could not be read when the daemon started is emptied when it works again.
func TestSafetyHoldsSurviveAnUnreadableDatabase(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	_, err := a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/disk"}, "test")
	require.NoError(t, err)
	a.StopDaemon()
	db := filepath.Join(a.dir, "state", "virtlvm.db")
	require.NoError(t, os.Rename(db, db+".away"))
	require.NoError(t, os.Mkdir(db, 0o700))
	a.StartDaemon()
	require.NoError(t, os.Remove(db))
	require.NoError(t, os.Rename(db+".away", db))
	c.Advance(3 * time.Second)
	require.NoError(t, a.Store().Health(ctx))
	a.Engine().Kick()
	time.Sleep(300 * time.Millisecond)
	holds, err := a.Store().Holds(ctx)
	require.NoError(t, err)
	assert.Len(t, holds, 1, "the operator's hold is still in the database")
	_, err = a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/disk"}, "test")
	assert.NoError(t, err, "an operator can give up what an operator took")
}

// The database is found corrupt while in use and begun anew: what memory holds is never
// written to the new one.
func TestSafetyNewDatabaseGetsTheHolds(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	_, err := a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/disk"}, "test")
	require.NoError(t, err)
	db := filepath.Join(a.dir, "state", "virtlvm.db")
	for _, name := range []string{db, db + "-wal"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte(strings.Repeat("garbage!", int(info.Size()/8))), 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	require.Eventually(t, func() bool {
		a.Engine().Kick()
		c.Advance(3 * time.Second)
		all, _ := filepath.Glob(db + ".corrupt-*")
		return len(all) > 0 && a.Store().Health(ctx) == nil
	}, patience, 10*time.Millisecond)
	a.Engine().Kick()
	time.Sleep(200 * time.Millisecond)
	holds, err := a.Store().Holds(ctx)
	require.NoError(t, err)
	assert.Len(t, holds, 1)
}

// The hook went before the verdict: what was done is undone, and then the verdict's
// transaction writes the holds again.
func TestSafetyAbandonedStartLeavesNoHold(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	hang := fault(t, c, san.Fault{Kind: san.FaultHang, Host: "kvm-a", Tool: "lvchange", Match: "-aey"})
	gone, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Engine().Hook(gone, hookCall(a, "prepare", Disk{Path: "disk"}))
	}()
	hit(t, c, hang)
	cancel()
	require.NoError(t, c.SAN.ClearFaults(hang))
	<-done
	require.Equal(t, "un", a.Mode("disk"))
	holds, err := a.Store().Holds(ctx)
	require.NoError(t, err)
	assert.Empty(t, holds)
}

// Two prepares of one guest (libvirtd was restarted in the middle of the first): the
// first, refused late, takes away what the second was granted.
func TestSafetyLateRefusalSparesANewerStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, "kvm-a", "kvm-b")
		a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
		require.NoError(t, c.SAN.AddVG(san.VGSpec{Name: "zz"}))
		_, err := c.SAN.AddLV("zz", san.LVSpec{Name: "two"})
		require.NoError(t, err)
		lvs(t, c, "one")
		_, err = b.Run("lvchange", "-aey", "zz/two")
		require.NoError(t, err)
		hang := fault(t, c, san.Fault{Kind: san.FaultHang, Host: "kvm-a", Tool: "lvchange", Volume: "zz/two"})
		first := make(chan api.HookVerdict, 1)
		go func() {
			first <- a.Engine().Hook(ctx, hookCall(a, "prepare", Disk{Path: "one"}, Disk{Path: "/dev/zz/two"}))
		}()
		hit(t, c, hang)
		// The administrator has taken the second disk out and starts the guest again.
		second := a.Engine().Hook(ctx, hookCall(a, "prepare", Disk{Path: "one"}))
		require.True(t, second.Allow, second.Message)
		require.NoError(t, c.SAN.ClearFaults(hang))
		require.False(t, (<-first).Allow)
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, "ex", a.Mode("one"), "the newer start was allowed and waits for its QEMU")
	})
}

// [lvm] timeout is not applied to commands that look: a hung lvs outlasts every hook.
func TestSafetyReadsHaveTheConfiguredDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t, "kvm-a")
		a := c.Hosts["kvm-a"]
		lvs(t, c, "disk")
		hang := fault(t, c, san.Fault{Kind: san.FaultHang, Host: "kvm-a", Tool: "lvs"})
		done := make(chan api.HookVerdict, 1)
		go func() { done <- a.Engine().Hook(ctx, hookCall(a, "prepare", Disk{Path: "disk"})) }()
		select {
		case v := <-done:
			assert.False(t, v.Allow)
			require.NoError(t, c.SAN.ClearFaults(hang))
		case <-time.After(21 * time.Second):
			t.Error("CommandTimeout is 20 s and lvs still hangs")
			require.NoError(t, c.SAN.ClearFaults(hang))
			<-done
		}
	})
}

// A VG that the administrator takes out of scope while guests run is still worked on.
func TestSafetyVGTakenOutOfScope(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	var out atomic.Bool
	a.StopDaemon()
	a.scope = func(string) bool { return !out.Load() }
	a.StartDaemon()
	define(t, a, "vm1", 1, Disk{Path: "disk"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	time.Sleep(100 * time.Millisecond)
	out.Store(true)
	c.Advance(2 * time.Minute) // the next look is a full one
	a.Engine().Kick()
	time.Sleep(300 * time.Millisecond)
	assert.Empty(t, commandsWith(t, a, "lvchange -an"), "the guest runs, and its VG is nobody's business now")
}

// The last thin volume goes off, its pool's lock stays (exit code 0): nobody notices, and
// no other host can use any volume of the pool.
func TestSafetyThinPoolLockLeftBehind(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	_, err := c.SAN.AddLV("vg_san", san.LVSpec{Name: "pool", Type: "thin-pool"})
	require.NoError(t, err)
	_, err = c.SAN.AddLV("vg_san", san.LVSpec{Name: "thin", Type: "thin", Pool: "pool"})
	require.NoError(t, err)
	define(t, a, "vm1", 1, Disk{Path: "thin"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.Equal(t, "ex", a.Mode("thin"))
	fault(t, c, san.Fault{Kind: san.FaultUnlock, Host: "kvm-a", Tool: "lvchange", Times: 1})
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	require.Eventually(t, func() bool { a.Engine().Kick(); return a.Mode("thin") == "un" }, patience, 50*time.Millisecond,
		"the lock of the pool is still held: %s", a.Mode("thin"))
}

// Active block commit: the status file names the base as backing and as mirror.
func TestSafetyActiveCommitIsNoDoubleUse(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "top", "base")
	qcow2(t, c, "top", "/dev/vg_san/base", "qcow2")
	qcow2(t, c, "base", "", "")
	define(t, a, "vm1", 1, Disk{Path: "top", Format: "qcow2"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	time.Sleep(100 * time.Millisecond)
	file := filepath.Join(a.Virt.RunDir(), "vm1.xml")
	doc, err := os.ReadFile(file)
	require.NoError(t, err)
	text := strings.Replace(string(doc), "<blockjobs active='no'/>", "<blockjobs active='yes'/>", 1)
	require.Contains(t, text, "<target dev=\"vda\"")
	text = strings.Replace(text, "<target dev=\"vda\"",
		"<mirror type='block' job='active-commit'><format type='qcow2'/><source dev='/dev/vg_san/base'/></mirror><target dev=\"vda\"", 1)
	require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	a.Engine().Kick()
	require.Eventually(t, func() bool { return a.Mode("base") == "ex" }, patience, 10*time.Millisecond, "QEMU writes the base")
	assert.Empty(t, a.Engine().Status(ctx).Problems)
}

// Without a database an operator cannot give a volume up.
func TestSafetyOperatorReleasesWithoutDatabase(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	_, err := a.Engine().Activate(ctx, api.VolumeRequest{Volume: "vg_san/disk"}, "test")
	require.NoError(t, err)
	state := filepath.Join(a.dir, "state")
	require.NoError(t, a.Store().Close())
	require.NoError(t, os.Rename(state, state+".away"))
	require.NoError(t, os.WriteFile(state, nil, 0o600))
	c.Advance(3 * time.Second)
	_, err = a.Engine().Deactivate(ctx, api.VolumeRequest{Volume: "vg_san/disk"}, "test")
	assert.NoError(t, err)
	assert.Equal(t, "un", a.Mode("disk"))
	require.NoError(t, os.Remove(state))
	require.NoError(t, os.Rename(state+".away", state))
}

// A volume whose guest is gone but that something still has open must not go to another
// guest: the hold that ends has not ended.
func TestSafetyEndingButOpen(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	define(t, a, "vm1", 1, Disk{Path: "disk"})
	define(t, a, "clone", 2, Disk{Path: "disk"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.NoError(t, a.LVM.Open("vg_san", "disk", 4242))
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	require.Equal(t, "ex", a.Mode("disk"))
	require.Error(t, a.Virt.Start(ctx, "clone"))
}

// kill -9 between the start of an lvchange and the write of its pid: the next daemon must
// not look before that command has ended, whatever it hears of the guest meanwhile.
func TestSafetyLeftoverWithoutPid(t *testing.T) {
	later := func(end func()) { time.AfterFunc(500*time.Millisecond, end) }
	t.Run("nobody tells", func(t *testing.T) { leftoverWithoutPid(t, func(_ *Host, end func()) { later(end) }) })
	t.Run("its guest is released", func(t *testing.T) {
		leftoverWithoutPid(t, func(a *Host, end func()) {
			later(end)
			_, told := a.tell(ctx, api.HookCall{Guest: "vm1", UUID: UUID(1), Op: "release", Stamp: a.stamp()})
			assert.True(t, told)
		})
	})
	t.Run("the daemon is restarted", func(t *testing.T) {
		leftoverWithoutPid(t, func(a *Host, end func()) {
			later(end)
			d := a.Daemon()
			d.stop()
			<-d.done
			a.StopDaemon()
			a.Launch()
		})
	})
	t.Run("the host goes down", func(t *testing.T) {
		leftoverWithoutPid(t, func(a *Host, end func()) {
			d := a.Daemon()
			d.stop()
			<-d.done
			later(end)
			d.engine.Shutdown(ctx)
			assert.Equal(t, "un", a.Mode("disk"))
			assert.NotContains(t, lockspaces(t, a), "LS sanlock lvm_vg_san")
			a.StopDaemon()
			a.Launch()
		})
	})
	t.Run("it hangs", func(t *testing.T) {
		leftoverWithoutPid(t, func(a *Host, end func()) {
			for range 2 { // daemons
				require.Eventually(t, func() bool {
					a.c.Advance(time.Minute)
					return a.Engine().Status(ctx).Ready
				}, patience, 10*time.Millisecond)
				all, err := a.Store().Commands(ctx, api.CommandFilter{Limit: 1})
				require.NoError(t, err)
				assert.Equal(t, "PROCESSING", all[0].State)
				_, err = a.Engine().Lookup(ctx, "vg_san/disk")
				require.ErrorContains(t, err, "vg_san is stuck")
				a.StopDaemon()
				a.Launch()
			}
			end()
		})
	})
}

func leftoverWithoutPid(t *testing.T, meanwhile func(a *Host, end func())) {
	t.Helper()
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	v, err := c.SAN.Volume("vg_san", "disk")
	require.NoError(t, err)
	g, err := a.Run("lvs", "--noheadings", "-o", "vg_uuid,lv_uuid", "vg_san/disk")
	require.NoError(t, err)
	ids := strings.Fields(g)
	require.Len(t, ids, 2, "%v %v", g, v)
	id := model.VolumeID{VG: ids[0], LV: ids[1]}
	vol := model.Volume{ID: id, VG: "vg_san", LV: "disk", LockLV: id.LV}
	_, err = a.Store().Begin(ctx, store.Intent{Kind: "activate", Argv: []string{"lvchange", "-aey", "vg_san/disk"}, Targets: []model.Volume{vol}, BootID: a.bootID()},
		store.HoldChange{Put: []model.Hold{{
			Owner: UUID(1), Guest: "vm1", Volume: id, LockLV: id.LV, Name: "vg_san/disk", Role: model.RoleWritable, Mode: model.ModeEX,
			Phase: model.PhaseHeld, BootID: a.bootID(), Attempt: model.Attempt{LibvirtdPID: os.Getpid(), LibvirtdStart: 1},
		}}})
	require.NoError(t, err)
	a.StopDaemon()
	hang := fault(t, c, san.Fault{Kind: san.FaultHang, Host: "kvm-a", Tool: "lvchange", Match: "-aey"})
	done := make(chan struct{})
	go func() { defer close(done); _, _ = a.Run("lvchange", "-aey", "vg_san/disk") }()
	hit(t, c, hang)
	a.orphan = func() []string {
		select {
		case <-done:
			return nil
		default:
			return []string{"lvchange", "-aey", "vg_san/disk"}
		}
	}
	<-a.Launch().serving
	meanwhile(a, func() { _ = c.SAN.ClearFaults(hang) })
	<-done
	a.Engine().Kick()
	require.Eventually(t, func() bool { return a.Mode("disk") == "un" }, patience, 10*time.Millisecond, "active, locked, and nobody's")
}

// A hold is ended by mistake while its guest runs (see the stale look): the kernel keeps
// the device, but nothing keeps a reader from turning the writer's lock into a shared one.
func TestSafetyEndingWriterLosesItsExclusiveLock(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	lvs(t, c, "disk")
	define(t, a, "vm1", 1, Disk{Path: "disk"})
	define(t, a, "reader", 2, Disk{Path: "disk", Extra: "<readonly/>"})
	require.NoError(t, a.Virt.Start(ctx, "vm1"))
	require.NoError(t, a.LVM.Open("vg_san", "disk", 4242)) // what is left of vm1's QEMU
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	require.Equal(t, "ex", a.Mode("disk"))
	_ = a.Virt.Start(ctx, "reader")
	assert.Equal(t, "ex", a.Mode("disk"), "open for writing here, and any host may now have it shared")
}

// Both hosts have the volume shared: LVM would refuse to make it exclusive, and disturb the
// other's lease in trying (rule 6). The lease is read first.
func TestSafetyNoConvertBesideASharer(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "disk")
	for _, h := range []*Host{a, b} {
		_, err := h.Run("lvchange", "-asy", "vg_san/disk")
		require.NoError(t, err)
	}
	v := a.Engine().Hook(ctx, hookCall(a, "prepare", Disk{Path: "disk"}))
	require.False(t, v.Allow)
	assert.Contains(t, v.Message, "vg_san/disk is held shared by kvm-b")
	commands, err := a.Store().Commands(ctx, api.CommandFilter{Limit: 100})
	require.NoError(t, err)
	for _, cmd := range commands {
		assert.NotContains(t, cmd.Argv, "-aey")
	}
	assert.Equal(t, "sh", a.Mode("disk"), "as it was found")
}

// A host whose first look has failed knows no other host yet: it must not take that for nobody
// who could say that the volume is a disk of a guest.
func TestSafetyRemoveAsksTheHostsOfTheVolume(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
	lvs(t, c, "disk")
	define(t, b, "vm1", 1, Disk{Path: "disk"})
	a.StopDaemon()
	blind := fault(t, c, san.Fault{Kind: san.FaultExit, Host: "kvm-a", Tool: "vgs"})
	a.StartDaemon()
	require.NoError(t, c.SAN.ClearFaults(blind))
	v, err := a.Engine().Lookup(ctx, "vg_san/disk")
	require.NoError(t, err)
	err = a.Engine().Remove(ctx, activation.Work{Key: "kvm-a-1"}, v)
	require.EqualError(t, err, "vg_san/disk is a disk of guest vm1, which is defined on kvm-b")
	_, err = a.Engine().Lookup(ctx, "vg_san/disk")
	assert.NoError(t, err)
}

// opens counts how often it was asked which commands have not ended.
type opens struct {
	activation.Journal
	asked *atomic.Int64
}

func (o opens) OpenCommands(ctx context.Context) ([]store.OpenCommand, error) {
	o.asked.Add(1)
	return o.Journal.OpenCommands(ctx)
}

// A look in the moment between the intent of a command and its start would take it for one that
// an earlier daemon has left, and write that it has ended: after kill -9 nobody would wait for it.
func TestSafetyCommandThatBeginsIsNoLeftover(t *testing.T) {
	var asked atomic.Int64
	c := NewWith(t, Options{Hosts: []string{"kvm-a"}, Break: func(_ *Daemon, deps *activation.Deps) { deps.Journal = opens{deps.Journal, &asked} }})
	a := c.Hosts["kvm-a"]
	a.StartDaemon()
	seen := ""
	c.At = func(_ context.Context, d *Daemon, p Point) {
		if p.Kind != "journal" || !strings.HasPrefix(p.What, "begin lvcreate") || !p.After {
			return
		}
		for range 2 { // the second time the first look has ended
			before := asked.Load()
			d.engine.Kick()
			require.Eventually(t, func() bool { return asked.Load() > before }, patience, time.Millisecond)
		}
		all, err := a.Store().Commands(ctx, api.CommandFilter{Limit: 1})
		require.NoError(t, err)
		seen = all[0].State
	}
	_, err := a.Engine().Create(ctx, activation.Work{Key: "kvm-a-1"}, "vg_san/new", 4<<20)
	require.NoError(t, err)
	assert.Equal(t, "STARTED", seen)
}
