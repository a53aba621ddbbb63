package lvm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVolumeCommands(t *testing.T) {
	cmd := CreateCmd("vg_san/vm1", 8<<20, "a=1", "b")
	require.NoError(t, cmd.Err)
	assert.Equal(t, []string{"lvcreate", "-y", "-aey", "-Zy", "-Wy", "--setautoactivation", "n", "-L", "8388608b", "-n", "vm1", "--addtag", "a=1", "--addtag", "b", "vg_san"}, cmd.Argv())
	require.NoError(t, RemoveCmd("vg/lv").Err)
	assert.Equal(t, []string{"lvremove", "-y", "vg/lv"}, RemoveCmd("vg/lv").Argv())
	assert.Equal(t, []string{"lvchange", "--addtag", "a", "--deltag", "b", "vg/lv"}, TagCmd("vg/lv", []string{"a"}, []string{"b"}).Argv())

	assert.Equal(t, []string{"lvextend", "-L", "8388608b", "vg/lv"}, ResizeCmd("vg/lv", 8<<20, false).Argv())
	assert.Equal(t, []string{"lvreduce", "-y", "-L", "8388608b", "vg/lv"}, ResizeCmd("vg/lv", 8<<20, true).Argv())
	require.Error(t, ResizeCmd("vg/lv", 0, false).Err)

	for _, bad := range []string{"", "vg", "-x/lv", "vg/-f", "vg/lvmlock", "vg/a b"} {
		require.Error(t, CreateCmd(bad, 1).Err, bad)
		require.Error(t, RemoveCmd(bad).Err, bad)
		require.Error(t, ResizeCmd(bad, 1, false).Err, bad)
		require.Error(t, TagCmd(bad, []string{"a"}, nil).Err, bad)
	}
	require.Error(t, CreateCmd("vg/lv", 0).Err)
	require.Error(t, TagCmd("vg/lv", nil, nil).Err)
}
