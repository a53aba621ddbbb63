#!/bin/sh
# Prints the version of the packages for a version as `virtlvm version` shows it, so that a
# development version is older than its release, and one behind a tag newer than the tag:
#   0.1.0-dev -> 0.1.0~dev   1.2.0-rc1 -> 1.2.0~rc1   1.2.0-5-gabc12-dirty -> 1.2.0+5.gabc12.dirty
# usage: package-version.sh VERSION
echo "$1" | sed -E 's/-([0-9]+)-g([0-9a-f]+)/+\1.g\2/; s/-dirty$/.dirty/; s/-/~/g'
