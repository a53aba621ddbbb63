package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

func checkDaemon(f *Facts) Result {
	var found findings
	switch {
	case f.Alone:
		found.fail("'systemctl enable --now virtlvmd.service', and see 'journalctl -u virtlvmd'", "it does not answer: no guest starts on this host")
	case !f.Status.Ready:
		found.warn("wait, and see 'journalctl -u virtlvmd'", "it is still taking its first look at this host")
	}
	return found.result("")
}

func checkProblems(f *Facts) Result {
	if f.Alone {
		return skip("virtlvmd does not run")
	}
	var found findings
	for _, p := range f.Status.Problems {
		if strings.HasPrefix(p, "ALARM") {
			found.fail("see 'virtlvm status'", "%s", p)
		} else {
			found.warn("see 'virtlvm status'", "%s", p)
		}
	}
	return found.result("")
}

// bootUnits are those that must start with the host.
func bootUnits() []string {
	return []string{"virtlvmd.service", "lvmlockd.service", "sanlock.service"}
}

func checkBoot(f *Facts) Result {
	if f.Units.Err != nil {
		return skip("systemd does not answer: %s", f.Units.Err)
	}
	var found findings
	for _, name := range bootUnits() {
		u := f.Units.Value[name]
		if name != "virtlvmd.service" && f.claimsOnly() {
			continue
		}
		if !u.Loaded {
			found.fail("install it", "there is no %s", name)
		} else if u.Enabled == "disabled" || u.Enabled == "masked" {
			found.fail("'systemctl enable "+name+"'", "%s is %s: guests do not start after a reboot", name, u.Enabled)
		}
	}
	// sanlock's unit wants wdmd's on most distributions: it runs then, enabled or not.
	if w := f.Units.Value["wdmd.service"]; w.Loaded && (w.Enabled == "masked" || w.Enabled == "disabled" && f.Watchdog.Value.Daemon == 0) {
		found.warn("'systemctl enable wdmd.service'", "wdmd.service is %s: after a reboot this host may be without a watchdog", w.Enabled)
	}
	for _, name := range []string{"virtqemud.service", "libvirtd.service"} {
		if u := f.Units.Value[name]; u.Loaded && !slices.Contains(u.After, "virtlvmd.service") {
			found.warn("reinstall the package: it brings "+name+".d/50-virtlvm.conf", "%s is not ordered after virtlvmd.service: guests that start with it may be refused at boot", name)
		}
	}
	return found.result("")
}

func checkSockets(f *Facts) Result {
	var found findings
	for _, s := range f.Sockets {
		if s.Bad != "" {
			found.fail("'systemctl restart virtlvmd.socket virtlvmd-ro.socket virtlvmd-peer.socket virtlvmd.service'", "%s %s", s.Path, s.Bad)
		}
	}
	return found.result("")
}

func checkBreakGlass(f *Facts) Result {
	var found findings
	if f.BreakGlass != "" {
		found.fail("'rm "+f.BreakGlass+"'", "IT IS ON: guests start unprotected while %s exists", f.BreakGlass)
	}
	return found.result("off")
}

func checkConfig(f *Facts) Result {
	var found findings
	if f.Config != nil {
		found.fail("'virtlvm config check'", "it is refused: %s", f.Config)
	}
	return found.result("")
}

func checkDatabase(f *Facts) Result {
	const fix = "free its disk and see 'virtlvm status'"
	var found findings
	switch {
	case f.NoData && f.Alone:
		return skip("there is none yet")
	case f.NoData:
		found.fail(fix, "there is none: starts of guests are refused until it can be made")
	case errors.Is(f.Damage.Err, context.DeadlineExceeded):
		found.warn("", "it is too large to be looked through in time; no fault so far")
	case f.Damage.Err != nil:
		found.fail(fix, "%s", f.Damage.Err)
	case f.Damage.Value != "":
		found.fail("'systemctl restart virtlvmd' sets it aside and begins anew; guests and locks stay", "it is damaged: %s", f.Damage.Value)
	}
	if s := f.Status.Database; !f.Alone && s != "ok" {
		found.fail(fix, "%s", s)
	}
	return found.result("")
}

// Room below which a host is in trouble soon, in bytes. A small host's /run has some 200 MiB.
const (
	roomFail = 32 << 20
	roomWarn = 128 << 20
)

func checkSpace(f *Facts) Result {
	var found findings
	var free []string
	for _, s := range f.Spaces {
		fix := "free room in the file system of " + s.Path
		switch {
		case s.Err != nil:
			found.warn("", "%s", s.Err)
		case s.Free < roomFail:
			found.fail(fix, "%s has %d MiB free: starts of guests are refused when the journal cannot be written", s.Path, s.Free>>20)
		case s.Files < 100:
			found.fail(fix, "%s has room for %d more files", s.Path, s.Files)
		case s.Free < roomWarn:
			found.warn(fix, "%s has %d MiB free", s.Path, s.Free>>20)
		}
		free = append(free, fmt.Sprintf("%s: %d MiB", s.Path, s.Free>>20))
	}
	return found.result("%s", join(free, ", "))
}

func checkSpool(f *Facts) Result {
	var found findings
	if n := f.Spool.Waiting; n > 0 {
		found.warn("see 'virtlvm hooks' in a moment", "%d hook events wait on disk", n)
	}
	if n := f.Spool.Broken; n > 0 {
		found.warn("look at them and delete them", "%d hook events could not be read and were set aside", n)
	}
	return found.result("")
}
