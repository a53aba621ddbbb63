package san

import (
	"fmt"
	"strconv"
	"strings"
)

// lockdPID is the pid that sanlock shows for lvmlockd.
const lockdPID = 242

// sanlock is the part of sanlock(8) that reads: direct dump, client status, gets,
// host_status.
func (c *call) sanlock() int {
	c.wait(delayAsk)
	if len(c.args) < 2 {
		fmt.Fprintf(&c.out, "sanlock <command> <action> ...\n")
		return 1
	}
	arg := func(i int) string {
		if i < len(c.args) {
			return c.args[i]
		}
		return ""
	}
	switch c.args[0] + " " + c.args[1] {
	case "direct dump":
		return c.directDump(arg(2))
	case "client status":
		if arg(2) == "-D" {
			return c.clients(c.statusDetails)
		}
		return c.clients(c.status)
	case "client renewal":
		return c.clients(func(st *state, hs *hostState) { c.renewal(st, hs, strings.TrimPrefix(arg(3), "lvm_")) })
	case "client gets":
		hosts := arg(2) == "-h" && arg(3) == "1"
		return c.clients(func(st *state, hs *hostState) { c.gets(st, hs, hosts) })
	case "client host_status":
		return c.clients(func(st *state, hs *hostState) { c.hostStatus(st, hs) })
	}
	fmt.Fprintf(&c.out, "%s action %q is unknown\n", c.args[0], c.args[1])
	return 1
}

// clients asks the daemon, which may not run.
func (c *call) clients(fn func(*state, *hostState)) int {
	code := exitOK
	err := c.view(func(st *state, hs *hostState) error {
		if hs.SanlockDown {
			code = 1
			return nil
		}
		fn(st, hs)
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	return code
}

func lockLVPath(vg string) string { return "/dev/mapper/" + dmName(vg, lockLVName) }

// spaces are the VGs whose lockspace sanlock has on this host.
func (st *state) spaces(hs *hostState) []*vgState {
	var out []*vgState
	for _, vg := range st.vgsByName() {
		if sp := hs.Spaces[vg.Name]; sp != nil && !sp.Lost {
			out = append(out, vg)
		}
	}
	return out
}

func (c *call) status(st *state, hs *hostState) {
	b := &c.out
	fmt.Fprintf(b, "daemon %s\np -1 helper\np -1 listener\n", hs.Name)
	spaces := st.spaces(hs)
	if len(spaces) > 0 && !hs.LockdDown {
		fmt.Fprintf(b, "p %d lvmlockd\n", lockdPID)
	}
	fmt.Fprintln(b, "p -1 status")
	for _, vg := range spaces {
		fmt.Fprintf(b, "s lvm_%s:%d:%s:0\n", vg.Name, hs.ID, lockLVPath(vg.Name))
	}
	for i := len(hs.Locks) - 1; i >= 0; i-- {
		k := hs.Locks[i]
		vg := st.VGs[k.VG]
		lv := vg.findUUID(k.UUID)
		if k.Mode == "un" || lv == nil || vg.Leases[lv.Offset] == nil {
			continue
		}
		mode := "SH"
		if k.Mode == "ex" {
			mode = strconv.FormatInt(vg.Leases[lv.Offset].Lver, 10)
		}
		// An orphan keeps its owner's pid where it is exclusive.
		pid := lockdPID
		if k.Orphan && k.Mode == "sh" {
			pid = 0
		}
		fmt.Fprintf(b, "r lvm_%s:%s:%s:%d:%s p %d%s\n", k.VG, k.UUID, lockLVPath(k.VG), lv.Offset, mode, pid,
			word(k.Orphan, " ORPHAN"))
	}
}

func (c *call) gets(st *state, hs *hostState, hosts bool) {
	now := c.san.now(st)
	for _, vg := range st.spaces(hs) {
		fmt.Fprintf(&c.out, "s lvm_%s:%d:%s:0 \n", vg.Name, hs.ID, lockLVPath(vg.Name))
		for _, id := range vg.hostIDs() {
			d := vg.Deltas[id]
			if !hosts || d.Free {
				continue // sanlock leaves out who has left in order
			}
			fmt.Fprintf(&c.out, "h %d gen %d timestamp %d %s\n", id, d.Gen, d.timestamp(now, st.renewal()), st.liveness(now, vg, hs, id))
		}
	}
}

func (c *call) hostStatus(st *state, hs *hostState) {
	now := c.san.now(st)
	space, debug := "", false
	for i, a := range c.args {
		debug = debug || a == "-D"
		if a == "-s" && i+1 < len(c.args) {
			space = c.args[i+1]
		}
	}
	uptime := func() int64 { return vgUptime(hs, now.UnixNano()) }
	for _, vg := range st.spaces(hs) {
		if space != "" && space != "lvm_"+vg.Name {
			continue
		}
		if space == "" {
			fmt.Fprintf(&c.out, "lockspace lvm_%s\n", vg.Name)
		}
		for _, id := range vg.hostIDs() {
			d := vg.Deltas[id]
			ts := d.timestamp(now, st.renewal())
			fmt.Fprintf(&c.out, "%d timestamp %d\n", id, ts)
			if !debug {
				continue
			}
			live := uptime()
			if d.SilentAt != 0 {
				live = max(1, vgUptime(hs, d.SilentAt))
			}
			fmt.Fprintf(&c.out, "    last_check=%d\n    last_live=%d\n    last_req=0\n    owner_id=%d\n    owner_generation=%d\n"+
				"    timestamp=%d\n    io_timeout=%d\n    owner_name=%s\n", uptime(), live, id, d.Gen, ts, st.IOTimeout, d.Name)
		}
	}
}

func vgUptime(hs *hostState, at int64) int64 { return (at - hs.BootedAt) / 1e9 }

func (vg *vgState) hostIDs() []int {
	var ids []int
	for id := 1; len(ids) < len(vg.Deltas); id++ {
		if vg.Deltas[id] != nil {
			ids = append(ids, id)
		}
	}
	return ids
}
