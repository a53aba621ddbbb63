package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Printed by lvmlockctl of LVM 2.03.31.
const lockctlOutput = `VG vg_san lock_type=sanlock Idzx8G-xXWv-hCZ3-vwmW-kunp-RlRX-HNZZGn
LS sanlock lvm_vg_san
LK VG ex ver 0 pid 1581 (lvcreate)
LK GL un ver 1
LK LV ex OU72MS-umSn-eAyG-IT7R-SsIH-Jakx-pdSV3B
LK LV sh iHqwtB-B1AT-YMC6-ZJMq-G8rR-lfY5-Z2dxGQ
LK LV un Oz1pay-40tO-PNi0-pXx0-HThC-L3Yi-EvnBsa
`

func TestParseLockctl(t *testing.T) {
	assert.Equal(t, Lockctl{
		Lockspaces: map[string]bool{"lvm_vg_san": true},
		LVs: map[string]string{
			"OU72MS-umSn-eAyG-IT7R-SsIH-Jakx-pdSV3B": ModeEX,
			"iHqwtB-B1AT-YMC6-ZJMq-G8rR-lfY5-Z2dxGQ": ModeSH,
		},
	}, parseLockctl(lockctlOutput))
	assert.Empty(t, parseLockctl("").Lockspaces)
}

const leaseHeading = "  offset      lockspace            resource  timestamp  own  gen lver\n"

func TestParseLease(t *testing.T) {
	const uuid = "OU72MS-umSn-eAyG-IT7R-SsIH-Jakx-pdSV3B"
	tests := []struct {
		name, rows string
		want       Lease
		text       string
	}{
		{"exclusive", "70254592 lvm_vg_san " + uuid + " 0000000122 0001 0001 1\n", Lease{EX: 1}, "ex 1"},
		{"free, last owner 2", "70254592 lvm_vg_san " + uuid + " 0000000000 0002 0001 3\n", Lease{}, "free"},
		{
			"shared by both", "70254592 lvm_vg_san " + uuid + " 0000000000 0001 0001 3\n" +
				"          0001 0001 SH\n          0002 0003 SH\n", Lease{SH: []int{1, 2}}, "sh 1 2",
		},
		{
			"converting", "70254592 lvm_vg_san " + uuid + " 0000000122 0001 0001 3\n 0002 0003 SH\n",
			Lease{EX: 1, SH: []int{2}},
			"ex 1 sh 2",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseLease(leaseHeading+tt.rows, uuid)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.text, got.String())
		})
	}

	_, err := parseLease(leaseHeading, uuid)
	require.ErrorContains(t, err, "no lease of "+uuid)
	_, err = parseLease(leaseHeading+"70254592 lvm_vg_san "+uuid+" 0000000122 x 0001 1\n", uuid)
	require.ErrorContains(t, err, "cannot read the lease row")
}

func TestParseVolumes(t *testing.T) {
	got, err := parseVolumes(`{"report": [{"lv": [
		{"vg_name":"vg_two", "lv_name":"lv1", "lv_uuid":"OU72MS", "lv_lockargs":"1.0.0:70254592"},
		{"lv_name":"tv", "lv_uuid":"CcpVww", "lv_lockargs":""}]}], "log": []}`)
	require.NoError(t, err)
	assert.Equal(t, map[string]Volume{
		"lv1": {Group: "vg_two", Name: "lv1", UUID: "OU72MS", Offset: 70254592},
		"tv":  {Name: "tv", UUID: "CcpVww"},
	}, got)
	for _, bad := range []string{"", "[]", `{"report":[{"lv":[{"lv_name":"a","lv_lockargs":"1.0.0:x"}]}]}`} {
		_, err := parseVolumes(bad)
		require.Error(t, err, bad)
	}
}

func TestState(t *testing.T) {
	s := State{
		Lockctl: parseLockctl(lockctlOutput),
		Devices: parseDevices("vg_san-lv1\nvg_san-lvmlock\nvg_san-a--b\nvg_two-lv1\nother-x\nNo devices found\n"),
	}
	assert.Equal(t, map[string]bool{"vg_san/lv1": true, "vg_san/a-b": true, "vg_two/lv1": true}, s.Devices)
	assert.Equal(t, ModeEX, s.Mode(Volume{UUID: "OU72MS-umSn-eAyG-IT7R-SsIH-Jakx-pdSV3B"}))
	assert.Equal(t, ModeSH, s.Mode(Volume{UUID: "iHqwtB-B1AT-YMC6-ZJMq-G8rR-lfY5-Z2dxGQ"}))
	assert.Equal(t, ModeOff, s.Mode(Volume{UUID: "Oz1pay-40tO-PNi0-pXx0-HThC-L3Yi-EvnBsa"}))
}
