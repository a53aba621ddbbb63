package check

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

var errBroken = errors.New("broken\nin two lines")

// row spoils a good host and says what one check finds.
type row struct {
	id, name string
	spoil    func(*Facts)
	state    string
	detail   string // a part of it
	fix      string // a part of it
}

func rows() []row {
	const p, w, f, s = api.CheckPass, api.CheckWarn, api.CheckFail, api.CheckSkip
	return []row{
		{"lvm.tools", "no sanlock", func(f *Facts) { f.Missing = []string{"sanlock"} }, f, "not installed: sanlock", "install sanlock"},
		{"lvm.tools", "no qemu-img", func(f *Facts) { f.Missing = []string{"qemu-img"} }, w, "guests with image chains are refused", "qemu-utils"},
		{"lvm.tools", "both", func(f *Facts) { f.Missing = []string{"ssh", "lvs"} }, f, "ssh is not installed: no live migration; not installed: lvs", "install openssh-client or openssh-clients; install lvm2"},

		{"lvm.version", "tried, with limits", func(f *Facts) { f.LVMVersion.Value = "2.03.16" }, p, "2.03.16; it shares the origin of a snapshot", ""},
		{"lvm.version", "writecache", func(f *Facts) { f.LVMVersion.Value = "2.03.31" }, p, "writecache", ""},
		{"lvm.version", "not tried", func(f *Facts) { f.LVMVersion.Value = "2.03.12" }, w, "older than 2.03.16", "upgrade"},
		{"lvm.version", "too old", func(f *Facts) { f.LVMVersion.Value = "2.03.11" }, f, "no autoactivation property", "upgrade"},
		{"lvm.version", "newer", func(f *Facts) { f.LVMVersion.Value = "2.04.1" }, w, "newer than 2.03.40", ""},
		{"lvm.version", "odd", func(f *Facts) { f.LVMVersion.Value = "git" }, w, `"git" is no version`, ""},
		{"lvm.version", "no answer", func(f *Facts) { f.LVMVersion.Err = errBroken }, w, "cannot be told: broken in two lines", ""},
		{"lvm.version", "no LVM", func(f *Facts) { f.LVMVersion.Err, f.Missing = errBroken, []string{"lvs"} }, s, "not installed", ""},

		{"lvm.use_lvmlockd", "off", func(f *Facts) { f.LVMConfig.Value["use_lvmlockd"] = "0" }, f, "takes no locks", "use_lvmlockd = 1"},
		{"lvm.use_lvmlockd", "no answer", func(f *Facts) { f.LVMConfig.Err = errBroken }, w, "cannot be told", ""},
		{"lvm.use_lvmlockd", "no LVM", func(f *Facts) { f.LVMConfig.Err, f.Missing = errBroken, []string{"lvmconfig"} }, s, "not installed", ""},
		{"lvm.use_lvmlockd", "unknown setting", func(f *Facts) { delete(f.LVMConfig.Value, "use_lvmlockd") }, w, "does not know use_lvmlockd", ""},

		{"lvm.host_id", "not set", func(f *Facts) { f.LVMConfig.Value["host_id"] = "0" }, f, "not set", "lvmlocal.conf"},
		{"lvm.host_id", "out of range", func(f *Facts) { f.LVMConfig.Value["host_id"] = "2001" }, f, "no number from 1 to 2000", ""},
		{"lvm.host_id", "changed", func(f *Facts) { f.LVMConfig.Value["host_id"] = "7" }, w, "lockspace of vg_san was started with 1", ""},
		{"lvm.host_id", "no answer", func(f *Facts) { f.LVMConfig.Err = errBroken }, w, "cannot be told", ""},

		{"lvm.host_id_unique", "somebody else's, started", func(f *Facts) { f.LVMConfig.Value["host_id"] = "2" }, f, "in vg_san host_id 2 belongs to kvm-b", "another host_id"},
		{"lvm.host_id_unique", "somebody else's, not started", func(f *Facts) {
			f.HostTables, f.DiskHosts = nil, map[string]Got[map[int]string]{"vg_san": {Value: map[int]string{1: "kvm-x"}}}
		}, f, "belongs to kvm-x", ""},
		{"lvm.host_id_unique", "free", func(f *Facts) { f.LVMConfig.Value["host_id"] = "9" }, p, "", ""},
		{"lvm.host_id_unique", "not set", func(f *Facts) { f.LVMConfig.Value["host_id"] = "0" }, s, "not set", ""},
		{"lvm.host_id_unique", "unreadable", func(f *Facts) { f.HostTables["vg_san"] = Got[map[int]lease.Host]{Err: errBroken} }, s, "no lockspace can be read", ""},
		{"lvm.host_id_unique", "no sanlock", func(f *Facts) { f.Sanlock.Value = lease.Daemon{} }, s, "our name is not known", ""},

		{"lvm.lvmlockd", "down", func(f *Facts) { f.Local.Value.LockdRunning = false }, f, "does not run", "enable --now lvmlockd"},
		{"lvm.lvmlockd", "down with orphans", func(f *Facts) {
			f.Local.Value = lease.Local{Orphans: []lease.Orphan{{VG: "vg_san", LV: lv1UUID, Mode: model.ModeEX}}}
		}, f, "left locks behind", "--adopt 1"},
		{"lvm.lvmlockd", "no answer", func(f *Facts) { f.Local.Err = errBroken }, f, "broken", ""},

		{"lvm.managed", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, f, "broken", "vgs"},
		{"lvm.managed", "none", func(f *Facts) { f.VGs.Value = f.VGs.Value[1:] }, w, "protects nothing", "vgcreate --shared"},
		{"lvm.managed", "unreadable", func(f *Facts) { f.san().Err = errBroken }, f, "broken", ""},
		{"lvm.managed", "stuck", func(f *Facts) { f.san().Stuck, f.san().Err = true, errBroken }, f, "an LVM command hangs on vg_san", "storage"},
		{"lvm.managed", "dlm", func(f *Facts) {
			f.VGs.Value = append(f.VGs.Value, activation.Condition{VG: lvm.VG{Name: "vg_dlm", LockType: "dlm"}})
		}, w, "vg_dlm uses dlm", "exclude"},
		{"lvm.managed", "not seen", func(f *Facts) { f.Scope = []string{"vg_san", "vg_lost"} }, w, "vg_lost is named in virtlvm.toml", ""},

		{"lvm.unshared", "a guest on a plain one", func(f *Facts) {
			f.Guests[0].Disks = append(f.Guests[0].Disks, Disk{VG: "vg_root", LV: "x"}, Disk{VG: "vg_root", LV: "y"})
		}, w, "vg_root is no shared volume group: nothing keeps its guests (vm1)", "--lock-type sanlock vg_root"},
		{"lvm.unshared", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "cannot be listed", ""},

		{"lvm.unshared", "a guest on a claimed one", func(f *Facts) {
			claims(f)
			f.Guests[0].Disks = append(f.Guests[0].Disks, Disk{VG: "vg_old", LV: "x"})
		}, p, "", ""},

		{"lvm.claims", "agree", claims, p, "vg_old (kvm-a, kvm-b)", ""},
		{"lvm.claims", "silent", func(f *Facts) { claims(f); f.Claims["vg_old"]["kvm-b"] = errBroken }, f, "kvm-b of vg_old: broken", "virtlvm host fenced kvm-b"},
		{"lvm.claims", "fenced", func(f *Facts) { claims(f); f.Claims["vg_old"]["kvm-b"] = activation.ErrFenced }, w, "kvm-b of vg_old does not answer and counts as off", "virtlvm host fenced kvm-b --withdraw"},
		{"lvm.claims", "not a member", func(f *Facts) { claims(f); f.Members["vg_old"] = []string{"kvm-b", "kvm-c"} }, f, "kvm-a is not among the members of vg_old (kvm-b, kvm-c)", "virtlvm.toml"},
		{"lvm.claims", "not seen", func(f *Facts) { claims(f); f.VGs.Value = f.VGs.Value[:2] }, w, "this host does not see it", ""},
		{"lvm.claims", "converted", func(f *Facts) { claims(f); f.VGs.Value[2].VG.LockType = "sanlock" }, w, "has been converted", "take [vg.vg_old] out"},
		{"lvm.claims", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "cannot be listed", ""},

		// A host without lvmlockd and sanlock, all of whose volumes are claimed.
		{"lvm.tools", "claims alone", lockless, p, "", ""},
		{"lvm.tools", "claims alone, and no dmsetup", func(f *Facts) { lockless(f); f.Missing = append(f.Missing, "dmsetup") }, f, "not installed: dmsetup", ""},
		{"lvm.use_lvmlockd", "claims alone", lockless, s, "no volume group here has LVM's locks", ""},
		{"lvm.host_id", "claims alone", lockless, s, "no volume group here has LVM's locks", ""},
		{"lvm.lvmlockd", "claims alone", lockless, s, "no volume group here has LVM's locks", ""},
		{"lvm.managed", "claims alone", lockless, p, "vg_old", ""},
		{"sanlock.daemon", "claims alone", lockless, s, "no volume group here has LVM's locks", ""},
		{"sanlock.host_name", "claims alone", lockless, s, "no volume group here has LVM's locks", ""},
		{"virtlvm.boot", "claims alone", lockless, p, "", ""},
		{"virtlvm.boot", "claims alone, and no virtlvmd", func(f *Facts) { lockless(f); delete(f.Units.Value, "virtlvmd.service") }, f, "no virtlvmd.service", ""},
		{"lvm.lvmlockd", "claims, and locks elsewhere", func(f *Facts) { claims(f); f.Local.Value.LockdRunning = false }, f, "does not run", ""},

		{"lvm.lockspaces", "stopped", func(f *Facts) { f.san().Started = false }, f, "lockspace of vg_san is not started", "--lockstart vg_san"},
		{"lvm.lockspaces", "nothing to manage", func(f *Facts) { f.VGs.Value = nil }, s, "no volume group", ""},
		{"lvm.lockspaces", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "cannot be listed", ""},

		{"lvm.global_lock", "two", func(f *Facts) {
			f.Lockspaces.Value = append(f.Lockspaces.Value, lease.Lockspace{VG: "vg2", GlobalLock: true})
		}, f, "vg_san and vg2 have one each", "--gl-disable"},
		{"lvm.global_lock", "none", func(f *Facts) { f.Lockspaces.Value[0].GlobalLock = false }, f, "none of vg_san has it", "--gl-enable vg_san"},
		{"lvm.global_lock", "perhaps in a stopped one", func(f *Facts) { f.Lockspaces.Value = nil }, s, "not started", ""},
		{"lvm.global_lock", "no sanlock VG", func(f *Facts) { f.VGs.Value, f.Lockspaces.Value = f.VGs.Value[1:], nil }, s, "no volume group with sanlock", ""},
		{"lvm.global_lock", "lvmlockd down", func(f *Facts) { f.LockdDown = true }, s, "cannot be listed", ""},

		{"lvm.autoactivation", "on", func(f *Facts) { f.san().VG.Autoactivation = true }, w, "it is on for vg_san", "vgchange --setautoactivation n vg_san"},
		{"lvm.autoactivation", "on for a claimed one", func(f *Facts) { claims(f); f.old().VG.Autoactivation = true }, w, "it is on for vg_old", "on one host alone, while no other changes the volume group: 'vgchange --setautoactivation n vg_old'"},
		{"lvm.autoactivation", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},

		{"lvm.activators", "all", activator("ExecStart=/sbin/vgchange -ay"), w, "/etc/systemd/system/x.service activates every free volume here", "take it out"},
		{"lvm.activators", "a managed one", activator("vgchange -aly vg_root vg_san"), w, "", ""},
		{"lvm.activators", "the host's own", activator("vgchange -ay vg_root"), p, "", ""},
		{"lvm.activators", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},

		{"lvm.lease_area", "full and cannot grow", func(f *Facts) { f.LeaseVolumes["vg_san"], f.san().VG.Free = 69*mib, 0 }, f, "vg_san has 2 leases and room for no more", "free 256 MiB"},
		{"lvm.lease_area", "nearly full", func(f *Facts) { f.LeaseVolumes["vg_san"], f.san().VG.Free = 72*mib, 255*mib }, w, "room for 3 more", ""},
		{"lvm.lease_area", "full and grows", func(f *Facts) { f.LeaseVolumes["vg_san"] = 69 * mib }, p, "vg_san: 2 of 2", ""},
		{"lvm.lease_area", "must not grow", func(f *Facts) {
			f.LeaseVolumes["vg_san"], f.LVMConfig.Value["sanlock_lv_extend"] = 69*mib, "0"
		}, f, "room for no more", "sanlock_lv_extend"},
		{"lvm.lease_area", "sectors of 4 KiB", func(f *Facts) {
			f.Sanlock.Value.Spaces["vg_san"] = lease.Space{AlignSize: 8 * mib}
			f.LeaseVolumes["vg_san"] = 1024 * mib
		}, p, "vg_san: 2 of 61", ""},
		{"lvm.lease_area", "not active", func(f *Facts) { f.LeaseVolumes = nil }, s, "no lockspace is started", ""},
		{"lvm.lease_area", "setting unknown", func(f *Facts) { f.LVMConfig.Value = nil }, s, "sanlock_lv_extend", ""},
		{"lvm.lease_area", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},

		{"lvm.devices", "scan_lvs", func(f *Facts) { f.LVMConfig.Value["scan_lvs"] = "1" }, w, "looks into the guests' volumes", "scan_lvs = 0"},
		{"lvm.devices", "a guest's VG", func(f *Facts) {
			f.PVs.Value = append(f.PVs.Value, lvm.PV{Name: "/dev/vg_san/vm1", VG: "vg_guest"})
		}, f, "vg_guest lies inside the volume /dev/vg_san/vm1", "devices file"},
		{"lvm.devices", "in a partition", func(f *Facts) {
			f.Devices.Value["part1-x"] = lvm.Device{Name: "vg_san-vm1p1", UUID: "part1-" + id(lv1UUID).DMUUID()}
			f.PVs.Value = append(f.PVs.Value, lvm.PV{Name: "/dev/mapper/vg_san-vm1p1", VG: "vg_guest"})
		}, f, "vg_guest lies inside", ""},
		{"lvm.devices", "by its kernel name, in no VG", func(f *Facts) { f.PVs.Value = append(f.PVs.Value, lvm.PV{Name: "/dev/dm-1"}) }, f, "takes /dev/dm-1, a volume, for a physical volume", ""},
		{"lvm.devices", "unknown", func(f *Facts) { f.PVs.Err = errBroken }, w, "cannot be told", ""},
		{"lvm.devices", "devices unknown", func(f *Facts) { f.Devices.Err = errBroken }, w, "cannot be told", ""},
		{"lvm.devices", "no LVM", func(f *Facts) { f.LVMConfig.Err, f.Missing = errBroken, []string{"lvmconfig"} }, s, "", ""},

		{"lvm.kill_command", "ours", kill("/usr/bin/virtlvm lease-lost", true), p, "lease-lost", ""},
		{"lvm.kill_command", "does nothing", kill("/bin/true", true), f, "split brain", "lease-lost"},
		{"lvm.kill_command", "drops the locks", kill("/sbin/lvmlockctl --drop", true), f, "split brain", ""},
		{"lvm.kill_command", "unknown", kill("/usr/local/bin/killcmd", true), w, "is not known to virtlvm", "exits with 0 only when"},
		{"lvm.kill_command", "missing", kill("/usr/local/bin/killcmd", false), w, "cannot be run", ""},
		{"lvm.kill_command", "no path", kill("killcmd", false), w, "no full path", ""},
		{"lvm.kill_command", "no answer", func(f *Facts) { f.LVMConfig.Err = errBroken }, w, "cannot be told", ""},

		{"sanlock.daemon", "down", func(f *Facts) { f.Sanlock.Value = lease.Daemon{} }, f, "does not run", "enable --now sanlock"},
		{"sanlock.daemon", "no answer", func(f *Facts) { f.Sanlock.Err = errBroken }, f, "broken", ""},
		{"sanlock.daemon", "old", func(f *Facts) { f.Sanlock.Value.Version = "3.7.0" }, w, "3.7.0 is older", "upgrade"},

		{"sanlock.watchdog", "switched off", func(f *Facts) { f.Sanlock.Value.UseWatchdog = false }, f, "split brain is possible", "-w 0"},
		{"sanlock.watchdog", "no wdmd", func(f *Facts) { f.Watchdog.Value.Daemon = 0 }, f, "wdmd does not run", "enable --now wdmd"},
		{"sanlock.watchdog", "no device", func(f *Facts) { f.Watchdog.Value.Devices, f.Watchdog.Value.Open = nil, nil }, f, "the kernel has no watchdog", "softdog"},
		{"sanlock.watchdog", "not armed", func(f *Facts) { f.Watchdog.Value.Open = nil }, f, "no watchdog open", "journalctl -u wdmd"},
		{"sanlock.watchdog", "nothing to guard yet", func(f *Facts) { f.Watchdog.Value.Open, f.Sanlock.Value.Spaces = nil, nil }, s, "no lockspace is started", ""},
		{"sanlock.watchdog", "not known", func(f *Facts) { f.Watchdog.Err = errBroken }, w, "cannot be told", ""},
		{"sanlock.watchdog", "no sanlock", func(f *Facts) { f.Sanlock.Value.Running = false }, s, "sanlock does not run", ""},

		{"sanlock.host_name", "not set", func(f *Facts) { f.SanlockConf, f.Sanlock.Value.HostName = nil, "" }, f, "not set", "our_host_name"},
		{"sanlock.host_name", "sanlock made one up", func(f *Facts) {
			f.SanlockConf, f.Sanlock.Value.HostName = nil, "0439a4a8-db56-4933-9183-d8681d7b0746.kvm-a"
		}, f, "not set", "our_host_name"},
		{"sanlock.host_name", "from the command line", func(f *Facts) { f.SanlockConf = nil }, p, "kvm-a", ""},
		{"sanlock.host_name", "no name", func(f *Facts) { f.SanlockConf["our_host_name"] = "-x" }, f, "is not a name of a host", ""},
		{"sanlock.host_name", "not yet used", func(f *Facts) { f.Sanlock.Value.HostName = "old" }, f, "sanlock runs with old", "restart sanlock"},
		{"sanlock.host_name", "virtlvmd's is another", func(f *Facts) { f.Host = "kvm-z" }, w, "virtlvmd calls itself kvm-z", ""},
		{"sanlock.host_name", "no sanlock", func(f *Facts) { f.Sanlock.Value = lease.Daemon{} }, s, "sanlock.conf says kvm-a", ""},

		{"sanlock.names", "sanlock's own", func(f *Facts) {
			f.HostTables["vg_san"].Value[2] = lease.Host{Name: "0439a4a8-db56-4933-9183-d8681d7b0746.kvm-b", State: model.HostLive}
		}, w, "host_id 2 has no name", "our_host_name"},
		{"sanlock.names", "of a dead host", func(f *Facts) { f.HostTables["vg_san"].Value[3] = lease.Host{State: model.HostDead} }, p, "", ""},
		{"sanlock.names", "unreadable", func(f *Facts) { f.HostTables = nil }, s, "no lockspace can be read", ""},

		{"sanlock.renewal", "failed", space(func(s *lease.Space) { s.LastOK, s.LastSuccess = false, 953 }), f, "the last that did not is 47s ago, and the lease is lost 1m20s after it", "paths"},
		{"sanlock.renewal", "lost", space(func(s *lease.Space) { s.Lost = true }), f, "given up the lockspace of vg_san", ""},
		{"sanlock.renewal", "killed", func(f *Facts) { f.Lockspaces.Value[0].Killed = true }, f, "access to the leases of vg_san was lost", "--drop vg_san"},
		{"sanlock.renewal", "failed lately", renewals(lease.Renewal{At: 900, Errors: 18}), w, "18 renewals in vg_san failed lately, the last about 1m40s ago", ""},
		{"sanlock.renewal", "slow", renewals(lease.Renewal{At: 900, Read: 5000, Write: 1}), w, "1 of the last 1 renewals in vg_san were slow, up to 5.0 s", ""},
		{"sanlock.renewal", "unreadable", func(f *Facts) { f.Renewals["vg_san"] = Got[[]lease.Renewal]{Err: errBroken} }, w, "broken in two lines", ""},
		{"sanlock.renewal", "nothing to renew", func(f *Facts) { f.Sanlock.Value.Spaces = nil }, s, "no lockspace", ""},
		{"sanlock.renewal", "no sanlock", func(f *Facts) { f.Sanlock.Value.Running = false }, s, "", ""},

		{"sanlock.orphans", "some", func(f *Facts) {
			f.Local.Value.Orphans = []lease.Orphan{{VG: "vg_san", LV: lv1UUID, Mode: model.ModeEX}}
		}, f, "vg_san/vm1 (ex) is held for a lvmlockd that is gone", "--adopt 1"},
		{"sanlock.orphans", "of an unknown volume", func(f *Facts) { f.Local.Value.Orphans = []lease.Orphan{{VG: "vg_x", LV: "u", Mode: model.ModeSH}} }, f, "vg_x, volume u (sh)", ""},
		{"sanlock.orphans", "unreadable", func(f *Facts) { f.Local.Err = errBroken }, s, "", ""},
		{"sanlock.orphans", "sanlock down", func(f *Facts) { f.Local.Value.SanlockDown = true }, s, "sanlock does not run", ""},
	}
}

