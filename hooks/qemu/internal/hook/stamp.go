package hook

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"virtlvm/internal/api"
)

// stamp tells when and under which libvirtd this call happens. What cannot be read stays
// zero: an event with half a stamp is worth more than none.
func stamp(proc string, parent int) api.Stamp {
	s := api.Stamp{LibvirtdPID: parent}
	if id, err := readFile(proc + "/sys/kernel/random/boot_id"); err == nil {
		s.BootID = strings.TrimSpace(string(id))
	}
	if up, err := readFile(proc + "/uptime"); err == nil {
		s.UptimeMillis = uptimeMillis(string(up))
	}
	if stat, err := readFile(proc + "/" + strconv.Itoa(parent) + "/stat"); err == nil {
		s.LibvirtdStart = startTime(stat)
	}
	return s
}

// uptimeMillis reads the first field of /proc/uptime, seconds with two decimals.
func uptimeMillis(uptime string) int64 {
	first, _, _ := strings.Cut(uptime, " ")
	d, err := time.ParseDuration(strings.TrimSpace(first) + "s")
	if err != nil {
		return 0
	}
	return d.Milliseconds()
}

// startTime is field 22 of /proc/PID/stat, in clock ticks since boot. The second field,
// the command in brackets, may itself hold spaces and brackets.
func startTime(stat []byte) uint64 {
	rest := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const startField = 22 - 3 // the rest begins with field 3
	if len(rest) <= startField {
		return 0
	}
	start, err := strconv.ParseUint(string(rest[startField]), 10, 64)
	if err != nil {
		return 0
	}
	return start
}
