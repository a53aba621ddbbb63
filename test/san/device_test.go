package san

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSysfsAndDev(t *testing.T) {
	l := newLab(t, "lv1", "lv-dash")
	v, err := l.san.Volume("vg_san", "lv-dash")
	require.NoError(t, err)
	require.Equal(t, "vg_san-lv--dash", v.DMName)
	l.ok(l.a, "lvchange -aey vg_san/lv-dash")
	found := map[string]string{}
	dirs, err := filepath.Glob(l.a.SysDir() + "/block/dm-*/dm")
	require.NoError(t, err)
	for _, d := range dirs {
		name, err := os.ReadFile(filepath.Join(d, "name"))
		require.NoError(t, err)
		uuid, err := os.ReadFile(filepath.Join(d, "uuid"))
		require.NoError(t, err)
		found[strings.TrimSpace(string(name))] = strings.TrimSpace(string(uuid))
	}
	require.Len(t, found, 2)
	require.Equal(t, v.DMUUID, found["vg_san-lv--dash"])
	require.Equal(t, "LVM-"+strings.ReplaceAll(v.VGUUID+v.LVUUID, "-", ""), v.DMUUID)
	require.Contains(t, found, "vg_san-lvmlock")

	paths := []string{"vg_san/lv-dash", "mapper/vg_san-lv--dash", "disk/by-id/dm-name-vg_san-lv--dash", "disk/by-id/dm-uuid-" + v.DMUUID}
	data, err := filepath.EvalSymlinks(v.Data)
	require.NoError(t, err)
	for _, p := range paths {
		link, err := os.Readlink(filepath.Join(l.a.DevDir(), p))
		require.NoError(t, err)
		require.Equal(t, "dm-1", filepath.Base(link))
		real, err := filepath.EvalSymlinks(filepath.Join(l.a.DevDir(), p))
		require.NoError(t, err)
		require.Equal(t, data, real)
	}
	require.NoFileExists(t, filepath.Join(l.a.DevDir(), "vg_san/lvmlock"))
	require.NoError(t, os.WriteFile(filepath.Join(l.a.DevDir(), paths[0]), []byte("written on a"), 0o644))
	l.ok(l.a, "lvchange -an vg_san/lv-dash")
	for _, p := range append(paths, "dm-1", "vg_san") {
		_, err := os.Lstat(filepath.Join(l.a.DevDir(), p))
		require.ErrorIs(t, err, os.ErrNotExist, p)
	}
	require.NoDirExists(t, l.a.SysDir()+"/block/dm-1")
	l.ok(l.b, "lvchange -aey vg_san/lv-dash")
	text, err := os.ReadFile(filepath.Join(l.b.DevDir(), paths[0]))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "written on a"))
}

func TestOpens(t *testing.T) {
	l := newLab(t, "lv1")
	require.ErrorContains(t, l.a.Open("vg_san", "lv1", 1), "no such device")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	require.NoError(t, l.a.Open("vg_san", "lv1", 1))
	require.NoError(t, l.a.Open("vg_san", "lv1", 1))
	require.NoError(t, l.a.Open("vg_san", "lv1", 2))
	require.Equal(t, "vg_san-lv1:2\n", l.devices(l.a))
	require.Equal(t, "  -wi-ao----,open\n", l.ok(l.a, "lvs --noheadings --separator , -o lv_attr,lv_device_open vg_san/lv1"))
	require.NoError(t, l.a.CloseVolume("vg_san", "lv1", 1))
	require.NoError(t, l.a.CloseVolume("vg_san", "lv1", 1), "closed already")
	l.fails(l.a, "lvchange -an vg_san/lv1", "Logical volume vg_san/lv1 in use.")
	_, stderr, code := l.run(l.a, "dmsetup remove vg_san-lv1")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "Device or resource busy")
	// Processes that are gone hold nothing where pids are real ones.
	l.san.CheckPids = true
	require.NoError(t, l.a.CloseVolume("vg_san", "lv1", 0))
	require.NoError(t, l.a.Open("vg_san", "lv1", os.Getpid()))
	l.fails(l.a, "lvchange -an vg_san/lv1", "Logical volume vg_san/lv1 in use.")
	marker := filepath.Join(l.san.openDir("kvm-a", "vg_san-lv1"), "999999999")
	require.NoError(t, os.WriteFile(marker, nil, 0o644))
	require.Equal(t, "vg_san-lv1:1\n", l.devices(l.a))
	// The same pid, another process.
	marker = filepath.Join(l.san.openDir("kvm-a", "vg_san-lv1"), itoa(int64(os.Getpid())))
	require.NoError(t, os.WriteFile(marker, []byte("1"), 0o644))
	l.ok(l.a, "lvchange -an vg_san/lv1")
}

