package cluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// guestOf is what `virtlvm guests` says of vm1.
func guestOf(t *testing.T, h *Host) api.Guest {
	t.Helper()
	all, err := h.Engine().ListGuests(ctx)
	require.NoError(t, err)
	for _, g := range all {
		if g.Name == "vm1" {
			assert.Equal(t, len(g.CannotMigrate) == 0, g.CanMigrate)
			return g
		}
	}
	require.Fail(t, "no guest vm1")
	return api.Guest{}
}

// The answer in `virtlvm guests` is what a migration meets then.
func TestCanMigrate(t *testing.T) {
	block := func(lv, driver, extra string) string {
		return "<disk type='block' device='disk'><driver name='qemu' type='raw'" + driver + "/><source dev='/dev/vg_san/" + lv + "'/><target dev='vda' bus='virtio'/>" + extra + "</disk>"
	}
	for name, tt := range map[string]struct {
		lvs    []san.LVSpec
		lv     string // of the first disk, default vm1
		disk   string // default block(lv, " cache='none'", "")
		after  []string
		old    bool   // QEMU
		want   string // "": yes
		virsh  string // what a migration says then, default want
		unsafe bool   // and with --unsafe it works
	}{
		"linear":  {},
		"striped": {lvs: []san.LVSpec{{Name: "vm1", Type: "striped"}}},
		"raid1":   {lvs: []san.LVSpec{{Name: "vm1", Type: "raid1"}}, want: "vg_san/vm1 is of type raid1, which LVM cannot share between two hosts"},
		"mirror":  {lvs: []san.LVSpec{{Name: "vm1", Type: "mirror"}}, want: "vg_san/vm1 is of type mirror, which LVM cannot share between two hosts"},
		"cache":   {lvs: []san.LVSpec{{Name: "vm1", Type: "cache"}}, want: "vg_san/vm1 is of type cache, which LVM cannot share between two hosts"},
		"writecache": {
			lvs: []san.LVSpec{{Name: "vm1", Type: "writecache"}}, want: "vg_san/vm1 is of type writecache, which LVM cannot share between two hosts",
		},
		"thin": {
			lvs:  []san.LVSpec{{Name: "pool", Type: "thin-pool"}, {Name: "vm1", Type: "thin", Pool: "pool"}},
			want: "vg_san/vm1 is of type thin, which LVM cannot share between two hosts",
		},
		"snapshot made while it runs": {
			after: []string{"lvcreate", "-y", "-s", "-n", "snap", "-L", "8m", "vg_san/vm1"},
			want:  "vg_san/vm1 is the origin of snapshot vg_san/snap, which LVM cannot share between two hosts",
		},
		"cached, QEMU of today": {disk: block("vm1", "", "")},
		"cached, old QEMU": {
			disk: block("vm1", "", ""), old: true, unsafe: true,
			want:  "disk vda has cache mode default, with which libvirt migrates only with --unsafe; use none or directsync",
			virsh: "Migration may lead to data corruption if disks use cache other than none or directsync",
		},
		"writeback, old QEMU": {
			disk: block("vm1", " cache='writeback'", ""), old: true, unsafe: true,
			want:  "disk vda has cache mode writeback, with which libvirt migrates only with --unsafe; use none or directsync",
			virsh: "Migration may lead to data corruption if disks use cache other than none or directsync",
		},
		"directsync, old QEMU": {disk: block("vm1", " cache='directsync'", ""), old: true},
		"read-only, old QEMU":  {disk: block("vm1", "", "<readonly/>"), old: true},
		"shareable, old QEMU":  {disk: block("vm1", "", "<shareable/>"), old: true},
		"as a file": {
			disk: "<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none'/><source file='/dev/vg_san/vm1'/><target dev='vda' bus='virtio'/></disk>",
			want: "disk vda is declared as a file, which libvirt takes for local and migrates only with --unsafe; declare it as <disk type='block'>", unsafe: true,
			virsh: "Migration without shared storage is unsafe",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New(t, "kvm-a", "kvm-b")
			a, b := c.Hosts["kvm-a"], c.Hosts["kvm-b"]
			if tt.lvs == nil {
				tt.lvs = []san.LVSpec{{Name: "vm1"}}
			}
			for _, spec := range tt.lvs {
				_, err := c.SAN.AddLV("vg_san", spec)
				require.NoError(t, err)
			}
			if tt.disk == "" {
				tt.disk = block("vm1", " cache='none'", "")
			}
			if tt.old {
				var err error
				a.Virt, err = fakevirt.New(fakevirt.Options{Name: a.Name, Dir: a.dir, Hook: a.hook, Launcher: a.qemus, OldQEMU: true})
				require.NoError(t, err)
			}
			xml := "<domain type='qemu'><name>vm1</name><uuid>" + UUID(1) + "</uuid><memory unit='MiB'>48</memory><os><type arch='x86_64' machine='pc'>hvm</type></os><devices>" + tt.disk + "</devices></domain>"
			_, err := a.Virt.Define(ctx, []byte(xml))
			require.NoError(t, err)
			require.NoError(t, a.Virt.Start(ctx, "vm1"))
			settled(t, a)
			if tt.after != nil {
				assert.Empty(t, guestOf(t, a).CannotMigrate)
				out, err := a.Run(tt.after...)
				require.NoError(t, err, out)
			}
			assert.Equal(t, tt.want, strings.Join(guestOf(t, a).CannotMigrate, "; "))
			err = fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			if tt.virsh == "" {
				tt.virsh = tt.want
			}
			require.Error(t, err)
			assert.Contains(t, err.Error(), tt.virsh)
			if tt.unsafe {
				require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Unsafe: true}))
			}
		})
	}
}

