package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
	"virtlvm/test/san"
)

// TestMemoryIsAsTheDatabase does the same to both journals, whatever it is, and wants the
// same of them: what they say of open commands and of holds, and what they refuse.
func TestMemoryIsAsTheDatabase(t *testing.T) {
	dir := scratch(t)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		db := store.New(store.Options{Path: filepath.Join(dir, fmt.Sprintf("%d.db", runs)), Now: time.Now})
		defer func() { _ = db.Close() }()
		both := []activation.Journal{db, &Memory{}}
		var commands, calls [2][]int64
		same := func(what string, do func(i int, j activation.Journal) error) {
			var errs [2]error
			for i, j := range both {
				errs[i] = do(i, j)
			}
			require.Equal(rt, errs[0] == nil, errs[1] == nil, "%s: %v, %v", what, errs[0], errs[1])
		}
		hold := func() model.Hold {
			n := rapid.IntRange(0, 2).Draw(rt, "hold")
			return model.Hold{
				Owner: fmt.Sprint("owner", n), Guest: "vm", Volume: model.VolumeID{VG: "vg", LV: fmt.Sprint("lv", n)}, LockLV: "l", Name: fmt.Sprint("vg/", n),
				Role: model.RoleWritable, Mode: model.ModeEX, BootID: "boot", Since: int64(n),
				Phase: rapid.SampledFrom([]model.Phase{model.PhaseHeld, model.PhaseLent, model.PhaseIncoming, model.PhaseEnding}).Draw(rt, "phase"),
				Grant: model.Grant{ID: "g", Peer: "p"}, Prepared: true, Attempt: model.Attempt{AnsweredMillis: int64(n), Seen: n > 0},
			}
		}
		change := func() (c store.HoldChange) {
			switch rapid.IntRange(0, 2).Draw(rt, "change") {
			case 1:
				c.Put = append(c.Put, hold())
			case 2:
				c.Delete = append(c.Delete, hold())
			}
			return c
		}
		pick := func(ids [2][]int64) (int, bool) {
			if len(ids[0]) == 0 {
				return 0, false
			}
			return rapid.IntRange(0, len(ids[0])-1).Draw(rt, "which"), true
		}
		rt.Repeat(map[string]func(*rapid.T){
			"begin": func(*rapid.T) {
				c := change()
				same("begin", func(i int, j activation.Journal) error {
					id, err := j.Begin(ctx, store.Intent{
						Kind: "activate", Argv: []string{"lvchange"}, BootID: "boot",
						Targets: []model.Volume{{ID: model.VolumeID{VG: "vg", LV: "lv"}, VG: "vg", LV: "name"}},
					}, c)
					commands[i] = append(commands[i], id)
					return err
				})
			},
			"running": func(*rapid.T) {
				if n, ok := pick(commands); ok {
					same("running", func(i int, j activation.Journal) error { return j.Running(ctx, commands[i][n], 7, 8) })
				}
			},
			"finish": func(*rapid.T) {
				c := change()
				state := rapid.SampledFrom([]model.CommandState{
					model.StateCompleted, model.StateFailed, model.StateTimedOut, model.StateInterrupted, model.StateProcessing,
				}).Draw(rt, "state")
				if n, ok := pick(commands); ok {
					same("finish as "+string(state), func(i int, j activation.Journal) error {
						return j.Finish(ctx, commands[i][n], store.Result{State: state}, c)
					})
				}
			},
			"holds": func(*rapid.T) {
				c := change()
				same("holds", func(_ int, j activation.Journal) error { return j.ChangeHolds(ctx, c) })
			},
			"replace": func(*rapid.T) {
				h := hold()
				same("replace", func(_ int, j activation.Journal) error { return j.ReplaceHolds(ctx, []model.Hold{h}) })
			},
			"hook": func(*rapid.T) {
				same("hook", func(i int, j activation.Journal) error {
					id, err := j.AddHookCall(ctx, api.HookCall{Guest: "vm", Op: "prepare"})
					calls[i] = append(calls[i], id)
					return err
				})
			},
			"verdict": func(*rapid.T) {
				c := change()
				if n, ok := pick(calls); ok {
					same("verdict", func(i int, j activation.Journal) error {
						return j.FinishHookCall(ctx, calls[i][n], store.HookVerdict{Verdict: store.VerdictAllowed}, nil, c)
					})
				}
			},
			"": func(*rapid.T) {
				var open [2][]string
				var holds [2][]model.Hold
				for i, j := range both {
					all, err := j.OpenCommands(ctx)
					require.NoError(rt, err)
					for _, c := range all {
						open[i] = append(open[i], fmt.Sprintf("%s %s %v %v %d %d", c.Kind, c.State, c.Argv, c.Targets, c.PID, c.PIDStart))
					}
					holds[i], err = j.Holds(ctx)
					require.NoError(rt, err)
				}
				assert.Equal(rt, open[0], open[1])
				assert.Equal(rt, holds[0], holds[1])
			},
		})
	})
}

// TestDevicesAreAsInSys: what the SAN says of devices is what the engine would read in /sys.
func TestDevicesAreAsInSys(t *testing.T) {
	c := NewWith(t, Options{Hosts: []string{"kvm-a"}})
	a := c.Hosts["kvm-a"]
	for _, lv := range []san.LVSpec{{Name: "a-b"}, {Name: "pool", Type: "thin-pool"}, {Name: "thin", Type: "thin", Pool: "pool"}, {Name: "snap", Type: "snapshot", Origin: "a-b"}} {
		_, err := c.SAN.AddLV("vg_san", lv)
		require.NoError(t, err)
	}
	files := lvm.New(a.LVM.Runner(), a.LVM.SysDir())
	seen := map[int]bool{}
	same := func() {
		t.Helper()
		want, err := files.Devices()
		require.NoError(t, err)
		got, err := devices{files, a.LVM}.Devices()
		require.NoError(t, err)
		require.Equal(t, want, got)
		seen[len(got)] = true
	}
	same()
	for _, line := range []string{
		"lvchange -aey vg_san/a-b", "lvchange -aey vg_san/thin", "dmsetup wipe_table vg_san-thin", "lvchange -an vg_san/a-b", "lvchange -aey vg_san/a-b",
		"lvchange -an vg_san/thin", "vgchange --lockstop vg_san",
	} {
		_, _ = a.Run(strings.Fields(line)...)
		same()
	}
	a.PowerCut()
	same()
	a.PowerOn()
	same()
	assert.Greater(t, len(seen), 3, "numbers of devices: %v", seen)
}
