package san

import (
	"fmt"
	"slices"
)

const lvchangeOptions = "activate/a= addtag= deltag= permission/p= refresh setautoactivation= force/f " +
	"partial/P ignoreactivationskip/K setactivationskip/k= monitor= poll= sysinit select/S="

// activation is what -a asks for. All forms but -asy and those with n mean EX in a shared
// VG.
type activation struct {
	on   bool
	mode string
}

func parseActivation(s string) (activation, bool) {
	switch s {
	case "n", "en", "ln", "sn":
		return activation{}, true
	case "y", "ey", "e", "ly", "l", "ay", "a":
		return activation{on: true, mode: "ex"}, true
	case "sy", "s":
		return activation{on: true, mode: "sh"}, true
	}
	return activation{}, false
}

// lvchange is lvchange(8): activation, tags, permission, autoactivation, refresh.
func (c *call) lvchange() int {
	o, ok := c.parse(lvchangeOptions)
	if !ok {
		return exitUsage
	}
	if o.has("select") {
		c.warn("sanfake: --select is not simulated")
		return exitUsage
	}
	if len(o.rest) == 0 {
		return c.noCommand()
	}
	switch {
	case o.has("activate"):
		a, ok := parseActivation(o.last("activate"))
		if !ok {
			c.warn("Invalid argument for --activate: %s", o.last("activate"))
			c.warn("Error during parsing of command line.")
			return exitUsage
		}
		access := vgRead
		if a.on {
			access = vgShared
		}
		return c.eachLV(o.rest, access, func(l *lvCall) int { return l.change(a, o.has("yes")) })
	case o.has("refresh"):
		return c.eachLV(o.rest, vgRead, func(l *lvCall) int { l.wait(delayRead); return l.refresh() })
	case o.has("addtag"), o.has("deltag"), o.has("permission"), o.has("setautoactivation"):
		return c.eachLV(o.rest, vgWrite, func(l *lvCall) int { l.wait(delayMetadata); return l.properties(o) })
	}
	return c.noCommand()
}

// change activates or deactivates one LV. The lock is tried again while lvmlockd would.
func (l *lvCall) change(a activation, yes bool) int {
	if f := l.fault(FaultExit, l.full()); f != nil {
		l.err.WriteString(f.Stderr)
		return f.exitCode()
	}
	if code, asked := l.askSnapshot(yes); asked {
		return code
	}
	if !a.on {
		return l.off()
	}
	tries := 1
	if a.mode == "sh" && l.san.DelayScale > 0 {
		tries = 5
	}
	l.wait(delayRefused)
	for n := 1; ; n++ {
		res, code := l.on(a, n == tries)
		if res != lockHeld || n == tries || l.ctx.Err() != nil {
			return code
		}
		l.wait(delaySHRetry / 4)
	}
}

// on takes the lock and makes the device. Only the last try prints a refusal.
func (l *lvCall) on(a activation, last bool) (lockResult, int) {
	var res lockResult
	fresh := false
	code := l.update(func(st *state, hs *hostState, vg *vgState, lv *lvState) int {
		if lv.Attr != "" {
			l.warn("Operation not permitted on hidden LV %s.", l.full())
			return exitFailed
		}
		if lv.isSnapshot() {
			lv = vg.find(lv.Origin)
		}
		if res = l.lockLV(st, hs, vg, lv, a.mode); res != lockGiven {
			if last || res != lockHeld {
				l.refuse(st, vg, lv, res)
				l.warn("Failed to lock logical volume %s.", vg.Name+"/"+lv.Name)
			}
			return exitFailed
		}
		if l.fault(FaultActivate, l.full()) != nil {
			l.err.WriteString("  device-mapper: create ioctl on " + dmName(vg.Name, lv.Name) + " " + dmUUID(vg, lv) +
				" failed: Device or resource busy\n")
			return exitFailed
		}
		fresh = !hs.active(vg, lv)
		if err := l.san.activate(hs, vg, lv); err != nil {
			return l.broken(err)
		}
		return exitOK
	})
	if fresh {
		l.wait(delayTake - delayRefused)
	}
	return res, code
}

