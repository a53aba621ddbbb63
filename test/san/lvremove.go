package san

import (
	"fmt"
	"strings"
)

// lvremove is lvremove(8). Removing an origin or a pool removes what rests on it.
func (c *call) lvremove() int {
	o, ok := c.parse("force/f autobackup/A= nohistory select/S=")
	if !ok {
		return exitUsage
	}
	if len(o.rest) == 0 || o.has("select") {
		return c.noCommand()
	}
	yes := o.has("yes") || o.has("force")
	return c.eachLV(o.rest, vgWrite, func(l *lvCall) int { l.wait(delayMetadata); return l.remove(yes) })
}

func (l *lvCall) remove(yes bool) int {
	return l.update(func(st *state, hs *hostState, vg *vgState, lv *lvState) int {
		if lv.Attr != "" {
			l.warn("Operation not permitted on hidden LV %s.", l.full())
			return exitFailed
		}
		for _, dep := range append(vg.snapshots(lv), vg.thins(lv)...) {
			if code := l.removeOne(st, hs, vg, dep, yes); code != exitOK {
				return code
			}
		}
		return l.removeOne(st, hs, vg, lv, yes)
	})
}

func (l *lvCall) removeOne(st *state, hs *hostState, vg *vgState, lv *lvState, yes bool) int {
	full := vg.Name + "/" + lv.Name
	res, undo := l.holdEX(st, hs, vg, lv, true)
	if res != lockGiven {
		l.refuse(st, vg, lv, res)
		return exitFailed
	}
	if l.san.opens(hs.Name, dmName(vg.Name, lv.Name)) > 0 {
		l.warn("Logical volume %s in use.", full)
		undo()
		return exitFailed
	}
	if hs.active(vg, lv) && !yes {
		fmt.Fprintf(&l.err, "Do you really want to remove active logical volume %s? [y/n]: [n]\n", full)
		l.warn("Logical volume %s not removed.", full)
		undo()
		return exitFailed
	}
	if lv.isSnapshot() {
		for _, name := range []string{dmName(vg.Name, lv.Name), dmName(vg.Name, lv.Name) + "-cow"} {
			if err := l.san.unlink(hs, name); err != nil {
				return l.broken(err)
			}
		}
	} else if inUse, err := l.san.deactivate(hs, vg, lv); err != nil || inUse != "" {
		l.warn("Logical volume %s/%s in use.", vg.Name, inUse)
		undo()
		return exitFailed
	}
	undo()
	if !lv.isSnapshot() {
		l.unlockLV(st, hs, vg, lv)
		hs.dropLock(vg.Name, lv.UUID)
	}
	if err := l.san.removeLV(vg, lv); err != nil {
		return l.broken(err)
	}
	// The origin's layer goes with its last snapshot.
	if o := vg.find(lv.Origin); o != nil && len(vg.snapshots(o)) == 0 {
		if err := l.san.unlink(hs, dmName(vg.Name, o.Name)+"-real"); err != nil {
			return l.broken(err)
		}
	}
	l.say("Logical volume %q successfully removed.", lv.Name)
	return exitOK
}

// lvresize is lvresize(8), lvextend(8) and lvreduce(8).
func (c *call) lvresize() int {
	o, ok := c.parse("size/L= extents/l= force/f resizefs/r fs= nofsck/n")
	if !ok {
		return exitUsage
	}
	arg := o.last("size")
	if e := o.last("extents"); e != "" {
		sign := strings.TrimRight(e, "0123456789")
		arg = sign + fmt.Sprintf("%db", parseSize(strings.TrimLeft(e, "+-")+"b")*extentSize)
	}
	if arg == "" || len(o.rest) != 1 {
		return c.noCommand()
	}
	return c.eachLV(o.rest, vgWrite, func(l *lvCall) int { l.wait(delayMetadata); return l.resize(arg) })
}

func (l *lvCall) resize(arg string) int {
	return l.update(func(st *state, hs *hostState, vg *vgState, lv *lvState) int {
		size := roundUp(parseSize(strings.TrimLeft(arg, "+-")))
		switch arg[0] {
		case '+':
			size = lv.Size + size
		case '-':
			size = lv.Size - size
		}
		old, now := lv.Size/extentSize, size/extentSize
		if size == lv.Size {
			l.say("New size (%d extents) matches existing size (%d extents).", now, old)
			l.warn("No size change.")
			return exitFailed
		}
		if size <= 0 || size < lv.Size && l.tool == "lvextend" || size > lv.Size && l.tool == "lvreduce" {
			l.warn("New size given (%d extents) not %s than existing size (%d extents)", now,
				map[bool]string{true: "larger", false: "less"}[l.tool == "lvextend"], old)
			return exitFailed
		}
		if size-lv.Size > vg.free() {
			l.warn("Insufficient free space: %d extents needed, but only %d available", now-old, vg.free()/extentSize)
			return exitFailed
		}
		res, undo := l.holdEX(st, hs, vg, lv, false)
		if res != lockGiven {
			l.refuse(st, vg, lv, res)
			return exitFailed
		}
		defer undo()
		if size < lv.Size && hs.active(vg, lv) {
			l.say("No file system found on /dev/%s.", l.full())
		}
		l.say("Size of logical volume %s changed from %s (%d extents) to %s (%d extents).", l.full(),
			longSize(lv.Size), old, longSize(size), now)
		if lv.Used > 0 {
			lv.Used += (size - lv.Size) * (lv.Used / lv.Size)
		}
		lv.Size = size
		if err := l.san.makeData(vg, lv); err != nil {
			return l.broken(err)
		}
		l.say("Logical volume %s successfully resized.", l.full())
		return exitOK
	})
}
