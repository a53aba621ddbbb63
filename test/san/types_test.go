package san

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTypesThatCannotBeShared(t *testing.T) {
	l := newLab(t)
	for typ, want := range map[string]string{
		"linear": "", "striped": "", "writecache": "",
		"raid1": "raid1", "mirror": "mirror", "cache": "cache", "thin-pool": "thin-pool",
	} {
		lv := strings.ReplaceAll(typ, "-", "")
		_, err := l.san.AddLV("vg_san", LVSpec{Name: lv, Type: typ})
		require.NoError(t, err)
		l.ok(l.a, "lvchange -aey vg_san/"+lv)
		if want == "" {
			l.ok(l.a, "lvchange -asy vg_san/"+lv)
			continue
		}
		l.fails(l.a, "lvchange -asy vg_san/"+lv, "Shared activation not compatible with LV type "+want+" of vg_san/"+lv+
			"|Failed to lock logical volume vg_san/"+lv+".")
		require.Equal(t, "ex/un", l.lock(lv), "EX is kept")
	}
	newer := newLabOf(t, LVM33)
	_, err := newer.san.AddLV("vg_san", LVSpec{Name: "w1", Type: "writecache"})
	require.NoError(t, err)
	newer.fails(newer.a, "lvchange -asy vg_san/w1", "Shared activation not compatible with LV type writecache of vg_san/w1|Failed to lock logical volume vg_san/w1.")
}

func TestSnapshot(t *testing.T) {
	l := newLab(t, "o1")
	l.ok(l.a, "lvchange -aey vg_san/o1")
	require.Equal(t, "  Logical volume \"s1\" created.\n", l.ok(l.a, "lvcreate -y -s -L 8m -n s1 vg_san/o1"))
	require.Equal(t, "vg_san-o1:0\nvg_san-o1-real:2\nvg_san-s1:0\nvg_san-s1-cow:1\n", l.devices(l.a))
	l.fails(l.a, "lvchange -asy vg_san/o1", "Shared activation not compatible with LV type linear of vg_san/o1|Failed to lock logical volume vg_san/o1.")
	l.fails(l.a, "lvchange -asy vg_san/s1", "Change of snapshot vg_san/s1 will also change its origin vg_san/o1. Proceed? [y/n]: [n]|Logical volume vg_san/s1 not changed.")
	l.fails(l.b, "lvchange -y -aey vg_san/s1", refused("o1"))
	require.NoError(t, l.a.Open("vg_san", "s1", 7))
	l.fails(l.a, "lvchange -an vg_san/o1", "Logical volume vg_san/s1 in use.")
	require.NoError(t, l.a.CloseVolume("vg_san", "s1", 0))
	l.ok(l.a, "lvchange -an vg_san/o1")
	require.Empty(t, l.devices(l.a))
	l.ok(l.b, "lvchange -y -ay vg_san/s1")
	require.Equal(t, "un/ex", l.lock("o1"), "the snapshot's lock is its origin's")
	l.fails(l.a, "lvcreate -s -L 8m -n s2 vg_san/o1", "LV locked by other host: vg_san/o1|Failed to lock snapshot origin LV vg_san/o1")
	require.Equal(t, "  Logical volume \"s1\" successfully removed.\n", l.ok(l.b, "lvremove -y vg_san/s1"))
	require.Equal(t, "vg_san-o1:0\n", l.devices(l.b))
	l.ok(l.b, "lvchange -asy vg_san/o1")
	old := newLabOf(t, LVM16, "o1")
	_, err := old.san.AddLV("vg_san", LVSpec{Name: "s1", Type: "snapshot", Origin: "o1"})
	require.NoError(t, err)
	old.ok(old.a, "lvchange -asy vg_san/o1")
}

// devices lists a host's devices and their open counts, but for the leases' own.
func (l *lab) devices(h *Host) string {
	l.Helper()
	out := l.ok(h, "dmsetup info -c --noheadings -o name,open")
	return strings.ReplaceAll(out, "vg_san-lvmlock:1\n", "")
}

