package san

import (
	"fmt"
	"strconv"
	"strings"
)

// row is what one line of a report is about; lv is nil in vgs.
type row struct {
	st   *state
	san  *SAN
	host *hostState
	vg   *vgState
	lv   *lvState
}

// field is a column of lvs or vgs.
type field struct {
	heading string
	right   bool // numbers stand to the right
	value   func(row, sizeFormat) string
}

func text(heading string, fn func(row) string) field {
	return field{heading: heading, value: func(r row, _ sizeFormat) string { return fn(r) }}
}

func size(heading string, fn func(row) int64) field {
	return field{heading: heading, right: true, value: func(r row, f sizeFormat) string { return f.format(fn(r)) }}
}

func count(heading string, fn func(row) int) field {
	return field{heading: heading, right: true, value: func(r row, _ sizeFormat) string { return strconv.Itoa(fn(r)) }}
}

func vgFields() map[string]field {
	return map[string]field{
		"vg_name":             text("VG", func(r row) string { return r.vg.Name }),
		"vg_uuid":             text("VG UUID", func(r row) string { return r.vg.UUID }),
		"vg_attr":             text("Attr", func(r row) string { return r.vg.attr() }),
		"vg_lock_type":        text("VLockType", func(r row) string { return r.vg.lockType() }),
		"vg_lock_args":        text("VLockArgs", func(r row) string { return r.vg.lockArgs() }),
		"vg_systemid":         text("System ID", func(row) string { return "" }),
		"vg_tags":             text("VG Tags", func(r row) string { return strings.Join(r.vg.Tags, ",") }),
		"vg_autoactivation":   text("AutoAct", func(r row) string { return enabled(!r.vg.NoAutoactivation) }),
		"vg_shared":           text("Shared", func(r row) string { return word(r.vg.shared(), "shared") }),
		"vg_size":             size("VSize", func(r row) int64 { return r.vg.Size }),
		"vg_free":             size("VFree", func(r row) int64 { return r.vg.free() }),
		"vg_extent_size":      size("Ext", func(row) int64 { return extentSize }),
		"vg_extent_count":     count("#Ext", func(r row) int { return int(r.vg.Size / extentSize) }),
		"vg_free_count":       count("Free", func(r row) int { return int(r.vg.free() / extentSize) }),
		"pv_count":            count("#PV", func(row) int { return 1 }),
		"lv_count":            count("#LV", func(r row) int { return len(r.vg.visible()) }),
		"snap_count":          count("#SN", func(r row) int { return len(r.vg.where((*lvState).isSnapshot)) }),
		"vg_missing_pv_count": count("#PV Missing", func(row) int { return 0 }),
	}
}

func lvFields() map[string]field {
	dev := func(r row) *device { return r.host.Devs[dmName(r.vg.Name, r.lv.Name)] }
	active := func(r row) bool { return r.host.active(r.vg, r.lv) }
	fields := map[string]field{
		"lv_name":               text("LV", func(r row) string { return r.lv.display() }),
		"lv_full_name":          text("LV", func(r row) string { return r.vg.Name + "/" + r.lv.Name }),
		"lv_uuid":               text("LV UUID", func(r row) string { return r.lv.UUID }),
		"lv_path":               text("Path", func(r row) string { return word(r.lv.Attr == "", "/dev/"+r.vg.Name+"/"+r.lv.Name) }),
		"lv_dm_path":            text("DMPath", func(r row) string { return "/dev/mapper/" + dmName(r.vg.Name, r.lv.Name) }),
		"lv_attr":               text("Attr", func(r row) string { return r.attr() }),
		"lv_lockargs":           text("LLockArgs", func(r row) string { return r.vg.lvLockArgs(r.lv) }),
		"lv_tags":               text("LV Tags", func(r row) string { return strings.Join(r.lv.Tags, ",") }),
		"lv_host":               text("Host", func(r row) string { return r.lv.Host }),
		"lv_active":             text("Active", func(r row) string { return word(active(r), "active") }),
		"lv_active_locally":     text("ActLocal", func(r row) string { return word(active(r), "active locally") }),
		"lv_active_exclusively": text("ActExcl", func(r row) string { return r.exclusively() }),
		"lv_active_remotely":    text("ActRemote", func(r row) string { return word(r.st.LVM >= LVM31 && r.vg.shared(), "unknown") }),
		"lv_autoactivation":     text("AutoAct", func(r row) string { return enabled(!r.lv.NoAutoactivation) }),
		"lv_role":               text("Role", func(r row) string { return r.role() }),
		"lv_layout":             text("Layout", func(r row) string { return r.lv.Seg }),
		"lv_parent":             text("Parent", func(r row) string { return r.lv.Parent }),
		"origin":                text("Origin", func(r row) string { return r.lv.Origin }),
		"pool_lv":               text("Pool", func(r row) string { return r.lv.Pool }),
		"segtype":               text("Type", func(r row) string { return r.lv.Seg }),
		"lv_size":               size("LSize", func(r row) int64 { return r.lv.Size }),
		"seg_count":             count("#Seg", func(row) int { return 1 }),
		"lv_device_open": text("DevOpen", func(r row) string {
			if dev(r) == nil {
				return "unknown"
			}
			return word(r.san.openCount(r.host.Name, dmName(r.vg.Name, r.lv.Name), dev(r)) > 0, "open")
		}),
		"lv_kernel_minor": count("KMin", func(r row) int {
			if dev(r) == nil {
				return -1
			}
			return dev(r).Minor
		}),
	}
	for _, name := range []string{"data_percent", "metadata_percent", "move_pv", "mirror_log", "copy_percent", "convert_lv"} {
		heading := map[string]string{
			"data_percent": "Data% ", "metadata_percent": "Meta% ", "move_pv": "Move", "mirror_log": "Log",
			"copy_percent": "Cpy%Sync", "convert_lv": "Convert",
		}[name]
		fields[name] = text(heading, func(row) string { return "" })
	}
	for name, f := range vgFields() {
		fields[name] = f
	}
	return fields
}

