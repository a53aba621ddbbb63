package fakevirt

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/run"
	"virtlvm/test/san"
)

func TestMigrationOptions(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		o       MigrateOptions
		out, in string // flags in the status files
		state   string // on the destination
		defined [2]bool
	}{
		"plain":            {MigrateOptions{}, "0x101", "0x1", "running migrated", [2]bool{true, false}},
		"p2p":              {MigrateOptions{P2P: true}, "0x3", "0x3", "running migrated", [2]bool{true, false}},
		"tunnelled":        {MigrateOptions{P2P: true, Tunnelled: true}, "0x7", "0x7", "running migrated", [2]bool{true, false}},
		"persistent":       {MigrateOptions{Persistent: true, UndefineSource: true}, "0x119", "0x19", "running migrated", [2]bool{false, true}},
		"suspend":          {MigrateOptions{Suspend: true}, "0x121", "0x21", "paused user", [2]bool{true, false}},
		"copy-storage-all": {MigrateOptions{CopyStorageAll: true}, "0x141", "0x41", "running migrated", [2]bool{true, false}},
		"postcopy":         {MigrateOptions{PostCopy: true}, "0x8101", "0x8001", "running migrated", [2]bool{true, false}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			require.NoError(t, p.migrate(tt.o, StepPerforming, func() error {
				a, _, err := p.a.readStatus("vm1")
				require.NoError(t, err)
				b, _, err := p.b.readStatus("vm1")
				require.NoError(t, err)
				assert.Contains(t, a.Job, " flags='"+tt.out+"' ")
				assert.Contains(t, b.Job, " flags='"+tt.in+"' ")
				return nil
			}))
			assert.Equal(t, slices.Concat(arrives, leaves), p.take(), "always the same calls")
			assert.Equal(t, "- | "+tt.state, p.states())
			for i, b := range []*bench{p.a, p.b} {
				_, err := b.definition("vm1")
				assert.Equal(t, tt.defined[i], err == nil)
			}
			wrote := strings.Contains(p.disk(), "vm1 runs on kvm-b, pid 5000001\n")
			assert.Equal(t, !tt.o.Suspend, wrote, "a guest that is paused writes nothing")
		})
	}
}

func TestPausedGuestArrivesPaused(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	require.NoError(t, p.a.Suspend(ctx, "vm1"))
	require.ErrorIs(t, p.migrate(MigrateOptions{}, StepPaused, func() error { return ErrAborted }), ErrAborted)
	assert.Equal(t, "paused user | -", p.states(), "and nobody resumes it where that fails")
	require.NoError(t, p.migrate(MigrateOptions{}, "", nil))
	assert.Equal(t, "- | paused user", p.states())
	require.EqualError(t, Migrate(ctx, p.b.Host, p.a.Host, "vm1", MigrateOptions{PostCopy: true}),
		"argument unsupported: post-copy migration is not supported with non-live or paused migration")
	assert.Equal(t, "- | paused user", p.states())
}

func TestNewNameOnTheDestination(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	require.NoError(t, p.migrate(MigrateOptions{DName: "vm2", Persistent: true}, "", nil))
	require.Len(t, p.b.calls, 4)
	for _, call := range p.b.calls {
		assert.Equal(t, "vm2", call.Guest)
		assert.Equal(t, "vm2", parse(t, call.XML).Name)
	}
	for _, call := range p.a.calls {
		assert.Equal(t, "vm1", call.Guest)
	}
	assert.Equal(t, Guest{Name: "vm2", UUID: uuid1, ID: 1, State: "running", PID: 5000001}, p.b.guest("vm2"))
	def, err := p.b.definition("vm2")
	require.NoError(t, err)
	assert.Equal(t, "vm2", def.Name)
	// Its old name still has its uuid on the source.
	require.EqualError(t, Migrate(ctx, p.b.Host, p.a.Host, "vm2", MigrateOptions{}),
		"operation failed: domain 'vm1' is already defined with uuid "+uuid1)
	require.NoError(t, Migrate(ctx, p.b.Host, p.a.Host, "vm2", MigrateOptions{DName: "vm1", UndefineSource: true}))
	assert.Equal(t, "running migrated | -", p.states())
}

