package model

// LockHint is where a volume was when it was last looked for. It says where to ask first
// and since when; never that it is so.
type LockHint struct {
	Volume VolumeID
	Name   string   // "vg/lv" then
	Host   string   // name of the holder; "" where nobody held it or several shared it
	Mode   LockMode // off: nobody
	Since  int64    // unix milliseconds when it was first found so
	// Was is what a look found wrong in the hint before this one, WrongAt when (unix
	// milliseconds); 0: it was never wrong.
	Was     string
	WrongAt int64
}

// Lengths of the groups of an LVM uuid.
var uuidGroups = [...]int{6, 4, 4, 4, 4, 4, 6}

// ParseDMUUID turns the device-mapper uuid of a volume's own device back into its id;
// false for other devices, such as the hidden layers of a volume.
func ParseDMUUID(s string) (VolumeID, bool) {
	const prefix, length = "LVM-", 32
	if len(s) != len(prefix)+2*length || s[:len(prefix)] != prefix {
		return VolumeID{}, false
	}
	s = s[len(prefix):]
	return VolumeID{VG: dashed(s[:length]), LV: dashed(s[length:])}, true
}

func dashed(s string) string {
	out := make([]byte, 0, len(s)+len(uuidGroups)-1)
	for i, n := range uuidGroups {
		if i > 0 {
			out = append(out, '-')
		}
		out, s = append(out, s[:n]...), s[n:]
	}
	return string(out)
}
