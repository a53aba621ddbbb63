//go:build e2e

package scenario

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// TestPackage is the life of the package on a host whose guests go on running.
func TestPackage(t *testing.T) {
	run(t,
		scenario{"install_adopts", installAdopts, false},
		scenario{"upgrade_running", upgradeRunning, false},
		scenario{"two_versions", twoVersions, true},
		scenario{"remove_running", removeRunning, false},
		scenario{"own_hook_kept", ownHookKept, false},
		scenario{"confined", confined, true},
	)
}

// unchanged are what no step of the package may disturb.
type unchanged struct{ qemu, libvirtd string }

func (e *env) processes(guest string) unchanged {
	e.Helper()
	return unchanged{
		qemu:     e.must(e.a, "cat /run/libvirt/qemu/"+guest+".pid"),
		libvirtd: e.must(e.a, "systemctl show -p MainPID --value libvirtd.service"),
	}
}

// install installs a package on A and returns what it printed.
func (e *env) install(deb string) string {
	e.Helper()
	out, err := e.a.InstallDeb(e.ctx, deb)
	require.NoError(e, err)
	e.Logf("dpkg -i:\n%s", out)
	return out
}

// purge removes the package from A with its state. Nothing of it may be left, and guests
// start without it at once.
func (e *env) purge() {
	e.Helper()
	e.Logf("dpkg --purge:\n%s", e.must(e.a, "dpkg --purge virtlvm 2>&1"))
	require.Empty(e, e.must(e.a, "ls -d /etc/libvirt/hooks/qemu.d /var/lib/virtlvm /etc/virtlvm /run/virtlvm 2>/dev/null; grep -rl virtlvm/hooks /etc/libvirt/hooks || true"))
	require.Empty(e, e.must(e.a, "pgrep -x virtlvmd || true"))
	e.define(cluster.Guest{Name: "bare"}, e.a)
	e.start(e.a, "bare")
	require.NoError(e, e.a.RemoveGuest(e.ctx, "bare"))
}

// installAdopts: a host where guests already run, on a volume activated by hand, gets the
// package: the guest is not disturbed, and virtlvm's from then on.
func installAdopts(e *env) {
	v := e.one
	e.purge()
	e.must(e.a, "lvchange -aey "+v.Full())
	e.define(disk("earlier", v), e.a)
	e.start(e.a, "earlier")
	was := e.processes("earlier")

	e.install(suite.debs.New)
	require.Equal(e, was, e.processes("earlier"))
	e.keeps(v, "earlier")
	// libvirtd has known a hook before the purge; whether it must be told of the new one is
	// for the package to say. That it is called is proved here.
	require.NoError(e, e.a.ProveHook(e.ctx))
	e.destroy(e.a, "earlier")
	e.released(v)
}

// upgradeRunning: an older version, and an upgrade under a running guest.
func upgradeRunning(e *env) {
	v := e.one
	e.install(suite.debs.Old) // a downgrade, in fact: both have the same schema
	require.Contains(e, e.must(e.a, "virtlvm version"), "0.0.1")
	e.define(disk("kept", v), e.a)
	e.start(e.a, "kept")
	was := e.processes("kept")
	e.must(e.a, "echo '# a line of the administrator' >>/etc/virtlvm/virtlvm.toml")
	hook := e.must(e.a, "stat -c %i /etc/libvirt/hooks/qemu")
	rows := e.must(e.a, "virtlvm hooks --guest kept | wc -l")

	e.install(suite.debs.New)
	require.NotContains(e, e.must(e.a, "virtlvm version"), "0.0.1")
	require.Equal(e, was, e.processes("kept"))
	require.NotEqual(e, hook, e.must(e.a, "stat -c %i /etc/libvirt/hooks/qemu"), "the hook was not replaced by another file")
	require.Contains(e, e.must(e.a, "tail -n 1 /etc/virtlvm/virtlvm.toml"), "administrator")
	require.Equal(e, rows, e.must(e.a, "virtlvm hooks --guest kept | wc -l"), "the journal is not what it was")
	e.keeps(v, "kept")
	e.destroy(e.a, "kept")
	e.released(v)
}

// twoVersions: hosts are upgraded one after the other, and guests migrate between them meanwhile.
func twoVersions(e *env) {
	guest, v := "mixed", e.one
	e.install(suite.debs.Old)
	defer e.install(suite.debs.New)
	require.Contains(e, e.must(e.a, "virtlvm version"), "0.0.1")
	require.NotContains(e, e.must(e.b, "virtlvm version"), "0.0.1")
	e.define(disk(guest, v), e.a, e.b)
	e.start(e.a, guest)
	require.Zero(e, e.migrate(e.a, e.b, guest).Exit)
	e.alone(e.b, v)
	e.Logf("virtlvm hosts on kvm-b:\n%s", e.must(e.b, "virtlvm hosts"))
	require.Regexp(e, `(?m)^kvm-a .* 0\.0\.1 `, e.must(e.b, "virtlvm hosts"))
	require.Zero(e, e.migrate(e.b, e.a, guest).Exit)
	e.over(e.a, guest, v)
}

// removeRunning: the package goes, the guest and its lock stay; when the package is back it
// finds that the guest has gone meanwhile.
func removeRunning(e *env) {
	v := e.one
	e.define(disk("left", v), e.a)
	e.start(e.a, "left")
	was := e.processes("left")
	e.Logf("dpkg -r:\n%s", e.must(e.a, "dpkg -r virtlvm 2>&1"))
	require.Equal(e, was, e.processes("left"))
	require.NoError(e, e.check(e.a, v, cluster.ModeEX))
	e.counts(e.a, v)
	require.Empty(e, e.must(e.a, "ls /etc/libvirt/hooks; pgrep -x virtlvmd || true"))
	e.destroy(e.a, "left")
	require.NoError(e, e.check(e.a, v, cluster.ModeEX))

	e.install(suite.debs.New)
	e.released(v)
	require.NoError(e, e.a.ProveHook(e.ctx))
}

// ownHook is what an administrator may have: it notes its calls.
const ownHook = `#!/bin/sh
echo "$1 $2" >>/root/own-hook.log
`

// ownHookKept: an administrator's own hook stays as it is, and both are called.
func ownHookKept(e *env) {
	v := e.one
	e.purge()
	require.NoError(e, e.a.WriteFile(e.ctx, "/etc/libvirt/hooks/qemu", []byte(ownHook)))
	e.must(e.a, "chmod 755 /etc/libvirt/hooks/qemu; rm -f /root/own-hook.log; systemctl reload libvirtd")
	e.install(suite.debs.New)
	require.Equal(e, strings.TrimSpace(ownHook), e.must(e.a, "cat /etc/libvirt/hooks/qemu"))
	e.must(e.a, "test -x /etc/libvirt/hooks/qemu.d/50-virtlvm")
	require.NoError(e, e.a.ProveHook(e.ctx))
	e.define(disk("both", v), e.a)
	e.start(e.a, "both")
	e.keeps(v, "both")
	e.destroy(e.a, "both")
	e.released(v)
	require.Contains(e, e.must(e.a, "cat /root/own-hook.log"), "both release")

	e.purge()
	require.Equal(e, strings.TrimSpace(ownHook), e.must(e.a, "cat /etc/libvirt/hooks/qemu"))
	e.must(e.a, "rm -r /etc/libvirt/hooks/qemu /root/own-hook.log")
	e.install(suite.debs.New)
	e.must(e.a, "systemctl reload libvirtd")
	require.NoError(e, e.a.ProveHook(e.ctx))
}