func TestOfflineMigration(t *testing.T) {
	t.Parallel()
	o := MigrateOptions{Offline: true, Persistent: true}
	t.Run("running", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		p.b.answer["migrate"] = HookResult{Stdout: strings.Replace(string(p.definition()), "<name>", "<title>filtered</title><name>", 1)}
		o := o
		var steps []Step
		o.Step = func(s Step) error {
			steps = append(steps, s)
			if s == StepMigrateHook {
				assert.Equal(t, "running booted, migration out begin3 | -", p.states())
				s, _, err := p.a.readStatus("vm1")
				require.NoError(t, err)
				assert.Contains(t, s.Job, " flags='0x508' ")
			}
			return nil
		}
		require.NoError(t, Migrate(ctx, p.a.Host, p.b.Host, "vm1", o))
		assert.Equal(t, []Step{StepBegun, StepMigrateHook, StepDone}, steps)
		assert.Equal(t, arrives[:1], p.take())
		assert.Equal(t, "running booted | -", p.states())
		assert.Equal(t, Guest{Name: "vm1", UUID: uuid1, State: "shut off"}, p.b.guest("vm1"))
		def, err := p.b.definition("vm1")
		require.NoError(t, err)
		assert.Equal(t, "filtered", def.Title, "as the hook has made it")
		o.UndefineSource, o.Step = true, nil
		require.NoError(t, Migrate(ctx, p.a.Host, p.b.Host, "vm1", o))
		assert.FileExists(t, filepath.Join(p.a.definitions(), "vm1.xml"), "it runs: it keeps its definition")
	})
	t.Run("shut off", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		require.NoError(t, p.a.Destroy(ctx, "vm1"))
		p.take()
		o := o
		o.UndefineSource = true
		require.NoError(t, p.migrate(o, "", nil))
		assert.Equal(t, arrives[:1], p.take())
		assert.Equal(t, "shut off", p.b.guest("vm1").State)
		assert.NoFileExists(t, filepath.Join(p.a.definitions(), "vm1.xml"))
	})
	t.Run("fails", func(t *testing.T) {
		t.Parallel()
		for _, err := range []error{ErrAborted, ErrClientGone} {
			p := newPair(t)
			require.ErrorIs(t, p.migrate(o, StepMigrateHook, func() error { return err }), err)
			assert.Equal(t, "running booted | -", p.states())
			assert.NoFileExists(t, filepath.Join(p.b.definitions(), "vm1.xml"))
		}
		p := newPair(t)
		p.b.answer["migrate"] = HookResult{Code: 1, Stderr: "no\n"}
		assert.Contains(t, virsh(t, p.migrate(o, "", nil)), "vm1 migrate begin -) unexpected exit status 1: no\n")
		assert.Equal(t, "running booted | -", p.states())
	})
}

