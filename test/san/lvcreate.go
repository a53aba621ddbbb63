package san

import (
	"errors"
	"strconv"
	"strings"
)

const lvcreateOptions = "size/L= extents/l= name/n= activate/a= type= thin/T thinpool= virtualsize/V= " +
	"snapshot/s stripes/i= stripesize/I= mirrors/m= mirrorlog= corelog zero/Z= wipesignatures/W= addtag= " +
	"permission/p= setautoactivation= nosync setactivationskip/k= ignoreactivationskip/K"

// newLV is what an lvcreate command line asks for.
type newLV struct {
	vg       string
	spec     LVSpec
	pool     *LVSpec // a thin pool to make first
	act      activation
	zero     bool
	readOnly bool
	noAuto   bool
}

// lvcreate is lvcreate(8) for linear, striped, mirrored and raid1 volumes, snapshots,
// thin pools and thin volumes.
func (c *call) lvcreate() int {
	o, ok := c.parse(lvcreateOptions)
	if !ok {
		return exitUsage
	}
	n, ok := c.newLV(o)
	if !ok {
		return c.noCommand()
	}
	c.wait(delayMetadata)
	if err := c.greet(); err != nil {
		return c.broken(err)
	}
	code := exitOK
	err := c.update(func(st *state, hs *hostState) error {
		vg := st.VGs[n.vg]
		if vg == nil {
			code = c.noVG(n.vg)
			return nil
		}
		if ok, _ := c.vgLock(hs, vg, vgWrite); !ok {
			code = exitFailed
			return nil
		}
		code = c.create(st, hs, vg, n)
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	return code
}

// newLV reads the options; false: the fake knows no such form.
func (c *call) newLV(o options) (newLV, bool) {
	n := newLV{act: activation{on: true, mode: "ex"}, zero: true}
	if o.has("activate") {
		var ok bool
		if n.act, ok = parseActivation(o.last("activate")); !ok {
			return n, false
		}
	}
	n.zero = n.act.on && !strings.HasPrefix(o.last("zero"), "n")
	n.readOnly, n.noAuto = o.last("permission") == "r", o.last("setautoactivation") == "n"
	n.spec = LVSpec{Name: o.last("name"), Type: o.last("type"), Tags: o.values["addtag"], Host: c.host.name}
	size := parseSize(o.last("size"))
	if e, err := strconv.ParseInt(o.last("extents"), 10, 64); err == nil {
		size = e * extentSize
	}
	n.spec.Size = size
	if len(o.rest) != 1 {
		return n, false
	}
	vg, lv, _ := strings.Cut(strings.TrimPrefix(o.rest[0], "/dev/"), "/")
	n.vg = vg
	switch {
	case o.has("thin") || o.has("thinpool"):
		pool := orDefault(o.last("thinpool"), lv)
		n.spec.Type, n.spec.Pool = "thin", strings.TrimPrefix(pool, vg+"/")
		if o.has("size") {
			n.pool = &LVSpec{Name: n.spec.Pool, Type: "thin-pool", Size: size, Host: c.host.name}
		}
		n.spec.Size = parseSize(o.last("virtualsize"))
		return n, n.spec.Pool != "" && (n.pool != nil || n.spec.Size > 0)
	case o.has("snapshot"):
		n.spec.Type, n.spec.Origin = "snapshot", lv
		return n, lv != "" && size > 0
	case o.has("stripes") && n.spec.Type == "":
		n.spec.Type = "striped"
	case o.has("mirrors") && n.spec.Type == "":
		n.spec.Type = "raid1"
	}
	return n, size > 0
}

// create makes one LV, with its pool where one was asked for, and activates it.
func (c *call) create(st *state, hs *hostState, vg *vgState, n newLV) int {
	if n.pool != nil {
		c.say("Thin pool volume with chunk size 64.00 KiB can address at most <15.88 TiB of data.")
		said := c.out.Len()
		if code := c.createOne(st, hs, vg, n, *n.pool); code != exitOK || n.spec.Size == 0 {
			return code
		}
		c.out.Truncate(said) // only the thin volume is spoken of
	}
	if n.spec.Name == "" {
		n.spec.Name = vg.freeName()
	}
	return c.createOne(st, hs, vg, n, n.spec)
}

func (c *call) createOne(st *state, hs *hostState, vg *vgState, n newLV, spec LVSpec) int {
	undo := func() {}
	if o := vg.find(spec.Origin); o != nil {
		var res lockResult
		if res, undo = c.holdEX(st, hs, vg, o, false); res != lockGiven {
			c.refuse(st, vg, o, res)
			c.warn("Failed to lock %sorigin LV %s/%s", word(st.LVM >= LVM31, "snapshot "), vg.Name, o.Name)
			return exitFailed
		}
	}
	lv, err := c.san.makeLV(vg, spec)
	switch {
	case errors.Is(err, errExists):
		c.warn("Logical Volume %q already exists in volume group %q", spec.Name, vg.Name)
	case errors.Is(err, errNoSpace):
		c.warn("Volume group %q has insufficient free space (%d extents): %d required.",
			vg.Name, vg.free()/extentSize, roundUp(spec.Size)/extentSize)
	case err != nil:
		c.warn("%v", err)
	}
	if err != nil {
		undo()
		return exitFailed
	}
	lv.ReadOnly, lv.NoAutoactivation = n.readOnly, n.noAuto
	if !lv.isSnapshot() && n.act.on {
		if code := c.activateNew(st, hs, vg, lv, n.act); code != exitOK {
			return code
		}
	}
	if lv.isSnapshot() && hs.active(vg, vg.find(lv.Origin)) {
		if err := c.san.activate(hs, vg, vg.find(lv.Origin)); err != nil {
			return c.broken(err)
		}
	}
	undo()
	if !n.zero && lv.Seg != "thin" && lv.Seg != "thin-pool" && !lv.isSnapshot() {
		c.warn("WARNING: Logical volume %s/%s not zeroed.", vg.Name, lv.Name)
	}
	c.say("Logical volume %q created.", lv.Name)
	return exitOK
}

func (c *call) activateNew(st *state, hs *hostState, vg *vgState, lv *lvState, act activation) int {
	if res := c.lockLV(st, hs, vg, lv, act.mode); res != lockGiven {
		c.refuse(st, vg, lv, res)
		return exitFailed
	}
	if err := c.san.activate(hs, vg, lv); err != nil {
		return c.broken(err)
	}
	return exitOK
}

// freeName is the name LVM gives an LV that was given none.
func (vg *vgState) freeName() string {
	for n := 0; ; n++ {
		if name := "lvol" + strconv.Itoa(n); vg.find(name) == nil {
			return name
		}
	}
}

// parseSize reads sizes such as 64M, 64m, 1g, 512k and 1048576b; megabytes without a
// unit. 0: no size.
func parseSize(s string) int64 {
	s = strings.ToLower(strings.TrimLeft(s, "+"))
	unit := int64(1 << 20)
	if s != "" {
		switch s[len(s)-1] {
		case 'b':
			unit = 1
		case 's':
			unit = 512
		case 'k':
			unit = 1 << 10
		case 'g':
			unit = 1 << 30
		case 't':
			unit = 1 << 40
		}
	}
	f, err := strconv.ParseFloat(strings.TrimRight(s, "bskmgt"), 64)
	if err != nil {
		return 0
	}
	return int64(f * float64(unit))
}
