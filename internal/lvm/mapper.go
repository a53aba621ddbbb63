package lvm

import "strings"

// SplitMapperName turns a device-mapper name back into the names of a VG and an LV; false
// if it is not of that form (see MapperName).
func SplitMapperName(name string) (vg, lv string, ok bool) {
	// A single dash separates; a doubled one is a dash of a name.
	const dash = "\x00"
	parts := strings.Split(strings.ReplaceAll(name, "--", dash), "-")
	if len(parts) != 2 {
		return "", "", false
	}
	vg, lv = strings.ReplaceAll(parts[0], dash, "-"), strings.ReplaceAll(parts[1], dash, "-")
	return vg, lv, wrong(vg) == "" && wrong(lv) == ""
}
