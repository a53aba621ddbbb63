#!/bin/bash
# demo.sh [BUILD] - two hosts share a SAN, and a guest's volume changes hands: by stop and
# start, in live migrations, and when a host dies.
#
# The hook, virtlvmd and virtlvm are the real ones, from BUILD (default build). The fakes
# beside them stand in for libvirt with QEMU (test/fakevirt) and for LVM, lvmlockd and
# sanlock (test/san). Needs no root, and leaves nothing behind. Every step is checked: the
# exit code is 0 only when all went as the text says. Run by `make demo`.
set -euo pipefail
shopt -s inherit_errexit
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-$here/../../build}" && pwd)
# shellcheck source=stage.sh
. "$here/stage.sh"
trap strike EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

build_stage "$build"
cat <<END
Two hosts, kvm-a and kvm-b, share the volume group vg_san. The guest vm1 is defined on both;
its disk is the volume vg_san/vm1. After each step comes the lock table, read from the SAN.

Real:       the libvirt hook, virtlvmd on each host, virtlvm
Simulated:  virsh and QEMU, the LVM and sanlock tools, the SAN: all in $work
            The daemons reach each other without ssh. A host counts as dead after 12 s.
END

headline "1. vm1 starts on kvm-a: its volume is activated exclusively there"
on kvm-a virsh start vm1
exits 0
says "Domain 'vm1' started"
runs_on kvm-a

headline "2. On kvm-b the same guest is refused, and the message says why"
on kvm-b virsh start vm1
exits 1
says "error: Failed to start domain 'vm1'"
says "cannot start vm1: vg_san/vm1 is held exclusively by kvm-a;"
on kvm-b virsh list
says "vm1 shut off"
runs_on kvm-a

headline "3. What an operator sees"
on kvm-a virtlvm status
exits 0
says "holds: 1 exclusive, 0 shared, 0 ending"
on kvm-a virtlvm guests
exits 0
says "vm1 running"
on kvm-b virtlvm volumes
exits 0
says "kvm-a(ex)"
on kvm-b virtlvm lock show vg_san/vm1
exits 0
says "yes yes guest vm1"
on kvm-b virtlvm lock transfer vg_san/vm1 --to kvm-b
exits 4
says "vg_san/vm1 is used on kvm-a by guest vm1"
runs_on kvm-a

headline "4. virtlvmd on kvm-a is killed while the guest runs: the lock stays"
kill_daemon kvm-a
on kvm-a virsh list
says "vm1 running"
on kvm-b virsh start vm1
exits 1
says "held exclusively by kvm-a;"
runs_on kvm-a

headline "5. It starts again and finds the guest and its lock"
restart_daemon kvm-a
on kvm-a virtlvm guests
exits 0
says "vm1 running"
runs_on kvm-a

headline "6. vm1 stops on kvm-a: the volume is released"
on kvm-a virsh destroy vm1
exits 0
says "Domain 'vm1' destroyed"
on kvm-a virtlvm hooks
exits 0
says "vm1 release end destroyed noted"
runs_on nobody

headline "7. Now it starts on kvm-b"
on kvm-b virsh start vm1
exits 0
says "Domain 'vm1' started"
runs_on kvm-b

headline "8. It moves to kvm-a while it runs: shared only while memory moves"
on kvm-b virtlvm guests
exits 0
says "yes"
on kvm-b virsh migrate --live vm1 qemu+ssh://kvm-a/system
exits 0
says "| begun vg_san/vm1: kvm-b ex"
says "| migrate hook vg_san/vm1: kvm-a sh, kvm-b sh"
says "| performing vg_san/vm1: kvm-a sh, kvm-b sh"
comes_to_run_on kvm-a
soon_says "vm1 from kvm-b to kvm-a: done" on kvm-a virtlvm guest handoff vm1
says "source kvm-b"
says "exclusive"

headline "9. A migration back is aborted while memory moves: kvm-a has the volume alone again"
fate performing abort
on kvm-a virsh migrate --live vm1 qemu+ssh://kvm-b/system
exits 1
says "operation aborted: migration out: canceled by client"
says "| performing vg_san/vm1: kvm-a sh, kvm-b sh"
comes_to_run_on kvm-a
soon_says "vm1 from kvm-a to kvm-b: failed, the source has its volumes back" on kvm-a virtlvm guest handoff vm1
says "taken back"

headline "10. In the next one kvm-a loses its power just after the switch: vm1 goes on on kvm-b"
fate switched crash kvm-a
on kvm-a virsh migrate --live vm1 qemu+ssh://kvm-b/system
exits 1
says "| switched vg_san/vm1: kvm-a sh, kvm-b sh"
is_down kvm-a
lock_table
says "vg_san/vm1 kvm-b sh live"
on kvm-b virsh list
says "vm1 running"
soon 9 on kvm-b virtlvm status
says "PENDING"
says "vg_san/vm1 vm1 ex sh"

headline "11. When sanlock has declared kvm-a dead, kvm-b has the volume alone"
comes_to_run_on kvm-b
soon 0 on kvm-b virtlvm status

headline "12. And vm1 stops there"
on kvm-b virsh destroy vm1
exits 0
says "Domain 'vm1' destroyed"
runs_on nobody

stop_daemons
printf '\ndemo: all steps went as told, in %s s\n' "$SECONDS"