func activator(line string) func(*Facts) {
	return func(f *Facts) { f.Activators = []Activator{{"/etc/systemd/system/x.service", line}} }
}

func kill(command string, found bool) func(*Facts) {
	return func(f *Facts) { f.LVMConfig.Value["lvmlockctl_kill_command"], f.KillFound = command, found }
}

func space(change func(*lease.Space)) func(*Facts) {
	return func(f *Facts) {
		s := f.Sanlock.Value.Spaces["vg_san"]
		change(&s)
		f.Sanlock.Value.Spaces["vg_san"] = s
	}
}

func renewals(all ...lease.Renewal) func(*Facts) {
	return func(f *Facts) { f.Renewals["vg_san"] = Got[[]lease.Renewal]{Value: all} }
}

func judge(t *testing.T, f *Facts, id string) Result {
	t.Helper()
	for _, c := range All() {
		if c.ID == id {
			return c.judge(f)
		}
	}
	t.Fatalf("there is no check %s", id)
	return Result{}
}

func TestGoodHostPasses(t *testing.T) {
	for _, r := range Run(good()) {
		assert.Equal(t, api.CheckPass, r.State, "%s: %s", r.ID, r.Detail)
		assert.Empty(t, r.Fix, r.ID)
		assert.Empty(t, r.Repairs, r.ID)
	}
}

