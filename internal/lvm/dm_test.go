package lvm_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/run/runtest"
)

const lv1UUID = "LVM-rzVnFwxSeB09tdZB0lXEewJKuzIwlU8MpZpgZLWPLZVNSvXjulgkWGXL6f9HgcwX"

func sysfs(t *testing.T, devices map[string]map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for kernel, attrs := range devices {
		dir := filepath.Join(root, "block", kernel, "dm")
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for name, content := range attrs {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
	}
	return root
}

func TestDevices(t *testing.T) {
	root := sysfs(t, map[string]map[string]string{
		"dm-0":  {"name": "vg_san-lv1\n", "uuid": lv1UUID + "\n"},
		"dm-12": {"name": "vg_san-tp-tpool\n", "uuid": "LVM-x-tpool\n"},
		"dm-3":  {"name": "mpatha\n", "uuid": "mpath-360000\n"},
		"dm-4":  {"name": "by hand\n", "uuid": "\n"},
		"sda":   {"name": "x\n", "uuid": "y\n"},
	})
	devices, err := lvm.New(runtest.New(t), root).Devices()
	require.NoError(t, err)
	assert.Equal(t, map[string]lvm.Device{
		lv1UUID:        {Name: "vg_san-lv1", UUID: lv1UUID, Kernel: "dm-0"},
		"LVM-x-tpool":  {Name: "vg_san-tp-tpool", UUID: "LVM-x-tpool", Kernel: "dm-12"},
		"mpath-360000": {Name: "mpatha", UUID: "mpath-360000", Kernel: "dm-3"},
	}, devices)
}

func TestDevicesUnknown(t *testing.T) {
	_, err := lvm.New(runtest.New(t), filepath.Join(t.TempDir(), "absent")).Devices()
	require.ErrorContains(t, err, "cannot list block devices")

	// There and not readable is not the same as not there.
	root := sysfs(t, map[string]map[string]string{"dm-0": {"name": "x\n"}})
	_, err = lvm.New(runtest.New(t), root).Devices()
	require.ErrorContains(t, err, "cannot read device dm-0")

	// Gone since it was listed.
	require.NoError(t, os.RemoveAll(filepath.Join(root, "block", "dm-0")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(root, "block", "dm-0")))
	devices, err := lvm.New(runtest.New(t), root).Devices()
	require.NoError(t, err)
	assert.Empty(t, devices)
}

func TestOpenCounts(t *testing.T) {
	const line = "dmsetup info -c --noheadings --separator : -o open,uuid"
	tests := map[string]struct {
		out  string
		want map[string]int
		err  bool
	}{
		"some":       {out: "0:LVM-a\n1:" + lv1UUID + "\n2:CRYPT-LUKS2-x:y\n3:\n", want: map[string]int{"LVM-a": 0, lv1UUID: 1, "CRYPT-LUKS2-x:y": 2}},
		"none":       {out: "No devices found\n", want: map[string]int{}},
		"empty":      {out: "", want: map[string]int{}},
		"no number":  {out: "x:LVM-a\n", err: true},
		"negative":   {out: "-1:LVM-a\n", err: true},
		"one column": {out: "5\n", err: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(line).Stdout(tt.out)
			counts, err := lvm.New(f, "/sys").OpenCounts(context.Background())
			if tt.err {
				require.ErrorContains(t, err, "cannot understand the answer of dmsetup info")
				assert.Equal(t, api.KindInternal, api.KindOf(err))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, counts)
		})
	}
	f := runtest.New(t)
	f.ExpectLine(line).Exit(1).Stderr("Failure to communicate with kernel device-mapper driver.\nCommand failed.\n")
	_, err := lvm.New(f, "/sys").OpenCounts(context.Background())
	require.ErrorContains(t, err, "cannot run dmsetup")
}

func TestTable(t *testing.T) {
	tests := map[string]struct {
		out  string
		want lvm.Table
		err  bool
	}{
		"linear":   {out: "0 65536 linear 8:16 2048\n", want: lvm.Table{"linear"}},
		"segments": {out: "0 65536 linear 8:16 2048\n65536 8192 striped 2 128 8:16 0 8:32 0\n", want: lvm.Table{"linear", "striped"}},
		"error":    {out: "0 65536 error \n", want: lvm.Table{"error"}},
		"none":     {out: "\n", want: nil},
		"named":    {out: "vg-lv: 0 65536 linear 8:16 2048\n", err: true},
		"garbage":  {out: "what?\n", err: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine("dmsetup table vg-lv").Stdout(tt.out)
			table, err := lvm.New(f, "/sys").Table(context.Background(), "vg-lv")
			if tt.err {
				require.ErrorContains(t, err, "cannot understand the answer of dmsetup table")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, table)
		})
	}
	f := runtest.New(t)
	f.ExpectLine("dmsetup table vg-lv").Exit(1).Stderr("device-mapper: table ioctl on vg-lv  failed: No such device or address\nCommand failed.\n")
	_, err := lvm.New(f, "/sys").Table(context.Background(), "vg-lv")
	require.Error(t, err)

	assert.True(t, lvm.Table{"error", "error"}.All(lvm.TargetError))
	assert.False(t, lvm.Table{"error", "linear"}.All(lvm.TargetError))
	assert.False(t, lvm.Table(nil).All(lvm.TargetLinear), "no table is none of these")
}