func TestMigrationRefusedByLibvirt(t *testing.T) {
	t.Parallel()
	const invalid = "Requested operation is not valid: "
	for want, o := range map[string]MigrateOptions{
		invalid + "cannot perform tunnelled migration without using peer2peer flag":          {Tunnelled: true},
		invalid + "offline migration must be specified with the persistent flag set":         {Offline: true},
		invalid + "offline migration cannot handle non-shared storage":                       {Offline: true, Persistent: true, CopyStorageAll: true},
		invalid + "tunnelled offline migration does not make sense":                          {Offline: true, Persistent: true, P2P: true, Tunnelled: true},
		"argument unsupported: post-copy is not supported with tunnelled migration":          {P2P: true, Tunnelled: true, PostCopy: true},
		"argument unsupported: post-copy migration is not supported with non-live or paused": {PostCopy: true, Suspend: true},
		"migration of non-shared storage is not supported with tunnelled migration and this": {P2P: true, Tunnelled: true, CopyStorageAll: true},
		`XML error: invalid domain name "a/b"`:                                               {DName: "a/b"},
	} {
		p := newPair(t)
		assert.Contains(t, virsh(t, p.migrate(o, "", nil)), want)
		assert.Empty(t, p.take())
		assert.Equal(t, "running booted | -", p.states())
	}
	t.Run("same host", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		here := func(o MigrateOptions) error { return Migrate(ctx, p.a.Host, p.a.Host, "vm1", o) }
		require.EqualError(t, here(MigrateOptions{}),
			"internal error: Attempt to migrate guest to the same host 00000000-0000-0000-0000-006b766d2d61")
		assert.Equal(t, []string{"kvm-a migrate begin -"}, p.take())
		require.EqualError(t, here(MigrateOptions{P2P: true}), "Attempt to migrate guest to the same host")
		assert.Empty(t, p.take())
		assert.Equal(t, "running booted | -", p.states())
	})
	t.Run("not there", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		err := Migrate(ctx, p.a.Host, p.b.Host, "vm9", MigrateOptions{})
		assert.Equal(t, "error: failed to get domain 'vm9'\nerror: Domain not found: no domain with matching name 'vm9'\n", virsh(t, err))
		require.NoError(t, p.a.Destroy(ctx, "vm1"))
		require.EqualError(t, p.migrate(MigrateOptions{}, "", nil), invalid+"domain is not running")
	})
	t.Run("duplicate", func(t *testing.T) {
		t.Parallel()
		for other, want := range map[string]string{
			domain("vm1", uuid1, ""):                                  invalid + "domain 'vm1' is already active",
			domain("vm1", "99999999-2222-3333-4444-555555555555", ""): "operation failed: domain 'vm1' already exists with uuid 99999999-2222-3333-4444-555555555555",
			domain("vm5", uuid1, ""):                                  "operation failed: domain 'vm5' is already defined with uuid " + uuid1,
		} {
			p := newPair(t)
			name, err := p.b.Define(ctx, []byte(other))
			require.NoError(t, err)
			p.b.start(name)
			p.take()
			require.EqualError(t, p.migrate(MigrateOptions{}, "", nil), want)
			assert.Equal(t, arrives[:1], p.take(), "no further hook")
			assert.Equal(t, "running booted", p.state(p.a))
		}
	})
}

func TestPostCopy(t *testing.T) {
	t.Parallel()
	broken := errors.New("internal error: QEMU reports migration failed")
	t.Run("fails", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		err := p.migrate(MigrateOptions{PostCopy: true}, StepPostCopy, func() error {
			assert.Equal(t, "paused post-copy, migration out perform3_done | running post-copy, migration in finish3", p.states())
			return broken
		})
		require.ErrorIs(t, err, broken)
		assert.Equal(t, "paused post-copy failed, migration out postcopy_failed | running post-copy failed, migration in postcopy_failed",
			p.states(), "both wait")
		assert.Equal(t, arrives, p.take())
		require.NoError(t, p.b.ConnectionLost(ctx, "vm1"))
		require.NoError(t, p.a.Reconnect(ctx))
		require.NoError(t, p.b.Reconnect(ctx))
		assert.Equal(t, "paused post-copy failed, migration out postcopy_failed | running post-copy failed, migration in postcopy_failed", p.states())
	})
	t.Run("fails before the switch", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		require.ErrorIs(t, p.migrate(MigrateOptions{PostCopy: true}, StepPaused, func() error { return broken }), broken)
		assert.Equal(t, "running migration canceled | -", p.states())
	})
	t.Run("client gone", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		require.ErrorIs(t, p.migrate(MigrateOptions{PostCopy: true}, StepPostCopy, func() error { return ErrClientGone }), ErrClientGone)
		assert.Equal(t, "- | running migrated", p.states(), "it ends by itself")
	})
}

// A chain that the definition gives comes along, one that libvirt has found does not.
func TestChainsMigrate(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.a.disk("/dev/vg/found", qcow2("/dev/vg/base", "raw"))
	p.a.disk("/dev/vg/given", qcow2("", ""))
	p.a.disk("/dev/vg/base", nil)
	p.a.define(domain("vm2", "99999999-2222-3333-4444-555555555555", `
      <disk type='block' device='disk'><driver name='qemu' type='qcow2'/><source dev='/dev/vg/found'/><target dev='vda' bus='virtio'/></disk>
      <disk type='block' device='disk'><driver name='qemu' type='qcow2'/><source dev='/dev/vg/given'/>
        <backingStore type='block'><format type='raw'/><source dev='/dev/vg/base'/><backingStore/></backingStore><target dev='vdb' bus='virtio'/></disk>
      <disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk>`))
	p.a.start("vm2")
	def, err := p.a.definition("vm2")
	require.NoError(t, err)
	from, to := p.a, p.b
	for range 2 { // and back: the destination has no definition of it
		to.args()
		require.NoError(t, Migrate(ctx, from.Host, to.Host, "vm2", MigrateOptions{}))
		require.Len(t, to.calls, 4)
		assert.Equal(t, def.Devices.Disks, parse(t, to.calls[0].XML).Devices.Disks)
		found := parse(t, to.calls[2].XML).Devices.Disks[0].BackingStore
		require.NotNil(t, found)
		assert.Equal(t, "/dev/vg/base", found.Source.Block.Dev)
		from, to = to, from
	}
}

