package cluster

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/test/san"
)

func conditionOf(t *testing.T, h *Host, vg string) (activation.Condition, map[string]activation.VolumeCondition) {
	t.Helper()
	all, err := h.Engine().Conditions(t.Context())
	require.NoError(t, err)
	for _, c := range all {
		if c.VG.Name == vg {
			volumes := map[string]activation.VolumeCondition{}
			for _, v := range c.Volumes {
				volumes[v.LV] = v
			}
			return c, volumes
		}
	}
	t.Fatalf("no condition of %s", vg)
	return activation.Condition{}, nil
}

func TestConditions(t *testing.T) {
	c := New(t, "kvm-a", "kvm-b")
	a := c.Hosts["kvm-a"]
	for _, lv := range []san.LVSpec{{Name: "vm1"}, {Name: "loose"}, {Name: "r1", Type: "raid1"}, {Name: "pool", Type: "thin-pool"}, {Name: "t1", Type: "thin", Pool: "pool"}} {
		_, err := c.SAN.AddLV("vg_san", lv)
		require.NoError(t, err)
	}
	_, err := a.Engine().Activate(t.Context(), api.VolumeRequest{Volume: "vg_san/vm1"}, "test")
	require.NoError(t, err)
	_, err = a.Run("lvchange", "-aey", "vg_san/loose")
	require.NoError(t, err)

	cond, volumes := conditionOf(t, a, "vg_san")
	assert.True(t, cond.Managed)
	assert.True(t, cond.Started)
	assert.False(t, cond.Unlocked)
	assert.NoError(t, cond.Err)
	assert.True(t, volumes["vm1"].Held)
	assert.True(t, volumes["vm1"].Actual.Is(model.ModeEX))
	assert.False(t, volumes["loose"].Held)
	assert.True(t, volumes["loose"].Actual.Is(model.ModeEX))
	assert.Empty(t, volumes["vm1"].Unshareable)
	assert.Equal(t, "of type raid1", volumes["r1"].Unshareable)
	assert.Equal(t, volumes["pool"].ID.LV, volumes["t1"].LockLV)

	plain, _ := conditionOf(t, a, "vg_plain")
	assert.False(t, plain.Managed)
	assert.NoError(t, plain.Err)

	require.NoError(t, a.LVM.StopLvmlockd())
	cond, volumes = conditionOf(t, a, "vg_san")
	assert.False(t, cond.Started)
	assert.True(t, cond.Unlocked)
	assert.True(t, volumes["vm1"].Actual.Orphan)
}

func TestRepair(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	off := func(ctx context.Context) error {
		all, err := a.Engine().Conditions(ctx)
		require.NoError(t, err)
		for _, cond := range all {
			if cond.VG.Name == "vg_san" && cond.VG.Autoactivation {
				return errors.New("it is still on")
			}
		}
		return nil
	}
	repair := activation.Repair{Cmd: lvm.NoAutoactivationCmd("vg_san"), Target: model.Volume{VG: "vg_san"}}
	done, err := a.Engine().Repair(t.Context(), repair, "operator uid 0", off)
	require.NoError(t, err)
	assert.Equal(t, string(model.StateCompleted), done.State)
	assert.Equal(t, "repair", done.Kind)
	assert.Equal(t, "check --fix, operator uid 0", done.Cause)
	assert.Equal(t, []string{"vgchange", "--setautoactivation", "n", "vg_san"}, done.Argv)

	// Once more: LVM refuses, and that is told.
	_, err = a.Engine().Repair(t.Context(), repair, "operator uid 0", off)
	assert.ErrorContains(t, err, "'vgchange --setautoactivation n vg_san' failed: Volume group autoactivation is already no")

	// Exit code 0 and not done is a failure all the same.
	_, err = a.Engine().Repair(t.Context(), activation.Repair{Cmd: lvm.LockStartCmd("vg_san"), Target: model.Volume{VG: "vg_san"}}, "x",
		func(context.Context) error { return errors.New("nothing has changed") })
	assert.ErrorContains(t, err, "nothing has changed")
	commands, err := a.Store().Commands(t.Context(), api.CommandFilter{Limit: 1})
	require.NoError(t, err)
	assert.Equal(t, string(model.StateFailed), commands[0].State)
	assert.Equal(t, "nothing has changed", commands[0].Outcome)
}

// A device goes by its dm uuid, and only while nothing has it open.
func TestRepairRemovesOneDevice(t *testing.T) {
	c := New(t, "kvm-a")
	a := c.Hosts["kvm-a"]
	for _, lv := range []string{"one", "two"} {
		_, err := c.SAN.AddLV("vg_san", san.LVSpec{Name: lv})
		require.NoError(t, err)
	}
	_, err := a.Run("lvchange", "-aey", "vg_san/one", "vg_san/two")
	require.NoError(t, err)
	_, volumes := conditionOf(t, a, "vg_san")
	repair := activation.Repair{Cmd: lvm.RemoveDeviceCmd(volumes["one"].ID.DMUUID()), Target: volumes["one"].Volume}
	nothing := func(context.Context) error { return nil }

	require.NoError(t, a.LVM.Open("vg_san", "one", os.Getpid()))
	_, err = a.Engine().Repair(t.Context(), repair, "x", nothing)
	require.ErrorContains(t, err, "failed")
	_, volumes = conditionOf(t, a, "vg_san")
	assert.True(t, volumes["one"].Actual.Active)
	require.NoError(t, a.LVM.CloseVolume("vg_san", "one", os.Getpid()))

	_, err = a.Engine().Repair(t.Context(), repair, "x", nothing)
	require.NoError(t, err)
	_, volumes = conditionOf(t, a, "vg_san")
	assert.False(t, volumes["one"].Actual.Active)
	assert.True(t, volumes["two"].Actual.Active)
}
