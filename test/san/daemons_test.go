package san

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// newLabOf is newLab with another version of LVM.
func newLabOf(t *testing.T, lvm int, volumes ...string) *lab {
	t.Helper()
	l := newLab(t, volumes...)
	require.NoError(t, l.san.update(func(st *state) error { st.LVM = lvm; return nil }))
	return l
}

func TestLvmlockdStopped(t *testing.T) {
	for lvm, unlockError := range map[int]string{
		LVM16: "  Failed to unlock logical volume vg_san/m8.\n",
		LVM31: "", // skipped silently since 2.03.25
	} {
		l := newLabOf(t, lvm, "m6", "m7", "m8")
		l.ok(l.b, "lvchange -aey vg_san/m8")
		l.ok(l.b, "lvchange -asy vg_san/m7")
		require.NoError(t, l.b.StopLvmlockd())
		require.Equal(t, "un/orphan ex", l.lock("m8"))
		const down = "  WARNING: lvmlockd process is not running.\n"
		_, stderr, code := l.run(l.b, "lvs vg_san/m8")
		require.Equal(t, 0, code)
		require.Equal(t, down+"  Reading VG vg_san without a lock.\n", stderr)
		_, stderr, code = l.run(l.b, "lvchange -aey vg_san/m6")
		require.Equal(t, 5, code)
		require.Equal(t, down+"  Cannot access VG vg_san due to failed lock.\n", stderr)
		_, stderr, code = l.run(l.b, "lvchange -an vg_san/m8")
		require.Equal(t, 0, code, "and yet the lease is kept")
		require.Equal(t, down+"  Reading VG vg_san without a lock.\n"+unlockError, stderr)
		require.False(t, l.b.Active("vg_san", "m8"))
		l.fails(l.a, "lvchange -aey vg_san/m8", refused("m8"))
		l.fails(l.a, "lvchange -aey vg_san/m7", refused("m7"))
		_, stderr, code = l.run(l.b, "lvmlockctl -i")
		require.Equal(t, 255, code)
		require.Equal(t, "/run/lvm/lvmlockd.socket: connect failed: Connection refused\n", stderr)
		status := l.ok(l.b, "sanlock client status")
		require.Regexp(t, `r lvm_vg_san:\S+:77?\d*:?\S*SH p 0 ORPHAN`, status)
		require.Regexp(t, `:1 p 242 ORPHAN`, status)
		require.NotContains(t, status, "lvmlockd\n")
		_, stderr, code = l.run(l.b, "vgchange --lockstart vg_san")
		require.Equal(t, 5, code)
		require.Equal(t, down+"  Reading without shared global lock.\n  VG vg_san start failed: lvmlockd is not running\n", stderr)
	}
}

func TestLvmlockdRestartedWithoutAdoption(t *testing.T) {
	for lvm, unlockError := range map[int]string{
		LVM16: "  LV vg_san/m8 lock failed: lockspace is inactive\n  Failed to unlock logical volume vg_san/m8.\n",
		LVM31: "",
	} {
		l := newLabOf(t, lvm, "m8")
		l.ok(l.b, "lvchange -aey vg_san/m8")
		require.NoError(t, l.b.StopLvmlockd())
		require.NoError(t, l.b.StartLvmlockd(false))
		l.ok(l.b, "vgchange --lockstart vg_san")
		require.Empty(t, l.ok(l.b, "lvmlockctl -i"), "lockstart said yes, nothing is started")
		l.fails(l.b, "lvchange -aey vg_san/m8", "Cannot access VG vg_san due to failed lock.")
		_, stderr, code := l.run(l.b, "lvchange -an vg_san/m8")
		require.Equal(t, 0, code)
		require.Equal(t, "  Reading VG vg_san without a lock.\n"+unlockError, stderr)
		require.Contains(t, l.ok(l.b, "sanlock client status"), "ORPHAN")
		l.fails(l.a, "lvchange -aey vg_san/m8", refused("m8"))
	}
}

