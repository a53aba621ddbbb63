package check

import (
	"fmt"
	"io/fs"
	"strings"
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/guests"
	"virtlvm/internal/run"
)

// Places of the hook, below the root of the file system. The package's scripts put it
// there, see packaging/install-hook.sh.
const (
	hookDir   = "etc/libvirt/hooks"
	hookMain  = hookDir + "/qemu"
	hookExtra = hookDir + "/qemu.d/50-virtlvm"
	hookOwn   = "usr/lib/virtlvm/qemu" // what the package brought
)

const installHook = "'/usr/lib/virtlvm/install-hook /usr/lib/virtlvm/qemu /etc/libvirt/hooks'"

// Hook is what lies in libvirt's folder of hooks.
type Hook struct {
	Err    error      // the folder cannot be read
	Ours   []HookFile // main one first
	Others []HookFile // somebody else's that libvirt would run for guests
	// Same: Ours[0] is what the package brought, to the byte; Unknown says why that is not
	// known.
	Same    bool
	Unknown string
}

// HookFile is a hook.
type HookFile struct {
	Path     string // with a leading slash
	Mode     fs.FileMode
	UID      uint32
	Modified time.Time
	Changed  time.Time // of its status, such as by a rename
}

func (h HookFile) runs() bool { return h.Mode.Perm()&0o111 != 0 && !h.Mode.IsDir() }

func checkLibvirt(f *Facts) Result {
	var found findings
	var names []string
	for _, p := range f.Libvirt.Value {
		names = append(names, p.Name)
	}
	if len(names) > 0 {
		return pass("%s", strings.Join(names, ", "))
	}
	for _, name := range []string{"virtqemud", "libvirtd"} {
		if f.Units.Value[name+".socket"].Active == "active" {
			return pass("%s starts when it is needed", name)
		}
	}
	switch {
	case f.Libvirt.Err != nil:
		return unknown(f.Libvirt.Err)
	case f.Units.Value["virtqemud.service"].Loaded || f.Units.Value["libvirtd.service"].Loaded:
		found.warn("'systemctl enable --now libvirtd' (or virtqemud)", "it does not run")
	default:
		found.fail("install libvirt-daemon-system or libvirt-daemon-driver-qemu", "it is not installed: nothing calls the hook")
	}
	return found.result("")
}

func checkHook(f *Facts) Result {
	var found findings
	h := f.Hook
	if h.Err != nil {
		found.fail(installHook, "%s", h.Err)
		return found.result("")
	}
	if len(h.Ours) == 0 {
		found.fail(installHook, "there is none in /%s: guests start unprotected", hookDir)
		return found.result("")
	}
	for _, file := range h.Ours {
		switch {
		case !file.runs():
			found.fail("'chmod 0755 "+file.Path+"'", "%s cannot be run: libvirt does without it, and guests start unprotected", file.Path)
		case file.UID != 0 || file.Mode.Perm()&0o022 != 0:
			found.fail("'chown root: "+file.Path+"', 'chmod 0755 "+file.Path+"'", "%s can be changed by others than root", file.Path)
		case file.Mode&fs.ModeSymlink != 0:
			found.warn(installHook, "%s is a link: libvirt's AppArmor profile lets only a file that lies there be run", file.Path)
		}
	}
	if len(h.Ours) > 1 {
		found.warn("remove one of them", "libvirt runs both %s and %s", h.Ours[0].Path, h.Ours[1].Path)
	}
	return found.result("%s", h.Ours[0].Path)
}

func checkHookCurrent(f *Facts) Result {
	switch {
	case len(f.Hook.Ours) == 0:
		return skip("there is no hook")
	case f.Hook.Unknown != "":
		return skip("%s", f.Hook.Unknown)
	}
	var found findings
	if !f.Hook.Same {
		found.fail(installHook, "%s is not what the package brought (/%s)", f.Hook.Ours[0].Path, hookOwn)
	}
	return found.result("")
}

// checkHookSeen: libvirt looks for a first hook only when it starts or reloads. A call of
// the running libvirt proves that it has found ours; times are the second best.
func checkHookSeen(f *Facts) Result {
	switch {
	case len(f.Hook.Ours) == 0 || !f.Hook.Ours[0].runs():
		return skip("there is no hook that can be run")
	case f.Libvirt.Err != nil:
		return unknown(f.Libvirt.Err)
	case len(f.Libvirt.Value) == 0:
		return pass("libvirt does not run, and looks for it when it starts")
	}
	var found findings
	var how []string
	for _, p := range f.Libvirt.Value {
		unit := p.Name + ".service"
		fix := "'systemctl reload " + unit + "'"
		repair := Repair{p.Name, activation.Repair{Cmd: run.Cmd{Name: "systemctl", Args: []string{"reload", unit}}}}
		if call := f.HookCalls[p.PID].Value; !call.IsZero() {
			how = append(how, fmt.Sprintf("%s called it at %s", p.Name, call.Format(time.DateTime)))
			continue
		}
		guest := f.startedUnseen(p)
		switch {
		case guest != "":
			found.fail(fix, "%s started guest %s since, and did not call it: its guests run unprotected", p.Name, show(guest))
			found.repair(repair)
		case f.foundBy(p):
			how = append(how, p.Name+" started or was reloaded after it was installed")
		default:
			found.warn(fix, "%s has been running since before there was a hook and may not call it: guests would start unprotected", p.Name)
			found.repair(repair)
		}
	}
	return found.result("%s", strings.Join(how, ", "))
}

// foundBy: some hook was there when that libvirt last looked; then it runs all there are.
func (f *Facts) foundBy(p Process) bool {
	looked := p.Began
	if reloaded := f.Units.Value[p.Name+".service"].Reloaded; reloaded.After(looked) {
		looked = reloaded
	}
	// Ours keeps the time of the first one through all upgrades. A change of somebody
	// else's may have been a rename: its status tells.
	if f.Hook.Ours[0].Modified.Before(looked) {
		return true
	}
	for _, h := range f.Hook.Others {
		if h.runs() && h.Changed.Before(looked) {
			return true
		}
	}
	return false
}

// startedUnseen is a guest that began after our hook was there, under a libvirt that has
// never called it.
func (f *Facts) startedUnseen(p Process) string {
	if f.HookCalls[p.PID].Err != nil || f.Running.Err != nil {
		return ""
	}
	for _, uuid := range sortedKeys(f.Running.Value.ByUUID) {
		g := f.Running.Value.ByUUID[uuid]
		if g.Alive != guests.Alive || g.Start <= p.Start {
			continue
		}
		// What is older than the journal keeps may have been called for.
		if began := f.since(g.Start); began.After(f.Hook.Ours[0].Changed) && f.Now.Sub(began) < f.Keep {
			return g.Name
		}
	}
	return ""
}

// clockTicks is how many there are in a second, on every Linux (USER_HZ).
const clockTicks = 100

// since is the time of so many clock ticks after boot.
func (f *Facts) since(ticks uint64) time.Time {
	return f.BootAt.Add(time.Duration(ticks) * time.Second / clockTicks) //nolint:gosec // ticks since boot fit
}
