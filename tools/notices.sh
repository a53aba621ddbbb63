#!/bin/bash
# Prints the licenses of what the programs are linked with: each Go module, and Go itself.
# usage: notices.sh GO PACKAGE...
set -euo pipefail

go=$1
shift
notice() {
	printf '%s\n%s\n\n' "$1" "$(printf '%*s' "${#1}" '' | tr ' ' =)"
	cat "${@:2}"
	printf '\n\n'
}

notice "Go standard library $("$go" env GOVERSION)" "$("$go" env GOROOT)/LICENSE"
"$go" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{"\t"}}{{.Dir}}{{end}}{{end}}' "$@" |
	sort -u | while IFS=$'\t' read -r name dir; do
	mapfile -t files < <(find "$dir" -maxdepth 1 -type f \( -iname 'license*' -o -iname 'copying*' -o -iname 'notice*' \) | sort)
	[ "${#files[@]}" -gt 0 ] || { echo "notices.sh: $name has no license file" >&2; exit 1; }
	notice "$name" "${files[@]}"
done
