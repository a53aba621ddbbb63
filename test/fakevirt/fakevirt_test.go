package fakevirt

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirtxml"

	"virtlvm/internal/guests"
)

var ctx = context.Background()

func TestStartAndDestroy(t *testing.T) {
	b := newBench(t)
	b.vm1()
	b.start("vm1")
	pid := b.guest("vm1").PID
	assert.NotZero(t, pid)
	line := func(state, reason string) string {
		return "<domstatus state='" + state + "' reason='" + reason + "' pid='5000001'>"
	}
	// The file is not there before QEMU is.
	assert.Equal(t, []string{"", "", line("running", "booted") + jobStart}, b.status)
	assert.Equal(t, []string{"vm1 prepare begin -", "vm1 start begin -", "vm1 started begin -"}, b.args())
	assert.Equal(t, Guest{Name: "vm1", UUID: uuid1, ID: 1, State: "running", PID: 5000001}, b.guest("vm1"))

	data, err := os.ReadFile(filepath.Join(b.dir, "dev/vg_san/lv1"))
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(data), "vm1 runs on kvm-a, pid 5000001\n\x00"), "%.60q", data)

	require.NoError(t, b.Destroy(ctx, "vm1"))
	assert.Equal(t, []string{line("shutdown", "unknown") + jobDestroy, ""}, b.status)
	assert.Equal(t, []string{"vm1 stopped end -", "vm1 release end destroyed"}, b.args())
	assert.Equal(t, Guest{Name: "vm1", UUID: uuid1, State: "shut off"}, b.guest("vm1"))

	b.start("vm1")
	data, err = os.ReadFile(filepath.Join(b.dir, "dev/vg_san/lv1"))
	require.NoError(t, err)
	assert.Equal(t, 2, strings.Count(string(data), "vm1 runs on kvm-a"), "each start leaves its line")
	assert.Equal(t, 2, b.guest("vm1").ID)
}

func TestEnds(t *testing.T) {
	tests := map[string]struct {
		end  func(b *bench) error
		want string
	}{
		"shutdown": {func(b *bench) error { return b.Shutdown(ctx, "vm1") }, "shutdown"},
		"crash":    {func(b *bench) error { return b.Crash(ctx, "vm1") }, "crashed"},
		"QEMU killed, then noticed": {func(b *bench) error {
			require.NoError(b.t, b.KillQEMU(ctx, "vm1"))
			assert.Empty(b.t, b.args(), "nobody has noticed yet")
			assert.FileExists(b.t, b.statusPath("vm1"))
			return b.Notice(ctx, "vm1")
		}, "crashed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.vm1()
			b.start("vm1")
			b.args()
			require.NoError(t, tt.end(b))
			assert.Equal(t, []string{"vm1 stopped end -", "vm1 release end " + tt.want}, b.args())
			assert.NoFileExists(t, b.statusPath("vm1"))
		})
	}
}

func TestOldLibvirtGivesNoReason(t *testing.T) {
	b := newBench(t, func(o *Options) { o.NoReasons = true })
	b.vm1()
	b.start("vm1")
	require.NoError(t, b.Destroy(ctx, "vm1"))
	args := b.args()
	assert.Equal(t, "vm1 release end -", args[len(args)-1])
}

func TestRefusals(t *testing.T) {
	starts := []string{"vm1 prepare begin -", "vm1 start begin -", "vm1 started begin -"}
	for i, op := range []string{"prepare", "start", "started"} {
		t.Run(op, func(t *testing.T) {
			b := newBench(t)
			b.vm1()
			b.answer[op] = HookResult{Code: 1, Stderr: "virtlvm: cannot start vm1: vg_san/lv1 is held by kvm-b\n"}
			err := b.Start(ctx, "vm1")
			assert.Equal(t, "error: Failed to start domain 'vm1'\n"+
				"error: Hook script execution failed: internal error: Child process (LC_ALL=C "+
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /etc/libvirt/hooks/qemu vm1 "+op+" begin -) "+
				"unexpected exit status 1: virtlvm: cannot start vm1: vg_san/lv1 is held by kvm-b\n", virsh(t, err))
			want := append([]string{}, starts[:i+1]...)
			assert.Equal(t, append(want, "vm1 stopped end -", "vm1 release end failed"), b.args())
			assert.Equal(t, "shut off", b.guest("vm1").State)
			assert.Empty(t, b.launcher.(*InProcess).disks, "no QEMU is left")
		})
	}
}

