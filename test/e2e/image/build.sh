#!/bin/bash
# build.sh - makes the image that both emulated KVM hosts boot from and prints its folder.
#
#   base.ext4    raw root file system; never written to, every host runs on an overlay
#   vmlinuz      Debian's cloud kernel
#   initrd.img   busybox; loads virtio, gives the host its identity, switches root
#   id_e2e       ssh key of root on both hosts
#   packages.txt what is installed, with versions
#
# Everything comes from Debian packages. The folder is named by a hash of this recipe, so
# an image is built once and again only when the recipe changes. Environment: SUITE
# (trixie or bookworm), MIRROR, XDG_CACHE_HOME.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
export SUITE=${SUITE:-trixie}
SIZE=3G # of the root file system; the file is sparse

say() { printf '[image %4ss] %s\n' "$SECONDS" "$*" >&2; }
die() {
    echo "build.sh: $*" >&2
    exit 1
}
# shellcheck source-path=SCRIPTDIR source=mirror.sh
. "$here/mirror.sh"
# shellcheck source-path=SCRIPTDIR source=rootfs.sh
. "$here/rootfs.sh"

packages=$(awk -v suite="$SUITE" '/^#/ || !NF { next }
    NF == 1 || $2 == suite || ($2 ~ /^!/ && $2 != "!" suite) { print $1 }' "$here/packages" | paste -sd,)

# The recipe: every file of this folder, the suite and the resulting package list.
hash=$({
    cd "$here" && sha256sum -- * && echo "$SUITE $SIZE $packages"
} | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/virtlvm-e2e
image=$cache/$SUITE-$hash
mkdir -p "$cache"

# One build at a time; the second waits and then finds the first one's result.
exec 9>"$cache/lock"
flock 9
if [ -d "$image" ]; then
    touch "$image"
    say "cached: $image"
    echo "$image"
    exit
fi

[ "$(id -u)" = 0 ] || die "an image can only be built as root; none is cached for this recipe ($image)"
need=()
for pair in mmdebstrap:mmdebstrap cpio:cpio mke2fs:e2fsprogs ssh-keygen:openssh-client xz:xz-utils \
    dpkg-deb:dpkg awk:mawk; do
    command -v "${pair%%:*}" >/dev/null || need+=("${pair#*:}")
done
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || need+=(debian-archive-keyring)
if ((${#need[@]})); then
    say "installing ${need[*]}"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null 9>&-
fi
MIRROR=${MIRROR:-$(debian_mirror "$SUITE")}

# Built aside and renamed, so that an interrupted build leaves nothing that looks whole.
# A folder that an earlier build left is ours alone now: the lock is held.
rm -rf "$cache"/build.*
tmp=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
chmod 755 "$tmp"
root=$tmp/root out=$tmp/out
mkdir "$out" "$tmp/debs"

say "packages of $SUITE from $MIRROR"
apt-config dump --format '%f "%v";%n' Acquire::http Acquire::https Acquire::Check-Valid-Until >"$tmp/apt.conf"
# The kernel and busybox are fetched with the new system's own apt, whatever this machine
# runs. They are unpacked rather than installed: a kernel's postinst wants initramfs-tools.
cat >"$tmp/fetch" <<'F'
set -e
export APT_CONFIG="${MMDEBSTRAP_APT_CONFIG:-$APT_CONFIG}"
cd "$2"
kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
apt-get download -qq "$kernel" busybox-static
F
mmdebstrap --mode=root --variant=minbase --format=directory --architectures=amd64 \
    --aptopt="$tmp/apt.conf" --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt=force-unsafe-io \
    --include="$packages" --customize-hook="sh $tmp/fetch \"\$1\" $tmp/debs" \
    "$SUITE" "$root" "$MIRROR" >"$tmp/log" 2>&1 9>&- || {
    tail -30 "$tmp/log" >&2
    die "mmdebstrap failed"
}
mkdir "$tmp/k" "$tmp/b"
dpkg-deb -x "$tmp"/debs/linux-image-*.deb "$tmp/k"
dpkg-deb -x "$tmp"/debs/busybox-static_*.deb "$tmp/b"
kver=$(basename "$tmp"/k/boot/vmlinuz-*)
kver=${kver#vmlinuz-}
cp "$tmp/k/boot/vmlinuz-$kver" "$out/vmlinuz"
# Since Debian 13 the package carries its modules under /usr.
for d in "$tmp/k/lib/modules" "$tmp/k/usr/lib/modules"; do
    if [ -d "$d" ]; then cp -a "$d" "$root/usr/lib/"; fi
done
chroot "$root" depmod "$kver"

say "configuration"
ssh-keygen -q -t ed25519 -N '' -C virtlvm-e2e -f "$out/id_e2e"
configure_root "$root" "$out/id_e2e"
say "initramfs for kernel $kver"
make_initrd "$root" "$kver" "$here/init" "$(find "$tmp/b" -path '*bin/busybox' -type f)" "$tmp/ird" "$out/initrd.img"
say "file system"
# shellcheck disable=SC2016 # the format is dpkg's
chroot "$root" dpkg-query -W -f '${Package} ${Version}\n' >"$out/packages.txt"
mke2fs -q -t ext4 -L root -d "$root" "$out/base.ext4" "$SIZE" >&2
chmod 444 "$out/base.ext4"
mv "$out" "$image"
# Images that no run has asked for in a month.
find "$cache" -mindepth 1 -maxdepth 1 -type d -name '*-*' -mtime +30 -exec rm -rf {} +
say "done: $image"
echo "$image"
