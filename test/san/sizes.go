package san

import (
	"fmt"
	"strconv"
)

// sizeFormat is how a report prints sizes: --units and --nosuffix.
type sizeFormat struct {
	units string
	bare  bool
}

func (f sizeFormat) format(n int64) string {
	if f.units == "b" || f.units == "B" {
		return strconv.FormatInt(n, 10) + word(!f.bare, "B")
	}
	unit, shift := scale(n)
	if f.units != "" && f.units != "h" && f.units != "r" {
		unit = f.units[:1]
		shift = map[string]int{"k": 10, "m": 20, "g": 30, "t": 40}[unit]
	}
	return rounded(n, shift, f.units == "") + word(!f.bare, unit)
}

// scale is the largest unit in which n is at least one.
func scale(n int64) (string, int) {
	switch {
	case n >= 1<<40:
		return "t", 40
	case n >= 1<<30:
		return "g", 30
	case n >= 1<<20:
		return "m", 20
	}
	return "k", 10
}

// rounded prints two decimals, with LVM's "<" where that rounds up.
func rounded(n int64, shift int, mark bool) string {
	f := float64(n) / float64(int64(1)<<shift)
	s := fmt.Sprintf("%.2f", f)
	if back, err := strconv.ParseFloat(s, 64); mark && err == nil && back > f {
		return "<" + s
	}
	return s
}

// longSize is the form of messages: "64.00 MiB".
func longSize(n int64) string {
	unit, shift := scale(n)
	return rounded(n, shift, true) + " " + map[string]string{"k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}[unit]
}