// A host without lvmlockd and sanlock that claims all it has is right, too.
func TestHostWithoutLocksPasses(t *testing.T) {
	f := good()
	lockless(f)
	f.Guests[0].Disks[0].VG, f.Guests[0].Disks[0].LV = "vg_old", "vm9"
	for _, r := range Run(f) {
		assert.Contains(t, []string{api.CheckPass, api.CheckSkip}, r.State, "%s: %s", r.ID, r.Detail)
		assert.Empty(t, r.Fix, r.ID)
		assert.Empty(t, r.Repairs, r.ID)
	}
}

func TestJudgements(t *testing.T) {
	seen := map[string]map[string]bool{}
	for _, tt := range append(rows(), moreRows()...) {
		t.Run(tt.id+" "+tt.name, func(t *testing.T) {
			f := good()
			tt.spoil(f)
			r := judge(t, f, tt.id)
			assert.Equal(t, tt.state, r.State, r.Detail)
			assert.Contains(t, r.Detail, tt.detail)
			assert.Contains(t, r.Fix, tt.fix)
			assert.NotContains(t, r.Detail+r.Fix, "\n")
			if r.State != api.CheckFail && r.State != api.CheckWarn {
				assert.Empty(t, r.Fix)
			}
			// No check may panic on what spoils another one.
			assert.NotPanics(t, func() { Run(f) })
		})
		if seen[tt.id] == nil {
			seen[tt.id] = map[string]bool{}
		}
		seen[tt.id][tt.state] = true
	}
	for _, c := range All() {
		states := seen[c.ID]
		assert.True(t, states[api.CheckFail] || states[api.CheckWarn], "%s has no test of what is wrong", c.ID)
	}
}

