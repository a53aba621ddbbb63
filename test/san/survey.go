package san

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// Set changes a setting of the host: of lvm.conf and lvmlocal.conf by its name in lvmconfig,
// and "use_watchdog" of sanlock.conf; "" sets it back.
func (h *Host) Set(name, value string) error {
	return h.change("set "+name, func(_ *state, hs *hostState) error {
		if hs.Conf == nil {
			hs.Conf = map[string]string{}
		}
		if hs.Conf[name] = value; value == "" {
			delete(hs.Conf, name)
		}
		return nil
	})
}

// setting is a value as lvmconfig prints it.
func (h *hostState) setting(name string) (string, bool) {
	values := map[string]string{
		"use_lvmlockd": "1", "lvmlockctl_kill_command": `""`, "sanlock_lv_extend": "256", "scan_lvs": "0",
		"host_id": strconv.Itoa(h.ID), "use_watchdog": "1",
	}
	maps.Copy(values, h.Conf)
	v, ok := values[name]
	return v, ok
}

// lvmconfig is lvmconfig(8) with the names of settings, which it knows few of.
func (c *call) lvmconfig() int {
	o, ok := c.parse("typeconfig= type=")
	if !ok {
		return exitUsage
	}
	c.wait(delayRead)
	code := exitOK
	err := c.view(func(_ *state, hs *hostState) error {
		for _, path := range o.rest {
			_, name, _ := strings.Cut(path, "/")
			value, ok := hs.setting(name)
			if !ok {
				c.warn("Configuration node %s not found", path)
				code = exitFailed
				continue
			}
			fmt.Fprintf(&c.out, "%s=%s\n", name, value)
		}
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	return code
}

// pvs is pvs(8): each VG has one disk.
func (c *call) pvs() int {
	o, ok := c.parse(reportOptions)
	if !ok {
		return exitUsage
	}
	c.wait(delayRead)
	cols := strings.Split(orDefault(o.last("options"), "pv_name,vg_name"), ",")
	var lines [][]string
	err := c.view(func(st *state, _ *hostState) error {
		for i, vg := range st.vgsByName() {
			values := map[string]string{"pv_name": fmt.Sprintf("/dev/vd%c", 'b'+i%25), "vg_name": vg.Name}
			var line []string
			for _, col := range cols {
				line = append(line, values[col])
			}
			lines = append(lines, line)
		}
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	if strings.HasPrefix(o.last("reportformat"), "json") {
		c.json("pv", cols, lines)
		return exitOK
	}
	for _, line := range lines {
		c.say("%s", strings.Join(line, " "))
	}
	return exitOK
}

// statusDetails is `sanlock client status -D`, shortened.
func (c *call) statusDetails(st *state, hs *hostState) {
	now := c.san.now(st)
	watchdog, _ := hs.setting("use_watchdog")
	b := &c.out
	fmt.Fprintf(b, "daemon %s\n    our_host_name=%s\n    use_watchdog=%s\n    monotime=%d\n    version_str=3.9.5\n",
		hs.Name, hs.Name, watchdog, vgUptime(hs, now.UnixNano()))
	fmt.Fprint(b, "p -1 helper\n    ci=0\np -1 status\n    ci=2\n")
	for _, vg := range st.spaces(hs) {
		d := vg.Deltas[hs.ID]
		result, success := 1, vgUptime(hs, now.UnixNano())
		if d != nil && d.SilentAt != 0 {
			result, success = -202, vgUptime(hs, d.SilentAt)
		}
		fmt.Fprintf(b, "s lvm_%s:%d:%s:0\n    list=spaces\n    space_id=1\n    io_timeout=%d\n    sector_size=512\n    align_size=%d\n"+
			"    renew_fail=0\n    space_dead=0\n    killing_pids=0\n    renewal_last_result=%d\n    renewal_last_attempt=%d\n    renewal_last_success=%d\n",
			vg.Name, hs.ID, lockLVPath(vg.Name), st.IOTimeout, leaseSize, result, vgUptime(hs, now.UnixNano()), success)
	}
}

// renewal is `sanlock client renewal`: a history of one.
func (c *call) renewal(st *state, hs *hostState, vg string) {
	if sp := hs.Spaces[vg]; sp != nil && !sp.Lost {
		fmt.Fprintf(&c.out, "timestamp=%d read_ms=1 write_ms=2 next_timeouts=0 next_errors=0\n", vgUptime(hs, c.san.now(st).UnixNano()))
	}
}
