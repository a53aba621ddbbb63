package check

import (
	"io/fs"
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/guests"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// Volume group and volumes of the captures in internal/lvm/testdata and internal/lease/testdata.
const (
	sanUUID = "rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M"
	lv1UUID = "pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX"
	topUUID = "oCq0IA-0b61-Nw0O-Hjzb-3x3H-K1OV-TiSQVW"
	goneID  = "Gpkfnb-QApQ-A3mG-Qyjc-nEUL-ery9-k4QcTu"
	mib     = 1 << 20
)

var (
	now  = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	boot = now.Add(-24 * time.Hour)
)

func id(lv string) model.VolumeID { return model.VolumeID{VG: sanUUID, LV: lv} }

func volume(name, uuid string, offset int64, actual model.Actual, held bool) activation.VolumeCondition {
	return activation.VolumeCondition{
		Volume: model.Volume{ID: id(uuid), VG: "vg_san", LV: name, LockType: "sanlock", SegType: "linear", LeaseOffset: offset, LockLV: uuid},
		Actual: actual, Held: held,
	}
}

// good is a host on which everything is right: each check is a PASS.
func good() *Facts {
	on := model.Actual{Lock: model.ModeEX, Active: true}
	libvirtd := Process{Name: "libvirtd", PID: 300, Start: 6000, Began: boot.Add(time.Minute)}
	return &Facts{
		Host: "kvm-a", Now: now, BootAt: boot, Keep: 30 * 24 * time.Hour,
		LVMVersion: Got[string]{Value: "2.03.33"},
		LVMConfig: Got[map[string]string]{Value: map[string]string{
			"use_lvmlockd": "1", "host_id": "1", "scan_lvs": "0", "sanlock_lv_extend": "256", "lvmlockctl_kill_command": "",
		}},
		VGs: Got[[]activation.Condition]{Value: []activation.Condition{{
			VG:      lvm.VG{Name: "vg_san", UUID: sanUUID, LockType: "sanlock", Free: 1024 * mib},
			Managed: true, Started: true,
			Volumes: []activation.VolumeCondition{
				volume("vm1", lv1UUID, 70254592, on, true),
				volume("vm2", topUUID, 71303168, model.Actual{Lock: model.ModeOff}, false),
			},
		}, {VG: lvm.VG{Name: "vg_root", UUID: "r", LockType: "none"}}}},
		Known:        Got[map[model.VolumeID]bool]{Value: map[model.VolumeID]bool{id(lv1UUID): true, id(topUUID): true}},
		PVs:          Got[[]lvm.PV]{Value: []lvm.PV{{Name: "/dev/sdb", VG: "vg_san"}, {Name: "/dev/mapper/mpatha", VG: "vg_root"}}},
		Devices:      Got[map[string]lvm.Device]{Value: map[string]lvm.Device{id(lv1UUID).DMUUID(): {Name: "vg_san-vm1", UUID: id(lv1UUID).DMUUID(), Kernel: "dm-1"}}},
		Open:         Got[map[string]int]{Value: map[string]int{id(lv1UUID).DMUUID(): 1}},
		LeaseVolumes: map[string]int64{"vg_san": 256 * mib},
		Local:        Got[lease.Local]{Value: lease.Local{LockdRunning: true}},
		Lockspaces:   Got[[]lease.Lockspace]{Value: []lease.Lockspace{{VG: "vg_san", Type: "sanlock", HostID: 1, GlobalLock: true}}},
		Sanlock: Got[lease.Daemon]{Value: lease.Daemon{
			Running: true, HostName: "kvm-a", UseWatchdog: true, Version: "3.9.5", Monotonic: 1000,
			Spaces: map[string]lease.Space{"vg_san": {HostID: 1, IOTimeout: 10, AlignSize: mib, LastOK: true, LastAttempt: 990, LastSuccess: 990}},
		}},
		SanlockConf: map[string]string{"our_host_name": "kvm-a"},
		Renewals:    map[string]Got[[]lease.Renewal]{"vg_san": {Value: []lease.Renewal{{At: 970, Read: 1, Write: 2}, {At: 990, Read: 3, Write: 4}}}},
		HostTables: map[string]Got[map[int]lease.Host]{"vg_san": {Value: map[int]lease.Host{
			1: {ID: 1, Name: "kvm-a", Self: true, State: model.HostLive}, 2: {ID: 2, Name: "kvm-b", State: model.HostLive},
		}}},
		Watchdog: Got[Watchdog]{Value: Watchdog{Daemon: 200, Open: []string{"watchdog0"}, Devices: []WatchdogDevice{{"watchdog0", "iTCO_wdt"}, {"watchdog1", ""}}}},
		Units: Got[map[string]Unit]{Value: map[string]Unit{
			"virtlvmd.service": {Name: "virtlvmd.service", Loaded: true, Active: "active", Enabled: "enabled"},
			"lvmlockd.service": {Name: "lvmlockd.service", Loaded: true, Active: "active", Enabled: "enabled"},
			"sanlock.service":  {Name: "sanlock.service", Loaded: true, Active: "active", Enabled: "enabled"},
			"wdmd.service":     {Name: "wdmd.service", Loaded: true, Active: "active", Enabled: "enabled"},
			"libvirtd.service": {Name: "libvirtd.service", Loaded: true, Active: "active", Enabled: "enabled", After: []string{"virtlvmd.service"}},
		}},
		Libvirt: Got[[]Process]{Value: []Process{libvirtd}},
		Hook: Hook{Same: true, Ours: []HookFile{{
			Path: "/etc/libvirt/hooks/qemu", Mode: 0o755, Modified: boot.Add(-time.Hour), Changed: boot.Add(-time.Hour),
		}}},
		HookCalls: map[int]Got[time.Time]{300: {Value: now.Add(-time.Hour)}},
		Guests: []Guest{{Name: "vm1", UUID: "u1", Disks: []Disk{
			{Target: "vda", Path: "/dev/vg_san/vm1", Role: model.RoleWritable, Cache: "none", VG: "vg_san", LV: "vm1"},
		}}},
		Running: Got[guests.Snapshot]{Value: guests.Snapshot{ByUUID: map[string]guests.Guest{
			"u1": {Name: "vm1", UUID: "u1", Alive: guests.Alive, Start: 100000},
		}}},
		Ours:    map[model.VolumeID]bool{},
		Peers:   Got[[]Peer]{Value: []Peer{{Name: "kvm-b", Asked: true, Version: api.Version{Version: "0.2.0", ProtocolMajor: api.ProtocolMajor, ProtocolMinor: api.ProtocolMinor}}}},
		Status:  api.Status{Ready: true, Database: "ok"},
		Sockets: []Socket{{Path: "/run/virtlvm/virtlvm.sock", Mode: "0660"}},
		Spaces:  []Space{{Path: "/var/lib/virtlvm", Free: 5000 * mib, Files: 1 << 20}},
	}
}

// claims adds a VG without lvmlockd whose two members agree.
func claims(f *Facts) {
	f.VGs.Value = append(f.VGs.Value, activation.Condition{
		VG: lvm.VG{Name: "vg_old", UUID: "o", LockType: "none"}, Managed: true, Claimed: true, Started: true,
		Volumes: []activation.VolumeCondition{{
			Volume: model.Volume{ID: model.VolumeID{VG: "o", LV: "o1"}, VG: "vg_old", LV: "vm9", LockType: "none", SegType: "linear", LeaseOffset: -1, LockLV: "o1"},
			Actual: model.Actual{Lock: model.ModeEX, Active: true}, Held: true,
		}},
	})
	f.Members = map[string][]string{"vg_old": {"kvm-a", "kvm-b"}}
	f.Claims = map[string]map[string]error{"vg_old": {"kvm-b": nil}}
}

// lockless makes it a host that has neither lvmlockd nor sanlock, and claims all it has.
func lockless(f *Facts) {
	claims(f)
	f.VGs.Value = f.VGs.Value[1:] // not vg_san
	f.Missing = []string{"lvmlockd", "lvmlockctl", "sanlock"}
	f.LVMConfig.Value["use_lvmlockd"], f.LVMConfig.Value["host_id"] = "0", "0"
	f.Local, f.Lockspaces, f.Sanlock, f.LockdDown = Got[lease.Local]{}, Got[[]lease.Lockspace]{}, Got[lease.Daemon]{}, true
	f.SanlockConf, f.Renewals, f.HostTables, f.LeaseVolumes = nil, nil, nil, nil
	f.Watchdog = Got[Watchdog]{}
	for _, name := range []string{"lvmlockd", "sanlock", "wdmd"} {
		delete(f.Units.Value, name+".service")
	}
}

// old is the condition of vg_old where claims has added it.
func (f *Facts) old() *activation.Condition { return &f.VGs.Value[len(f.VGs.Value)-1] }

// san is the condition of vg_san.
func (f *Facts) san() *activation.Condition { return &f.VGs.Value[0] }

// vm1 and vm2 are the conditions of its volumes.
func (f *Facts) vm1() *activation.VolumeCondition { return &f.san().Volumes[0] }
func (f *Facts) vm2() *activation.VolumeCondition { return &f.san().Volumes[1] }

func (f *Facts) hook() *HookFile { return &f.Hook.Ours[0] }

const link = fs.ModeSymlink
