#!/bin/bash
# Looks for known vulnerabilities in what the programs really call.
# usage: vulncheck.sh GOVULNCHECK [ARGUMENTS]
# A finding fails. A database that cannot be reached is told and passes: whether a
# machine has a way out says nothing about the code.
set -uo pipefail

out=$("$@" ./... 2>&1)
code=$?
if [ "$code" -ne 0 ] && grep -q '^govulncheck: fetching vulnerabilities:' <<<"$out"; then
	echo "check-vulnerabilities: skipped: vulnerability database unreachable"
	exit 0
fi
[ "$code" -eq 0 ] || printf '%s\n' "$out" >&2
exit "$code"
