package san

import (
	"fmt"
	"slices"
	"strings"
)

// dmsetup is the part of dmsetup(8) that reads, wipe_table, and remove: it takes a device
// away under its lock.
func (c *call) dmsetup() int {
	o, err := c.san.parser("columns/c noheadings options/o= separator= force/f uuid/u= sort/O= retry noflush nolockfs noudevsync").parse(c.args)
	if err != nil {
		fmt.Fprintf(&c.err, "dmsetup: %v\n", err)
		return 1
	}
	if len(o.rest) == 0 {
		return 1
	}
	code := exitOK
	switch o.rest[0] {
	case "info":
		err = c.view(func(_ *state, hs *hostState) error { code = c.dmInfo(hs, o); return nil })
	case "ls":
		err = c.view(func(_ *state, hs *hostState) error {
			for _, name := range deviceNames(hs) {
				fmt.Fprintf(&c.out, "%s\t(253:%d)\n", name, hs.Devs[name].Minor)
			}
			if len(hs.Devs) == 0 {
				fmt.Fprintln(&c.out, "No devices found")
			}
			return nil
		})
	case "table":
		err = c.view(func(st *state, hs *hostState) error { code = c.dmTable(st, hs, o.rest[1:]); return nil })
	case "wipe_table":
		err = c.update(func(_ *state, hs *hostState) error { code = c.dmWipe(hs, o.rest[1:]); return nil })
	case "remove":
		err = c.update(func(_ *state, hs *hostState) error {
			names := o.rest[1:]
			if o.has("uuid") {
				names = []string{deviceOf(hs, o.last("uuid"))}
			}
			code = c.dmRemove(hs, names)
			return nil
		})
	default:
		fmt.Fprintln(&c.err, "Unknown command.")
		return 1
	}
	if err != nil {
		return c.broken(err)
	}
	return code
}

// deviceOf is the name of the device with a dm uuid, or else the uuid: there is none.
func deviceOf(hs *hostState, uuid string) string {
	for name, d := range hs.Devs {
		if d.UUID == uuid {
			return name
		}
	}
	return uuid
}

func deviceNames(hs *hostState) []string {
	var names []string
	for name := range hs.Devs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *call) dmInfo(hs *hostState, o options) int {
	names := deviceNames(hs)
	if asked := o.rest[1:]; len(asked) > 0 {
		for _, name := range asked {
			if hs.Devs[name] == nil {
				fmt.Fprintln(&c.err, "Device does not exist.\nCommand failed.")
				return 1
			}
		}
		names = asked
	}
	if len(names) == 0 {
		fmt.Fprintln(&c.out, "No devices found")
		return exitOK
	}
	heads := map[string]string{
		"name": "Name", "uuid": "UUID", "open": "Open", "attr": "Stat", "major": "Maj", "minor": "Min",
		"blkdevname": "BlkDevName", "segments": "Targ", "events": "Event ",
	}
	cols := strings.Split(orDefault(o.last("options"), "name,major,minor,attr,open,segments,events,uuid"), ",")
	var lines [][]string
	if !o.has("noheadings") {
		var head []string
		for _, col := range cols {
			head = append(head, heads[col])
		}
		lines = append(lines, head)
	}
	for _, name := range names {
		d := hs.Devs[name]
		attr := "L--w"
		if d.ReadOnly {
			attr = "L--r"
		}
		values := map[string]string{
			"name": name, "uuid": d.UUID, "open": fmt.Sprint(c.san.openCount(hs.Name, name, d)), "attr": attr,
			"major": "253", "minor": fmt.Sprint(d.Minor), "blkdevname": fmt.Sprintf("dm-%d", d.Minor),
			"segments": "1", "events": "0",
		}
		var line []string
		for _, col := range cols {
			v, known := values[col]
			if !known {
				fmt.Fprintf(&c.err, "Unrecognised field: %s\nCommand failed.\n", col)
				return 1
			}
			line = append(line, v)
		}
		lines = append(lines, line)
	}
	// Without headings the columns are joined by a colon; with them they are aligned.
	if sep := o.last("separator"); sep != "" || o.has("noheadings") {
		for _, line := range lines {
			fmt.Fprintln(&c.out, strings.Join(line, orDefault(sep, ":")))
		}
		return exitOK
	}
	widths := make([]int, len(cols))
	for _, line := range lines {
		for i, v := range line {
			widths[i] = max(widths[i], len(v))
		}
	}
	for n, line := range lines {
		for i, v := range line {
			numbers := n > 0 && cols[i] != "name" && cols[i] != "uuid" && cols[i] != "attr"
			fmt.Fprintf(&c.out, "%s%*s", word(i > 0, " "), map[bool]int{true: 1, false: -1}[numbers]*widths[i], v)
		}
		fmt.Fprintln(&c.out)
	}
	return exitOK
}

// dmTable prints the live tables. Where one device is asked for its name is left out.
func (c *call) dmTable(st *state, hs *hostState, asked []string) int {
	names := asked
	if len(asked) == 0 {
		names = deviceNames(hs)
	}
	for _, name := range names {
		d := hs.Devs[name]
		if d == nil {
			fmt.Fprintf(&c.err, "device-mapper: table ioctl on %s  failed: No such device or address\nCommand failed.\n", name)
			return 1
		}
		if len(asked) != 1 {
			fmt.Fprintf(&c.out, "%s: ", name)
		}
		fmt.Fprintln(&c.out, st.tableOf(name, d))
	}
	if len(names) == 0 {
		fmt.Fprintln(&c.out, "No devices found")
	}
	return exitOK
}

// tableOf is the one line of a device's table. All LVs lie on one disk, 8:16.
func (st *state) tableOf(name string, d *device) string {
	vg := st.VGs[d.VG]
	lv := vg.find(d.LV)
	if lv == nil {
		lv = vg.LockLV
	}
	target := lv.Seg + " ..."
	switch {
	case d.Error:
		target = "error "
	case name == dmName(d.VG, d.LV) && len(vg.snapshots(lv)) > 0:
		target = "snapshot-origin 253:0"
	case lv.Seg == "linear":
		target = "linear 8:16 2048"
	case lv.Seg == "striped":
		target = "striped 2 128 8:16 2048 8:32 2048"
	}
	return fmt.Sprintf("0 %d %s", lv.Size/512, target)
}

// dmWipe loads an error table and makes it the live one, under an open device as well.
func (c *call) dmWipe(hs *hostState, names []string) int {
	if len(names) == 0 {
		return 1
	}
	for _, name := range names {
		d := hs.Devs[name]
		if d == nil {
			fmt.Fprintln(&c.err, "Device does not exist.\nCommand failed.")
			return 1
		}
		d.Error = true
		if err := c.san.relink(hs, d, "error-target"); err != nil {
			return c.broken(err)
		}
	}
	return exitOK
}

func (c *call) dmRemove(hs *hostState, names []string) int {
	for _, name := range names {
		d := hs.Devs[name]
		switch {
		case d == nil:
			fmt.Fprintf(&c.err, "device-mapper: remove ioctl on %s  failed: No such device or address\nCommand failed.\n", name)
			return 1
		case c.san.openCount(hs.Name, name, d) > 0:
			fmt.Fprintf(&c.err, "device-mapper: remove ioctl on %s  failed: Device or resource busy\nCommand failed.\n", name)
			return 1
		}
		if err := c.san.unlink(hs, name); err != nil {
			return c.broken(err)
		}
	}
	return exitOK
}