// Facts of which nothing could be found out: no line may be a PASS that depends on them.
func TestNothingKnown(t *testing.T) {
	f := &Facts{Alone: true}
	f.LVMVersion.Err, f.LVMConfig.Err, f.VGs.Err, f.Known.Err, f.PVs.Err, f.Devices.Err, f.Open.Err = errBroken, errBroken, errBroken, errBroken, errBroken, errBroken, errBroken
	f.Local.Err, f.Lockspaces.Err, f.Sanlock.Err, f.Watchdog.Err, f.Units.Err, f.Libvirt.Err = errBroken, errBroken, errBroken, errBroken, errBroken, errBroken
	f.Hook.Err, f.AppArmor.Err, f.Pools.Err, f.Running.Err, f.Peers.Err, f.Damage.Err = errBroken, errBroken, errBroken, errBroken, errBroken, errBroken
	f.Config, f.Sockets, f.Spaces = errBroken, []Socket{{Bad: "x"}}, []Space{{Err: errBroken}}
	f.Unreadable, f.Spool = []string{"x"}, api.SpoolSummary{Waiting: 1}
	// What was read from files and the engine, and found to be nothing.
	known := map[string]bool{"lvm.tools": true, "virtlvm.break_glass": true}
	for _, r := range Run(f) {
		if !known[r.ID] {
			assert.NotEqual(t, api.CheckPass, r.State, "%s: %s", r.ID, r.Detail)
		}
	}
}

