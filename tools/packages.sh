#!/bin/bash
# Makes the .deb and the .rpm of what has been built.
# usage: packages.sh BUILD VERSION GO
#        BUILD: folder with the programs; VERSION: as `virtlvm version` shows it
# Environment:
#   MAINTAINER         "Name <address>" of who makes the packages; else DEBFULLNAME and DEBEMAIL
#   LINTIAN            what checks the .deb (lintian); "true" checks nothing
#   SOURCE_DATE_EPOCH  time of the files, in seconds; else the commit's
set -euo pipefail

export BUILD=$1
version=$2 go=$3
cd "$(dirname "$0")/.."

PKG_VERSION=$(tools/package-version.sh "$version")
ARCH=$("$go" env GOARCH)
if [ -z "${MAINTAINER:-}" ]; then
	MAINTAINER="${DEBFULLNAME:-virtlvm packagers} <${DEBEMAIL:-virtlvm@example.org}>"
fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
fi
# The oldest C library that the daemon runs with, from the symbols it asks for.
GLIBC=$(LC_ALL=C objdump -T "$BUILD/virtlvmd" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
STAGE=$BUILD/stage
export PKG_VERSION ARCH MAINTAINER SOURCE_DATE_EPOCH GLIBC STAGE

rm -rf "$STAGE" "$BUILD/packages"
mkdir -p "$STAGE/man" "$BUILD/packages"
for page in packaging/man/*.[58]; do
	gzip -9nc "$page" >"$STAGE/man/$(basename "$page").gz"
done
tools/changelog.sh "$PKG_VERSION" "$MAINTAINER" "$SOURCE_DATE_EPOCH" | gzip -9n >"$STAGE/changelog.gz"
tools/notices.sh "$go" ./cmd/virtlvm ./cmd/virtlvmd ./hooks/qemu | gzip -9n >"$STAGE/third-party-notices.gz"

nfpm=("$go" tool -modfile=tools/packaging/go.mod nfpm)
deb=$BUILD/packages/virtlvm_${PKG_VERSION}_$ARCH.deb
"${nfpm[@]}" package --packager deb --target "$deb" >/dev/null
"${nfpm[@]}" package --packager rpm --target "${deb%.deb}.rpm" >/dev/null

lintian=${LINTIAN:-lintian}
if command -v "$lintian" >/dev/null; then
	"$lintian" --no-cfg --allow-root --fail-on error,warning --tag-display-limit 0 "$deb"
	echo "packages: $lintian found no errors and no warnings"
else
	echo "packages: not checked: no lintian on this machine"
fi
ls -1 "$BUILD"/packages/*
