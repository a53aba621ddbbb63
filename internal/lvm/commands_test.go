package lvm_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/run/runtest"
)

func TestCommandLines(t *testing.T) {
	tests := map[string]run.Cmd{
		"lvchange -aey vg_san/lv1":                  lvm.ActivateCmd(model.ModeEX, "vg_san/lv1"),
		"lvchange -asy vg_san/lv1 other/a-b.c+d_e-": lvm.ActivateCmd(model.ModeSH, "vg_san/lv1", "other/a-b.c+d_e-"),
		"lvchange -an vg_san/lv1 vg_san/lv2":        lvm.DeactivateCmd("vg_san/lv1", "vg_san/lv2"),
		"vgchange --lockstart vg_san":               lvm.LockStartCmd("vg_san"),
		"vgchange --lockstop vg_san":                lvm.LockStopCmd("vg_san"),

		"dmsetup wipe_table --noflush --nolockfs vg_san-lv--1": lvm.CutOffCmd("vg_san", "lv-1"),

		"dmsetup wipe_table --noflush --nolockfs --noudevsync vg_san-lv1_rimage_0": lvm.WipeCmd("vg_san-lv1_rimage_0"),
	}
	for want, cmd := range tests {
		require.NoError(t, cmd.Err)
		assert.Equal(t, want, strings.Join(cmd.Argv(), " "))
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("n", 127)
	for _, good := range []string{"vg/lv", "v/l", long + "/" + long, "vg--a/lv--b", "a.b/+x", "_/_", ".../lv", "vg/lv_data"} {
		require.NoError(t, lvm.CheckName(good), good)
		vg, lv, err := lvm.SplitName(good)
		require.NoError(t, err)
		assert.Equal(t, good, vg+"/"+lv)
	}
	tests := map[string]string{
		"":                         `it is not of the form "vg/lv"`,
		"vg":                       `it is not of the form "vg/lv"`,
		"/":                        "the volume group's name is empty",
		"/lv":                      "the volume group's name is empty",
		"vg/":                      "the volume's name is empty",
		"-vg/lv":                   "the volume group's name begins with a dash",
		"vg/-lv":                   "the volume's name begins with a dash",
		"--config=x/lv":            "the volume group's name begins with a dash",
		"../lv":                    "the volume group's name is a folder",
		"vg/.":                     "the volume's name is a folder",
		"vg/lv/x":                  "other than letters",
		"/dev/vg/lv":               "the volume group's name is empty",
		"vg/l v":                   "other than letters",
		"vg/lv\n":                  "other than letters",
		"vg/lv\x00":                "other than letters",
		"vg/lvé":                   "other than letters",
		"vg/@tag":                  "other than letters",
		"v:g/lv":                   "other than letters",
		long + "n/lv":              "longer than 127",
		"vg/" + long + "n":         "longer than 127",
		"vg/lvmlock":               "LVM's own internal volumes",
		"vg/lv_rimage_0":           "LVM's own internal volumes",
		"vg/lvol0_pmspare":         "LVM's own internal volumes",
		"vg/snapshot0":             "LVM's own internal volumes",
		"vg/pvmove0":               "LVM's own internal volumes",
		strings.Repeat("x", 1<<20): `it is not of the form "vg/lv"`,
	}
	for name, why := range tests {
		err := lvm.CheckName(name)
		require.ErrorContains(t, err, why, name)
		assert.Equal(t, api.KindBadRequest, api.KindOf(err))
		assert.NotContains(t, err.Error(), "\n")
		assert.Less(t, len(err.Error()), 700)
		_, _, err = lvm.SplitName(name)
		require.Error(t, err)
	}
	require.NoError(t, lvm.CheckVG("vg_san"))
	require.ErrorContains(t, lvm.CheckVG("-x"), `"-x" cannot be a volume group: its name begins with a dash`)
}

func TestRefusedCommands(t *testing.T) {
	f := runtest.New(t)
	l := lvm.New(f, "/sys")
	ctx := context.Background()
	for name, err := range map[string]error{
		"no volume":      l.Activate(ctx, model.ModeEX),
		"bad name":       l.Activate(ctx, model.ModeEX, "vg/lv", "vg"),
		"mode off":       l.Activate(ctx, model.ModeOff, "vg/lv"),
		"no mode":        l.Activate(ctx, "", "vg/lv"),
		"option":         l.Deactivate(ctx, "--yes"),
		"whole VG":       l.Deactivate(ctx, "vg_san"),
		"lease volume":   l.Deactivate(ctx, "vg_san/lvmlock"),
		"lockstart of -": l.LockStart(ctx, "-"),
		"lockstart all":  l.LockStart(ctx, ""),
	} {
		assert.Equal(t, api.KindBadRequest, api.KindOf(err), name)
	}
	assert.Empty(t, f.Calls())
}

func TestVerbs(t *testing.T) {
	f := runtest.New(t)
	l := lvm.New(f, "/sys")
	ctx := context.Background()
	f.ExpectLine("lvchange -aey vg_san/lv1 vg_san/lv2")
	require.NoError(t, l.Activate(ctx, model.ModeEX, "vg_san/lv1", "vg_san/lv2"))
	f.ExpectLine("lvchange -an vg_san/lv1").Stderr("  Failed to unlock logical volume vg_san/lv1.\n")
	err := l.Deactivate(ctx, "vg_san/lv1")
	var e *lvm.Error
	require.ErrorAs(t, err, &e, "exit code 0, and the lock is still there")
	assert.Equal(t, lvm.UnlockFailed, e.Failures[0].Kind)
	f.ExpectLine("vgchange --lockstart vg_san").Stdout("  VG vg_san starting sanlock lockspace\n")
	require.NoError(t, l.LockStart(ctx, "vg_san"))
}

func TestVersion(t *testing.T) {
	tests := map[string]struct{ out, want string }{
		"bookworm": {"  LVM version:     2.03.16(2) (2022-05-18)\n  Library version: 1.02.185 (2022-05-18)\n", "2.03.16"},
		"git":      {"  LVM version:     2.03.40(2)-git (2026-03-13)\n", "2.03.40"},
		"other":    {"  Library version: 1.02.185 (2022-05-18)\n", ""},
		"empty":    {"", ""},
		"no value": {"LVM version:\n", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine("lvs --version").Stdout(tt.out)
			version, err := lvm.New(f, "/sys").Version(context.Background())
			if tt.want == "" {
				require.ErrorContains(t, err, "cannot read LVM's version")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, version)
		})
	}
}

func TestMapperName(t *testing.T) {
	assert.Equal(t, "vg_san-lv1", lvm.MapperName("vg_san", "lv1"))
	assert.Equal(t, "vg--a-lv----b", lvm.MapperName("vg-a", "lv--b"))
}