// At the end nobody is asked.
func TestHookThatFailsAtTheEnd(t *testing.T) {
	b := newBench(t)
	b.vm1()
	b.start("vm1")
	b.answer["stopped"], b.answer["release"] = HookResult{Code: 1}, HookResult{Code: -1}
	require.NoError(t, b.Destroy(ctx, "vm1"))
	assert.NoFileExists(t, b.statusPath("vm1"))
}

func TestReconnect(t *testing.T) {
	b := newBench(t)
	b.vm1()
	b.start("vm1")
	b.args()
	require.NoError(t, b.Reconnect(ctx))
	assert.Equal(t, []string{"vm1 reconnect begin -"}, b.args())
	assert.Equal(t, "running", b.guest("vm1").State)

	b.answer["reconnect"] = HookResult{Code: 1}
	require.Error(t, b.Reconnect(ctx))
	assert.Equal(t, []string{"vm1 reconnect begin -", "vm1 stopped end -", "vm1 release end daemon"}, b.args())
	assert.Equal(t, "shut off", b.guest("vm1").State)

	b.answer = map[string]HookResult{}
	b.start("vm1")
	require.NoError(t, b.KillQEMU(ctx, "vm1"))
	b.args()
	require.NoError(t, b.Reconnect(ctx))
	assert.Equal(t, []string{"vm1 stopped end -", "vm1 release end crashed"}, b.args())
}

func TestMissingDisks(t *testing.T) {
	const overlay = `<disk type='block' device='disk'><driver name='qemu' type='qcow2'/>
      <source dev='/dev/vg_san/m2'/><target dev='vda' bus='virtio'/></disk>`
	t.Run("disk", func(t *testing.T) {
		b := newBench(t)
		b.vm1()
		require.NoError(t, os.Remove(filepath.Join(b.dir, "dev/vg_san/lv1")))
		assert.Equal(t, "error: Failed to start domain 'vm1'\n"+
			"error: Cannot access storage file '/dev/vg_san/lv1': No such file or directory\n", virsh(t, b.Start(ctx, "vm1")))
		assert.Equal(t, []string{"vm1 prepare begin -", "vm1 stopped end -", "vm1 release end failed"}, b.args())
	})
	t.Run("backing file", func(t *testing.T) {
		b := newBench(t)
		b.disk("/dev/vg_san/m2", qcow2("/dev/vg_san/lv1", "raw"))
		b.define(domain("vm1", uuid1, overlay))
		assert.Equal(t, "error: Failed to start domain 'vm1'\n"+
			"error: Cannot access backing file '/dev/vg_san/lv1' of storage file '/dev/vg_san/m2' (as uid:0, gid:0): "+
			"No such file or directory\n", virsh(t, b.Start(ctx, "vm1")))
	})
	t.Run("gone when QEMU opens it", func(t *testing.T) {
		b := newBench(t)
		b.vm1()
		hook := b.o.Hook
		b.o.Hook = func(ctx context.Context, call HookCall) HookResult {
			if call.Op == "start" {
				assert.NoError(t, os.Remove(filepath.Join(b.dir, "dev/vg_san/lv1")))
			}
			return hook(ctx, call)
		}
		assert.Equal(t, "error: Failed to start domain 'vm1'\n"+
			"error: internal error: process exited while connecting to monitor: qemu-system-x86_64: "+
			"Could not open '/dev/vg_san/lv1': No such file or directory\n", virsh(t, b.Start(ctx, "vm1")))
		assert.Equal(t, []string{"vm1 prepare begin -", "vm1 start begin -", "vm1 stopped end -", "vm1 release end failed"}, b.args())
		assert.NoFileExists(t, b.statusPath("vm1"))
	})
	t.Run("chain that bites its tail", func(t *testing.T) {
		b := newBench(t)
		b.disk("/dev/vg_san/m2", qcow2("/dev/vg_san/m2", "qcow2"))
		b.define(domain("vm1", uuid1, overlay))
		assert.Contains(t, virsh(t, b.Start(ctx, "vm1")), "too deep")
	})
}

