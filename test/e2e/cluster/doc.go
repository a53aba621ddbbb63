// Package cluster runs two real KVM hosts, kvm-a and kvm-b, in QEMU on one machine: systemd,
// libvirtd, LVM with lvmlockd and sanlock, and one SAN volume group that both see. It
// starts and stops the hosts, cuts their power, runs commands on them over ssh, makes
// volumes and guests, and reads locks from lvmlockd and from the leases on disk.
//
// The hosts boot from an image that test/e2e/image/build.sh makes. Hardware virtualization
// is used only where a probe shows that it works. Every process is a child of this
// one and dies with it.
package cluster
