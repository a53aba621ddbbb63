//go:build e2e

package scenario

import (
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// watchdog makes sanlock of a host use the watchdog, which the hosts here otherwise do
// without. It ends with the host: the next boot writes sanlock.conf anew.
func (e *env) watchdog(h *cluster.Host) {
	e.Helper()
	e.must(h, `grep -q 'use_watchdog = 1' /etc/sanlock/sanlock.conf && exit 0
set -e
vgchange --lockstop `+cluster.VG+`
systemctl stop virtlvmd.service lvmlockd.service sanlock.service
sed -i 's/use_watchdog = 0/use_watchdog = 1/' /etc/sanlock/sanlock.conf
sed -i 's/-w 0//' /etc/default/sanlock # Debian 12 has it there
systemctl unmask -q wdmd.service
systemctl enable -q wdmd.service
systemctl start wdmd.service sanlock.service lvmlockd.service virtlvmd.service`)
	require.NoError(e, h.StartLockspace(e.ctx))
}

// asItWas undoes what the scenarios before have set up for themselves.
func asItWas(e *env) {
	e.must(e.a, "vgchange -qq --setautoactivation y "+cluster.VG)
	for _, h := range e.hosts {
		e.must(h, `sed -i '/lease-lost/d' /etc/lvm/lvm.conf
if grep -q 'use_watchdog = 1' /etc/sanlock/sanlock.conf; then
	set -e
	vgchange --lockstop `+cluster.VG+`
	systemctl stop virtlvmd.service lvmlockd.service sanlock.service wdmd.service
	sed -i 's/use_watchdog = 1/use_watchdog = 0/' /etc/sanlock/sanlock.conf
	systemctl start sanlock.service lvmlockd.service virtlvmd.service
fi
systemctl disable -q --now wdmd.service
systemctl mask -q wdmd.service`)
		require.NoError(e, h.StartLockspace(e.ctx))
	}
}

// results are the lines of `virtlvm check` on a host, by id.
func (e *env) results(h *cluster.Host) map[string]api.CheckResult {
	e.Helper()
	var reports []api.CheckReport
	require.NoError(e, h.Ask(e.ctx, &reports, "check"))
	require.Len(e, reports, 1)
	found := map[string]api.CheckResult{}
	for _, r := range reports[0].Results {
		found[r.ID] = r
	}
	return found
}

// checkRight: hosts that are set up as the documents say have nothing to be told.
func checkRight(e *env) {
	require.Equal(e, api.CheckFail, e.results(e.a)["sanlock.watchdog"].State, "there is none yet")
	for _, h := range e.hosts {
		e.watchdog(h)
	}
	e.must(e.a, "vgchange -qq --setautoactivation n "+cluster.VG)
	e.define(disk("vm1", e.one), e.a, e.b)
	e.start(e.a, "vm1") // libvirt calls the hook
	for _, h := range e.hosts {
		e.allRight(h)
	}
	r, err := e.b.Run(e.ctx, "virtlvm check --cluster --quiet")
	require.NoError(e, err)
	e.Logf("virtlvm check --cluster --quiet: exit %d\n%s", r.Exit, r.Output())
	require.Zero(e, r.Exit)
	e.destroy(e.a, "vm1")
	e.released(e.one)
}

// allRight: PASS, or SKIP where it does not apply. An emulated disk may be slow.
func (e *env) allRight(h *cluster.Host) {
	e.Helper()
	require.NoError(e, cluster.Eventually(e.ctx, 2*time.Minute, func() error {
		for id, r := range e.results(h) {
			if r.State != api.CheckPass && r.State != api.CheckSkip && (id != "sanlock.renewal" || r.State != api.CheckWarn) {
				return fmt.Errorf("check on %s: %s %s: %s", h.Name, id, r.State, r.Detail)
			}
		}
		return nil
	}))
}

// checkWrong: set-ups that are broken, one after the other; each is a FAIL of its own line,
// and gone when it is repaired.
func checkWrong(e *env) {
	h := e.a
	e.watchdog(h)
	e.watchdog(e.b)
	const (
		lvmConf, local = "/etc/lvm/lvm.conf", "/etc/lvm/lvmlocal.conf"
		sanlockConf    = "/etc/sanlock/sanlock.conf"
		toml           = "/etc/virtlvm/virtlvm.toml"
		hook           = "/etc/libvirt/hooks/qemu"
	)
	edit := func(file, command string) (do, undo string) {
		return "cp -a " + file + " /root/as-it-was && " + command, "cp -a /root/as-it-was " + file
	}
	replace := func(file, from, to string) (do, undo string) {
		return edit(file, fmt.Sprintf("grep -q %[1]s %[3]s && sed -i s/%[1]s/%[2]s/ %[3]s", cluster.Quote(from), cluster.Quote(to), file))
	}
	e.define(disk("careless", e.one), h)
	type step struct {
		id   string
		do   string
		undo string
	}
	steps := []step{
		{id: "lvm.use_lvmlockd"},
		{id: "lvm.host_id"},
		{id: "lvm.host_id_unique"},
		{id: "lvm.kill_command"},
		{id: "sanlock.host_name"},
		{id: "libvirt.hook_current"},
		{id: "virtlvm.config"},
		{id: "libvirt.hook", do: "chmod 0644 " + hook, undo: "chmod 0755 " + hook},
		{id: "lvm.global_lock", do: "lvmlockctl --gl-disable " + cluster.VG, undo: "lvmlockctl --gl-enable " + cluster.VG},
		{id: "virtlvm.break_glass", do: "touch " + api.BreakGlassPath, undo: "rm " + api.BreakGlassPath},
		{
			id:   "guests.cache",
			do:   `virsh dumpxml careless | sed "s/cache='none'/cache='unsafe'/" >/root/careless.xml && virsh -q define /root/careless.xml`,
			undo: `sed -i "s/cache='unsafe'/cache='none'/" /root/careless.xml && virsh -q define /root/careless.xml && rm /root/careless.xml`,
		},
		{id: "lvm.lockspaces", do: "vgchange --lockstop " + cluster.VG, undo: "vgchange --lockstart " + cluster.VG},
		{
			id:   "lvm.lvmlockd",
			do:   "vgchange --lockstop " + cluster.VG + " && systemctl stop lvmlockd.service",
			undo: "systemctl start lvmlockd.service && vgchange --lockstart " + cluster.VG,
		},
	}
	for i := range steps {
		s := &steps[i]
		switch s.id {
		case "lvm.use_lvmlockd":
			s.do, s.undo = replace(lvmConf, "use_lvmlockd = 1", "use_lvmlockd = 0")
		case "lvm.kill_command":
			s.do, s.undo = replace(lvmConf, "use_lvmlockd = 1", `use_lvmlockd = 1\n\tlvmlockctl_kill_command = "\/bin\/true"`)
		case "lvm.host_id":
			s.do, s.undo = replace(local, "host_id = 1", "host_id = 0")
		case "lvm.host_id_unique":
			s.do, s.undo = replace(local, "host_id = 1", "host_id = 2")
		case "sanlock.host_name":
			s.do, s.undo = replace(sanlockConf, "kvm-a", "kvm-x")
		case "libvirt.hook_current":
			s.do, s.undo = edit(hook, "echo >>"+hook)
		case "virtlvm.config":
			s.do, s.undo = edit(toml, "echo 'nope = 1' >>"+toml)
		}
	}
	before := e.results(h)
	for _, s := range steps {
		require.NotEqual(e, api.CheckFail, before[s.id].State, "%s before it is broken: %s", s.id, before[s.id].Detail)
		e.must(h, s.do)
		r := e.results(h)[s.id]
		e.Logf("%s: %s: %s -> %s", s.id, r.State, r.Detail, r.Fix)
		e.must(h, s.undo)
		require.Equal(e, api.CheckFail, r.State, "%s: %s", s.id, r.Detail)
		require.NotEmpty(e, r.Fix, s.id)
		if slices.Contains([]string{"lvm.lockspaces", "lvm.lvmlockd"}, s.id) {
			require.NoError(e, h.StartLockspace(e.ctx))
		}
	}
	e.allRight(h)
	require.NoError(e, h.RemoveGuest(e.ctx, "careless"))
}
