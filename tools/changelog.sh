#!/bin/bash
# Prints the changelog of the Debian package from changelog/: what is not released yet as
# the version at hand, then each release.
# usage: changelog.sh PACKAGE-VERSION MAINTAINER SECONDS
#        SECONDS: when the version at hand was made, since 1970
set -euo pipefail

version=$1 maintainer=$2 now=$3
cd "$(dirname "$0")/../changelog"

# entry VERSION FOLDER SECONDS
entry() {
	local file kind
	printf 'virtlvm (%s-1) unstable; urgency=medium\n\n' "$1"
	for file in "$2"/*-*; do
		kind=$(basename "$file")
		kind=${kind%%-*}
		printf '%s: %s\n' "${kind^}" "$(head -n 1 "$file")" | fold -s -w 74 | sed 's/ *$//; 1s/^/  * /; 2,$s/^/    /'
	done
	printf '\n -- %s  %s\n' "$maintainer" "$(LC_ALL=C date --utc --date "@$3" --rfc-email)"
}

first=1
if compgen -G 'unreleased/*-*' >/dev/null; then
	entry "$version" unreleased "$now"
	first=0
fi
while IFS= read -r folder; do
	[ "$first" = 1 ] || echo
	first=0
	# The commit that moved the files there; a tree without history has only this moment.
	released=$(git log -1 --format=%ct -- "$folder" 2>/dev/null) || released=
	entry "$folder" "$folder" "${released:-$now}"
done < <(find . -mindepth 1 -maxdepth 1 -type d ! -name unreleased -printf '%f\n' | sort -rV)
