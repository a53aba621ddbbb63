package check

import (
	"errors"
	"slices"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

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

// claimsOnly: the volumes of all that is managed here are claimed among hosts, so that
// nothing needs lvmlockd and sanlock.
func (f *Facts) claimsOnly() bool {
	all := f.managed()
	return len(all) > 0 && !slices.ContainsFunc(all, func(c activation.Condition) bool { return !c.Claimed })
}

// lockless is a result of what LVM's locks need, which is no FAIL where there are none.
func (f *Facts) lockless(r Result) Result {
	if r.State == api.CheckFail && f.claimsOnly() {
		return skip("no volume group here has LVM's locks (%s)", r.Detail)
	}
	return r
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
			if lockType[d.VG] == "none" && f.Members[d.VG] == nil && !slices.Contains(guests[d.VG], g.Name) {
				guests[d.VG] = append(guests[d.VG], g.Name)
			}
		}
	}
	for _, vg := range sortedKeys(guests) {
		found.warn("where other hosts see it too, convert it while nothing in it is active: 'vgchange --lock-type sanlock "+vg+"', or see unsafe_claims in virtlvm.toml(5)",
			"%s is no shared volume group: nothing keeps its guests (%s) from running on two hosts", vg, join(guests[vg], ", "))
	}
	return found.result("")
}

func checkClaims(f *Facts) Result {
	if f.VGs.Err != nil {
		return skip("the volume groups cannot be listed")
	}
	var found findings
	var names []string
	for _, vg := range sortedKeys(f.Members) {
		members := f.Members[vg]
		i := slices.IndexFunc(f.VGs.Value, func(c activation.Condition) bool { return c.VG.Name == vg })
		switch {
		case !slices.Contains(members, f.Host):
			found.fail("name it in [vg."+vg+"] of virtlvm.toml, on all members", "%s is not among the members of %s (%s): its guests cannot start here", f.Host, vg, join(members, ", "))
			continue
		case i < 0:
			found.warn("check the paths to it and the devices file or filter of lvm.conf", "%s has unsafe_claims in virtlvm.toml, and this host does not see it", vg)
		case f.VGs.Value[i].VG.LockType != "none":
			found.warn("take [vg."+vg+"] out of virtlvm.toml", "%s has unsafe_claims in virtlvm.toml and has been converted: LVM's locks (%s) count", vg, f.VGs.Value[i].VG.LockType)
			continue
		}
		names = append(names, vg+" ("+join(members, ", ")+")")
		for _, host := range sortedKeys(f.Claims[vg]) {
			switch err := f.Claims[vg][host]; {
			case errors.Is(err, activation.ErrFenced):
				found.warn("bring it back, which ends that by itself; if it is not off, 'virtlvm host fenced "+host+" --withdraw'", "%s of %s does not answer and counts as off, so that guests start here without its word", host, vg)
			case err != nil:
				found.fail("bring it back or, if it is off for sure, 'virtlvm host fenced "+host+"'; the members must be the same on all hosts", "%s of %s: %s", host, vg, oneLine(err.Error()))
			}
		}
	}
	if len(f.Members) == 0 {
		names = []string{"none has unsafe_claims"}
	}
	return found.result("%s", join(names, "; "))
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
		fix := "'" + strings.Join(cmd.Argv(), " ") + "'"
		if c.Claimed {
			fix = "on one host alone, while no other changes the volume group: " + fix
		}
		found.warn(fix, "it is on for %s: a host that boots may grab every free volume, so that guests elsewhere do not start", c.VG.Name)
		// Without a lock on it two hosts could write the metadata at once.
		if c.Started && !c.Stuck && !c.Claimed {
			found.repair(Repair{c.VG.Name, activation.Repair{Cmd: cmd, Target: model.Volume{VG: c.VG.Name, ID: model.VolumeID{VG: c.VG.UUID}}}})
		}
	}
	return found.result("")
}
