package lease_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/lease"
	"virtlvm/internal/run/runtest"
)

// Volumes of the captures.
const (
	lv1  = "pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX" // at 70254592
	base = "AHEJ6q-gy1M-ES2v-JzLi-cSbm-a6B4-pXAzEc" // at 71303168
	top  = "oCq0IA-0b61-Nw0O-Hjzb-3x3H-K1OV-TiSQVW" // at 72351744
	hot  = "Gpkfnb-QApQ-A3mG-Qyjc-nEUL-ery9-k4QcTu" // at 73400320

	lv1Offset  = 70254592
	baseOffset = 71303168
	topOffset  = 72351744

	header = "  offset                            lockspace                                         resource  timestamp  own  gen lver\n"
)

// capture plays back a file of testdata: command lines after "$ ", what they printed, and
// their exit code where it was not 0. Every command may be run any number of times.
func capture(t *testing.T, f *runtest.Fake, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	require.NoError(t, err)
	for _, section := range strings.Split(string(data), "\n$ ")[1:] {
		line, out, _ := strings.Cut(section, "\n")
		code := 0
		if before, exit, ok := strings.Cut(out, "rc="); ok {
			out = before
			code, err = strconv.Atoi(strings.TrimSpace(exit))
			require.NoError(t, err)
		}
		f.ExpectLine(line).Stdout(out + "\n").Exit(code).Always()
	}
}

// at makes a Reader at so many seconds of CLOCK_MONOTONIC.
func at(f *runtest.Fake, seconds int) *lease.Reader {
	return lease.New(f, "/dev", func() time.Duration { return time.Duration(seconds)*time.Second + 600*time.Millisecond })
}

func dumpLine(offset int) string {
	return "sanlock direct dump /dev/mapper/vg_san-lvmlock:" + strconv.Itoa(offset) + ":1048576"
}

// row is a lease with seven fields.
func row(offset int, uuid string, timestamp, owner, gen int) string {
	pad := func(n, width int) string {
		s := strconv.Itoa(n)
		return strings.Repeat("0", max(0, width-len(s))) + s
	}
	return strings.Join([]string{
		pad(offset, 8), "lvm_vg_san", uuid, pad(timestamp, 10), pad(owner, 4), pad(gen, 4), "3",
	}, "   ") + "\n"
}

// sh is a shared holder's row.
func sh(host, gen int) string {
	return strings.Repeat(" ", 106) + strconv.Itoa(host) + " " + strconv.Itoa(gen) + " SH\n"
}
