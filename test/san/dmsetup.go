package san

import (
	"fmt"
	"slices"
	"strings"
)

// dmsetup is the part of dmsetup(8) that reads, and remove: it takes a device away under
// its lock.
func (c *call) dmsetup() int {
	o, err := parse(c.args, "columns/c noheadings options/o= separator= force/f uuid/u= sort/O= retry")
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
