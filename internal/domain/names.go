package domain

import (
	"strings"

	"virtlvm/internal/model"
)

// maxName is the longest name LVM and device-mapper take, in bytes.
const maxName = 127

// validName tells whether LVM accepts s as the name of a VG or LV (lvm(8), VALID NAMES).
// A name that starts with a dash is none, so nothing that passes can be mistaken for an
// option of a command.
func validName(s string) bool {
	if s == "" || s == "." || s == ".." || s[0] == '-' || len(s) > maxName {
		return false
	}
	for _, c := range []byte(s) {
		if !alphanumeric(c) && !strings.ContainsRune("+_.-", rune(c)) {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// splitMapper splits a device-mapper name as LVM composes it: VG-LV, or VG-LV-LAYER for
// LVM's internal devices, with the dashes of the names themselves doubled. It is false
// for what cannot be an LV's name.
func splitMapper(name string) (ref Ref, layer string, ok bool) {
	var parts [3]strings.Builder
	n := 0
	for i := 0; i < len(name); i++ {
		if name[i] == '-' {
			if i+1 == len(name) || name[i+1] != '-' {
				if n++; n == len(parts) {
					return Ref{}, "", false
				}
				continue
			}
			i++
		}
		parts[n].WriteByte(name[i])
	}
	ref = Ref{VG: parts[0].String(), LV: parts[1].String()}
	if !validName(ref.VG) || !validName(ref.LV) || n == 2 && parts[2].Len() == 0 {
		return Ref{}, "", false
	}
	return ref, parts[2].String(), true
}

// mapperName is the device-mapper name of a logical volume.
func mapperName(ref Ref) string {
	return strings.ReplaceAll(ref.VG, "-", "--") + "-" + strings.ReplaceAll(ref.LV, "-", "--")
}

// lvmPrefix starts the dm uuid of every device that LVM makes.
const lvmPrefix = "LVM-"

// SplitDMUUID reads the dm uuid of a logical volume: "LVM-", then the uuids of VG and LV
// without dashes, 32 characters each. It is false for other devices, LVM's internal ones
// (with a suffix such as "-real" or "-tpool") included.
func SplitDMUUID(s string) (model.VolumeID, bool) {
	ids, ok := strings.CutPrefix(s, lvmPrefix)
	if !ok || len(ids) != 64 {
		return model.VolumeID{}, false
	}
	for _, c := range []byte(ids) {
		// LVM's own check also allows the last two (lib/uuid/uuid.c).
		if !alphanumeric(c) && c != '!' && c != '#' {
			return model.VolumeID{}, false
		}
	}
	return model.VolumeID{VG: dashed(ids[:32]), LV: dashed(ids[32:])}, true
}

// dashed is LVM's printed form of a uuid, 6-4-4-4-4-4-6.
func dashed(id string) string {
	return strings.Join([]string{id[:6], id[6:10], id[10:14], id[14:18], id[18:22], id[22:26], id[26:]}, "-")
}

// notVG reports whether /dev/NAME is a directory of the kernel or of udev, which LVM
// would not take as the name of a VG either.
func notVG(name string) bool {
	switch name {
	case "accel", "bcache", "block", "bsg", "bus", "cciss", "char", "cpu", "disk", "dma_heap", "drbd", "dri",
		"dvb", "etherd", "fd", "hugepages", "ida", "infiniband", "input", "loop", "mapper", "md", "mem", "mqueue",
		"nbd", "net", "pts", "raw", "rbd", "serial", "shm", "snd", "ublk", "usb", "v4l", "vfio", "virtio-ports",
		"xen", "zvol":
		return true
	}
	return false
}