// On the way the answer is no, and why.
func TestCannotMigrateMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := two(t)
		require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
			if s == fakevirt.StepPerforming {
				assert.Equal(t, []string{"it is being migrated to kvm-b"}, guestOf(t, a).CannotMigrate)
				assert.Equal(t, []string{"it is being migrated to here from kvm-a"}, guestOf(t, b).CannotMigrate)
			}
			return nil
		}}))
		ends(t, b, "ex")
		assert.True(t, guestOf(t, b).CanMigrate)

		// No host to go to, and a volume that is not as it should be.
		b.others = func() []string { return nil }
		assert.Equal(t, []string{"virtlvm knows no other host; see 'virtlvm peer test'"}, guestOf(t, b).CannotMigrate)
		b.others = func() []string { return []string{"kvm-a"} }
		synctest.Wait() // no look is under way, and none begins before time passes
		_, err := b.Run("lvchange", "-asy", "vg_san/vm1")
		require.NoError(t, err)
		assert.Equal(t, []string{"vg_san/vm1 should be ex and is sh"}, guestOf(t, b).CannotMigrate)
		require.NoError(t, b.Virt.Destroy(ctx, "vm1"))
		g, err := b.Engine().ListGuests(ctx)
		require.NoError(t, err)
		assert.Empty(t, g)
	})
}

// What LVM says is read again only when devices have come or gone.
func TestPreflightAsksLVMOnce(t *testing.T) {
	c, a, _ := two(t)
	settled(t, a)
	assert.True(t, guestOf(t, a).CanMigrate)
	require.Eventually(t, func() bool { // a look in the background may run it meanwhile
		a.programs.take()
		for range 3 {
			assert.True(t, guestOf(t, a).CanMigrate)
		}
		return a.programs.take()["lvs"] == 0
	}, time.Minute, time.Millisecond)
	id := fault(t, c, san.Fault{Kind: san.FaultMissing, Tool: "lvs"})
	_, err := c.SAN.AddLV("vg_san", san.LVSpec{Name: "other"})
	require.NoError(t, err)
	_, err = a.Run("lvchange", "-aey", "vg_san/other")
	require.NoError(t, err)
	// A look in the background may have found that lvs is missing, too.
	why := guestOf(t, a).CannotMigrate
	require.NotEmpty(t, why, "unknown is not yes")
	assert.Contains(t, strings.Join(why, "; "), "it cannot be told whether LVM can share its volumes: cannot read volume group vg_san")
	require.NoError(t, c.SAN.ClearFaults(id))
	require.Eventually(t, func() bool {
		a.Engine().Kick()
		return guestOf(t, a).CanMigrate
	}, time.Minute, time.Millisecond)
}
