package fakevirt

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/run"
	"virtlvm/test/san"
)

// A guest on a host of the fake SAN: its disk is there only while the volume is active,
// and the volume stays active while the guest has it open.
func TestGuestOnTheFakeSAN(t *testing.T) {
	for name, real := range map[string]bool{"in process": false, "processes": true} {
		t.Run(name, func(t *testing.T) {
			s, err := san.Create(filepath.Join(t.TempDir(), "san"), san.Options{
				Hosts: []string{"kvm-a"}, VGs: []san.VGSpec{{Name: "vg_san"}},
			})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, s.Close()) })
			s.CheckPids = real
			_, err = s.AddLV("vg_san", san.LVSpec{Name: "lv1", Size: 4 << 20})
			require.NoError(t, err)
			node, err := s.Host("kvm-a")
			require.NoError(t, err)
			lvchange := func(flag string) error {
				_, err := node.Runner().Run(ctx, run.Cmd{Name: "lvchange", Args: []string{flag, "vg_san/lv1"}})
				return err
			}
			b := newBench(t, func(o *Options) {
				o.Root = node.Dir()
				if real {
					o.Launcher = Processes{}
				}
			})
			b.vm1()
			t.Cleanup(func() { _ = b.KillQEMU(ctx, "vm1") })

			assert.Contains(t, virsh(t, b.Start(ctx, "vm1")), "Cannot access storage file '/dev/vg_san/lv1': No such file or directory")
			require.NoError(t, lvchange("-aey"))
			b.start("vm1")
			var exit *run.ExitError
			require.ErrorAs(t, lvchange("-an"), &exit)
			assert.Contains(t, exit.Stderr, "Logical volume vg_san/lv1 in use.")
			require.NoError(t, b.Crash(ctx, "vm1"))
			require.NoError(t, lvchange("-an"))
			assert.False(t, node.Active("vg_san", "lv1"))
		})
	}
}
