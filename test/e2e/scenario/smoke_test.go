//go:build e2e

package scenario

import "testing"

// TestSmoke is the suite for every change. The order matters only for its length: the
// scenario that kills a host comes last.
func TestSmoke(t *testing.T) {
	run(t, []scenario{
		{"exclusive_start", exclusiveStart},
		{"both_at_once", bothAtOnce},
		{"qcow2_chain", qcow2Chain},
		{"shareable_two_hosts", shareableTwoHosts},
		{"no_managed_disks", noManagedDisks},
		{"two_guests_one_volume", twoGuestsOneVolume},
		{"daemon_killed", daemonKilled},
		{"release_while_masked", releaseWhileMasked},
		{"libvirtd_restart", libvirtdRestart},
		{"adopt_running", adoptRunning},
		{"host_b_killed", hostBKilled},
	})
}