func TestLvmlockdAdopts(t *testing.T) {
	l := newLab(t, "m8")
	l.ok(l.b, "lvchange -aey vg_san/m8")
	require.NoError(t, l.b.StopLvmlockd())
	require.NoError(t, l.b.StartLvmlockd(true))
	require.Equal(t, "un/ex", l.lock("m8"))
	l.ok(l.b, "lvchange -an vg_san/m8")
	l.ok(l.a, "lvchange -aey vg_san/m8")
}

func TestSanlockKilled(t *testing.T) {
	l := newLab(t, "m1")
	l.ok(l.b, "lvchange -aey vg_san/m1")
	require.NoError(t, l.b.KillSanlock())
	_, stderr, code := l.run(l.b, "lvs vg_san/m1")
	require.Equal(t, 0, code)
	require.Equal(t, "  VG vg_san lock skipped: error -221\n  Reading VG vg_san without a lock.\n", stderr)
	l.fails(l.b, "lvchange -asy vg_san/m1", "VG vg_san lock skipped: error -221|Cannot access VG vg_san due to failed lock.")
	require.Contains(t, l.ok(l.b, "lvmlockctl -i"), "LK LV ex ")
	_, _, code = l.run(l.b, "sanlock client status")
	require.Equal(t, 1, code)
	l.fails(l.a, "lvchange -aey vg_san/m1", refused("m1"))
	l.after(80 * time.Second)
	l.ok(l.a, "lvchange -aey vg_san/m1")
	require.Equal(t, "ex/ex", l.lock("m1"), "no watchdog: split brain")
	require.True(t, l.b.Active("vg_san", "m1"))
}

func TestStall(t *testing.T) {
	l := newLab(t, "m1")
	l.ok(l.b, "lvchange -aey vg_san/m1")
	require.NoError(t, l.b.Stall())
	l.after(20 * time.Second)
	require.Contains(t, l.ok(l.a, "sanlock client gets -h 1"), "h 2 gen 1 timestamp 300 FAIL\n")
	require.NoError(t, l.b.Resume())
	require.Contains(t, l.ok(l.a, "sanlock client gets -h 1"), "h 2 gen 1 timestamp 320 LIVE\n")
}

func TestLostLockspace(t *testing.T) {
	l := newLab(t, "m1", "m2")
	require.Error(t, l.b.LoseLockspace("nosuch"))
	l.ok(l.b, "lvchange -aey vg_san/m1")
	require.NoError(t, l.b.LoseLockspace("vg_san"))
	require.True(t, l.b.Active("vg_san", "m1"))
	require.Contains(t, l.ok(l.b, "lvmlockctl -i"), "LS sanlock lvm_vg_san\n")
	require.NotContains(t, l.ok(l.b, "lvmlockctl -i"), "LK LV")
	require.NotContains(t, l.ok(l.b, "sanlock client status"), "lvm_vg_san")
	require.Empty(t, l.ok(l.b, "sanlock client gets -h 1"))
	const skipped = "VG vg_san lock skipped: storage errors for sanlock leases"
	_, stderr, code := l.run(l.b, "lvs")
	require.Equal(t, 0, code)
	require.Equal(t, "  "+skipped+"\n  Reading VG vg_san without a lock.\n", stderr)
	l.fails(l.b, "lvchange -aey vg_san/m2", skipped+"|Cannot access VG vg_san due to failed lock.")
	l.fails(l.b, "lvchange --addtag x vg_san/m2", "VG vg_san lock failed: storage errors for sanlock leases")
	l.fails(l.a, "lvchange -aey vg_san/m1", refused("m1"))
	_, _, code = l.run(l.b, "lvchange -an vg_san/m1")
	require.Equal(t, 0, code)
	l.after(77 * time.Second)
	l.ok(l.a, "lvchange -aey vg_san/m1")
	l.ok(l.b, "vgchange --lockstop vg_san")
	l.ok(l.b, "vgchange --lockstart vg_san")
	l.ok(l.b, "lvchange -aey vg_san/m2")
}
