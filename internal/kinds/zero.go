package kinds

import (
	"strconv"
	"strings"
)

// zeroName is $0 of zeroScript, for those who look at processes.
const zeroName = "virtlvm-zero"

// zeroScript fills a device with zeros, step by step, from an offset on, and prints the offset
// after each step: what is printed is on the disk, and stays there when the power goes. With
// a pace no step takes less than so many seconds. blkdiscard(8) opens the device exclusively.
const zeroScript = `dev=$1 at=$2 size=$3 step=$4 pace=$5
while [ "$at" -lt "$size" ]; do
	n=$((size - at))
	[ "$n" -le "$step" ] || n=$step
	if [ "$pace" != 0 ]; then sleep "$pace" & fi
	blkdiscard --zeroout --offset "$at" --length "$n" "$dev" || exit
	sync "$dev" || exit
	at=$((at + n))
	echo "$at"
	wait
done`

// zeroUnit is what is zeroed in one step without a throttle, in bytes: much, since each step is
// a program or two; little, since one that runs cannot be stopped.
const zeroUnit = 256 * mebibyte

// zeroSteps are the command lines of an erasure from an offset on; throttle is in MiB/s.
func zeroSteps(device string, from, size, throttle int64, discard bool) [][]string {
	var steps [][]string
	if from < size {
		step, pace := int64(zeroUnit), "0"
		if throttle > 0 {
			step, pace = throttle*mebibyte, "1"
		}
		n := func(i int64) string { return strconv.FormatInt(i, 10) }
		steps = append(steps, []string{"sh", "-c", zeroScript, zeroName, device, n(from), n(size), n(step), pace})
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