// The documents a hook gets are those of a real libvirt, as far as disks go.
func TestXMLIsAsRecorded(t *testing.T) {
	tests := map[string]struct {
		name  string
		files []string // prepare, start, started, stopped, release
	}{
		"raw disk": {"vm1", []string{
			"kvm-a/01-vm1-prepare-begin.xml", "kvm-a/02-vm1-start-begin.xml", "kvm-a/03-vm1-started-begin.xml",
			"kvm-a/04-vm1-stopped-end.xml", "kvm-a/05-vm1-release-end-migrated.xml",
		}},
		"qcow2 chain": {"vm-qcow", []string{
			"kvm-b/05-vm-qcow-prepare-begin.xml", "kvm-b/06-vm-qcow-start-begin.xml", "kvm-b/07-vm-qcow-started-begin.xml",
			"kvm-b/08-vm-qcow-stopped-end.xml", "kvm-b/09-vm-qcow-release-end-destroyed.xml",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.disk("/dev/vg_san/lv1", nil)
			b.disk("/dev/mapper/vg_san-top", qcow2("/dev/vg_san/base", "qcow2"))
			b.disk("/dev/vg_san/base", qcow2("", ""))
			definition, err := os.ReadFile(fixtures + tt.files[0])
			require.NoError(t, err)
			b.define(string(definition))
			b.start(tt.name)
			require.NoError(t, b.Destroy(ctx, tt.name))
			require.Len(t, b.calls, len(tt.files))
			for i, file := range tt.files {
				recorded, err := os.ReadFile(fixtures + file)
				require.NoError(t, err)
				want, got := parse(t, recorded), parse(t, b.calls[i].XML)
				assert.Equal(t, filled(want), filled(got), file)
				assert.Equal(t, want.SecLabel, got.SecLabel, file)
				assert.Equal(t, want.ID == nil, got.ID == nil, file)
				assert.Equal(t, want.UUID, got.UUID)
			}
		})
	}
}

// filled are the disks but for the empty drives, of which libvirt keeps an index that its
// Go bindings cannot write.
func filled(d *libvirtxml.Domain) []libvirtxml.DomainDisk {
	return slices.DeleteFunc(d.Devices.Disks, func(d libvirtxml.DomainDisk) bool { return d.Device == "cdrom" })
}

// A chain that the definition gives is libvirt's as well, at the end too.
func TestChainInTheDefinition(t *testing.T) {
	b := newBench(t)
	b.disk("/dev/vg/top", qcow2("", "")) // says nothing of it
	b.disk("/dev/vg/base", nil)
	b.define(domain("vm1", uuid1, `<disk type='block' device='disk'><driver name='qemu' type='qcow2'/><source dev='/dev/vg/top'/>
      <backingStore type='block'><format type='raw'/><source dev='/dev/vg/base'/><backingStore/></backingStore>
      <target dev='vda' bus='virtio'/></disk>`))
	b.start("vm1")
	require.NoError(t, b.Destroy(ctx, "vm1"))
	require.Len(t, b.calls, 5)
	for _, c := range b.calls {
		d := parse(t, c.XML).Devices.Disks[0]
		require.NotNil(t, d.BackingStore, c.Op)
		assert.Equal(t, "/dev/vg/base", d.BackingStore.Source.Block.Dev)
	}
	data, err := os.ReadFile(filepath.Join(b.dir, "dev/vg/base"))
	require.NoError(t, err)
	assert.NotContains(t, string(data), "runs on", "what is below is never written to")
}

