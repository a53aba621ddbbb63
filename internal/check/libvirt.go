package check

import (
	"slices"
	"strings"
)

// AppArmor is what it does to libvirt.
type AppArmor struct {
	Enabled bool
	Err     error
	// Enforced are the profiles of libvirt's daemons that are loaded in enforce mode;
	// Allows: each of their texts lets what lies in libvirt's folder of hooks be run.
	Enforced []string
	Allows   bool
}

// SELinux is what it does to libvirt.
type SELinux struct {
	Enforcing  bool
	Label      string // context of the hook; "" if not known
	Unconfined bool   // the boolean virt_hooks_unconfined
}

// checkConfinement: a profile that does not let the hook run keeps every guest from
// starting, since it fails closed; unless libvirt has called it already.
func checkConfinement(f *Facts) Result {
	if !f.AppArmor.Enabled && !f.SELinux.Enforcing && f.AppArmor.Err == nil {
		return pass("neither is enforced")
	}
	for _, p := range f.Libvirt.Value {
		if !f.HookCalls[p.PID].Value.IsZero() {
			return pass("%s has run it", p.Name)
		}
	}
	var found findings
	switch {
	case f.AppArmor.Err != nil:
		found.warn("", "cannot tell what AppArmor does: %s", f.AppArmor.Err)
	case f.AppArmor.Enabled && len(f.AppArmor.Enforced) > 0 && !f.AppArmor.Allows:
		found.fail("add '/etc/libvirt/hooks/** rmix,' to it, see /usr/share/doc/virtlvm/README.AppArmor",
			"the profile of %s has no rule that lets the hook run", strings.Join(f.AppArmor.Enforced, ", "))
	}
	if f.SELinux.Enforcing {
		types := []string{"virt_hook_t", "virt_etc_t", "virt_etc_rw_t"}
		if parts := strings.Split(f.SELinux.Label, ":"); len(f.Hook.Ours) > 0 && len(parts) > 2 && !slices.Contains(types, parts[2]) {
			found.warn("'restorecon -Rv /etc/libvirt/hooks'", "the hook has the SELinux type %s", parts[2])
		}
		if !f.SELinux.Unconfined {
			found.warn("'setsebool -P virt_hooks_unconfined on', see /usr/share/doc/virtlvm/README.SELinux",
				"SELinux may keep libvirt from running the hook, and no call has come yet")
		}
	}
	return found.result("")
}

// Pool is a storage pool of libvirt of type logical.
type Pool struct {
	Name, VG  string
	Running   bool
	Autostart bool
}

// checkPools: starting a pool of type logical runs `vgchange -aly VG`, which takes every
// free volume of the VG, and stopping it `vgchange -aln VG`.
func checkPools(f *Facts) Result {
	managed := map[string]bool{}
	for _, c := range f.managed() {
		managed[c.VG.Name] = true
	}
	if f.VGs.Err != nil {
		return skip("the volume groups cannot be listed")
	}
	var found findings
	if f.Pools.Err != nil {
		found.warn("", "not all pools can be told: %s", f.Pools.Err)
	}
	for _, p := range f.Pools.Value {
		if !managed[p.VG] {
			continue
		}
		name := show(p.Name)
		switch {
		case p.Autostart:
			found.fail("'virsh pool-autostart --disable "+name+"'; name the guests' disks as /dev/"+p.VG+"/LV, and undefine the pool when it does not run",
				"pool %s starts with libvirt and then activates every free volume of %s here: guests elsewhere do not start", name, p.VG)
		case p.Running:
			found.warn("do not stop it while guests run here, that deactivates what is free; name the guests' disks as /dev/"+p.VG+"/LV, and undefine the pool when it does not run",
				"pool %s runs: starting it activated every free volume of %s", name, p.VG)
		default:
			found.warn("'virsh pool-undefine "+name+"', and name the guests' disks as /dev/"+p.VG+"/LV", "to start pool %s would activate every free volume of %s", name, p.VG)
		}
	}
	return found.result("")
}