// off removes the device and drops the lock; a failing unlock does not fail the command.
func (l *lvCall) off() int {
	l.wait(delayDrop / 2)
	code := l.update(func(st *state, hs *hostState, vg *vgState, lv *lvState) int {
		if lv.isSnapshot() {
			lv = vg.find(lv.Origin)
		}
		inUse, err := l.san.deactivate(hs, vg, lv)
		switch {
		case err != nil:
			return l.broken(err)
		case inUse != "":
			l.warn("Logical volume %s/%s in use.", vg.Name, inUse)
			return exitFailed
		case !vg.leased():
		case l.unlocked:
			l.unlockFailed(st, hs, vg, lv)
		case l.fault(FaultUnlock, l.full()) != nil:
			l.warn("Failed to unlock logical volume %s/%s.", vg.Name, lv.Name)
		default:
			l.unlockLV(st, hs, vg, lv)
		}
		return exitOK
	})
	if code == exitOK {
		l.wait(delayDrop / 2)
	} else {
		l.wait(delayInUse)
	}
	return code
}

// unlockFailed is the end of a -an without lvmlockd or lockspace: the lease stays. Since
// 2.03.25 LVM does not even say so.
func (l *lvCall) unlockFailed(st *state, hs *hostState, vg *vgState, lv *lvState) {
	sp := hs.Spaces[vg.Name]
	switch {
	case sp != nil && sp.Lost:
		return // lvmlockd holds nothing any more
	case st.LVM >= 25 && !hs.SanlockDown:
		return
	case hs.SanlockDown:
		l.warn("LV %s/%s lock failed: error -221", vg.Name, lv.Name)
	case !hs.LockdDown:
		l.warn("LV %s/%s lock failed: lockspace is inactive", vg.Name, lv.Name)
	}
	l.warn("Failed to unlock logical volume %s/%s.", vg.Name, lv.Name)
}

// askSnapshot asks the question that comes with a snapshot; nobody answers it.
func (l *lvCall) askSnapshot(yes bool) (code int, asked bool) {
	err := l.view(func(st *state, _ *hostState) error {
		vg := st.VGs[l.vgName]
		if vg == nil || vg.find(l.lvName) == nil || yes || !vg.find(l.lvName).isSnapshot() {
			return nil
		}
		lv := vg.find(l.lvName)
		asked = true
		others := ""
		if n := len(vg.snapshots(vg.find(lv.Origin))) - 1; n > 0 {
			others = fmt.Sprintf(" and %d other snapshot(s)", n)
		}
		fmt.Fprintf(&l.err, "Change of snapshot %s will also change its origin %s/%s%s. Proceed? [y/n]: [n]\n",
			l.full(), vg.Name, lv.Origin, others)
		l.warn("Logical volume %s not changed.", l.full())
		return nil
	})
	if err != nil {
		return l.broken(err), true
	}
	return exitFailed, asked
}

// refresh reloads the device from the metadata.
func (l *lvCall) refresh() int {
	return l.update(func(_ *state, hs *hostState, vg *vgState, lv *lvState) int {
		if d := hs.Devs[dmName(vg.Name, lv.Name)]; d != nil {
			d.ReadOnly, d.Error = lv.ReadOnly, false
			if err := l.san.relink(hs, d, dataLink(vg, lv)); err != nil {
				return l.broken(err)
			}
		}
		return exitOK
	})
}

// properties changes metadata; no LV lock is needed for it.
func (l *lvCall) properties(o options) int {
	return l.update(func(_ *state, hs *hostState, vg *vgState, lv *lvState) int {
		if o.has("permission") {
			ro := o.last("permission") == "r"
			if lv.ReadOnly == ro {
				if ro {
					l.warn("Logical volume \"%s\" is already read only.", l.full())
				} else {
					l.warn("Logical volume %s is already writable.", l.full())
				}
				return exitFailed
			}
			lv.ReadOnly = ro
			if d := hs.Devs[dmName(vg.Name, lv.Name)]; d != nil {
				d.ReadOnly = ro
			}
		}
		if o.has("setautoactivation") {
			lv.NoAutoactivation = o.last("setautoactivation") == "n"
		}
		lv.Tags = sortedTags(append(lv.Tags, o.values["addtag"]...))
		lv.Tags = slices.DeleteFunc(lv.Tags, func(t string) bool { return slices.Contains(o.values["deltag"], t) })
		l.say("Logical volume %s changed.", l.full())
		return exitOK
	})
}
