package kinds

import (
	"strconv"
	"strings"
)

// zeroName is $0 of zeroScript, for those who look at processes.
const zeroName = "virtlvm-zero"

// zeroScript fills a device with zeros, step by step, from an offset on, and prints an offset
// about each second, at the end and where a step fails: what is printed is on the disk, and stays
// there when the power goes. Steps grow and shrink so that one takes about a second: what it costs
// to begin one is little then, and one that runs, which cannot be stopped, is over soon. With a
// pace no step takes less than so many seconds. At the end it discards, if that is wanted.
//
// The device is opened once, and must be the one of a device-mapper uuid (unless that is ""):
// whatever becomes of its name, no other is written to. blkdiscard(8) opens it exclusively.
const zeroScript = `dev=$1 at=$2 size=$3 step=$4 most=$5 pace=$6 uuid=$7 discard=$8
if [ ! -e "$dev" ]; then # the shell would make a file
	echo "$dev is not there" >&2
	exit 1
fi
exec 8<>"$dev" || exit
dev=/dev/fd/8
if [ -n "$uuid" ]; then
	set -- $(stat -L -c '%t %T' "$dev")
	read -r is <"/sys/dev/block/$((0x$1)):$((0x$2))/dm/uuid" || exit
	if [ "$is" != "$uuid" ]; then
		echo "it is another volume now ($is)" >&2
		exit 1
	fi
fi
clock() { # in hundredths of a second
	read -r up rest </proc/uptime
	now=${up%.*}${up#*.}
}
failed() {
	code=$?
	sync "$dev" && echo "$at"
	exit "$code"
}
clock
synced=$now
while [ "$at" -lt "$size" ]; do
	n=$((size - at)) began=$now
	[ "$n" -le "$step" ] || n=$step
	if [ "$pace" != 0 ]; then sleep "$pace" & fi
	blkdiscard --zeroout --offset "$at" --length "$n" "$dev" || failed
	at=$((at + n))
	clock
	took=$((now - began))
	wait
	clock
	if [ "$at" -ge "$size" ] || [ $((now - synced)) -ge 100 ]; then
		began=$now
		sync "$dev" || exit
		echo "$at"
		clock
		took=$((took + now - began)) synced=$now
	fi
	if [ "$took" -le 12 ]; then
		step=$((step * 8))
	elif [ "$took" -lt 50 ]; then
		step=$((step * 2))
	elif [ "$took" -gt 200 ] && [ "$step" -gt 67108864 ]; then
		step=$((step / 2))
	fi
	[ "$step" -le "$most" ] || step=$most
done
if [ "$discard" = 1 ]; then blkdiscard "$dev" || exit; fi`

// What is zeroed in one step without a throttle, in bytes: at first, and at most, which is soon
// over even where the device becomes much slower.
const (
	zeroUnit = 256 * mebibyte
	zeroMost = 32 * zeroUnit
)

// zeroSteps are the command lines of an erasure from an offset on, of a device with a
// device-mapper uuid; throttle is in MiB/s.
func zeroSteps(device, uuid string, from, size, throttle int64, discard bool) [][]string {
	if from >= size && !discard {
		return nil
	}
	step, most, pace, last := int64(zeroUnit), int64(zeroMost), "0", "0"
	if throttle > 0 {
		step = min(step, throttle*mebibyte)
		most = step
		pace = strconv.FormatFloat(float64(step)/float64(throttle*mebibyte), 'f', 3, 64)
	}
	if discard {
		last = "1"
	}
	n := func(i int64) string { return strconv.FormatInt(i, 10) }
	return [][]string{{"sh", "-c", zeroScript, zeroName, device, n(from), n(size), n(step), n(most), pace, uuid, last}}
}

// lastOffset is the last offset in the output of zeroScript, not above size; 0 where there is
// none.
func lastOffset(out string, size int64) int64 {
	end := strings.LastIndexByte(out, '\n')
	if end < 0 {
		return 0
	}
	line := out[strings.LastIndexByte(out[:end], '\n')+1 : end]
	at, err := strconv.ParseInt(line, 10, 64)
	if err != nil || at < 0 || at > size {
		return 0
	}
	return at
}