// Two hosts of the fake SAN, with QEMUs of both kinds: the volume must be active on the
// destination before its QEMU is there, and that writes nothing before the switch.
func TestMigrationOnTheFakeSAN(t *testing.T) {
	t.Parallel()
	for name, real := range map[string]bool{"in process": false, "processes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := san.Create(filepath.Join(t.TempDir(), "san"), san.Options{
				Hosts: []string{"kvm-a", "kvm-b"}, VGs: []san.VGSpec{{Name: "vg_san"}},
			})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, s.Close()) })
			s.CheckPids = real
			_, err = s.AddLV("vg_san", san.LVSpec{Name: "lv1", Size: 4 << 20})
			require.NoError(t, err)
			var nodes []*san.Host
			var benches []*bench
			for _, host := range []string{"kvm-a", "kvm-b"} {
				node, err := s.Host(host)
				require.NoError(t, err)
				nodes = append(nodes, node)
				benches = append(benches, newBench(t, func(o *Options) {
					o.Name, o.Root = host, node.Dir()
					if real {
						o.Launcher = Processes{}
					}
				}))
			}
			a, b := benches[0], benches[1]
			t.Cleanup(func() { _, _ = a.KillQEMU(ctx, "vm1"), b.KillQEMU(ctx, "vm1") })
			lvchange := func(node *san.Host, flag string) {
				t.Helper()
				_, err := node.Runner().Run(ctx, run.Cmd{Name: "lvchange", Args: []string{flag, "vg_san/lv1"}})
				require.NoError(t, err)
			}
			text := func() string {
				data, err := os.ReadFile(filepath.Join(nodes[0].Dir(), "dev/vg_san/lv1"))
				require.NoError(t, err)
				text, _, _ := strings.Cut(string(data), "\x00")
				return text
			}
			a.vm1()
			lvchange(nodes[0], "-aey")
			a.start("vm1")
			migrate := func(step func(Step) error) error {
				return Migrate(ctx, a.Host, b.Host, "vm1", MigrateOptions{Step: step})
			}
			assert.Equal(t, "error: Cannot access storage file '/dev/vg_san/lv1': No such file or directory\n", virsh(t, migrate(nil)))
			lvchange(nodes[0], "-asy")
			lvchange(nodes[1], "-asy")
			require.ErrorIs(t, migrate(func(s Step) error {
				if s == StepPerformed {
					return ErrAborted
				}
				return nil
			}), ErrAborted)
			assert.NotContains(t, text(), "kvm-b")
			lvchange(nodes[1], "-an") // nothing has it open there
			lvchange(nodes[1], "-asy")
			require.NoError(t, migrate(func(s Step) error {
				if s == StepPerformed {
					assert.NotContains(t, text(), "kvm-b")
				}
				return nil
			}))
			assert.Contains(t, text(), "\nvm1 runs on kvm-b, pid ")
			lvchange(nodes[0], "-an")
			lvchange(nodes[1], "-aey")
			require.NoError(t, b.Destroy(ctx, "vm1"))
		})
	}
}

// A paused guest of a real process outlives whoever brought it.
func TestPausedProcessStays(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(o *Options) { o.Launcher = Processes{} })
	require.NoError(t, p.migrate(MigrateOptions{Suspend: true}, "", nil))
	pid := p.b.guest("vm1").PID
	assert.True(t, p.b.o.Launcher.Alive(pid, uuid1))
	assert.NotContains(t, p.disk(), "kvm-b")
	require.NoError(t, p.b.Destroy(ctx, "vm1"))
	assert.False(t, p.b.o.Launcher.Alive(pid, uuid1))
}