func TestQcow2(t *testing.T) {
	l := newLab(t, "base", "top", "raw")
	write := func(lv string, data []byte) {
		v, err := l.san.Volume("vg_san", lv)
		require.NoError(t, err)
		f, err := os.OpenFile(v.Data, os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.Write(data)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	write("top", Qcow2Image(32<<20, "/dev/vg_san/base", "qcow2"))
	write("base", Qcow2Image(16<<20, "", ""))
	img := func(args string) (string, string, int) { return l.run(l.a, "qemu-img info -U --output=json "+args) }

	_, stderr, code := img("/dev/vg_san/top")
	require.Equal(t, 1, code)
	require.Equal(t, "qemu-img: Could not open '/dev/vg_san/top': Could not open '/dev/vg_san/top': No such file or directory\n", stderr)
	l.ok(l.a, "lvchange -aey vg_san/top vg_san/raw")
	_, stderr, code = img("--backing-chain -f qcow2 /dev/vg_san/top")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "Could not open '/dev/vg_san/base'")
	l.ok(l.a, "lvchange -asy vg_san/base")
	chain, _, code := img("--backing-chain -f qcow2 /dev/vg_san/top")
	require.Equal(t, 0, code)
	require.Contains(t, chain, `
        "backing-filename-format": "qcow2",
        "virtual-size": 33554432,
        "filename": "/dev/vg_san/top",
        "cluster-size": 65536,
        "format": "qcow2",`)
	require.Contains(t, chain, `"full-backing-filename": "/dev/vg_san/base",`)
	require.Contains(t, chain, `"virtual-size": 16777216,`)

	one, _, code := img("-f raw " + l.a.DevDir() + "/vg_san/top")
	require.Equal(t, 0, code)
	require.NotContains(t, one, "backing", "a raw disk has no chain, whatever is in it")
	one, _, _ = img("/dev/vg_san/raw")
	require.Contains(t, one, "\n    \"format\": \"raw\",")
	_, stderr, code = img("-f qcow2 /dev/vg_san/raw")
	require.Equal(t, 1, code)
	require.Equal(t, "qemu-img: Could not open '/dev/vg_san/raw': Image is not in qcow2 format\n", stderr)

	write("base", Qcow2Image(16<<20, "/dev/vg_san/top", "qcow2"))
	_, stderr, code = img("--backing-chain -f qcow2 /dev/vg_san/top")
	require.Equal(t, 1, code)
	require.Equal(t, "qemu-img: Backing file '/dev/vg_san/top' creates an infinite loop.\n", stderr)
	broken := Qcow2Image(16<<20, "/dev/vg_san/top", "qcow2")
	broken[18] = 0xff // a backing file name of 65 KiB
	write("base", broken)
	_, stderr, _ = img("-f qcow2 /dev/vg_san/base")
	require.Contains(t, stderr, "Backing file name too long")
}

// The headers are QEMU's own: both ways, where qemu-img is installed.
func FuzzReadQcow2(f *testing.F) {
	f.Add(Qcow2Image(1<<30, "base.qcow2", "raw"))
	f.Add(Qcow2Image(0, "", ""))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = readQcow2(strings.NewReader(string(data)))
	})
}

// dmsetup wipe_table, also under an open device, and what brings the data back.
func TestErrorTable(t *testing.T) {
	l := newLab(t, "lv1")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	require.NoError(t, l.a.Open("vg_san", "lv1", 1))
	path := filepath.Join(l.a.DevDir(), "vg_san/lv1")
	readable := func() bool {
		_, err := os.ReadFile(path)
		return err == nil
	}
	require.Regexp(t, `^0 \d+ linear 8:16 2048\n$`, l.ok(l.a, "dmsetup table vg_san-lv1"))
	require.True(t, readable())
	require.Empty(t, l.ok(l.a, "dmsetup wipe_table --noflush --nolockfs vg_san-lv1"))
	require.Regexp(t, `^0 \d+ error \n$`, l.ok(l.a, "dmsetup table vg_san-lv1"))
	require.Contains(t, l.ok(l.a, "dmsetup table"), "vg_san-lv1: 0 ")
	require.False(t, readable())
	l.ok(l.a, "lvchange -asy vg_san/lv1")
	require.False(t, readable(), "a conversion does not touch the table")
	l.fails(l.a, "lvchange -an vg_san/lv1", "Logical volume vg_san/lv1 in use.")
	l.ok(l.a, "lvchange --refresh vg_san/lv1")
	require.True(t, readable())
	l.ok(l.a, "dmsetup wipe_table vg_san-lv1")
	require.NoError(t, l.a.CloseVolume("vg_san", "lv1", 0))
	l.ok(l.a, "lvchange -an vg_san/lv1")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	require.True(t, readable(), "made anew")
	_, stderr, code := l.run(l.a, "dmsetup table vg_san-lv9")
	require.Equal(t, 1, code)
	require.Equal(t, "device-mapper: table ioctl on vg_san-lv9  failed: No such device or address\nCommand failed.\n", stderr)
}
