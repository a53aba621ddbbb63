package cluster

import (
	"context"
	"fmt"
	"io"
	"strconv"
)

// script stands in for the scripts of jobs, by their $0; tests of internal/kinds run the real
// ones.
func (r *rig) script(ctx context.Context, h *Host, name string, args []string, stdout, stderr io.Writer) int {
	if name == "virtlvm-zero" {
		return zero(ctx, h, args, stdout, stderr)
	}
	_, _ = fmt.Fprintln(stderr, "no script", name)
	return 127
}

// zero is zeroScript without a pace.
func zero(ctx context.Context, h *Host, args []string, stdout, stderr io.Writer) int {
	var n [3]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(args[i+1], 10, 64)
	}
	at, size, step := n[0], n[1], n[2]
	for at < size {
		length := min(step, size-at)
		argv := []string{"blkdiscard", "--zeroout", "--offset", strconv.FormatInt(at, 10), "--length", strconv.FormatInt(length, 10), args[0]}
		if code := h.LVM.Exec(ctx, argv, stdout, stderr); code != 0 {
			return code
		}
		at += length
		_, _ = fmt.Fprintln(stdout, at)
	}
	return 0
}
