#!/bin/bash
# Installs, upgrades, breaks, removes and purges the packages in a scratch Debian, as root.
# usage: run.sh BUILD GO
#        BUILD: folder with the programs
# Environment:
#   SUITE=trixie|bookworm  Debian release of the scratch system
#   ROOT=DIR               a minimal system made before, with systemd, rpm and man-db
set -euo pipefail

build=$(realpath "$1") go=$2
suite=${SUITE:-bookworm}
here=$(cd "$(dirname "$0")" && pwd)
tools=$here/../../tools
work=$(mktemp -d /var/tmp/virtlvm-packages.XXXXXX)
trap 'umount "$work/root/etc/libvirt/hooks" 2>/dev/null || :; rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }
die() {
	echo "run.sh: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || die "needs root"
"$tools/need.sh" mmdebstrap:mmdebstrap /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
if [ -z "${ROOT:-}" ]; then
	say "a minimal Debian $suite"
	# shellcheck source=../e2e/image/mirror.sh
	. "$here/../e2e/image/mirror.sh"
	mmdebstrap --mode=root --variant=minbase --format=directory --quiet \
		--aptopt='APT::Install-Recommends "false"' --dpkgopt=force-unsafe-io \
		--include=systemd,rpm,man-db "$suite" "$work/root" "$(debian_mirror "$suite")"
else
	cp -a "$ROOT" "$work/root"
fi
export LINTIAN=true
root=$work/root
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }

