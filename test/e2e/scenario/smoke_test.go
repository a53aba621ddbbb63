//go:build e2e

package scenario

import "testing"

// TestSmoke is the suite for every change. While kvm-b is dead, and while it boots again,
// what needs only kvm-a is done there.
func TestSmoke(t *testing.T) {
	run(t,
		scenario{"exclusive_start", exclusiveStart, true},
		scenario{"both_at_once", bothAtOnce, true},
		scenario{"qcow2_chain", qcow2Chain, true},
		scenario{"shareable_two_hosts", shareableTwoHosts, true},
	)
	beside(t, scenario{"host_b_killed", hostBKilled, true},
		scenario{"no_managed_disks", noManagedDisks, false},
		scenario{"two_guests_one_volume", twoGuestsOneVolume, false},
		scenario{"daemon_killed", daemonKilled, false},
		scenario{"libvirtd_restart", libvirtdRestart, false},
		scenario{"adopt_running", adoptRunning, false},
		scenario{"release_while_masked", releaseWhileMasked, false},
	)
}

// TestConformance compares the whole list of LVM commands with what real hosts do.
func TestConformance(t *testing.T) {
	run(t, scenario{"conformance", conform, true})
}
