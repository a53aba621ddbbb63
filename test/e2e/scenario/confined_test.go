//go:build e2e

package scenario

import (
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// confine loads the profiles of Debian's libvirt and starts libvirtd under its own; see
// packaging/doc/README.AppArmor. The image has AppArmor and loads no profile at boot.
const confine = `set -e
apparmor_parser -r -K /etc/apparmor.d/usr.sbin.libvirtd /etc/apparmor.d/usr.lib.libvirt.virt-aa-helper
sed -i 's/^security_driver = "none"/security_driver = "apparmor"/' /etc/libvirt/qemu.conf
systemctl restart libvirtd.service
cat /proc/$(systemctl show -p MainPID --value libvirtd.service)/attr/current`

const unconfine = `sed -i 's/^security_driver = "apparmor"/security_driver = "none"/' /etc/libvirt/qemu.conf
systemctl stop libvirtd.service
apparmor_parser -R /etc/apparmor.d/usr.sbin.libvirtd /etc/apparmor.d/usr.lib.libvirt.virt-aa-helper
systemctl start libvirtd.service`

// confined: under Debian's AppArmor profiles the hook of the package runs, refuses and takes
// part in a migration; nothing of it is denied.
func confined(e *env) {
	guest, v := "confined", e.one
	for _, h := range e.hosts {
		defer func() { e.must(h, unconfine) }()
		require.Equal(e, "libvirtd (enforce)", e.must(h, confine))
	}
	e.define(disk(guest, v), e.a, e.b)
	e.start(e.a, guest)
	e.holds(e.a, v, cluster.ModeEX)
	require.Contains(e, e.must(e.a, "cat /proc/$(cat /run/libvirt/qemu/"+guest+".pid)/attr/current"), "(enforce)")
	e.refused(e.b, guest, "kvm-a")
	require.Zero(e, e.migrate(e.a, e.b, guest).Exit)
	e.alone(e.b, v)
	e.counts(e.b, v)
	for _, h := range e.hosts {
		require.Equal(e, api.CheckPass, e.results(h)["libvirt.confinement"].State)
		require.Empty(e, e.must(h, "journalctl -k -b --no-pager -o cat | grep 'apparmor=\"DENIED\"' | grep -E 'virtlvm|/hooks/' || true"))
	}
	e.destroy(e.b, guest)
	e.released(v)
}