func TestThin(t *testing.T) {
	l := newLab(t)
	l.ok(l.a, "lvcreate -y -L 32M -T vg_san/tp")
	require.Equal(t, "  Logical volume \"th1\" created.\n", l.ok(l.a, "lvcreate -y -V 64M -T vg_san/tp -n th1"))
	require.Equal(t, "vg_san-th1:0\nvg_san-tp:0\nvg_san-tp-tpool:2\nvg_san-tp_tdata:1\nvg_san-tp_tmeta:1\n", l.devices(l.a))
	require.Equal(t, "  th1,Vwi-a-tz--,,thin,tp\n  tp,twi-aotz--,1.0.0:70254592,thin-pool,\n",
		l.ok(l.a, "lvs --noheadings --separator , -o lv_name,lv_attr,lv_lockargs,segtype,pool_lv vg_san"))
	l.fails(l.a, "lvchange -asy vg_san/th1", "Shared activation not compatible with LV type thin-pool of vg_san/tp|Failed to lock logical volume vg_san/th1.")
	l.fails(l.b, "lvchange -aey vg_san/th1", "LV locked by other host: vg_san/tp|Failed to lock logical volume vg_san/th1.")
	l.ok(l.a, "lvchange -an vg_san/tp")
	require.Equal(t, "ex/un", l.lock("tp"), "a thin volume is still active")
	l.ok(l.a, "lvchange -an vg_san/th1")
	require.Equal(t, "un/un", l.lock("tp"))
	require.Empty(t, l.devices(l.a))
	l.ok(l.b, "lvchange -aey vg_san/th1")
	require.Equal(t, "un/ex", l.lock("th1"))
	require.Equal(t, "vg_san-th1:0\nvg_san-tp-tpool:2\nvg_san-tp_tdata:1\nvg_san-tp_tmeta:1\n", l.devices(l.b))
	l.fails(l.a, "lvremove -y vg_san/th1", "LV locked by other host: vg_san/tp")
	require.Contains(t, l.ok(l.b, "lvremove -y vg_san/tp"), "\"tp\" successfully removed")
	require.Empty(t, l.devices(l.b))
	_, err := l.san.Volume("vg_san", "th1")
	require.Error(t, err)
}

func TestPlainVG(t *testing.T) {
	l := newLab(t)
	require.NoError(t, l.san.AddVG(VGSpec{Name: "vg_plain", LockType: LockNone}))
	require.Empty(t, strings.TrimSpace(l.ok(l.a, "lvs --noheadings vg_plain")))
	l.ok(l.a, "lvcreate -L 16M -n p1 vg_plain")
	for _, h := range []*Host{l.a, l.b} {
		l.ok(h, "lvchange -aey vg_plain/p1")
		require.True(t, h.Active("vg_plain", "p1"), "nobody is excluded")
	}
	l.ok(l.b, "lvchange -asy vg_plain/p1")
	require.Equal(t, "  vg_plain wz--n-  \n", l.ok(l.a, "vgs --noheadings -o vg_name,vg_attr,vg_lock_type,vg_lock_args vg_plain"))
	l.ok(l.a, "lvremove -y vg_plain/p1")
	require.True(t, l.b.Active("vg_plain", "p1"), "its device stays behind on the other host")
	require.NoError(t, l.a.StopLvmlockd())
	out, stderr, code := l.run(l.a, "lvcreate -y -an -L 8M -n p2 vg_plain")
	require.Equal(t, 0, code, out+stderr)
	require.Contains(t, stderr, "WARNING: lvmlockd process is not running.\n")
}

func TestDLM(t *testing.T) {
	l := newLab(t)
	require.NoError(t, l.san.AddVG(VGSpec{Name: "vg_dlm", LockType: LockDLM}))
	_, err := l.san.AddLV("vg_dlm", LVSpec{Name: "d1"})
	require.NoError(t, err)
	out, stderr, code := l.run(l.a, "lvs --noheadings --separator , -o vg_lock_type,vg_lock_args,lv_lockargs vg_dlm/d1")
	require.Equal(t, 0, code)
	require.Equal(t, "  dlm,1.0.0:cluster,dlm\n", out)
	require.Equal(t, "  Reading VG vg_dlm without a lock.\n", stderr)
	l.fails(l.a, "lvchange -aey vg_dlm/d1", "Cannot access VG vg_dlm due to failed lock.")
	l.fails(l.a, "vgchange --lockstart vg_dlm", "VG vg_dlm start failed: lock manager dlm is not running")
}

