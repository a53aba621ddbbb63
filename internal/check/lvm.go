package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxHostID is the largest host id of a lockspace of sanlock.
const maxHostID = 2000

// program is one that virtlvm runs, the package that brings it, and what does not work
// without it; "" where nothing does.
type program struct {
	name, from, lost string
	locks            bool // where volume groups have LVM's locks
}

func programs() []program {
	return []program{
		{"lvs", "lvm2", "", false},
		{"vgs", "lvm2", "", false},
		{"pvs", "lvm2", "", false},
		{"lvchange", "lvm2", "", false},
		{"vgchange", "lvm2", "", false},
		{"lvmconfig", "lvm2", "", false},
		{"dmsetup", "dmsetup or device-mapper", "", false},
		{"lvmlockd", "lvm2-lockd", "", true},
		{"lvmlockctl", "lvm2-lockd", "", true},
		{"sanlock", "sanlock", "", true},
		{"qemu-img", "qemu-utils or qemu-img", "guests with image chains are refused", false},
		{"prlimit", "util-linux", "guests with image chains are refused", false},
		{"ssh", "openssh-client or openssh-clients", "no live migration", false},
	}
}

func checkTools(f *Facts) Result {
	var found findings
	var lost, from []string
	for _, p := range programs() {
		switch {
		case !slices.Contains(f.Missing, p.name), p.locks && f.claimsOnly():
		case p.lost != "":
			found.warn("install "+p.from, "%s is not installed: %s", p.name, p.lost)
		default:
			lost = append(lost, p.name)
			if !slices.Contains(from, p.from) {
				from = append(from, p.from)
			}
		}
	}
	if len(lost) > 0 {
		found.fail("install "+strings.Join(from, ", "), "not installed: %s", strings.Join(lost, ", "))
	}
	return found.result("")
}

// setting is a value of lvmconfig; skip is the result where there is none.
func (f *Facts) setting(name string) (value string, none Result, ok bool) {
	if f.LVMConfig.Err != nil {
		if slices.Contains(f.Missing, "lvmconfig") {
			return "", skip("LVM is not installed"), false
		}
		return "", unknown(f.LVMConfig.Err), false
	}
	value, ok = f.LVMConfig.Value[name]
	if !ok {
		return "", unknown(fmt.Errorf("lvmconfig does not know %s", name)), false
	}
	return value, Result{}, true
}

func checkUseLvmlockd(f *Facts) Result {
	value, none, ok := f.setting("use_lvmlockd")
	if !ok {
		return none
	}
	var found findings
	if value != "1" {
		found.fail("set use_lvmlockd = 1 in the section global of /etc/lvm/lvm.conf, then 'systemctl enable --now sanlock lvmlockd'",
			"it is %s: LVM takes no locks on this host", value)
	}
	return f.lockless(found.result(""))
}

// hostID is our host_id from lvmlocal.conf, 0 where there is none.
func (f *Facts) hostID() int {
	n, err := strconv.Atoi(f.LVMConfig.Value["host_id"])
	if err != nil || n < 1 || n > maxHostID {
		return 0
	}
	return n
}

func checkHostID(f *Facts) Result {
	value, none, ok := f.setting("host_id")
	if !ok {
		return none
	}
	var found findings
	const fix = "set host_id to a number of its own for each host, 1 to 2000, in the section local of /etc/lvm/lvmlocal.conf"
	switch id := f.hostID(); {
	case value == "0":
		found.fail(fix, "it is not set: no lockspace can be started")
	case id == 0:
		found.fail(fix, "%q is no number from 1 to 2000", value)
	default:
		for _, l := range f.Lockspaces.Value {
			if l.Type == "sanlock" && l.HostID != id {
				found.warn("set it back, or stop the lockspace and start it again ('vgchange --lockstop', '--lockstart')",
					"it is %d, but the lockspace of %s was started with %d", id, l.VG, l.HostID)
			}
		}
	}
	return f.lockless(found.result("%s", value))
}

// checkHostIDUnique compares the name that stands at our host_id on the disks with ours.
// sanlock lets the first one in, and keeps the second waiting and then out.
func checkHostIDUnique(f *Facts) Result {
	id := f.hostID()
	if id == 0 {
		return skip("host_id is not set or not known")
	}
	ours := f.Sanlock.Value.HostName
	if ours == "" {
		return skip("sanlock does not run, so our name is not known")
	}
	var found findings
	looked := 0
	see := func(vg, name string) {
		if looked++; name != "" && name != ours {
			found.fail("give this host another host_id in /etc/lvm/lvmlocal.conf", "in %s host_id %d belongs to %s", vg, id, name)
		}
	}
	for _, vg := range sortedKeys(f.HostTables) {
		if t := f.HostTables[vg]; t.Err == nil {
			see(vg, t.Value[id].Name)
		}
	}
	for _, vg := range sortedKeys(f.DiskHosts) {
		if t := f.DiskHosts[vg]; t.Err == nil {
			see(vg, t.Value[id])
		}
	}
	if looked == 0 {
		return skip("no lockspace can be read")
	}
	return found.result("")
}