// exclusively is lv_active_exclusively: since some version it asks lvmlockd, before it
// only said that the volume was active.
func (r row) exclusively() string {
	switch {
	case !r.host.active(r.vg, r.lv):
		return ""
	case r.st.LVM < LVM31 || !r.vg.shared() || r.lv.Attr != "":
		return "active exclusively"
	case r.host.LockdDown:
		return "unknown"
	}
	k := r.host.lockOf(r.vg.Name, r.vg.locker(r.lv).UUID)
	return word(k != nil && k.Mode == "ex", "active exclusively")
}

func (vg *vgState) visible() []*lvState {
	return vg.where(func(lv *lvState) bool { return lv.Attr == "" })
}

func (vg *vgState) attr() string {
	if vg.shared() {
		return "wz--ns"
	}
	return "wz--n-"
}

func (vg *vgState) lockType() string { return word(vg.shared(), vg.LockType) }

func (vg *vgState) lockArgs() string {
	switch vg.LockType {
	case LockSanlock:
		return lockArgsHead + lockLVName
	case LockDLM:
		return lockArgsHead + "cluster"
	}
	return ""
}

func (vg *vgState) lvLockArgs(lv *lvState) string {
	switch {
	case lv.Offset != 0:
		return fmt.Sprintf("%s%d", lockArgsHead, lv.Offset)
	case vg.LockType == LockDLM && lv.Attr == "" && lv.Seg != "thin" && !lv.isSnapshot():
		return LockDLM
	}
	return ""
}

func (lv *lvState) display() string {
	if lv.Attr != "" {
		return "[" + lv.Name + "]"
	}
	return lv.Name
}

// attr is the ten letters of lv_attr; see lvs(8).
func (r row) attr() string {
	kind, tail := r.letters()
	a := []byte("----------")
	a[0], a[1], a[2], a[6] = kind, 'w', 'i', tail
	if r.lv.ReadOnly {
		a[1] = 'r'
	}
	if r.lv.Seg == "thin" || r.lv.Seg == "thin-pool" {
		a[7] = 'z'
	}
	name := dmName(r.vg.Name, r.lv.Name)
	if r.host.active(r.vg, r.lv) {
		a[4] = 'a'
	}
	if d := r.host.Devs[name]; d != nil && r.san.openCount(r.host.Name, name, d) > 0 || r.host.Devs[name+"-tpool"] != nil {
		a[5] = 'o'
	}
	return string(a)
}

// letters are the first and the seventh of lv_attr: the kind of volume and of target.
func (r row) letters() (kind, tail byte) {
	if r.lv.Attr != "" {
		return r.lv.Attr[0], r.lv.Attr[1]
	}
	switch r.lv.Seg {
	case "thin-pool":
		return 't', 't'
	case "thin":
		return 'V', 't'
	case "raid1":
		return 'r', 'r'
	case "mirror":
		return 'm', 'm'
	case "cache", "writecache":
		return 'C', 'C'
	}
	switch {
	case r.lv.isSnapshot():
		return 's', 's'
	case len(r.vg.snapshots(r.lv)) > 0:
		return 'o', 's'
	}
	return '-', '-'
}

func (r row) role() string {
	switch {
	case r.lv.Name == lockLVName:
		return "private,lockd,sanlock"
	case r.lv.Attr != "":
		return "private"
	case r.lv.isSnapshot():
		return "public,snapshot,thicksnapshot"
	case len(r.vg.snapshots(r.lv)) > 0:
		return "public,origin,thickorigin"
	case r.lv.Seg == "thin-pool":
		return "private"
	}
	return "public"
}

func word(is bool, s string) string {
	if is {
		return s
	}
	return ""
}

func enabled(is bool) string { return word(is, "enabled") }
