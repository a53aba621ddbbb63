package check

import (
	"slices"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

func checkLvmlockd(f *Facts) Result {
	var found findings
	switch {
	case f.Local.Err != nil:
		found.fail("see 'lvmlockctl --info'", "%s", f.Local.Err)
	case !f.Local.Value.LockdRunning && len(f.Local.Value.Orphans) > 0:
		found.fail("'lvmlockd --adopt 1', or reboot this host", "it does not run, and has left locks behind")
	case !f.Local.Value.LockdRunning:
		found.fail("'systemctl enable --now lvmlockd'", "it does not run: no volume can be locked")
	}
	return f.lockless(found.result(""))
}

func checkSanlock(f *Facts) Result {
	var found findings
	d := f.Sanlock.Value
	switch v := parseVersion(d.Version); {
	case f.Sanlock.Err != nil:
		found.fail("see 'sanlock client status'", "%s", f.Sanlock.Err)
	case !d.Running:
		found.fail("'systemctl enable --now sanlock'", "it does not run: no lease can be taken or kept")
	case v != nil && slices.Compare(v, sanlockLeast) < 0:
		found.warn("upgrade sanlock to 3.8 or later", "%s is older than any with which virtlvm has been tried", d.Version)
	}
	return f.lockless(found.result("%s", d.Version))
}

// checkWatchdog: a host whose sanlock dies, or loses its storage, must be reset before
// another host gets its leases; only a watchdog does that for certain.
func checkWatchdog(f *Facts) Result {
	const danger = "a host that loses its leases then goes on writing while another host gets them: split brain is possible"
	d, w := f.Sanlock.Value, f.Watchdog.Value
	var found findings
	switch {
	case f.Sanlock.Err != nil || !d.Running:
		return skip("sanlock does not run")
	case !d.UseWatchdog:
		found.fail("set use_watchdog = 1 in /etc/sanlock/sanlock.conf, take '-w 0' out of /etc/default/sanlock if it is there, 'systemctl enable --now wdmd', stop the lockspaces and restart sanlock", "sanlock runs without one")
		found.add("", danger)
		return found.result("")
	case f.Watchdog.Err != nil:
		return unknown(f.Watchdog.Err)
	}
	if w.Daemon == 0 {
		found.fail("'systemctl enable --now wdmd'", "wdmd does not run")
	}
	if len(w.Devices) == 0 {
		found.fail("load the driver of the host's watchdog, or softdog ('modprobe softdog', and a file in /etc/modules-load.d)", "the kernel has no watchdog")
	}
	if found.state == "" && len(d.Spaces) > 0 && len(w.Open) == 0 {
		found.fail("see 'journalctl -u wdmd'", "lockspaces are started and wdmd has no watchdog open: nothing resets this host")
	}
	if found.state == api.CheckFail {
		found.add("", danger)
	}
	if found.state == "" && len(d.Spaces) == 0 {
		return skip("no lockspace is started, so no watchdog is armed yet")
	}
	return found.result("%s", w.describe())
}

func (w Watchdog) describe() string {
	var all []string
	for _, d := range w.Devices {
		if !slices.Contains(w.Open, d.Name) {
			continue
		}
		text := d.Name
		if d.Identity != "" {
			text += " (" + d.Identity + ")"
		}
		all = append(all, text)
	}
	return join(all, ", ")
}

func checkHostName(f *Facts) Result {
	const fix = "set our_host_name to this host's name in /etc/sanlock/sanlock.conf, stop the lockspaces and restart sanlock"
	var found findings
	want, has := f.SanlockConf["our_host_name"], f.Sanlock.Value.HostName
	if want == "" && !isDefaultName(has) {
		want = has // from its command line
	}
	switch {
	case want == "":
		found.fail(fix, "it is not set: other hosts can neither name this one as a holder nor reach it, and refuse live migrations from here")
	case api.CheckHostName(want) != nil:
		found.fail(fix, "%v: other hosts cannot reach this one", api.CheckHostName(want))
	case has == "":
		return skip("sanlock does not run; sanlock.conf says %s", want)
	case has != want:
		found.fail("stop the lockspaces and restart sanlock", "sanlock runs with %s, and sanlock.conf says %s now", has, want)
	case f.Host != "" && f.Host != want:
		found.warn("'systemctl restart virtlvmd'", "virtlvmd calls itself %s, and sanlock %s", f.Host, want)
	}
	return f.lockless(found.result("%s", want))
}

// checkOrphans: leases that a lvmlockd has left protect on, and nobody here can drop them.
func checkOrphans(f *Facts) Result {
	if f.Local.Err != nil {
		return skip("the locks cannot be read")
	}
	if f.Local.Value.SanlockDown {
		return skip("sanlock does not run")
	}
	names := map[string]string{}
	for _, c := range f.VGs.Value {
		for _, v := range c.Volumes {
			names[v.ID.LV] = v.Name()
		}
	}
	var found findings
	for _, o := range f.Local.Value.Orphans {
		name := names[o.LV]
		if name == "" {
			name = o.VG + ", volume " + o.LV
		}
		found.fail("'lvmlockd --adopt 1' where the last one ran so, or reboot this host; never drop such a lock while a guest may use the volume",
			"%s (%s) is held for a lvmlockd that is gone", name, o.Mode)
	}
	return found.result("")
}

// checkNames looks for hosts that cannot be named: their leases would have only a number.
func checkNames(f *Facts) Result {
	looked := 0
	var found findings
	for _, vg := range sortedKeys(f.HostTables) {
		t := f.HostTables[vg]
		if t.Err != nil {
			continue
		}
		looked++
		for _, id := range sortedKeys(t.Value) {
			h := t.Value[id]
			if h.State == model.HostDead || h.Self {
				continue
			}
			if h.Name == "" || api.CheckHostName(h.Name) != nil || isDefaultName(h.Name) {
				found.warn("set our_host_name in /etc/sanlock/sanlock.conf there, stop the lockspaces and restart sanlock",
					"the host with host_id %d has no name of its own in %s (%q)", id, vg, h.Name)
			}
		}
	}
	if looked == 0 {
		return skip("no lockspace can be read")
	}
	return found.result("")
}

// isDefaultName recognises what sanlock calls a host without our_host_name: a uuid, a dot,
// and the start of the host's name.
func isDefaultName(name string) bool {
	uuid, _, ok := strings.Cut(name, ".")
	return ok && len(uuid) == 36 && strings.Count(uuid, "-") == 4
}
