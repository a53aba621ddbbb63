package san

import (
	"fmt"
)

// lvmlockctl is lvmlockctl(8): --info, and --info --dump for the raw form.
func (c *call) lvmlockctl() int {
	o, err := c.san.parser("info/i dump/d help/h").parse(c.args)
	if err != nil {
		fmt.Fprintf(&c.err, "lvmlockctl: %v\n", err)
		return 1
	}
	c.wait(delayAsk)
	code := exitOK
	err = c.view(func(st *state, hs *hostState) error {
		switch {
		case hs.LockdDown:
			fmt.Fprintln(&c.out, "Cannot connect to lvmlockd.")
			fmt.Fprintln(&c.err, "/run/lvm/lvmlockd.socket: connect failed: Connection refused")
			code = 255
		case o.has("info"):
			c.lockdInfo(st, hs, o.has("dump"))
		default:
			fmt.Fprintln(&c.out, "lvmlockctl options\nOptions:\n--info | -i\n      Print lock state information from lvmlockd.")
		}
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	return code
}

func (c *call) lockdInfo(st *state, hs *hostState, raw bool) {
	b, first := &c.out, true
	for _, vg := range st.vgsByName() {
		if sp := hs.Spaces[vg.Name]; sp == nil || sp.Inactive {
			continue
		}
		if raw {
			fmt.Fprintf(b, "info=ls ls_name=lvm_%s vg_name=%s vg_uuid=%s vg_args=%s lm_type=sanlock host_id=%d create_fail=0 "+
				"create_done=1 thread_work=0 thread_stop=0 thread_done=0 kill_vg=0 drop_vg=0 sanlock_gl_enabled=%d\n",
				vg.Name, vg.Name, vg.UUID, vg.lockArgs(), hs.ID, map[bool]int{true: 1}[first])
			fmt.Fprintln(b, "info=r name=VGLK type=vg mode=un sh_count=0 version=0")
		} else {
			fmt.Fprintf(b, "%sVG %s lock_type=sanlock %s\nLS sanlock lvm_%s\nLK VG un ver 0\n", word(!first, "\n"), vg.Name, vg.UUID, vg.Name)
		}
		if first && raw {
			fmt.Fprintln(b, "info=r name=GLLK type=gl mode=un sh_count=0 version=0")
		} else if first {
			fmt.Fprintln(b, "LK GL un ver 0")
		}
		first = false
		for _, k := range hs.Locks {
			switch {
			case k.VG != vg.Name || k.Orphan:
			case raw:
				fmt.Fprintf(b, "info=r name=%s type=lv mode=%s sh_count=%d version=0\n", k.UUID, k.Mode, map[string]int{"sh": 1}[k.Mode])
				if k.Mode != "un" {
					fmt.Fprintf(b, "info=lk mode=%s version=0 flags=0x1 client_id=0\n", k.Mode)
				}
			default:
				fmt.Fprintf(b, "LK LV %s %s\n", k.Mode, k.UUID)
			}
		}
	}
}