say "three versions of the packages, and one whose hook does not run"
# package VERSION FOLDER
package() {
	mkdir -p "$2"
	cp -a "$build/virtlvm" "$build/virtlvmd" "$build/hook" "$2/"
	"$tools/packages.sh" "$2" "$1" "$go" | tail -n 2
	cp "$2"/packages/*.deb "$2"/packages/*.rpm "$root/tmp/"
}
package 0.1.0-dev "$work/a"
package 0.1.0 "$work/b"
mkdir "$work/c"
cp -a "$build/virtlvm" "$build/virtlvmd" "$work/c/"
mkdir "$work/c/hook"
head -c 4096 "$build/hook/qemu" >"$work/c/hook/qemu"
"$tools/packages.sh" "$work/c" 0.1.1 "$go" | tail -n 2
cp "$work"/c/packages/*.deb "$root/tmp/"
old=$(cd "$root" && echo tmp/virtlvm_0.1.0~dev_*.deb) new=$(cd "$root" && echo tmp/virtlvm_0.1.0_*.deb) bad=$(cd "$root" && echo tmp/virtlvm_0.1.1_*.deb)

hook=$root/etc/libvirt/hooks/qemu
extra=$root/etc/libvirt/hooks/qemu.d/50-virtlvm
state=$root/var/lib/virtlvm
# shellcheck disable=SC2016 # dpkg's variables
installed() { [ "$(inside dpkg-query -Wf '${db:Status-Abbrev}${Version}' virtlvm)" = "ii $1-1" ] || die "virtlvm $1 is not installed"; }
same() { cmp -s "$1" "$build/hook/qemu" || die "$1 is not virtlvm's hook"; }

say "install, on a host without libvirt and without systemd running"
inside dpkg -i "/$old"
installed 0.1.0~dev
same "$hook"
[ "$(stat -c '%F %a %U' "$hook")" = 'regular file 755 root' ] || die "the hook is not a plain program of root"
inside getent group virtlvm >/dev/null || die "no group"
[ "$(stat -c %a "$state/spool")" = 700 ] || die "the spool is open"
inside systemctl is-enabled virtlvmd.service virtlvmd.socket virtlvmd-ro.socket
inside virtlvm --version
inside man -w 8 virtlvm 8 virtlvmd 5 virtlvm.toml

say "the same again"
inside dpkg -i "/$old"
inside dpkg-reconfigure virtlvm 2>/dev/null || inside dpkg --configure -a

say "upgrade: state, configuration and an administrator's 'disable' are kept"
echo journal >"$state/virtlvm.db"
echo '# mine' >>"$root/etc/virtlvm/virtlvm.toml"
inside systemctl disable virtlvmd.service 2>/dev/null
touch -d '2001-01-01' "$hook"
before=$(stat -c %i "$hook")
inside dpkg -i --force-confold "/$new"
installed 0.1.0
same "$hook"
[ "$(stat -c %i "$hook")" != "$before" ] || die "the hook was not replaced by rename"
[ "$(stat -c %Y "$hook")" = "$(date -d 2001-01-01 +%s)" ] || die "the time of the first hook is lost"
[ "$(cat "$state/virtlvm.db")" = journal ] || die "the journal is gone"
grep -q '^# mine' "$root/etc/virtlvm/virtlvm.toml" || die "the configuration was overwritten"
[ "$(inside systemctl is-enabled virtlvmd.service)" = disabled ] || die "a disabled daemon was enabled"
inside systemctl enable virtlvmd.service 2>/dev/null

say "an upgrade whose hook does not run leaves the old hook"
! inside dpkg -i --force-confold "/$bad" || die "a hook that does not run was installed"
same "$hook"
[ "$(ls -A "$root/etc/libvirt/hooks")" = qemu ] || die "something is left in the hooks folder"

say "back to the version before"
inside dpkg -i --force-confold "/$old"
installed 0.1.0~dev

say "an upgrade that is killed half-way is taken up again"
mv "$root/usr/bin/deb-systemd-helper" "$root/usr/bin/deb-systemd-helper.away"
# shellcheck disable=SC2016 # the script's variable
printf '#!/bin/sh\nkill -9 $PPID\n' >"$root/usr/bin/deb-systemd-helper"
chmod +x "$root/usr/bin/deb-systemd-helper"
! inside dpkg -i --force-confold "/$new" || die "the script was not killed"
mv "$root/usr/bin/deb-systemd-helper.away" "$root/usr/bin/deb-systemd-helper"
inside dpkg --configure -a
installed 0.1.0
same "$hook"

say "a full disk leaves the old hook"
cp -a "$hook" "$work/kept"
mount -t tmpfs -o size=3200k,mode=755 none "$root/etc/libvirt/hooks"
cp -a "$work/kept" "$hook"
! inside dpkg -i --force-confold "/$old" || die "the disk was not full"
same "$hook"
[ "$(ls -A "$root/etc/libvirt/hooks")" = qemu ] || die "something is left in the hooks folder"
umount "$root/etc/libvirt/hooks"
inside dpkg --configure -a
installed 0.1.0~dev

say "remove: the hook goes, the journal and the configuration stay"
inside dpkg -r virtlvm
[ ! -e "$hook" ] || die "the hook is still there"
[ "$(cat "$state/virtlvm.db")" = journal ] || die "the journal is gone"
[ -e "$root/etc/virtlvm/virtlvm.toml" ] || die "the configuration is gone"

say "an administrator's own hook is kept"
mkdir -p "$root/etc/libvirt/hooks"
printf '#!/bin/sh\n# calls virtlvm/hooks/qemu\nexit 0\n' >"$hook"
chmod +x "$hook"
cp "$hook" "$work/own"
inside dpkg -i --force-confold "/$old"
cmp "$work/own" "$hook"
same "$extra"
inside dpkg -i --force-confold "/$new"
same "$extra"

say "purge: everything of ours goes, and nothing else"
touch "$root/etc/virtlvm/break-glass"
inside dpkg -P virtlvm
cmp "$work/own" "$hook"
left=$(find "$root/etc" "$root/usr" "$root/var/lib" -xdev -path "$root/var/lib/dpkg" -prune -o -name '*virtlvm*' -print)
[ -z "$left" ] || die "left: $left"

rpms=("$root"/tmp/virtlvm_0.1.0~dev_*.rpm "$root"/tmp/virtlvm_0.1.0_*.rpm)
rm "$hook"
say "the .rpm: install, upgrade, remove (without what an rpm system would bring)"
inside rpm --noplugins -i --nodeps "/tmp/$(basename "${rpms[0]}")"
same "$hook"
inside systemctl is-enabled virtlvmd.service virtlvmd.socket virtlvmd-ro.socket
echo '# mine' >>"$root/etc/virtlvm/virtlvm.toml"
echo journal >"$state/virtlvm.db"
inside rpm --noplugins -U --nodeps "/tmp/$(basename "${rpms[1]}")"
same "$hook"
grep -q '^# mine' "$root/etc/virtlvm/virtlvm.toml" || die "the configuration was overwritten"
inside rpm -q virtlvm
inside rpm --noplugins -e virtlvm
[ ! -e "$hook" ] || die "the hook is still there"
[ "$(cat "$state/virtlvm.db")" = journal ] || die "the journal is gone"

printf '\npackages on Debian %s: ok\n' "$suite"
