package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/test/san"
)

// booting is a host that has booted a minute ago, or earlier. Its lockspace is not started: a fault
// keeps it from that, so often.
func booting(t *testing.T, ago time.Duration, fault san.Fault, times int, test func(h *Host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		booted := time.Now().Add(-ago)
		c := NewWith(t, Options{Hosts: []string{"kvm-a"}, Timeout: 20 * time.Second, Patience: 3 * time.Minute, Break: func(_ *Daemon, deps *activation.Deps) {
			settings := deps.Settings
			deps.Uptime = func() time.Duration { return time.Since(booted) }
			deps.Settings = func() activation.Settings {
				s := settings()
				s.BootWait, s.LockstartRetry = 90*time.Second, 5*time.Second
				return s
			}
		}})
		h := c.Hosts["kvm-a"]
		lvs(t, c, vm1)
		define(t, h, vm1, 1, Disk{Path: vm1})
		require.NoError(t, h.LVM.LockStop("vg_san"))
		if fault.Times = times; times > 0 {
			_, err := c.SAN.AddFault(fault)
			require.NoError(t, err)
		}
		h.StartDaemon()
		go h.Engine().StartLockspaces(ctx, func() {})
		test(h)
	})
}

// noLink is what lvmlockd says at boot, before udev has made the link of the lease volume.
func noLink() san.Fault {
	return san.Fault{
		Kind: san.FaultExit, Tool: "vgchange", Match: "--lockstart", Stderr: "  VG vg_san start failed: invalid parameters for sanlock\n",
	}
}

// A guest that starts with its host waits for the lockspace, which the daemon tries to start until
// it is.
func TestBoot(t *testing.T) {
	booting(t, time.Minute, noLink(), 3, func(h *Host) {
		began := time.Now()
		require.NoError(t, h.Virt.Start(ctx, vm1))
		assert.Equal(t, "ex", h.Mode(vm1))
		assert.Less(t, time.Since(began), 30*time.Second)
	})
}

// It does not wait for ever, and is told what to do.
func TestBootWithoutLockspace(t *testing.T) {
	booting(t, time.Minute, noLink(), 1000, func(h *Host) {
		began := time.Now()
		err := h.Virt.Start(ctx, vm1)
		require.ErrorContains(t, err, "run 'vgchange --lockstart vg_san'")
		assert.InDelta(t, 90, time.Since(began).Seconds(), 5)
		assert.Equal(t, "un", h.Mode(vm1))
		time.Sleep(10 * time.Minute) // the daemon gives up as well
	})
}

// Later a lockspace that is stopped is somebody's will: nobody waits for it, or starts it.
func TestLongAfterBoot(t *testing.T) {
	booting(t, 11*time.Minute, noLink(), 0, func(h *Host) {
		began := time.Now()
		require.ErrorContains(t, h.Virt.Start(ctx, vm1), "run 'vgchange --lockstart vg_san'")
		assert.Less(t, time.Since(began), 5*time.Second)
		time.Sleep(time.Minute)
		assert.NotContains(t, lockspaces(t, h), "LS sanlock lvm_vg_san")
	})
}

// A volume group that is seen late, because its storage is: iSCSI logs in, a path comes up. Its
// lockspace is started all the same, but not again when somebody stops it.
func TestBootWithLateStorage(t *testing.T) {
	none := san.Fault{Kind: san.FaultGarbage, Tool: "vgs", Stdout: `{"report":[{"vg":[]}]}`}
	booting(t, time.Minute, none, 10, func(h *Host) {
		time.Sleep(2 * time.Minute)
		require.Contains(t, lockspaces(t, h), "LS sanlock lvm_vg_san")
		require.NoError(t, h.LVM.LockStop("vg_san"))
		time.Sleep(10 * time.Minute)
		assert.NotContains(t, lockspaces(t, h), "LS sanlock lvm_vg_san")
	})
}
