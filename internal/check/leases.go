package check

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"virtlvm/internal/lvm"
)

// firstLease is the place of the first lease of a volume in the lease volume of a VG, in
// leases: before it are the hosts, the global lock and the VG lock (LV_LOCK_BEGIN in LVM's
// lvmlockd-sanlock.c).
const firstLease = 67

// checkLeaseArea compares the leases of a VG with what its lease volume has room for. LVM
// extends it by sanlock_lv_extend MiB when a volume is made and it is full.
func checkLeaseArea(f *Facts) Result {
	if none, ok := f.needVGs(); !ok {
		return none
	}
	extend, err := strconv.ParseInt(f.LVMConfig.Value["sanlock_lv_extend"], 10, 64)
	if err != nil {
		return skip("sanlock_lv_extend of lvm.conf is not known")
	}
	var found findings
	var full []string
	for _, c := range f.managed() {
		size, align := f.LeaseVolumes[c.VG.Name], f.Sanlock.Value.Spaces[c.VG.Name].AlignSize
		if c.Err != nil || size == 0 || align == 0 {
			continue
		}
		used := map[int64]bool{}
		for _, v := range c.Volumes {
			if v.LeaseOffset > 0 {
				used[v.LeaseOffset] = true
			}
		}
		room := int(size/align) - firstLease
		left := room - len(used)
		full = append(full, fmt.Sprintf("%s: %d of %d", c.VG.Name, len(used), room))
		if extend > 0 && c.VG.Free >= extend<<20 {
			continue // it grows by itself
		}
		const few = 10
		fix := fmt.Sprintf("free %d MiB in %s, by which LVM extends it", max(extend, 1), c.VG.Name)
		if extend == 0 {
			fix = "set sanlock_lv_extend in lvm.conf back to 256"
		}
		switch {
		case left <= 0:
			found.fail(fix, "%s has %d leases and room for no more: no volume can be made", c.VG.Name, len(used))
		case left < few:
			found.warn(fix, "%s has room for %d more volumes, and cannot be extended", c.VG.Name, left)
		}
	}
	if len(full) == 0 {
		return skip("no lockspace is started")
	}
	return found.result("%s", join(full, ", "))
}

// checkDevices looks for volume groups that a guest has made inside its own volume: when
// the host's LVM sees them it pins or even changes what is the guest's.
func checkDevices(f *Facts) Result {
	var found findings
	value, none, ok := f.setting("scan_lvs")
	if !ok {
		return none
	}
	const fix = "set scan_lvs = 0 in the section devices of /etc/lvm/lvm.conf, and list the host's own disks alone in its devices file (lvmdevices(8)) or filter"
	if value != "0" {
		found.warn(fix, "scan_lvs is %s: LVM on this host looks into the guests' volumes", value)
	}
	switch {
	case f.PVs.Err != nil:
		return unknown(f.PVs.Err)
	case f.Devices.Err != nil:
		return unknown(f.Devices.Err)
	}
	for _, pv := range f.PVs.Value {
		uuid := f.dmUUID(pv.Name)
		// A partition in a volume is "part1-LVM-...".
		if !strings.Contains(uuid, "LVM-") {
			continue
		}
		if pv.VG == "" {
			found.fail(fix, "LVM on this host takes %s, a volume, for a physical volume", pv.Name)
			continue
		}
		found.fail(fix, "volume group %s lies inside the volume %s and is seen by this host", pv.VG, pv.Name)
	}
	return found.result("")
}

// dmUUID is the dm uuid of a device that LVM names, "" where it has none.
func (f *Facts) dmUUID(path string) string {
	name, kernel := "", ""
	switch dir, base := filepath.Split(path); dir {
	case "/dev/mapper/":
		name = base
	case "/dev/":
		kernel = base
	default:
		name = lvm.MapperName(filepath.Base(dir), base)
	}
	for _, d := range f.Devices.Value {
		if name != "" && d.Name == name || kernel != "" && d.Kernel == kernel {
			return d.UUID
		}
	}
	return ""
}

// checkKillCommand judges what lvmlockctl runs when the leases of a VG are lost. With exit
// code 0 lvmlockctl drops the locks of the VG, and sanlock lets the host live on: where
// the guests run on as well, another host gets their volumes while they still write.
func checkKillCommand(f *Facts) Result {
	value, none, ok := f.setting("lvmlockctl_kill_command")
	if !ok {
		return none
	}
	words := strings.Fields(value)
	if len(words) == 0 {
		return pass("not set: a host that loses its leases is reset by its watchdog")
	}
	const fix = "set it to \"/usr/bin/virtlvm lease-lost\", or leave it empty"
	var found findings
	switch name := filepath.Base(words[0]); {
	case !strings.HasPrefix(words[0], "/"):
		found.warn(fix, "%q is no full path, and is not run", value)
	case !f.KillFound:
		found.warn(fix, "%s cannot be run: the host is reset as if there were none", words[0])
	case name == "true" || name == "echo" || name == "logger" || name == "lvmlockctl":
		found.fail(fix, "%q ends with exit code 0 and leaves the guests running: their locks are dropped while they write: split brain", value)
	case name == "virtlvm" && len(words) == 2 && words[1] == "lease-lost":
	default:
		found.warn("make sure that it exits with 0 only when no guest of the VG runs any more, else it is split brain; or "+fix, "%q is not known to virtlvm", value)
	}
	return found.result("%s", value)
}
