#!/bin/sh
# Installs the libvirt hook: install-hook.sh BINARY HOOKS-DIR
#
# As the file HOOKS-DIR/qemu, or as qemu.d/50-virtlvm where somebody else's hook has that
# name; never as both, since libvirt would call both. A real file, replaced by rename: the
# profile of libvirtd (AppArmor, SELinux) allows no link to elsewhere, and libvirt may call
# the hook at any moment.
set -eu

binary=$1
hooks=$2
main=$hooks/qemu
extra=$hooks/qemu.d/50-virtlvm

ours() { grep -aq 'virtlvm/hooks/qemu' "$1"; }

put() {
	install -D -m 0755 "$binary" "$1.new"
	mv -f "$1.new" "$1"
	echo "hook installed as $1"
}

if [ -e "$main" ] && ! ours "$main"; then
	put "$extra"
else
	put "$main"
	rm -f "$extra"
fi
