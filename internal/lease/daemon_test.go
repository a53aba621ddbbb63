package lease_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/run"
	"virtlvm/internal/run/runtest"
)

func TestDaemon(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "daemon")
	d, err := at(f, 1519).Daemon(t.Context())
	require.NoError(t, err)
	space := d.Spaces["vg_san"]
	assert.Equal(t, lease.Daemon{
		Running: true, HostName: "kvm-a", Version: "3.8.5", Monotonic: d.Monotonic,
		Spaces: map[string]lease.Space{"vg_san": {
			HostID: 1, IOTimeout: 2, AlignSize: 1 << 20, LastOK: true, LastAttempt: space.LastAttempt, LastSuccess: space.LastSuccess,
		}},
	}, d)
	assert.Positive(t, d.Monotonic)
	assert.Positive(t, space.LastSuccess)
	assert.GreaterOrEqual(t, d.Monotonic, space.LastSuccess)

	renewals, err := at(f, 1519).Renewals(t.Context(), "vg_san")
	require.NoError(t, err)
	assert.Len(t, renewals, 3)
	for _, r := range renewals {
		assert.Zero(t, r.Timeouts+r.Errors)
	}
}

func TestDaemonInTrouble(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "renewal-fails")
	d, err := at(f, 1560).Daemon(t.Context())
	require.NoError(t, err)
	space := d.Spaces["vg_san"]
	assert.False(t, space.LastOK)
	assert.True(t, space.Lost, "given up: who uses it is ended")
	assert.Greater(t, space.LastAttempt, space.LastSuccess)

	renewals, err := at(f, 1560).Renewals(t.Context(), "vg_san")
	require.NoError(t, err)
	assert.Equal(t, lease.Renewal{At: 953, Read: 1, Errors: 18}, renewals[len(renewals)-1])
}

func TestDaemonDoesNotRun(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "sanlock-down")
	d, err := at(f, 100).Daemon(t.Context())
	require.NoError(t, err)
	assert.False(t, d.Running)

	f = runtest.New(t)
	f.ExpectLine("sanlock client status -D").Fail(&run.NotFoundError{Name: "sanlock"})
	_, err = at(f, 100).Daemon(t.Context())
	assert.Equal(t, api.KindLocking, api.KindOf(err))
}

func TestDaemonLosesALockspace(t *testing.T) {
	const head = "daemon kvm-b\n    use_watchdog=1\np -1 helper\n    use_watchdog=0\n"
	for name, tt := range map[string]struct {
		out  string
		lost bool
	}{
		"good":       {"s lvm_vg:2:/dev/mapper/vg-lvmlock:0\n    renew_fail=0\n    renewal_last_result=1\n", false},
		"removed":    {"s lvm_vg:2:/dev/mapper/vg-lvmlock:0 REM\n    renew_fail=0\n", true},
		"renew_fail": {"s lvm_vg:2:/dev/mapper/vg-lvmlock:0\n    renew_fail=1\n    space_dead=0\n", true},
		"killing":    {"s lvm_vg:2:/dev/mapper/vg-lvmlock:0\n    killing_pids=1\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine("sanlock client status -D").Stdout(head + tt.out)
			d, err := at(f, 100).Daemon(t.Context())
			require.NoError(t, err)
			assert.True(t, d.UseWatchdog, "the key is the daemon's, not a client's")
			assert.Equal(t, 2, d.Spaces["vg"].HostID)
			assert.Equal(t, tt.lost, d.Spaces["vg"].Lost)
		})
	}
}

func TestDaemonGarbage(t *testing.T) {
	for _, out := range []string{"", "garbage\n", "daemon a\ns lvm_vg:x:/dev:0\n", "daemon a\ns lvm_vg\n"} {
		f := runtest.New(t)
		f.ExpectLine("sanlock client status -D").Stdout(out)
		_, err := at(f, 100).Daemon(t.Context())
		assert.Equal(t, api.KindLocking, api.KindOf(err), "%q", out)
	}
	f := runtest.New(t)
	f.ExpectLine("sanlock client renewal -s lvm_vg").Stdout("timestamp=x read_ms=1\n")
	_, err := at(f, 100).Renewals(t.Context(), "vg")
	assert.Error(t, err)
}

func TestLockspaces(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine("lvmlockctl --info --dump").Stdout(`info=structs unused_action_count=31 unused_client_count=31
info=client pid=660 fd=8 pi=2 id=24 name=.
info=ls ls_name=lvm_vg_san vg_name=vg_san vg_uuid=rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M vg_args=1.0.0:lvmlock lm_type=sanlock host_id=2 create_fail=0 create_done=1 thread_work=0 thread_stop=0 thread_done=0 kill_vg=0 drop_vg=0 sanlock_gl_enabled=1
info=r name=VGLK type=vg mode=un sh_count=0 version=0
info=ls ls_name=lvm_vg2 vg_name=vg2 vg_uuid=u vg_args=1.0.0:lvmlock lm_type=sanlock host_id=2 generation=3 create_fail=0 create_done=1 thread_work=0 thread_stop=0 thread_done=0 kill_vg=1 fence_pr=0 no_timeout=0 sanlock_gl_enabled=0
info=ls ls_name=lvm_global vg_name=. vg_uuid=. vg_args=. lm_type=dlm host_id=0 kill_vg=0 sanlock_gl_enabled=0
`)
	all, down, err := at(f, 100).Lockspaces(t.Context())
	require.NoError(t, err)
	assert.False(t, down)
	assert.Equal(t, []lease.Lockspace{
		{VG: "vg_san", Type: "sanlock", HostID: 2, GlobalLock: true},
		{VG: "vg2", Type: "sanlock", HostID: 2, Killed: true},
	}, all)

	f = runtest.New(t)
	f.ExpectLine("lvmlockctl --info --dump").Stdout("Cannot connect to lvmlockd.\n").Exit(255)
	_, down, err = at(f, 100).Lockspaces(t.Context())
	require.NoError(t, err)
	assert.True(t, down)
}

func TestDiskHosts(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(dumpLine(0)).Stdout(header +
		"00000000                           lvm_vg_san                                            kvm-a 0000000456 0001 0001\n" +
		"00000512                           lvm_vg_san                                            kvm-b 0000000000 0002 0001\n")
	names, err := at(f, 100).DiskHosts(t.Context(), "vg_san")
	require.NoError(t, err)
	assert.Equal(t, map[int]string{1: "kvm-a"}, names, "kvm-b has left in good order")
}
