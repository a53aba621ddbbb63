package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/test/fakevirt"
)

// libvirtd is restarted on either host in the middle of a migration: libvirt gives that up,
// and where the guest is decides.
func TestGuestMigrateAndLibvirtRestarts(t *testing.T) {
	for _, at := range []fakevirt.Step{fakevirt.StepMigrateHook, fakevirt.StepLaunched, fakevirt.StepPerforming} {
		for _, host := range []string{"kvm-a", "kvm-b"} {
			t.Run(string(at)+" "+host, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.startVM1()
				restarted := false
				r.step = func(s fakevirt.Step) error {
					if s != at {
						return nil
					}
					restarted = true
					return r.c.Hosts[host].RestartLibvirtd(ctx)
				}
				v := r.mustAsk(r.a, api.KindGuestMigrate, migrateArgs).end()
				r.jobs["kvm-a"].Wait()
				require.True(t, restarted)
				if v.Outcome == command.Done {
					r.runsOn(r.b)
				} else {
					r.runsOn(r.a)
				}
			})
		}
	}
}

// A block copy goes on while libvirtd is restarted: it is QEMU's.
func TestVolumeMoveAndLibvirtRestarts(t *testing.T) {
	r := newRig(t)
	r.startVM1()
	w := r.mustAsk(r.a, api.KindVolumeMove, moveArgs)
	restarts := 0
	w.tick = func(s command.Sight) {
		if s.Where != command.Running {
			return
		}
		if restarts++; restarts <= 2 {
			require.NoError(t, r.a.RestartLibvirtd(ctx))
			return
		}
		r.catchUp(s)
	}
	assert.Equal(t, command.Done, w.end().Outcome)
	assert.Equal(t, 1, r.copies)
	r.moved()
}
