package san

import (
	"slices"
	"strings"
)

const vgchangeOptions = "activate/a= lockstart lockstop setautoactivation= addtag= deltag= lockopt= refresh " +
	"force/f partial/P sysinit monitor= poll= ignoreactivationskip/K shared select/S="

// vgchange is vgchange(8): lockspaces, activation of whole VGs, autoactivation, tags.
func (c *call) vgchange() int {
	o, ok := c.parse(vgchangeOptions)
	if !ok {
		return exitUsage
	}
	if err := c.greet(); err != nil {
		return c.broken(err)
	}
	var fn func(string) int
	switch {
	case o.has("lockstart"):
		return c.lockstart(c.vgNames(o.rest))
	case o.has("lockstop"):
		fn = c.lockstop
	case o.has("activate"):
		a, ok := parseActivation(o.last("activate"))
		if !ok {
			c.warn("Invalid argument for --activate: %s", o.last("activate"))
			c.warn("Error during parsing of command line.")
			return exitUsage
		}
		fn = func(vg string) int { return c.activateVG(vg, a) }
	case o.has("setautoactivation"), o.has("addtag"), o.has("deltag"):
		fn = func(vg string) int { return c.changeVG(vg, o) }
	default:
		return c.noCommand()
	}
	code := exitOK
	for _, vg := range c.vgNames(o.rest) {
		code = max(code, fn(vg))
	}
	return code
}

// vgNames are the named VGs, or all.
func (c *call) vgNames(args []string) []string {
	if len(args) > 0 {
		return args
	}
	var names []string
	_ = c.view(func(st *state, _ *hostState) error {
		for _, vg := range st.vgsByName() {
			names = append(names, vg.Name)
		}
		return nil
	})
	return names
}

// onVG runs fn on a VG.
func (c *call) onVG(name string, fn func(*state, *hostState, *vgState) int) int {
	code := exitOK
	err := c.update(func(st *state, hs *hostState) error {
		vg := st.VGs[name]
		if vg == nil {
			code = c.noVG(name)
			return nil
		}
		code = fn(st, hs, vg)
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	return code
}

func (c *call) lockstart(names []string) int {
	code, any := exitOK, false
	for _, name := range names {
		c.wait(delayStart)
		code = max(code, c.onVG(name, func(st *state, hs *hostState, vg *vgState) int {
			switch {
			case !vg.shared():
				return exitOK
			case hs.LockdDown:
				c.warn("Reading without shared global lock.")
				c.warn("VG %s start failed: lvmlockd is not running", name)
				return exitFailed
			case hs.SanlockDown || !vg.leased():
				c.warn("VG %s start failed: lock manager %s is not running", name, vg.LockType)
				return exitFailed
			}
			any = true
			if sp := hs.Spaces[name]; sp != nil && !sp.Inactive {
				return exitOK
			}
			// An inactive one goes on to be inactive, whatever is said here.
			c.say("VG %s starting %s lockspace", name, vg.LockType)
			if err := c.san.startLockspace(hs, vg, c.san.now(st)); err != nil {
				return c.broken(err)
			}
			return exitOK
		}))
	}
	if any {
		c.say("Starting locking.  Waiting for sanlock may take a few seconds to 3 min...")
	}
	return code
}

func (c *call) lockstop(name string) int {
	return c.onVG(name, func(_ *state, hs *hostState, vg *vgState) int {
		if hs.LockdDown && vg.shared() {
			c.warn("Reading VG %s without a lock.", name)
			c.warn("Command failed with status code 5.")
			return exitFailed
		}
		if sp := hs.Spaces[name]; sp == nil || sp.Inactive {
			return exitOK
		}
		if hs.holdsLocks(name) {
			c.warn("VG %s stop failed: LVs must first be deactivated", name)
			return exitFailed
		}
		if err := c.san.stopLockspace(hs, vg); err != nil {
			return c.broken(err)
		}
		return exitOK
	})
}

// activateVG is -a on a whole VG, as done at boot and by libvirt's logical pools.
func (c *call) activateVG(name string, a activation) int {
	access := vgRead
	if a.on {
		access = vgShared
	}
	names, unlocked, code := c.resolve(target{vg: name}, access)
	if code != exitOK {
		return code
	}
	open := 0
	for _, lv := range names {
		l := &lvCall{call: c, vgName: name, lvName: lv, unlocked: unlocked}
		before := c.err.Len()
		if code = max(code, l.change(a, true)); !a.on && c.err.Len() > before && strings.Contains(c.err.String()[before:], "in use") {
			c.err.Truncate(before)
			open++
		}
	}
	if open > 0 {
		c.warn("Can't deactivate volume group %q with %d open logical volume(s)", name, open)
		return exitFailed
	}
	n := 0
	_ = c.view(func(st *state, hs *hostState) error {
		vg := st.VGs[name]
		n = len(vg.where(func(lv *lvState) bool { return lv.Attr == "" && hs.active(vg, lv) }))
		return nil
	})
	c.say("%d logical volume(s) in volume group %q now active", n, name)
	return code
}

func (c *call) changeVG(name string, o options) int {
	c.wait(delayMetadata)
	return c.onVG(name, func(_ *state, hs *hostState, vg *vgState) int {
		if ok, _ := c.vgLock(hs, vg, vgWrite); !ok {
			return exitFailed
		}
		if o.has("setautoactivation") {
			off := o.last("setautoactivation") == "n"
			if off == vg.NoAutoactivation {
				c.warn("Volume group autoactivation is already %s.", map[bool]string{true: "no", false: "yes"}[off])
				return exitFailed
			}
			vg.NoAutoactivation = off
		}
		vg.Tags = sortedTags(append(vg.Tags, o.values["addtag"]...))
		vg.Tags = slices.DeleteFunc(vg.Tags, func(t string) bool { return slices.Contains(o.values["deltag"], t) })
		c.say("Volume group %q successfully changed.", name)
		return exitOK
	})
}
