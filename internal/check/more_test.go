package check

import (
	"context"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// moreRows are those of libvirt, guests, volumes, hosts and virtlvm itself.
func moreRows() []row {
	const p, w, f, s = api.CheckPass, api.CheckWarn, api.CheckFail, api.CheckSkip
	return []row{
		{"libvirt.daemon", "none", func(f *Facts) { f.Libvirt.Value = nil; delete(f.Units.Value, "libvirtd.service") }, f, "not installed", "install"},
		{"libvirt.daemon", "stopped", func(f *Facts) { f.Libvirt.Value = nil }, w, "does not run", ""},
		{"libvirt.daemon", "on demand", func(f *Facts) {
			f.Libvirt.Value, f.Units.Value["virtqemud.socket"] = nil, Unit{Active: "active"}
		}, p, "virtqemud starts when it is needed", ""},
		{"libvirt.daemon", "not known", func(f *Facts) { f.Libvirt = Got[[]Process]{Err: errBroken} }, w, "cannot be told", ""},

		{"libvirt.hook", "none", func(f *Facts) { f.Hook.Ours = nil }, f, "guests start unprotected", "install-hook"},
		{"libvirt.hook", "unreadable", func(f *Facts) { f.Hook.Err = errBroken }, f, "broken", ""},
		{"libvirt.hook", "not executable", func(f *Facts) { f.hook().Mode = 0o644 }, f, "cannot be run", "chmod 0755 /etc/libvirt/hooks/qemu"},
		{"libvirt.hook", "writable for all", func(f *Facts) { f.hook().Mode = 0o757 }, f, "changed by others than root", "chown"},
		{"libvirt.hook", "somebody's", func(f *Facts) { f.hook().UID = 1000 }, f, "changed by others than root", ""},
		{"libvirt.hook", "a link", func(f *Facts) { f.hook().Mode = 0o755 | link }, w, "is a link", ""},
		{"libvirt.hook", "twice", func(f *Facts) {
			f.Hook.Ours = append(f.Hook.Ours, HookFile{Path: "/etc/libvirt/hooks/qemu.d/50-virtlvm", Mode: 0o755})
		}, w, "runs both", "remove one"},

		{"libvirt.hook_current", "another", func(f *Facts) { f.Hook.Same = false }, f, "is not what the package brought", "install-hook"},
		{"libvirt.hook_current", "no package", func(f *Facts) { f.Hook.Unknown = "not from a package" }, s, "not from a package", ""},
		{"libvirt.hook_current", "no hook", func(f *Facts) { f.Hook.Ours = nil }, s, "no hook", ""},

		{"libvirt.hook_seen", "never called, older than libvirt", func(f *Facts) { f.HookCalls = nil; f.Running.Value = guests.Snapshot{} }, p, "libvirtd started or was reloaded after it was installed", ""},
		{"libvirt.hook_seen", "newer than libvirt", func(f *Facts) { unseen(f); f.Running.Value = guests.Snapshot{} }, w, "running since before there was a hook", "systemctl reload libvirtd.service"},
		{"libvirt.hook_seen", "newer, and a guest started without", unseen, f, "started guest vm1 since, and did not call it", "systemctl reload libvirtd.service"},
		{"libvirt.hook_seen", "newer, guest older", func(f *Facts) { unseen(f); f.hook().Changed = now }, w, "may not call it", ""},
		{"libvirt.hook_seen", "newer, guest started before what the journal keeps", func(f *Facts) { unseen(f); f.Keep = time.Hour }, w, "may not call it", ""},
		{"libvirt.hook_seen", "newer, journal unreadable", func(f *Facts) {
			unseen(f)
			f.HookCalls = map[int]Got[time.Time]{300: {Err: errBroken}}
		}, w, "may not call it", ""},
		{"libvirt.hook_seen", "newer, reloaded since", func(f *Facts) {
			unseen(f)
			f.Running.Value = guests.Snapshot{}
			u := f.Units.Value["libvirtd.service"]
			u.Reloaded = f.hook().Modified.Add(time.Second)
			f.Units.Value["libvirtd.service"] = u
		}, p, "was reloaded", ""},
		{"libvirt.hook_seen", "newer, beside an older one", func(f *Facts) {
			unseen(f)
			f.Running.Value = guests.Snapshot{}
			f.Hook.Others = []HookFile{{Mode: 0o755, Changed: boot}}
		}, p, "", ""},
		{"libvirt.hook_seen", "newer, beside an older one that cannot be run", func(f *Facts) {
			unseen(f)
			f.Running.Value = guests.Snapshot{}
			f.Hook.Others = []HookFile{{Mode: 0o644, Changed: boot}}
		}, w, "", ""},
		{"libvirt.hook_seen", "libvirt down", func(f *Facts) { f.Libvirt.Value = nil }, p, "looks for it when it starts", ""},
		{"libvirt.hook_seen", "no hook", func(f *Facts) { f.Hook.Ours = nil }, s, "no hook", ""},
		{"libvirt.hook_seen", "not known", func(f *Facts) { f.Libvirt.Err = errBroken }, w, "cannot be told", ""},

		{"libvirt.confinement", "has run", func(f *Facts) { f.SELinux.Enforcing = true }, p, "libvirtd has run it", ""},
		{"libvirt.confinement", "AppArmor without the rule", func(f *Facts) {
			f.HookCalls, f.AppArmor = nil, AppArmor{Enabled: true, Enforced: []string{"libvirtd"}}
		}, f, "profile of libvirtd has no rule", "rmix"},
		{"libvirt.confinement", "AppArmor with the rule", func(f *Facts) {
			f.HookCalls, f.AppArmor = nil, AppArmor{Enabled: true, Enforced: []string{"libvirtd"}, Allows: true}
		}, p, "", ""},
		{"libvirt.confinement", "AppArmor not known", func(f *Facts) { f.HookCalls, f.AppArmor = nil, AppArmor{Enabled: true, Err: errBroken} }, w, "broken", ""},
		{"libvirt.confinement", "SELinux", func(f *Facts) { f.HookCalls, f.SELinux.Enforcing = nil, true }, w, "no call has come yet", "setsebool"},
		{"libvirt.confinement", "SELinux, wrong type", func(f *Facts) {
			f.HookCalls, f.SELinux = nil, SELinux{Enforcing: true, Unconfined: true, Label: "unconfined_u:object_r:user_home_t:s0"}
		}, w, "type user_home_t", "restorecon"},
		{"libvirt.confinement", "SELinux, good", func(f *Facts) {
			f.HookCalls, f.SELinux = nil, SELinux{Enforcing: true, Unconfined: true, Label: "system_u:object_r:virt_hook_t:s0"}
		}, p, "", ""},

		{"libvirt.pools", "starts with libvirt", pool(Pool{Name: "p 1", VG: "vg_san", Autostart: true}), f, `pool "p 1" starts with libvirt`, "--disable"},
		{"libvirt.pools", "runs", pool(Pool{Name: "p", VG: "vg_san", Running: true}), w, "pool p runs", "do not stop it"},
		{"libvirt.pools", "defined", pool(Pool{Name: "p", VG: "vg_san"}), w, "to start pool p", "pool-undefine"},
		{"libvirt.pools", "on a host's own VG", pool(Pool{Name: "p", VG: "vg_root", Autostart: true}), p, "", ""},
		{"libvirt.pools", "unreadable", func(f *Facts) { f.Pools.Err = errBroken }, w, "not all pools", ""},
		{"libvirt.pools", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},

		{"guests.definitions", "unreadable", func(f *Facts) { f.Unreadable = []string{"/etc/libvirt/qemu/x.xml: bad"} }, w, "x.xml: bad", "virsh edit"},

		{"guests.migratable", "raid", func(f *Facts) { f.vm1().Unshareable = "of type raid1" }, w, "guest vm1 cannot live-migrate: vg_san/vm1 (vda) is of type raid1", "shut"},
		{"guests.migratable", "nobody's", func(f *Facts) { f.vm2().Unshareable = "of type raid1" }, p, "", ""},
		{"guests.migratable", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},

		{"guests.cache", "unsafe", disk(func(d *Disk) { d.Cache = "unsafe" }), f, "what the guest has flushed is lost", "cache='none'"},
		{"guests.cache", "writeback", disk(func(d *Disk) { d.Cache = "writeback" }), w, "cache mode writeback", ""},
		{"guests.cache", "none given", disk(func(d *Disk) { d.Cache = "" }), w, "default, which is writeback", ""},
		{"guests.cache", "directsync", disk(func(d *Disk) { d.Cache = "directsync" }), p, "", ""},
		{"guests.cache", "read-only", disk(func(d *Disk) { d.Cache, d.Role = "", model.RoleReadOnly }), p, "", ""},
		{"guests.cache", "not managed", disk(func(d *Disk) { d.Cache, d.VG = "unsafe", "vg_root" }), p, "", ""},
		{"guests.cache", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},

		{"guests.twice", "in one guest", func(f *Facts) {
			f.Guests[0].Disks = append(f.Guests[0].Disks, Disk{Target: "vdb", Path: "/dev/mapper/vg_san-vm1", Role: model.RoleWritable, VG: "vg_san", LV: "vm1"})
		}, f, "one guest writes vg_san/vm1 through two disks (vm1 vda as /dev/vg_san/vm1, vm1 vdb as /dev/mapper/vg_san-vm1)", "remove one"},
		{"guests.twice", "in two guests", func(f *Facts) {
			f.Guests = append(f.Guests, Guest{Name: "vm9", UUID: "u9", Disks: f.Guests[0].Disks})
		}, w, "written by more than one guest (vm1 vda as /dev/vg_san/vm1, vm9 vda", "shareable"},
		{"guests.twice", "read by another", func(f *Facts) {
			d := f.Guests[0].Disks[0]
			d.Role = model.RoleReadOnly
			f.Guests = append(f.Guests, Guest{Name: "vm9", UUID: "u9", Disks: []Disk{d}})
		}, p, "", ""},
		{"guests.twice", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},

		{"guests.block_jobs", "into a shared one", job(model.Actual{Lock: model.ModeSH, Active: true}), f, "job commit on vda writes vg_san/vm2, which this host holds shared only (sh)", "--abort"},
		{"guests.block_jobs", "into one of its own", job(model.Actual{Lock: model.ModeEX, Active: true}), p, "", ""},
		{"guests.block_jobs", "not known", func(f *Facts) { f.Jobs = []BlockJob{{Guest: "vm1", Disk: "vda", Type: "commit", Err: errBroken}} }, w, "cannot be told", ""},
		{"guests.block_jobs", "no look", func(f *Facts) { f.Running.Err = errBroken }, w, "cannot be told", ""},

		{"volumes.dm_without_lock", "one", func(f *Facts) { f.vm2().Actual = model.Actual{Lock: model.ModeOff, Active: true} }, f, "vg_san/vm2 is active on this host without a lock", "lvchange -an vg_san/vm2"},
		{"volumes.dm_without_lock", "orphaned is no such", func(f *Facts) {
			f.vm1().Actual = model.Actual{Lock: model.ModeEX, Orphan: true, Active: true}
		}, p, "", ""},
		{"volumes.dm_without_lock", "claimed", claims, p, "", ""},
		{"volumes.dm_without_lock", "without a claim", func(f *Facts) { claims(f); f.old().Volumes[0].Actual.Lock = model.ModeOff }, w, "vg_old/vm9 is active on this host without a claim", "'virtlvm activate vg_old/vm9', which is refused where another host claims it"},
		{"volumes.dm_without_lock", "claims not known", func(f *Facts) { claims(f); f.Alone, f.old().Volumes[0].Actual.Lock = true, model.ModeOff }, s, "virtlvmd does not run", ""},
		{"volumes.lock_without_dm", "a claim alone", func(f *Facts) { claims(f); f.old().Volumes[0].Actual.Active = false }, p, "", ""},
		{"volumes.dm_without_lock", "locks unreadable", func(f *Facts) { f.Local.Err = errBroken }, s, "locks cannot be read", ""},
		{"volumes.dm_without_lock", "no VG readable", func(f *Facts) { f.san().Err = errBroken }, s, "no volume group can be read", ""},
		{"volumes.lock_without_dm", "one", func(f *Facts) { f.vm2().Actual.Lock = model.ModeSH }, w, "a lock (sh) of vg_san/vm2, which is not active", "lvchange -an vg_san/vm2"},
		{"volumes.lock_without_dm", "locks unreadable", func(f *Facts) { f.Local.Err = errBroken }, s, "", ""},
		{"volumes.strangers", "one", func(f *Facts) { f.vm1().Held = false }, w, "vg_san/vm1 is active here (ex), and no guest or operator", "lvchange -an vg_san/vm1"},
		{"volumes.strangers", "no daemon", func(f *Facts) { f.Alone = true }, s, "virtlvmd does not run", ""},
		{"volumes.strangers", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},
		{"volumes.leftovers", "closed, ours", leftoverDevice(0, true), w, "device vg_san-old is left over", "dmsetup remove --uuid LVM-"},
		{"volumes.leftovers", "closed, somebody's", leftoverDevice(0, false), w, "not activated by virtlvm", "if you know"},
		{"volumes.leftovers", "open", leftoverDevice(2, true), f, "is open, and its volume has been removed", "lsof"},
		{"volumes.leftovers", "read without a lock", func(f *Facts) { leftoverDevice(0, true)(f); f.san().Unlocked = true }, s, "under its lock", ""},
		{"volumes.leftovers", "second look without a lock", func(f *Facts) { leftoverDevice(0, true)(f); f.Unlocked = []string{"vg_san"} }, s, "under its lock", ""},
		{"volumes.leftovers", "unreadable", func(f *Facts) { f.Known.Err = errBroken }, s, "", ""},
		{"volumes.leftovers", "nothing read", func(f *Facts) { f.Known.Value = nil }, s, "", ""},
		{"volumes.leftovers", "unlisted", func(f *Facts) { f.VGs.Err = errBroken }, s, "", ""},
		{"volumes.pending", "one", func(f *Facts) {
			f.Status.Pending = []api.Unwanted{{Volume: "vg_san/vm1", Wanted: "ex", Actual: "sh", Reason: "held by kvm-b"}}
		}, w, "vg_san/vm1 should be ex and is sh: held by kvm-b", "virtlvm status"},
		{"volumes.pending", "no daemon", func(f *Facts) { f.Alone = true }, s, "", ""},
		{"volumes.stuck", "one", func(f *Facts) { f.Status.VGs = []api.VG{{Name: "vg_san", Stuck: "'lvs' has not ended"}} }, f, "vg_san: 'lvs' has not ended", ""},
		{"volumes.stuck", "no daemon", func(f *Facts) { f.Alone = true }, s, "", ""},

		{"hosts.reach", "not reached", peers(Peer{Name: "kvm-b", Asked: true, Err: errBroken}), f, "broken in two lines", "peer test kvm-b"},
		{"hosts.reach", "another protocol", peers(Peer{Name: "kvm-b", Asked: true, Version: api.Version{ProtocolMajor: api.ProtocolMajor, ProtocolMinor: api.ProtocolMinor + 1}}), w, "kvm-b speaks protocol", "upgrade"},
		{"hosts.reach", "alone", peers(), s, "no other host is alive", ""},
		{"hosts.reach", "no daemon", func(f *Facts) { f.Alone, f.Peers.Value = true, nil }, s, "which knows them", ""},
		{"hosts.reach", "not asked", peers(Peer{Name: "kvm-b"}), s, "kvm-b not asked", ""},
		{"hosts.reach", "not all known", func(f *Facts) { f.Peers.Err = errBroken }, w, "not all hosts are known", ""},
		{"hosts.reach", "none known", func(f *Facts) { f.Peers = Got[[]Peer]{Err: errBroken} }, s, "broken", ""},

		{"virtlvm.daemon", "down", func(f *Facts) { f.Alone = true }, f, "no guest starts", "enable --now virtlvmd.service"},
		{"virtlvm.daemon", "first look", func(f *Facts) { f.Status.Ready = false }, w, "first look", ""},
		{"virtlvm.problems", "some", func(f *Facts) { f.Status.Problems = []string{"x is odd"} }, w, "x is odd", "virtlvm status"},
		{"virtlvm.problems", "an alarm", func(f *Facts) {
			f.Status.Problems = []string{"x is odd", "ALARM: running guest vm1 is not fully protected"}
		}, f, "ALARM", ""},
		{"virtlvm.problems", "no daemon", func(f *Facts) { f.Alone = true }, s, "", ""},
		{"virtlvm.boot", "disabled", unit("virtlvmd.service", func(u *Unit) { u.Enabled = "disabled" }), f, "virtlvmd.service is disabled", "systemctl enable"},
		{"virtlvm.boot", "missing", unit("lvmlockd.service", func(u *Unit) { u.Loaded = false }), f, "there is no lvmlockd.service", ""},
		{"virtlvm.boot", "order", unit("libvirtd.service", func(u *Unit) { u.After = nil }), w, "libvirtd.service is not ordered", ""},
		{"virtlvm.boot", "wdmd masked", unit("wdmd.service", func(u *Unit) { u.Enabled = "masked" }), w, "wdmd.service is masked", ""},
		{"virtlvm.boot", "wdmd pulled in", unit("wdmd.service", func(u *Unit) { u.Enabled = "disabled" }), p, "", ""},
		{"virtlvm.boot", "no systemd", func(f *Facts) { f.Units.Err = errBroken }, s, "systemd does not answer", ""},
		{"virtlvm.sockets", "bad", func(f *Facts) { f.Sockets[0].Bad = "is not there" }, f, "virtlvm.sock is not there", "restart"},
		{"virtlvm.break_glass", "on", func(f *Facts) { f.BreakGlass = "/etc/virtlvm/break-glass" }, f, "IT IS ON", "rm /etc"},
		{"virtlvm.config", "refused", func(f *Facts) { f.Config = errBroken }, f, "refused: broken", "config check"},
		{"virtlvm.database", "damaged", func(f *Facts) { f.Damage.Value = "page 3" }, f, "damaged: page 3", "restart virtlvmd"},
		{"virtlvm.database", "too large", func(f *Facts) { f.Damage.Err = context.DeadlineExceeded }, w, "too large", ""},
		{"virtlvm.database", "unreadable", func(f *Facts) { f.Damage.Err = errBroken }, f, "broken", ""},
		{"virtlvm.database", "none", func(f *Facts) { f.NoData = true }, f, "there is none", ""},
		{"virtlvm.database", "none yet", func(f *Facts) { f.NoData, f.Alone = true, true }, s, "none yet", ""},
		{"virtlvm.database", "not writable", func(f *Facts) { f.Status.Database = "disk full" }, f, "disk full", ""},
		{"virtlvm.space", "little", room(Space{Path: "/v", Free: 100 * mib, Files: 1000}), w, "/v has 100 MiB free", "free room"},
		{"virtlvm.space", "a small host's /run", room(Space{Path: "/run/virtlvm", Free: 192 * mib, Files: 1000}), p, "", ""},
		{"virtlvm.space", "none", room(Space{Path: "/v", Free: 3 * mib, Files: 1000}), f, "3 MiB free", ""},
		{"virtlvm.space", "no more files", room(Space{Path: "/v", Free: 1000 * mib, Files: 3}), f, "3 more files", ""},
		{"virtlvm.space", "not known", room(Space{Path: "/v", Err: errBroken}), w, "broken", ""},
		{"virtlvm.spool", "waiting", func(f *Facts) { f.Spool.Waiting = 2 }, w, "2 hook events wait", ""},
		{"virtlvm.spool", "broken", func(f *Facts) { f.Spool.Broken = 1 }, w, "set aside", ""},
	}
}

// unseen: the hook came an hour after libvirtd, which has started vm1 since.
func unseen(f *Facts) {
	f.HookCalls = nil
	f.hook().Modified = boot.Add(time.Hour)
	f.hook().Changed = boot.Add(time.Hour)
	g := f.Running.Value.ByUUID["u1"]
	g.Start = 2 * 3600 * clockTicks
	f.Running.Value.ByUUID["u1"] = g
}

func pool(p Pool) func(*Facts) { return func(f *Facts) { f.Pools.Value = []Pool{p} } }

func disk(change func(*Disk)) func(*Facts) { return func(f *Facts) { change(&f.Guests[0].Disks[0]) } }

// job commits into vm2, of which this host has as much as is said.
func job(has model.Actual) func(*Facts) {
	return func(f *Facts) {
		f.vm2().Actual = has
		f.Jobs = []BlockJob{{Guest: "vm1", Disk: "vda", Type: "commit", Base: Disk{VG: "vg_san", LV: "vm2"}}}
	}
}

func leftoverDevice(open int, ours bool) func(*Facts) {
	return func(f *Facts) {
		uuid := id(goneID).DMUUID()
		f.Devices.Value[uuid] = lvm.Device{Name: "vg_san-old", UUID: uuid, Kernel: "dm-9"}
		f.Open.Value[uuid] = open
		f.Ours[id(goneID)] = ours
	}
}

func peers(all ...Peer) func(*Facts) { return func(f *Facts) { f.Peers.Value = all } }

func unit(name string, change func(*Unit)) func(*Facts) {
	return func(f *Facts) {
		u := f.Units.Value[name]
		change(&u)
		f.Units.Value[name] = u
	}
}

func room(s Space) func(*Facts) { return func(f *Facts) { f.Spaces = []Space{s} } }
