package san

import (
	"slices"
	"strings"
	"time"
)

// Times measured on real hosts under emulation.
const (
	delayRead     = 1100 * time.Millisecond
	delayTake     = 2400 * time.Millisecond
	delayDrop     = 1500 * time.Millisecond
	delayRefused  = 1 * time.Second
	delaySHRetry  = 5 * time.Second // lvmlockd tries SH again, besides delayRefused
	delayInUse    = 5900 * time.Millisecond
	delayMore     = 800 * time.Millisecond // each volume more in one command
	delayMetadata = 2500 * time.Millisecond
	delayStart    = 8500 * time.Millisecond
	delayAsk      = 600 * time.Millisecond // lvmlockctl, sanlock
)

// vgAccess is how a command needs the VG lock.
type vgAccess int

const (
	vgRead   vgAccess = iota // SH, and reading goes on without it
	vgShared                 // SH that must be had: activation
	vgWrite                  // EX
)

// greet prints what every LVM command prints first where lvmlockd does not run.
func (c *call) greet() error {
	return c.view(func(_ *state, hs *hostState) error {
		if hs.LockdDown {
			c.warn("WARNING: lvmlockd process is not running.")
		}
		return nil
	})
}

// vgLock takes the VG's lock; false: the command cannot go on. unlocked: it goes on, and
// LV locks cannot be dropped for lack of a lockspace or of lvmlockd.
func (c *call) vgLock(hs *hostState, vg *vgState, access vgAccess) (ok, unlocked bool) {
	if !vg.shared() {
		return true, false
	}
	sp := hs.Spaces[vg.Name]
	switch {
	case hs.LockdDown || sp == nil || sp.Inactive:
	case sp.Lost && access == vgWrite:
		c.fail("VG %s lock failed: storage errors for sanlock leases", vg.Name)
		return false, true
	case sp.Lost:
		c.warn("VG %s lock skipped: storage errors for sanlock leases", vg.Name)
	case hs.SanlockDown && access == vgWrite:
		c.warn("VG %s lock failed: error -221", vg.Name)
		return false, true
	case hs.SanlockDown:
		c.warn("VG %s lock skipped: error -221", vg.Name)
	default:
		return true, false
	}
	if access != vgRead {
		c.warn("Cannot access VG %s due to failed lock.", vg.Name)
		return false, true
	}
	c.warn("Reading VG %s without a lock.", vg.Name)
	return true, true
}

// target is one VG of a command line and the LVs named in it; none means all.
type target struct {
	vg  string
	lvs []string
}

// targets sorts names such as vg/lv, /dev/vg/lv and vg by VG, in the order of the VGs'
// first mention.
func targets(args []string) []target {
	var out []target
	for _, a := range args {
		a = strings.TrimPrefix(a, "/dev/")
		vg, lv, _ := strings.Cut(strings.Trim(a, "/"), "/")
		i := slices.IndexFunc(out, func(t target) bool { return t.vg == vg })
		if i < 0 {
			i = len(out)
			out = append(out, target{vg: vg})
			if lv == "" {
				continue
			}
		} else if len(out[i].lvs) == 0 || lv == "" {
			out[i].lvs = nil // the whole VG is named
			continue
		}
		out[i].lvs = append(out[i].lvs, lv)
	}
	return out
}

func (c *call) noVG(name string) int {
	c.fail("Volume group %q not found", name)
	c.fail("Cannot process volume group %s", name)
	return exitFailed
}

func (c *call) noLV(vg, lv string) int {
	c.fail("Failed to find logical volume \"%s/%s\"", vg, lv)
	return exitFailed
}

// eachLV calls fn for every LV that args name, in metadata order as LVM does, each in a
// transaction of its own, and returns the worst exit code.
func (c *call) eachLV(args []string, access vgAccess, fn func(*lvCall) int) int {
	if err := c.greet(); err != nil {
		return c.broken(err)
	}
	code, n := exitOK, 0
	for _, t := range targets(args) {
		names, unlocked, worst := c.resolve(t, access)
		code = max(code, worst)
		for _, name := range names {
			if n++; n > 1 {
				c.wait(delayMore)
			}
			code = max(code, fn(&lvCall{call: c, vgName: t.vg, lvName: name, unlocked: unlocked}))
		}
		for _, name := range t.lvs {
			if worst == exitOK && !slices.Contains(names, name) {
				code = max(code, c.noLV(t.vg, name))
			}
		}
	}
	return code
}

// resolve locks a VG and lists the LVs to work on.
func (c *call) resolve(t target, access vgAccess) (names []string, unlocked bool, code int) {
	err := c.view(func(st *state, hs *hostState) error {
		vg := st.VGs[t.vg]
		if vg == nil {
			code = c.noVG(t.vg)
			return nil
		}
		ok, without := c.vgLock(hs, vg, access)
		if unlocked = without; !ok {
			code = exitFailed
			return nil
		}
		for _, lv := range vg.LVs {
			if slices.Contains(t.lvs, lv.Name) || len(t.lvs) == 0 && lv.Attr == "" {
				names = append(names, lv.Name)
			}
		}
		return nil
	})
	if err != nil {
		code = c.broken(err)
	}
	return names, unlocked, code
}

// lvCall is the work on one LV.
type lvCall struct {
	*call
	vgName, lvName string
	unlocked       bool
}

func (l *lvCall) full() string { return l.vgName + "/" + l.lvName }

// update runs fn on the LV, which may be gone by now.
func (l *lvCall) update(fn func(*state, *hostState, *vgState, *lvState) int) int {
	code := exitOK
	err := l.call.update(func(st *state, hs *hostState) error {
		vg := st.VGs[l.vgName]
		if vg == nil || vg.find(l.lvName) == nil {
			code = l.noLV(l.vgName, l.lvName)
			return nil
		}
		if d := vg.Deltas[hs.ID]; d != nil && !l.unlocked {
			vg.VGL.touch(hs, d.Gen) // once a command, in truth
		}
		code = fn(st, hs, vg, vg.find(l.lvName))
		return nil
	})
	if err != nil {
		return l.broken(err)
	}
	return code
}
