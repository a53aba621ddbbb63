package san

import (
	"fmt"
	"os"
	"strconv"
)

// discard is blkdiscard(8) of util-linux on the file behind a device. What is discarded reads
// as anything: here it stays.
func (c *call) discard() int {
	o, err := parse(c.args, "zeroout/z offset/o= length/l= step/p= force/f verbose/v secure/s")
	if err != nil || len(o.rest) != 1 {
		fmt.Fprintln(&c.err, "blkdiscard: no device specified")
		return 1
	}
	path := o.rest[0]
	real := c.hostPath(path)
	f, err := os.OpenFile(real, os.O_RDWR, 0)
	if err != nil {
		fmt.Fprintf(&c.err, "blkdiscard: cannot open %s: No such file or directory\n", path)
		return 1
	}
	defer func() { _ = f.Close() }()
	defer c.markOpen(real)()
	info, err := f.Stat()
	if err != nil {
		return c.broken(err)
	}
	size, from := info.Size(), number(o.last("offset"), 0)
	n := number(o.last("length"), size-from)
	if from > size {
		fmt.Fprintf(&c.err, "blkdiscard: %s: offset is greater than device size\n", path)
		return 1
	}
	if !o.has("zeroout") {
		return exitOK
	}
	buf := make([]byte, pieceSize)
	for end := min(size, from+n); from < end; from += pieceSize {
		if c.ctx.Err() != nil {
			return exitTerm
		}
		if _, err := f.WriteAt(buf[:min(pieceSize, end-from)], from); err != nil {
			return c.broken(err)
		}
	}
	return exitOK
}

func number(s string, otherwise int64) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}