func TestIDsAndTexts(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range All() {
		assert.False(t, seen[c.ID], "%s is there twice", c.ID)
		seen[c.ID] = true
		group, _, ok := strings.Cut(c.ID, ".")
		assert.True(t, ok && strings.EqualFold(group, c.Group), c.ID)
		assert.NotEmpty(t, c.Means, c.ID)
		assert.NotEmpty(t, c.Fix, c.ID)
		assert.LessOrEqual(t, len(c.Title), titleWidth, c.ID)
	}
}

// titleWidth is what the command line prints titles in.
const titleWidth = 54

func TestRepairs(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*Facts)
		id    string
		argv  string // "" for none
	}{
		"autoactivation": {func(f *Facts) { f.san().VG.Autoactivation = true }, "lvm.autoactivation:vg_san", "vgchange --setautoactivation n vg_san"},
		// Two hosts that are told so at once would write the metadata at once.
		"autoactivation, claimed":     {func(f *Facts) { claims(f); f.old().VG.Autoactivation = true }, "lvm.autoactivation:vg_old", ""},
		"autoactivation, not started": {func(f *Facts) { f.san().VG.Autoactivation, f.san().Started = true, false }, "lvm.autoactivation:vg_san", ""},
		"lockspace":                   {func(f *Facts) { f.san().Started = false }, "lvm.lockspaces:vg_san", "vgchange --lockstart vg_san"},
		"lockspace, lvmlockd down":    {func(f *Facts) { f.san().Started, f.Local.Value.LockdRunning = false, false }, "lvm.lockspaces:vg_san", ""},
		"lockspace, sanlock down":     {func(f *Facts) { f.san().Started, f.Sanlock.Value.Running = false, false }, "lvm.lockspaces:vg_san", ""},
		"lockspace, stuck":            {func(f *Facts) { f.san().Started, f.san().Stuck = false, true }, "lvm.lockspaces:vg_san", ""},
		"hook":                        {unseen, "libvirt.hook_seen:libvirtd", "systemctl reload libvirtd.service"},
		"left-over device of ours":    {leftoverDevice(0, true), "volumes.leftovers:vg_san-old", "dmsetup remove --uuid " + id(goneID).DMUUID()},
		"left-over device, open":      {leftoverDevice(1, true), "volumes.leftovers:vg_san-old", ""},
		"left-over device, not ours":  {leftoverDevice(0, false), "volumes.leftovers:vg_san-old", ""},
		"nothing":                     {func(*Facts) {}, "lvm.autoactivation:vg_san", ""},
		"another check's":             {func(f *Facts) { f.san().VG.Autoactivation = true }, "lvm.lockspaces:vg_san", ""},
		"garbage":                     {func(f *Facts) { f.san().VG.Autoactivation = true }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := good()
			tt.spoil(f)
			r, ok := find(f, tt.id)
			require.Equal(t, tt.argv != "", ok)
			if !ok {
				return
			}
			assert.Equal(t, tt.argv, strings.Join(r.Cmd.Argv(), " "))
			assert.NoError(t, r.Cmd.Err)
			// What is offered is what would run.
			var offered []api.Repair
			for _, line := range Run(f) {
				offered = append(offered, line.Repairs...)
			}
			assert.Equal(t, []api.Repair{{ID: tt.id, Argv: r.Cmd.Argv()}}, offered)
		})
	}
}