func TestCreateErrors(t *testing.T) {
	l := newLab(t, "lv1")
	l.fails(l.a, "lvcreate -y -L 8M -n lv1 vg_san", `Logical Volume "lv1" already exists in volume group "vg_san"`)
	l.fails(l.a, "lvcreate -y -L 1T -n lv2 vg_san", `Volume group "vg_san" has insufficient free space (16312 extents): 262144 required.`)
	l.fails(l.a, "lvcreate -y -L 8M -n lv2 nosuch", `Volume group "nosuch" not found|Cannot process volume group nosuch`)
	_, _, code := l.run(l.a, "lvcreate -y -n lv2 vg_san")
	require.Equal(t, 3, code)
	_, stderr, code := l.run(l.a, "lvcreate -an -L 8M -n lv2 vg_san")
	require.Equal(t, 0, code)
	require.Equal(t, "  WARNING: Logical volume vg_san/lv2 not zeroed.\n", stderr)
	require.Equal(t, "un/un", l.lock("lv2"))
	l.ok(l.a, "lvcreate -l 4 -n lv3 vg_san")
	require.Equal(t, "ex/un", l.lock("lv3"), "a new volume is active where it was made")
	v, err := l.san.Volume("vg_san", "lv3")
	require.NoError(t, err)
	require.EqualValues(t, 16<<20, v.Size)
	require.EqualValues(t, firstLease+2*leaseSize, v.LeaseOffset)
	l.ok(l.a, "lvremove -y vg_san/lv1")
	l.ok(l.a, "lvcreate -L 8M -n lv4 vg_san")
	v, err = l.san.Volume("vg_san", "lv4")
	require.NoError(t, err)
	require.EqualValues(t, firstLease, v.LeaseOffset, "a free lease is used again")
}

func TestResize(t *testing.T) {
	l := newLab(t, "lv1")
	l.ok(l.b, "lvchange -aey vg_san/lv1")
	l.fails(l.a, "lvextend -L +16M vg_san/lv1", "LV locked by other host: vg_san/lv1")
	l.fails(l.a, "lvremove -y vg_san/lv1", "LV locked by other host: vg_san/lv1")
	require.Equal(t, "  Size of logical volume vg_san/lv1 changed from 32.00 MiB (8 extents) to 48.00 MiB (12 extents).\n"+
		"  Logical volume vg_san/lv1 successfully resized.\n", l.ok(l.b, "lvextend -L +16M vg_san/lv1"))
	l.fails(l.b, "lvextend -L 48M vg_san/lv1", "No size change.")
	l.fails(l.b, "lvextend -L 4M vg_san/lv1", "New size given (1 extents) not larger than existing size (12 extents)")
	l.fails(l.b, "lvextend -L +900G vg_san/lv1", "Insufficient free space: 230400 extents needed, but only 16308 available")
	l.ok(l.b, "lvchange -asy vg_san/lv1")
	l.fails(l.b, "lvresize -L +16M vg_san/lv1", "LV is already locked with incompatible mode: vg_san/lv1")
	l.ok(l.b, "lvchange -an vg_san/lv1")
	l.ok(l.a, "lvreduce -f -l -2 vg_san/lv1")
	require.Equal(t, "un/un", l.lock("lv1"), "the lock was taken for the moment only")
	require.Equal(t, "  41943040\n", l.ok(l.a, "lvs --noheadings --units b --nosuffix -o lv_size vg_san/lv1"))
}

func TestWholeVG(t *testing.T) {
	l := newLab(t, "m1", "m2")
	l.ok(l.b, "lvchange -aey vg_san/m2")
	out, stderr, code := l.run(l.a, "vgchange -aly vg_san")
	require.Equal(t, 5, code)
	require.Equal(t, "  1 logical volume(s) in volume group \"vg_san\" now active\n", out)
	require.Equal(t, refused("m2"), strings.ReplaceAll(strings.TrimSpace(stderr), "\n  ", "|"))
	require.Equal(t, "ex/un", l.lock("m1"), "it grabs what is free")
	require.NoError(t, l.a.Open("vg_san", "m1", 1))
	l.fails(l.a, "vgchange -an vg_san", `Can't deactivate volume group "vg_san" with 1 open logical volume(s)`)
	require.NoError(t, l.a.CloseVolume("vg_san", "m1", 1))
	require.Equal(t, "  0 logical volume(s) in volume group \"vg_san\" now active\n", l.ok(l.a, "vgchange -an vg_san"))
	l.ok(l.a, "vgchange --setautoactivation n vg_san")
	l.fails(l.a, "vgchange --setautoactivation n vg_san", "Volume group autoactivation is already no.")
	require.Equal(t, "  \n", l.ok(l.a, "vgs --noheadings -o vg_autoactivation"))
	l.fails(l.a, "vgchange -an nosuch", `Volume group "nosuch" not found|Cannot process volume group nosuch`)
}