func TestKindsOfDisks(t *testing.T) {
	b := newBench(t)
	b.disk("/dev/vg/ro", nil)
	require.NoError(t, os.Chmod(filepath.Join(b.dir, "dev/vg/ro"), 0o400))
	b.disk("/dev/vg/pooled", nil)
	b.disk("/srv/images/file.img", nil)
	pools := filepath.Join(b.dir, "etc/libvirt/storage")
	require.NoError(t, os.MkdirAll(pools, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(pools, "san.xml"),
		[]byte("<pool type='logical'><name>san</name><source><name>vg</name></source></pool>"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(pools, "images.xml"),
		[]byte("<pool type='dir'><name>images</name><target><path>/srv/images</path></target></pool>"), 0o600))
	b.define(domain("vm1", uuid1, `
      <disk type='block' device='disk'><source dev='/dev/vg/ro'/><target dev='vda' bus='virtio'/><readonly/></disk>
      <disk type='volume' device='disk'><source pool='san' volume='pooled'/><target dev='vdb' bus='virtio'/></disk>
      <disk type='volume' device='disk'><source pool='images' volume='file.img'/><target dev='vdc' bus='virtio'/></disk>
      <disk type='network' device='disk'><source protocol='rbd' name='a/b'/><target dev='vdd' bus='virtio'/></disk>
      <disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk>`))
	b.start("vm1")
	data, err := os.ReadFile(filepath.Join(b.dir, "dev/vg/pooled"))
	require.NoError(t, err)
	assert.Contains(t, string(data), "vm1 runs on kvm-a", "the first disk that is writable")
	for _, d := range parse(t, b.calls[0].XML).Devices.Disks {
		assert.Equal(t, "raw", d.Driver.Type, "libvirt says what it takes a disk for")
	}
}

func TestRunningTwice(t *testing.T) {
	b := newBench(t)
	b.vm1()
	b.start("vm1")
	b.args()
	assert.Contains(t, virsh(t, b.Start(ctx, "vm1")), "Requested operation is not valid: domain is already running")
	assert.Empty(t, b.args())
	require.NoError(t, b.Destroy(ctx, "vm1"))
	assert.Contains(t, virsh(t, b.Destroy(ctx, "vm1")), "Requested operation is not valid: domain is not running")
	assert.Contains(t, virsh(t, b.Start(ctx, "vm9")), "Domain not found: no domain with matching name 'vm9'")
	// libvirt notices by itself that QEMU has gone.
	b.start("vm1")
	require.NoError(t, b.KillQEMU(ctx, "vm1"))
	b.args()
	b.start("vm1")
	assert.Equal(t, []string{
		"vm1 stopped end -", "vm1 release end crashed",
		"vm1 prepare begin -", "vm1 start begin -", "vm1 started begin -",
	}, b.args())
}

func TestDefine(t *testing.T) {
	b := newBench(t)
	b.define(domain("vm1", uuid1, ""))
	b.define(domain("vm1", uuid1, "")) // again
	b.define("<domain type='kvm'><name>vm2</name></domain>")
	uuid := b.guest("vm2").UUID
	assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, uuid)
	b.define("<domain type='kvm'><name>vm2</name></domain>")
	assert.Equal(t, uuid, b.guest("vm2").UUID, "a guest keeps its uuid")
	for _, bad := range []string{
		"", "<domain>", domain("a/b", uuid1, ""), domain("", uuid1, ""), domain("..", uuid1, ""),
		domain("vm3", uuid1, ""), // vm1's uuid
		domain("vm1", "99999999-2222-3333-4444-555555555555", ""),
	} {
		_, err := b.Define(ctx, []byte(bad))
		require.Error(t, err, bad)
	}
}

func TestConcurrentStarts(t *testing.T) {
	b := newBench(t)
	b.vm1()
	var wg sync.WaitGroup
	results := make(chan error, 8)
	for range cap(results) {
		wg.Go(func() { results <- b.Start(ctx, "vm1") })
	}
	wg.Wait()
	close(results)
	won := 0
	for err := range results {
		if err == nil {
			won++
		}
	}
	assert.Equal(t, 1, won)
	assert.Len(t, b.args(), 3)
}

// What the product sees of it is what it would see of a real host.
func TestSeenByTheObserver(t *testing.T) {
	b := newBench(t)
	b.vm1()
	name := `a 'b' "c" <d>&--e,f`
	b.disk("/dev/vg/lv", nil)
	b.define(domain(strings.NewReplacer("<", "&lt;", "&", "&amp;").Replace(name), "99999999-2222-3333-4444-555555555555",
		`<disk type='block' device='disk'><source dev='/dev/vg/lv'/><target dev='vda' bus='virtio'/></disk>`))
	o := guests.New(b.RunDir(), filepath.Join(b.dir, "proc"))
	look := func() guests.Snapshot {
		s, err := o.Observe()
		require.NoError(t, err)
		require.Empty(t, s.Unknown)
		return s
	}
	var jobs []string
	hook := b.o.Hook
	b.o.Hook = func(ctx context.Context, call HookCall) HookResult {
		g := look().ByUUID[uuid1]
		jobs = append(jobs, strings.Join([]string{call.Op, g.State, g.Job.Async, g.Job.Type, g.Alive.String()}, " "))
		return hook(ctx, call)
	}
	b.start("vm1")
	g := look().ByUUID[uuid1]
	assert.Equal(t, []any{"vm1", "running", "booted", guests.Alive, 5000001, uint64(5000001), "none"},
		[]any{g.Name, g.State, g.Reason, g.Alive, g.PID, g.Start, g.Job.Async})
	require.NoError(t, b.Destroy(ctx, "vm1"))
	assert.Equal(t, []string{
		"prepare    unknown", "start    unknown", "started running start none alive",
		"stopped shutdown none destroy gone", "release    unknown",
	}, jobs)
	assert.Empty(t, look().ByUUID)

	b.o.Hook = hook
	b.start(name)
	g = look().ByUUID["99999999-2222-3333-4444-555555555555"]
	assert.Equal(t, name, g.Name)
	assert.Equal(t, guests.Alive, g.Alive)
	require.NoError(t, b.KillQEMU(ctx, name))
	assert.Equal(t, guests.Gone, look().Liveness(g.UUID, name))
}