func TestCompare(t *testing.T) {
	line := func(host string, hostID int) api.CheckReport {
		return api.CheckReport{Host: host, HostID: hostID, Results: []api.CheckResult{{ID: "lvm.host_id_unique", State: api.CheckPass}}}
	}
	reports := []api.CheckReport{line("kvm-a", 1), line("kvm-b", 2), line("kvm-c", 1), Silent("kvm-d", errBroken), line("kvm-e", 0), line("kvm-f", 0)}
	Compare(reports)
	assert.Equal(t, api.CheckFail, reports[0].Results[0].State)
	assert.Equal(t, "kvm-a and kvm-c have host_id 1", reports[2].Results[0].Detail)
	assert.Equal(t, api.CheckPass, reports[1].Results[0].State)
	assert.Equal(t, api.CheckPass, reports[4].Results[0].State, "0 is not known")
	assert.Equal(t, api.CheckFail, reports[3].Results[0].State)
	assert.Equal(t, "broken in two lines", reports[3].Results[0].Detail)
}

// docs/check.md lists every line, made of the checks' own words.
func TestDocs(t *testing.T) {
	const path = "../../docs/check.md"
	want := docs()
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o600))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want, string(have), "run UPDATE=1 go test ./internal/check")
}

func docs() string {
	var b strings.Builder
	b.WriteString(docsHead)
	group := ""
	for _, c := range All() {
		if c.Group != group {
			group = c.Group
			b.WriteString("\n## " + group + "\n\n| Checking | id | what it means | what to do |\n|---|---|---|---|\n")
		}
		b.WriteString("| " + c.Title + " | `" + c.ID + "` | " + c.Means + " | " + c.Fix + " |\n")
	}
	return b.String()
}

const docsHead = `# What virtlvm check looks at

` + "`virtlvm check`" + ` prints one line for each check, in the style of virt-host-validate(1).

| | |
|---|---|
| PASS | right |
| WARN | works, with a limit or a risk that is named; or it could not be told, and why |
| FAIL | does not work or is not safe; the exit code is 9 |
| SKIP | does not apply here, or its cause is the FAIL of another line |

Where virtlvmd does not run, root may run it all the same: virtlvm starts ` + "`virtlvmd -check`" + `, which
looks at everything but guests' holds. ` + "`--cluster`" + ` asks every host; one that does not answer within
90 s is a FAIL. ` + "`--fix`" + ` runs what is marked so below, each command after a question; it is decided by
the daemon after another look, journalled (` + "`virtlvm commands`" + `) and verified. Nothing else is ever
changed, and never a lock or a volume that is not virtlvm's.

This page is made of the checks' own words: ` + "`UPDATE=1 go test ./internal/check`" + `.
`
