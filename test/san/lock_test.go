package san

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (l *lab) dump() string {
	l.Helper()
	v, err := l.san.Volume("vg_san", "lv1")
	require.NoError(l, err)
	out := l.ok(l.b, "sanlock direct dump /dev/mapper/vg_san-lvmlock:"+itoa(v.LeaseOffset)+":1048576")
	return strings.ReplaceAll(out, v.LVUUID, "pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX")
}

const dumpHead = "  offset                            lockspace                                         resource  timestamp  own  gen lver\n"

// The rows are those of the lab's captures, byte for byte.
func TestDirectDump(t *testing.T) {
	l := newLab(t, "lv1")
	lease := "70254592                           lvm_vg_san           pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX "
	shared := strings.Repeat(" ", 106)
	require.Equal(t, dumpHead+lease+"0000000000 0000 0000 0\n", l.dump())
	l.after(27 * time.Second)
	l.ok(l.b, "lvchange -aey vg_san/lv1")
	require.Equal(t, dumpHead+lease+"0000000327 0002 0001 1\n", l.dump())
	l.ok(l.b, "lvchange -asy vg_san/lv1")
	require.Equal(t, dumpHead+lease+"0000000000 0002 0001 1\n"+shared+"0002 0001 SH\n", l.dump())
	l.ok(l.a, "lvchange -asy vg_san/lv1")
	both := shared + "0001 0001 SH\n" + shared + "0002 0001 SH\n"
	require.Equal(t, dumpHead+lease+"0000000000 0001 0001 2\n"+both, l.dump())
	l.fails(l.b, "lvchange -aey vg_san/lv1", refused("lv1"))
	require.Equal(t, dumpHead+lease+"0000000000 0002 0001 3\n"+both, l.dump(), "a failing convert leaves its name")
	l.ok(l.a, "lvchange -an vg_san/lv1")
	l.ok(l.b, "lvchange -aey vg_san/lv1")
	require.Equal(t, dumpHead+lease+"0000000327 0002 0001 4\n", l.dump())
	l.ok(l.b, "lvchange -an vg_san/lv1")
	require.Equal(t, dumpHead+lease+"0000000000 0002 0001 4\n", l.dump(), "free names its last owner")
}

func TestDumpRange(t *testing.T) {
	l := newLab(t, "lv1")
	require.Equal(t, dumpHead+
		"00000000                           lvm_vg_san                                            kvm-a 0000000300 0001 0001\n"+
		"00000512                           lvm_vg_san                                            kvm-b 0000000300 0002 0001\n",
		l.ok(l.a, "sanlock direct dump /dev/mapper/vg_san-lvmlock:0:1048576"))
	lines := strings.Split(strings.TrimSpace(l.ok(l.a, "sanlock direct dump "+l.a.DevDir()+"/mapper/vg_san-lvmlock:68157440:4194304")), "\n")
	require.Len(t, lines, 5)
	require.True(t, strings.HasPrefix(lines[1], "68157440                           lvm_vg_san                                             GLLK "))
	require.True(t, strings.HasPrefix(lines[2], "69206016                           lvm_vg_san                                             VGLK "))
	require.Equal(t, "71303168                           lvm_vg_san                                          #unused 0000000000 0000 0000 0", lines[4])
	all := l.ok(l.a, "sanlock direct dump /dev/mapper/vg_san-lvmlock")
	require.True(t, strings.HasSuffix(all, "267386880                           lvm_vg_san                                          #unused 0000000000 0000 0000 0\n"))
	out, _, code := l.run(l.a, "sanlock direct dump /dev/mapper/x-lvmlock:0:1048576")
	require.Equal(t, 1, code)
	require.Equal(t, "Device /dev/mapper/x-lvmlock not found.\n", out)
}

func TestDeadHost(t *testing.T) {
	l := newLab(t, "m3", "m4")
	l.ok(l.b, "lvchange -aey vg_san/m3")
	l.ok(l.b, "lvchange -asy vg_san/m4")
	l.ok(l.a, "lvchange -asy vg_san/m4")
	require.NoError(t, l.b.Crash())
	require.False(t, l.b.Active("vg_san", "m3"))
	state := func() string {
		_, after, _ := strings.Cut(l.ok(l.a, "sanlock client gets -h 1"), "h 2 gen 1 timestamp 300 ")
		return strings.TrimSpace(after)
	}
	for _, at := range []struct {
		seconds int
		want    string
	}{{0, "LIVE"}, {16, "LIVE"}, {17, "FAIL"}, {76, "FAIL"}} {
		l.now = time.Unix(1_800_000_000+int64(at.seconds), 0)
		require.Equal(t, at.want, state(), "after %d s", at.seconds)
		l.fails(l.a, "lvchange -aey vg_san/m3", refused("m3"))
		l.fails(l.a, "lvchange -aey vg_san/m4", refused("m4"))
	}
	rows, err := l.san.Locks()
	require.NoError(t, err)
	require.Equal(t, LockRow{Volume: "vg_san/m3", Host: "kvm-b", HostID: 2, Mode: "ex", State: Fail}, rows[0])
	l.after(time.Second)
	require.Equal(t, "DEAD", state())
	l.ok(l.a, "lvchange -aey vg_san/m3 vg_san/m4")
	_, stderr, code := l.run(l.b, "lvs")
	require.Equal(t, 255, code)
	require.Equal(t, "host kvm-b is down\n", stderr)
}

