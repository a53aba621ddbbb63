#!/bin/sh
# Says what is left to do on this host after virtlvm was installed or upgraded. Prints
# nothing where all is well, and never fails.
#
#   notes.sh [ROOT]
set -u

root=${1:-}
hooks=$root/etc/libvirt/hooks

say() { echo "virtlvm: $*"; }

have() {
	for dir in /usr/sbin /usr/bin /sbin /bin; do
		[ -x "$root$dir/$1" ] && return 0
	done
	return 1
}

missing() {
	if ! have virtqemud && ! have libvirtd; then
		say "libvirt is not installed: nothing calls the hook yet"
	fi
	have lvm || say "LVM is not installed (package lvm2): no volume can be activated"
	have lvmlockd || say "lvmlockd is not installed (package lvm2-lockd): no volume group can be shared"
	have sanlock || say "sanlock is not installed: no volume group can be shared"
	have qemu-img || say "qemu-img is not installed (package qemu-utils or qemu-img): guests with image chains are refused"
}

selinux() {
	if command -v getsebool >/dev/null && getsebool virt_hooks_unconfined 2>/dev/null | grep -q 'off$'; then
		say "SELinux may keep libvirt's hooks from running; see README.SELinux in /usr/share/doc/virtlvm, 'setsebool -P virt_hooks_unconfined on' allows them"
	fi
}

# active UNIT: it runs, or is about to.
active() { systemctl is-active --quiet "$1"; }

daemon() {
	active virtlvmd.service && return
	say "virtlvmd does not run: NO GUEST STARTS on this host until it does. Start it: systemctl enable --now virtlvmd.service"
	why=$(journalctl --quiet --unit virtlvmd.service --lines 20 --output cat --no-pager 2>/dev/null | grep '^virtlvmd: ' | tail -n 1)
	[ -z "$why" ] || say "the last it said: $why"
	say "if it cannot be made to run, see BREAK GLASS in virtlvmd(8)"
}

# since UNIT: when it was started or last reloaded, in unix seconds; nothing if unknown.
since() {
	systemctl show --property ActiveEnterTimestamp,ExecReload "$1" 2>/dev/null |
		sed -n 's/^ActiveEnterTimestamp=\(..*\)/\1/p; s/.*start_time=\[\([^]]*\)\].*/\1/p' |
		while read -r when; do
			date -d "$when" +%s 2>/dev/null
		done | sort -n | tail -n 1
}

# found SINCE: was a hook of ours or somebody else's there before? libvirt looks for the
# first one only when it starts or reloads, and from then on runs all there are.
found() {
	for file in "$hooks"/qemu "$hooks"/qemu.d/*; do
		if [ ! -f "$file" ] || [ ! -x "$file" ]; then continue; fi
		# Ours keeps the time of the first one through all upgrades. A change of
		# somebody else's may have been a rename: its status tells.
		if [ "$file" = "$1" ]; then changed=$(stat -c %Y "$file"); else changed=$(stat -L -c %Z "$file"); fi
		[ "$changed" -lt "$2" ] && return 0
	done
	return 1
}

reload() {
	ours=$hooks/qemu
	[ -e "$hooks/qemu.d/50-virtlvm" ] && ours=$hooks/qemu.d/50-virtlvm
	for unit in virtqemud libvirtd; do
		active "$unit.service" || continue
		started=$(since "$unit.service")
		if [ -z "$started" ] || ! found "$ours" "$started"; then
			say "$unit has been running since before this hook was there and may not call it yet: systemctl reload $unit"
		fi
	done
}

missing
selinux
if [ -d "$root/run/systemd/system" ]; then
	daemon
	reload
else
	say "systemd does not run here: virtlvmd starts at the next boot"
fi
exit 0
