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
// pace no step takes less than so many seconds. blkdiscard(8) opens the device exclusively.
const zeroScript = `dev=$1 at=$2 size=$3 step=$4 most=$5 pace=$6
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
done`

// What is zeroed in one step without a throttle, in bytes: at first, and at most, which is soon
// over even where the device becomes much slower.
const (
	zeroUnit = 256 * mebibyte
	zeroMost = 32 * zeroUnit
)

// zeroSteps are the command lines of an erasure from an offset on; throttle is in MiB/s.
func zeroSteps(device string, from, size, throttle int64, discard bool) [][]string {
	var steps [][]string
	if from < size {
		step, most, pace := int64(zeroUnit), int64(zeroMost), "0"
		if throttle > 0 {
			step = min(step, throttle*mebibyte)
			most = step
			pace = strconv.FormatFloat(float64(step)/float64(throttle*mebibyte), 'f', 3, 64)
		}
		n := func(i int64) string { return strconv.FormatInt(i, 10) }
		steps = append(steps, []string{"sh", "-c", zeroScript, zeroName, device, n(from), n(size), n(step), n(most), pace})
	}
	if discard {
		steps = append(steps, []string{"blkdiscard", device})
	}
	return steps
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
