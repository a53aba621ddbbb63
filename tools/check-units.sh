#!/bin/bash
# Installs into a scratch root and lets systemd read the units there.
# usage: check-units.sh ROOT
set -euo pipefail

root=$1
rm -rf "$root"
make -s install-files DESTDIR="$root" >/dev/null

# Units that ours refer to and that a scratch root lacks.
units=$root/usr/lib/systemd/system
for target in sysinit basic sockets multi-user shutdown; do
	printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' "$target" >"$units/$target.target"
done
for service in libvirtd virtqemud; do
	printf '[Service]\nExecStart=/usr/sbin/virtlvmd\n' >"$units/$service.service"
done
install -D -m 0755 /dev/null "$root/bin/kill"

out=$(systemd-analyze verify --man=no --recursive-errors=yes --root="$root" \
	virtlvmd.service virtlvmd.socket virtlvmd-ro.socket virtlvmd-peer.socket libvirtd.service virtqemud.service 2>&1) || {
	printf '%s\n' "$out" >&2
	exit 1
}
[ -z "$out" ] || { printf '%s\n' "$out" >&2; exit 1; }
