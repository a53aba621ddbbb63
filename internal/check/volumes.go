package check

import (
	"slices"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// eachVolume calls fn for the volumes of the managed VGs that could be judged; none is the
// result where there are no such.
func (f *Facts) eachVolume(fn func(activation.VolumeCondition)) (none Result, ok bool) {
	return f.eachVolumeOf(func(activation.Condition) bool { return true }, fn)
}

// eachVolumeOf is eachVolume for some of the VGs.
func (f *Facts) eachVolumeOf(which func(activation.Condition) bool, fn func(activation.VolumeCondition)) (none Result, ok bool) {
	if none, ok = f.needVGs(); !ok {
		return none, false
	}
	if f.Local.Err != nil {
		return skip("the locks cannot be read"), false
	}
	judged := false
	for _, c := range f.managed() {
		if c.Err != nil {
			continue
		}
		if judged = true; !which(c) {
			continue
		}
		for _, v := range c.Volumes {
			fn(v)
		}
	}
	if !judged {
		return skip("no volume group can be read"), false
	}
	return Result{}, true
}

func checkDMWithoutLock(f *Facts) Result {
	var found findings
	unlocked := func(v activation.VolumeCondition) bool { return v.Actual.Active && v.Actual.Lock == model.ModeOff }
	none, ok := f.eachVolumeOf(locked, func(v activation.VolumeCondition) {
		if unlocked(v) {
			found.fail("end what uses it here and 'lvchange -an "+v.Name()+"', or take the lock with 'lvchange -aey "+v.Name()+"', which is refused where another host has it",
				"%s is active on this host without a lock: another host may write it too", v.Name())
		}
	})
	if !ok {
		return none
	}
	if f.Alone && slices.ContainsFunc(f.managed(), claimed) {
		if found.state == "" {
			return skip("virtlvmd does not run, which knows what is claimed")
		}
		return found.result("")
	}
	// Nobody else's is activated while it is active here, but by hand.
	_, _ = f.eachVolumeOf(claimed, func(v activation.VolumeCondition) {
		if unlocked(v) {
			found.warn("'lvchange -an "+v.Name()+"' where nothing uses it, or 'virtlvm activate "+v.Name()+"', which is refused where another host claims it",
				"%s is active on this host without a claim: no guest on it starts elsewhere, and who activates it elsewhere by hand writes it too", v.Name())
		}
	})
	return found.result("")
}

func locked(c activation.Condition) bool  { return !c.Claimed }
func claimed(c activation.Condition) bool { return c.Claimed }

// checkLockWithoutDM: a claim without its device is for virtlvmd to put right; see
// checkPending.
func checkLockWithoutDM(f *Facts) Result {
	var found findings
	none, ok := f.eachVolumeOf(locked, func(v activation.VolumeCondition) {
		if v.Actual.Active || v.Actual.Lock == model.ModeOff || v.Actual.Orphan {
			return
		}
		found.warn("'lvchange -an "+v.Name()+"' drops it", "this host has a lock (%s) of %s, which is not active: no other host gets it", v.Actual.Lock, v.Name())
	})
	if !ok {
		return none
	}
	return found.result("")
}

// checkStrangers names what is active without a hold. It is nothing of ours: reported, not
// touched.
func checkStrangers(f *Facts) Result {
	if f.Alone {
		return skip("virtlvmd does not run")
	}
	var found findings
	none, ok := f.eachVolume(func(v activation.VolumeCondition) {
		if v.Actual.Active && !v.Held {
			found.warn("'lvchange -an "+v.Name()+"' where nothing uses it", "%s is active here (%s), and no guest or operator that virtlvm knows of needs it", v.Name(), v.Actual)
		}
	})
	if !ok {
		return none
	}
	return found.result("")
}

func checkPending(f *Facts) Result {
	if f.Alone {
		return skip("virtlvmd does not run")
	}
	var found findings
	for _, u := range f.Status.Pending {
		found.warn("see 'virtlvm status'", "%s should be %s and is %s: %s", u.Volume, u.Wanted, u.Actual, u.Reason)
	}
	return found.result("")
}

// leftover is a device of LVM whose volume its VG does not name any more.
type leftover struct {
	lvm.Device
	id model.VolumeID
	vg string
}

// leftovers are those of the managed VGs that were read under their lock.
func (f *Facts) leftovers() []leftover {
	var all []leftover
	for _, c := range f.managed() {
		if c.Err != nil || c.Unlocked || slices.Contains(f.Unlocked, c.VG.Name) {
			continue
		}
		prefix := model.VolumeID{VG: c.VG.UUID}.DMUUID()
		for _, uuid := range sortedKeys(f.Devices.Value) {
			rest, ours := strings.CutPrefix(uuid, prefix)
			const length = 32 // of a uuid without dashes; a layer such as "-tpool" may follow
			if !ours || len(rest) < length {
				continue
			}
			id := model.VolumeID{VG: c.VG.UUID, LV: dashed(rest[:length])}
			if !f.Known.Value[id] {
				all = append(all, leftover{f.Devices.Value[uuid], id, c.VG.Name})
			}
		}
	}
	return all
}

// dashed is LVM's printed form of a uuid, 6-4-4-4-4-4-6.
func dashed(id string) string {
	return strings.Join([]string{id[:6], id[6:10], id[10:14], id[14:18], id[18:22], id[22:26], id[26:]}, "-")
}

func checkLeftovers(f *Facts) Result {
	if none, ok := f.needVGs(); !ok {
		return none
	}
	switch {
	case f.Known.Err != nil || f.Devices.Err != nil || f.Open.Err != nil:
		return skip("volumes or devices cannot be read")
	case len(f.Known.Value) == 0:
		return skip("no volume group can be read")
	}
	unlocked := true
	for _, c := range f.managed() {
		unlocked = unlocked && (c.Err != nil || c.Unlocked || slices.Contains(f.Unlocked, c.VG.Name))
	}
	if unlocked {
		return skip("no volume group can be read under its lock")
	}
	var found findings
	for _, l := range f.leftovers() {
		cmd := lvm.RemoveDeviceCmd(l.UUID)
		text := "'" + strings.Join(cmd.Argv(), " ") + "'"
		switch {
		case f.Open.Value[l.UUID] > 0:
			found.fail("end what has it open: 'lsof /dev/mapper/"+l.Name+"'", "the device %s is open, and its volume has been removed: what is written there may be another volume's", l.Name)
		case f.Ours[l.id]:
			found.warn(text, "the device %s is left over: its volume has been removed", l.Name)
			_, lv, _ := lvm.SplitMapperName(l.Name)
			found.repair(Repair{l.Name, activation.Repair{Cmd: cmd, Target: model.Volume{ID: l.id, VG: l.vg, LV: lv}}})
		default:
			found.warn(text+", if you know what made it", "the device %s is left over: its volume has been removed; it was not activated by virtlvm", l.Name)
		}
	}
	return found.result("")
}

func checkStuck(f *Facts) Result {
	if f.Alone {
		return skip("virtlvmd does not run")
	}
	var found findings
	for _, vg := range f.Status.VGs {
		if vg.Stuck != "" {
			found.fail("", "%s: %s", vg.Name, vg.Stuck)
		}
	}
	return found.result("")
}
