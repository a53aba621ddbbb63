#!/bin/bash
# Installs the Debian packages of what is missing on this machine; where it may not, says
# which they are and fails.
# usage: need.sh WHAT:PACKAGE...     WHAT is a program, or a file with its whole path
set -euo pipefail

missing=()
for pair in "$@"; do
	what=${pair%%:*}
	case $what in
	/*) [ -e "$what" ] || missing+=("${pair#*:}") ;;
	*) command -v "$what" >/dev/null || missing+=("${pair#*:}") ;;
	esac
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "missing: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
	exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -qy --no-install-recommends "${missing[@]}"
