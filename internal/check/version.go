package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Versions with which virtlvm has been tried, and the oldest that can do what it needs.
var (
	lvmOldest    = []int{2, 3, 12} // vgchange --setautoactivation
	lvmTried     = []int{2, 3, 16}
	lvmNewest    = []int{2, 3, 40} // its messages are those that we read
	sanlockLeast = []int{3, 8}
)

// limit is what versions from one up to, but not with, another cannot do.
type limit struct {
	from, before []int
	what         string
}

func lvmLimits() []limit {
	return []limit{
		{nil, []int{2, 3, 31}, "it shares the origin of a snapshot when told to by hand (virtlvm does not)"},
		{[]int{2, 3, 31}, []int{2, 3, 32}, "it shares a volume with writecache when told to by hand (virtlvm does not)"},
		{nil, []int{2, 3, 33}, "its messages do not name the host that holds a lock (virtlvm's do)"},
	}
}

// parseVersion reads "2.03.31"; nil if it is none.
func parseVersion(s string) []int {
	var v []int
	for _, part := range strings.Split(s, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		v = append(v, n)
	}
	return v
}

func checkLVMVersion(f *Facts) Result {
	v := parseVersion(f.LVMVersion.Value)
	switch {
	case f.LVMVersion.Err != nil && slices.Contains(f.Missing, "lvs"):
		return skip("LVM is not installed")
	case f.LVMVersion.Err != nil:
		return unknown(f.LVMVersion.Err)
	case v == nil:
		return unknown(fmt.Errorf("%q is no version", f.LVMVersion.Value))
	}
	var found findings
	switch {
	case slices.Compare(v, lvmOldest) < 0:
		found.fail("upgrade lvm2 and lvm2-lockd to 2.03.16 or later", "%s has no autoactivation property and no lvmlockctl_kill_command", f.LVMVersion.Value)
	case slices.Compare(v, lvmTried) < 0:
		found.warn("upgrade lvm2 and lvm2-lockd to 2.03.16 or later", "%s is older than 2.03.16, the oldest with which virtlvm has been tried", f.LVMVersion.Value)
	case slices.Compare(v, lvmNewest) > 0:
		found.warn("look for a newer virtlvm", "%s is newer than 2.03.40, the newest whose messages virtlvm is known to understand", f.LVMVersion.Value)
	}
	detail := f.LVMVersion.Value
	var limits []string
	for _, l := range lvmLimits() {
		if (l.from == nil || slices.Compare(v, l.from) >= 0) && slices.Compare(v, l.before) < 0 {
			limits = append(limits, l.what)
		}
	}
	if len(limits) > 0 {
		detail += "; " + strings.Join(limits, "; ")
	}
	return found.result("%s", detail)
}
