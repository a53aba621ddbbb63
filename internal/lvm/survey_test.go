package lvm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/run/runtest"
)

// What lvmconfig of LVM 2.03.16 printed; it complains about settings without default.
func TestConfig(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine("lvmconfig --typeconfig full global/use_lvmlockd local/host_id").Stdout(`use_lvmlockd=1
lvmlockctl_kill_command="/usr/local/bin/killcmd"
host_id=1
scan_lvs=0
filter=["a|^/dev/vd[b-z]$|","r|.*|"]
`).Stderr("  Cannot clone NULL config node.\n  Failed to clone current config tree.\n")
	values, err := lvm.New(f, "/sys").Config(t.Context(), "global/use_lvmlockd", "local/host_id")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{
		"use_lvmlockd": "1", "lvmlockctl_kill_command": "/usr/local/bin/killcmd", "host_id": "1", "scan_lvs": "0",
		"filter": `["a|^/dev/vd[b-z]$|","r|.*|"]`,
	}, values)

	f = runtest.New(t)
	f.ExpectLine("lvmconfig --typeconfig full x").Exit(5).Stderr("  Configuration node x not found\n")
	_, err = lvm.New(f, "/sys").Config(t.Context(), "x")
	assert.ErrorContains(t, err, "Configuration node x not found")
}

func TestPVs(t *testing.T) {
	f := runtest.New(t)
	const line = "pvs --reportformat json --units b --nosuffix -o pv_name,vg_name"
	f.ExpectLine(line).Stdout(`  {
      "report": [
          {
              "pv": [
                  {"pv_name":"/dev/vdb", "vg_name":"vg_san"},
                  {"pv_name":"/dev/vg_san/vm1", "vg_name":""}
              ]
          }
      ]
  }
`)
	pvs, err := lvm.New(f, "/sys").PVs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []lvm.PV{{Name: "/dev/vdb", VG: "vg_san"}, {Name: "/dev/vg_san/vm1"}}, pvs)

	f = runtest.New(t)
	f.ExpectLine(line).Stdout(`{"report": [{"pv": [{"vg_name":"vg_san"}]}]}`)
	_, err = lvm.New(f, "/sys").PVs(t.Context())
	assert.ErrorContains(t, err, "a row has no pv_name")
}

func TestKnown(t *testing.T) {
	f := runtest.New(t)
	const line = "lvs --reportformat json --units b --nosuffix -o vg_uuid,lv_uuid vg_san -a"
	f.ExpectLine(line).Stdout(`{"report": [{"lv": [{"vg_uuid":"v","lv_uuid":"l"},{"vg_uuid":"v","lv_uuid":"lock"}]}],
"log": [{"log_type":"warn","log_message":"Reading VG vg_san without a lock."}]}`)
	all, unlocked, err := lvm.New(f, "/sys").Known(t.Context(), "vg_san")
	require.NoError(t, err)
	assert.Equal(t, map[model.VolumeID]bool{{VG: "v", LV: "l"}: true, {VG: "v", LV: "lock"}: true}, all)
	assert.Equal(t, []string{"vg_san"}, unlocked)

	all, unlocked, err = lvm.New(runtest.New(t), "/sys").Known(t.Context())
	require.NoError(t, err)
	assert.Empty(t, all)
	assert.Empty(t, unlocked)
}

func TestRepairCommands(t *testing.T) {
	assert.Equal(t, []string{"vgchange", "--setautoactivation", "n", "vg_san"}, lvm.NoAutoactivationCmd("vg_san").Argv())
	assert.Error(t, lvm.NoAutoactivationCmd("-n").Err)
	assert.Equal(t, []string{"dmsetup", "remove", "--uuid", "LVM-x"}, lvm.RemoveDeviceCmd("LVM-x").Argv())
}
