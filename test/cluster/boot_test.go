package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/test/san"
)

// booting is a host that has booted a minute ago, or earlier. Its lockspace is not started: what
// starts it at boot fails so often.
func booting(t *testing.T, ago time.Duration, fails int, test func(h *Host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
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
		_, err := c.SAN.AddFault(san.Fault{
			Kind: san.FaultExit, Host: "kvm-a", Tool: "vgchange", Match: "--lockstart", Times: fails,
			Stderr: "  VG vg_san start failed: invalid parameters for sanlock\n",
		})
		require.NoError(t, err)
		h.StartDaemon()
		go h.Engine().StartLockspaces(ctx)
		test(h)
	})
}

// A guest that starts with its host waits for the lockspace, which the daemon tries to start until
// it is.
func TestBoot(t *testing.T) {
	booting(t, time.Minute, 3, func(h *Host) {
		began := time.Now()
		require.NoError(t, h.Virt.Start(ctx, vm1))
		assert.Equal(t, "ex", h.Mode(vm1))
		assert.Less(t, time.Since(began), 30*time.Second)
	})
}

// It does not wait for ever, and is told what to do.
func TestBootWithoutLockspace(t *testing.T) {
	booting(t, time.Minute, 1000, func(h *Host) {
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
	booting(t, 11*time.Minute, 0, func(h *Host) {
		began := time.Now()
		require.ErrorContains(t, h.Virt.Start(ctx, vm1), "run 'vgchange --lockstart vg_san'")
		assert.Less(t, time.Since(began), 5*time.Second)
		time.Sleep(time.Minute)
		assert.NotContains(t, lockspaces(t, h), "LS sanlock lvm_vg_san")
	})
}
