package san

import (
	"fmt"
	"slices"
	"strings"
)

const reportOptions = "all/a options/o= sort/O= units= nosuffix noheadings separator= unbuffered aligned " +
	"unquoted nameprefixes shared foreign binary segments history/H partial/P nolocking select/S="

const (
	lvsDefault = "lv_name,vg_name,lv_attr,lv_size,pool_lv,origin,data_percent,metadata_percent,move_pv,mirror_log,copy_percent,convert_lv"
	vgsDefault = "vg_name,pv_count,lv_count,snap_count,vg_attr,vg_size,vg_free"
)

// lvs is lvs(8).
func (c *call) lvs() int {
	if len(c.args) == 1 && c.args[0] == "--version" {
		c.say("LVM version:     2.03.%d(2) (2025-02-27)", c.version())
		return exitOK
	}
	return c.report("lv", lvsDefault, lvFields(), []string{"lv_", "vg_", "seg"})
}

// vgs is vgs(8).
func (c *call) vgs() int {
	return c.report("vg", vgsDefault, vgFields(), []string{"vg_"})
}

// report prints what is there of the named VGs and LVs, even where some are not.
func (c *call) report(kind, columns string, fields map[string]field, prefixes []string) int {
	o, ok := c.parse(reportOptions)
	if !ok {
		return exitUsage
	}
	if o.has("select") || o.has("rows") {
		c.warn("sanfake: --select is not simulated")
		return exitUsage
	}
	cols, ok := c.columns(o, columns, fields, prefixes)
	if !ok {
		return exitFailed
	}
	c.wait(delayRead)
	if err := c.greet(); err != nil {
		return c.broken(err)
	}
	asJSON := strings.HasPrefix(o.last("reportformat"), "json")
	// Since 2.03.17 a JSON report carries LVM's messages, and stderr does not, unless the
	// command log is switched off.
	if asJSON && c.version() >= LVM31 && !strings.Contains(o.last("config"), "report_command_log=0") {
		c.log = &reportLog{}
	}
	code := exitOK
	format := sizeFormat{units: o.last("units"), bare: o.has("nosuffix")}
	var lines [][]string
	err := c.view(func(st *state, hs *hostState) error {
		if len(o.rest) == 0 && c.fault(FaultGlobalLock, "") != nil {
			c.fail("Global lock failed: held by other host.")
			code = exitFailed
			return nil
		}
		var rows []row
		rows, code = c.rows(st, hs, kind, o)
		for _, r := range rows {
			var line []string
			for _, name := range cols {
				line = append(line, fields[name].value(r, format))
			}
			lines = append(lines, line)
		}
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	if asJSON {
		c.json(kind, cols, lines)
	} else {
		c.table(cols, fields, lines, o)
	}
	return code
}

// columns are the full names of what -o asks for; -o +x adds to the usual ones.
func (c *call) columns(o options, usual string, fields map[string]field, prefixes []string) ([]string, bool) {
	list := usual
	for _, v := range o.values["options"] {
		if more, plus := strings.CutPrefix(v, "+"); plus {
			list += "," + more
		} else {
			list = v
		}
	}
	var cols []string
	for _, name := range strings.Split(list, ",") {
		full := fieldName(strings.TrimSpace(name), fields, prefixes)
		if full == "" {
			c.warn("Unrecognised field: %s", name)
			return nil, false
		}
		if !slices.Contains(cols, full) {
			cols = append(cols, full)
		}
	}
	return cols, true
}

// fieldName is LVM's full name of a column; it knows aliases and names without prefix.
func fieldName(name string, fields map[string]field, prefixes []string) string {
	aliases := map[string]string{
		"lv_lock_args": "lv_lockargs", "lock_args": "lv_lockargs", "vg_lockargs": "vg_lock_args",
		"vg_sysid": "vg_systemid", "lv_origin": "origin",
	}
	name = orDefault(aliases[name], name)
	for _, prefix := range append([]string{""}, prefixes...) {
		if _, ok := fields[prefix+name]; ok {
			return prefix + name
		}
	}
	return ""
}

// rows finds the VGs and LVs to report, sorted as LVM sorts them.
func (c *call) rows(st *state, hs *hostState, kind string, o options) ([]row, int) {
	code := exitOK
	asked := targets(o.rest)
	if len(asked) == 0 {
		for _, vg := range st.vgsByName() {
			asked = append(asked, target{vg: vg.Name})
		}
	}
	var rows []row
	for _, t := range asked {
		vg := st.VGs[t.vg]
		c.log.about(vg, t.vg, "")
		if vg == nil {
			code = c.noVG(t.vg)
			c.log.failure()
			continue
		}
		c.vgLock(hs, vg, vgRead)
		if kind == "vg" {
			rows = append(rows, row{st: st, san: c.san, host: hs, vg: vg})
			c.log.success()
			continue
		}
		all := vg.LVs
		if vg.LockLV != nil {
			all = append(slices.Clone(all), vg.LockLV)
		}
		found := map[string]bool{}
		for _, lv := range all {
			found[lv.Name] = true
			if slices.Contains(t.lvs, lv.Name) || len(t.lvs) == 0 && (lv.Attr == "" || o.has("all")) {
				rows = append(rows, row{st: st, san: c.san, host: hs, vg: vg, lv: lv})
				c.log.success()
			}
		}
		missing := slices.DeleteFunc(slices.Clone(t.lvs), func(name string) bool { return found[name] })
		for _, name := range missing {
			c.log.about(vg, t.vg, name)
			code = c.noLV(t.vg, name)
			c.log.failure()
		}
		if c.log.about(vg, t.vg, ""); len(missing) > 0 {
			c.log.failure()
		} else {
			c.log.success()
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		if n := strings.Compare(a.vg.Name, b.vg.Name); n != 0 || a.lv == nil {
			return n
		}
		return strings.Compare(a.lv.Name, b.lv.Name)
	})
	return rows, code
}

// json prints the report exactly as LVM lays it out.
func (c *call) json(kind string, cols []string, lines [][]string) {
	b := &c.out
	fmt.Fprintf(b, "  {\n      \"report\": [\n          {\n              %q: [\n", kind)
	for i, line := range lines {
		b.WriteString("                  {")
		for j, v := range line {
			fmt.Fprintf(b, "%s\"%s\":\"%s\"", word(j > 0, ", "), cols[j], escape(v))
		}
		fmt.Fprintf(b, "}%s\n", word(i < len(lines)-1, ","))
	}
	b.WriteString("              ]\n          }\n      ]\n")
	if c.log != nil {
		fmt.Fprintf(b, "      ,\n      \"log\": [\n%s      ]\n", c.log)
	}
	b.WriteString("  }\n")
}

func (c *call) version() int {
	v := 0
	_ = c.view(func(st *state, _ *hostState) error { v = st.LVM; return nil })
	return v
}

func escape(s string) string {
	if !strings.ContainsAny(s, `\"`) {
		return s // as nearly all are; a Replacer is made anew each time
	}
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s)
}
