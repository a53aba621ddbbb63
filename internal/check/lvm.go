package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// maxHostID is the largest host id of a lockspace of sanlock.
const maxHostID = 2000

// program is one that virtlvm runs, the package that brings it, and what does not work
// without it; "" where nothing does.
type program struct{ name, from, lost string }

func programs() []program {
	return []program{
		{"lvs", "lvm2", ""}, {"vgs", "lvm2", ""}, {"pvs", "lvm2", ""}, {"lvchange", "lvm2", ""}, {"vgchange", "lvm2", ""}, {"lvmconfig", "lvm2", ""},
		{"dmsetup", "dmsetup or device-mapper", ""}, {"lvmlockd", "lvm2-lockd", ""}, {"lvmlockctl", "lvm2-lockd", ""}, {"sanlock", "sanlock", ""},
		{"qemu-img", "qemu-utils or qemu-img", "guests with image chains are refused"},
		{"prlimit", "util-linux", "guests with image chains are refused"},
		{"ssh", "openssh-client or openssh-clients", "no live migration"},
	}
}

func checkTools(f *Facts) Result {
	var found findings
	var lost, from []string
	for _, p := range programs() {
		switch {
		case !slices.Contains(f.Missing, p.name):
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
	return found.result("")
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
	return found.result("%s", value)
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

func (f *Facts) managed() []activation.Condition {
	var all []activation.Condition
	for _, c := range f.VGs.Value {
		if c.Managed {
			all = append(all, c)
		}
	}
	return all
}

// needVGs is the result of a check of the managed VGs where there are none to judge.
func (f *Facts) needVGs() (Result, bool) {
	switch {
	case f.VGs.Err != nil:
		return skip("the volume groups cannot be listed"), false
	case len(f.managed()) == 0:
		return skip("there is no volume group to manage"), false
	}
	return Result{}, true
}

func checkManaged(f *Facts) Result {
	if f.VGs.Err != nil {
		return Result{State: "FAIL", Detail: oneLine(f.VGs.Err.Error()), Fix: "see 'vgs'"}
	}
	var found findings
	var names []string
	seen := map[string]bool{}
	for _, c := range f.VGs.Value {
		seen[c.VG.Name] = true
		switch {
		case c.Stuck:
			found.fail("check the storage, sanlock and lvmlockd", "an LVM command hangs on %s", c.VG.Name)
		case c.Managed && c.Err != nil:
			found.fail("see 'lvs "+c.VG.Name+"'", "%s", c.Err)
		case c.Managed:
			names = append(names, c.VG.Name)
		case c.VG.LockType == "dlm":
			found.warn("put it under [scope] exclude in virtlvm.toml, to start guests on it unprotected", "%s uses dlm, which virtlvm does not support yet: guests on it are refused", c.VG.Name)
		}
	}
	for _, name := range f.Scope {
		if !seen[name] {
			found.warn("check the paths to it and the devices file or filter of lvm.conf, or take it out of [scope]", "%s is named in virtlvm.toml, and this host does not see it", name)
		}
	}
	if len(names) == 0 && found.state == "" {
		found.warn("make shared volume groups with 'vgcreate --shared', see lvmlockd(8)", "there is none: virtlvm protects nothing on this host")
	}
	return found.result("%s", join(names, ", "))
}

func checkUnshared(f *Facts) Result {
	if f.VGs.Err != nil {
		return skip("the volume groups cannot be listed")
	}
	lockType := map[string]string{}
	for _, c := range f.VGs.Value {
		lockType[c.VG.Name] = c.VG.LockType
	}
	var found findings
	guests := map[string][]string{}
	for _, g := range f.Guests {
		for _, d := range g.Disks {
			if lockType[d.VG] == "none" && !slices.Contains(guests[d.VG], g.Name) {
				guests[d.VG] = append(guests[d.VG], g.Name)
			}
		}
	}
	for _, vg := range sortedKeys(guests) {
		found.warn("where other hosts see it too, convert it while nothing in it is active: 'vgchange --lock-type sanlock "+vg+"'",
			"%s is no shared volume group: nothing keeps its guests (%s) from running on two hosts", vg, join(guests[vg], ", "))
	}
	return found.result("")
}

func checkLockspaces(f *Facts) Result {
	if none, ok := f.needVGs(); !ok {
		return none
	}
	var found findings
	for _, c := range f.managed() {
		if c.Started {
			continue
		}
		found.fail("'vgchange --lockstart "+c.VG.Name+"'", "the lockspace of %s is not started: its guests cannot start here", c.VG.Name)
		if f.Local.Err == nil && f.Local.Value.LockdRunning && f.Sanlock.Value.Running && !c.Stuck {
			found.repair(Repair{c.VG.Name, activation.Repair{Cmd: lvm.LockStartCmd(c.VG.Name), Target: model.Volume{VG: c.VG.Name, ID: model.VolumeID{VG: c.VG.UUID}}}})
		}
	}
	return found.result("")
}

func checkGlobalLock(f *Facts) Result {
	if f.VGs.Err != nil || f.Lockspaces.Err != nil || f.LockdDown {
		return skip("the lockspaces cannot be listed")
	}
	started := map[string]bool{}
	var with []string
	for _, l := range f.Lockspaces.Value {
		started[l.VG] = true
		if l.GlobalLock {
			with = append(with, l.VG)
		}
	}
	var sanlock, stopped []string
	for _, c := range f.VGs.Value {
		if c.VG.LockType != "sanlock" {
			continue
		}
		sanlock = append(sanlock, c.VG.Name)
		if !started[c.VG.Name] {
			stopped = append(stopped, c.VG.Name)
		}
	}
	var found findings
	switch {
	case len(sanlock) == 0:
		return skip("there is no volume group with sanlock")
	case len(with) > 1:
		found.fail("on one host: 'lvmlockctl --gl-disable VG' for all but one of them", "%s have one each: hosts may take different ones", strings.Join(with, " and "))
	case len(with) == 0 && len(stopped) > 0:
		return skip("the lockspaces of %s are not started, one of them may have it", join(stopped, ", "))
	case len(with) == 0:
		found.fail("on one host: 'lvmlockctl --gl-enable "+sanlock[0]+"'", "none of %s has it: volume groups can neither be made nor removed", join(sanlock, ", "))
	}
	return found.result("in %s", strings.Join(with, ""))
}

func checkAutoactivation(f *Facts) Result {
	if none, ok := f.needVGs(); !ok {
		return none
	}
	var found findings
	for _, c := range f.managed() {
		if !c.VG.Autoactivation {
			continue
		}
		cmd := lvm.NoAutoactivationCmd(c.VG.Name)
		found.warn("'"+strings.Join(cmd.Argv(), " ")+"'", "it is on for %s: a host that boots may grab every free volume, so that guests elsewhere do not start", c.VG.Name)
		if c.Started && !c.Stuck {
			found.repair(Repair{c.VG.Name, activation.Repair{Cmd: cmd, Target: model.Volume{VG: c.VG.Name, ID: model.VolumeID{VG: c.VG.UUID}}}})
		}
	}
	return found.result("")
}