func TestReboot(t *testing.T) {
	l := newLab(t, "m3", "m4")
	l.ok(l.b, "lvchange -aey vg_san/m3")
	l.ok(l.b, "lvchange -asy vg_san/m4")
	require.NoError(t, l.b.Reboot())
	out, stderr, code := l.run(l.b, "lvs --noheadings -o lv_attr vg_san/m3")
	require.Equal(t, 0, code)
	require.Equal(t, "  -wi-------\n", out)
	require.Equal(t, "  Reading VG vg_san without a lock.\n", stderr)
	l.fails(l.b, "lvchange -aey vg_san/m3", "Cannot access VG vg_san due to failed lock.")
	l.fails(l.b, "lvchange --addtag x vg_san/m3", "Cannot access VG vg_san due to failed lock.")
	l.fails(l.a, "lvchange -aey vg_san/m3", refused("m3"))
	require.Empty(t, l.ok(l.b, "lvmlockctl -i"))
	require.Equal(t, "daemon kvm-b\np -1 helper\np -1 listener\np -1 status\n", l.ok(l.b, "sanlock client status"))
	require.Contains(t, l.ok(l.b, "vgchange --lock-start vg_san"), "  VG vg_san starting sanlock lockspace\n")
	require.EqualValues(t, 2, l.b.Generation("vg_san"))
	require.Contains(t, l.ok(l.b, "sanlock client gets -h 1"), "h 1 gen 1 timestamp 300 UNKNOWN\n", "not seen to live yet")
	l.after(5 * time.Second)
	require.Contains(t, l.ok(l.b, "sanlock client gets -h 1"), "h 1 gen 1 timestamp 304 LIVE\n")
	// The new generation ended what the old one held.
	l.ok(l.a, "lvchange -aey vg_san/m3 vg_san/m4")
	require.Equal(t, "ex/un ex/un", l.lock("m3")+" "+l.lock("m4"))
}

func TestRejoinedObserverWaitsForADeadHost(t *testing.T) {
	l := newLab(t, "lv1")
	l.ok(l.b, "lvchange -aey vg_san/lv1")
	require.NoError(t, l.b.Crash())
	require.NoError(t, l.a.Reboot())
	l.after(30 * time.Second)
	require.NoError(t, l.a.LockStart("vg_san"))
	l.after(60 * time.Second) // dead for whoever watched all the time
	rows, err := l.san.Locks()
	require.NoError(t, err)
	require.Equal(t, Dead, rows[0].State)
	require.True(t, rows[0].Stale)
	l.fails(l.a, "lvchange -aey vg_san/lv1", refused("lv1"))
	l.after(17 * time.Second)
	l.ok(l.a, "lvchange -aey vg_san/lv1")
}

func TestLockspaceStop(t *testing.T) {
	l := newLab(t, "lv1")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	l.fails(l.a, "vgchange --lockstop vg_san", "VG vg_san stop failed: LVs must first be deactivated")
	l.ok(l.a, "lvchange -an vg_san/lv1")
	l.ok(l.a, "vgchange --lockstop vg_san")
	require.NotContains(t, l.ok(l.b, "sanlock client gets -h 1"), "h 1 ")
	require.Contains(t, l.ok(l.b, "sanlock client host_status -D"), "1 timestamp 0\n")
	require.Contains(t, l.ok(l.b, "sanlock direct dump /dev/mapper/vg_san-lvmlock:0:1048576"), "kvm-a 0000000000 0001 0001\n")
	l.ok(l.a, "vgchange --lockstart vg_san")
	require.EqualValues(t, 2, l.a.Generation("vg_san"))
}

func TestExpiryOption(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := New(t, Options{
		Hosts: []string{"a", "b"}, VGs: []VGSpec{{Name: "vg"}}, Expiry: 4 * time.Second, LVM: LVM33,
		Now: func() time.Time { return now },
	})
	_, err := s.AddLV("vg", LVSpec{Name: "lv"})
	require.NoError(t, err)
	l := &lab{T: t, san: s}
	l.a, _ = s.Host("a")
	l.b, _ = s.Host("b")
	l.ok(l.b, "lvchange -aey vg/lv")
	require.NoError(t, l.b.Crash())
	now = now.Add(4 * time.Second)
	l.fails(l.a, "lvchange -aey vg/lv", "LV locked by other host: vg/lv (host_id 2)|Failed to lock logical volume vg/lv.")
	now = now.Add(time.Second)
	l.ok(l.a, "lvchange -aey vg/lv")
}

func TestTimeScale(t *testing.T) {
	s := New(t, Options{Hosts: []string{"a", "b"}, VGs: []VGSpec{{Name: "vg"}}, TimeScale: 10_000})
	_, err := s.AddLV("vg", LVSpec{Name: "lv"})
	require.NoError(t, err)
	l := &lab{T: t, san: s}
	l.a, _ = s.Host("a")
	l.b, _ = s.Host("b")
	l.ok(l.b, "lvchange -aey vg/lv")
	require.NoError(t, l.b.Crash())
	// 76 s are 7.6 ms here, also for another process.
	other, err := Open(s.Dir())
	require.NoError(t, err)
	l.a, _ = other.Host("a")
	require.Eventually(t, func() bool {
		_, _, code := l.run(l.a, "lvchange -aey vg/lv")
		return code == 0
	}, 5*time.Second, 2*time.Millisecond)
}
