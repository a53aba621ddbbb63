#!/bin/bash
# The hook to compare with, as an administrator would write it: a starting guest gets each of
# its block disks exclusively, and one that has ended gives them up. One lvchange per disk;
# nothing is looked at before or after, nothing is undone, nothing is kept.
set -u

case $2 in
prepare) action=-aey ;;
release) action=-an ;;
*) exit 0 ;;
esac

# Both print the devices of the disks, each on a line, xmllint as dev="DEVICE".
if [ "$PLAIN_HOOK_READER" = xmllint ]; then
	devices=$(xmllint --xpath "//disk[@type='block']/source/@dev" -)
else
	devices=$(sed -n "s/.*<source dev='\([^']*\)'.*/\1/p")
fi
for device in $devices; do
	device=${device#dev=\"}
	device=${device%\"}
	lvchange "$action" "${device#/dev/}" || exit 1
done
