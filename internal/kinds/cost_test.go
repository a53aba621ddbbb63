package kinds

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

// TestCost is for `make bench`: what the jobs of an erasure and of a copy take, and what the
// programs that they run take alone. It prints "cost NAME MILLISECONDS" of the quickest round,
// since what a disk does for others only ever adds to it. The
// volumes are files: a loop device to be erased needs VIRTLVM_BENCH_MIB and root; without it fallocate
// does what the kernel does to the file of such a device.
func TestCost(t *testing.T) {
	size, rounds := int64(8), 1
	large, _ := strconv.ParseInt(os.Getenv("VIRTLVM_BENCH_MIB"), 10, 64)
	if large > 0 {
		size, rounds = large, 5
	}
	size *= mebibyte
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	fill(t, from, size)
	fill(t, to, size)
	dev, path := to, dir+":"+os.Getenv("PATH")
	loop := large > 0 && os.Geteuid() == 0
	if loop {
		out, err := exec.Command("losetup", "--find", "--show", to).Output()
		if loop = err == nil; loop {
			dev, path = strings.TrimSpace(string(out)), os.Getenv("PATH")
			defer func() { _ = exec.Command("losetup", "--detach", dev).Run() }()
		}
	}
	if !loop {
		fmt.Println("cost_of blkdiscard: fallocate --zero-range on a file, no loop device is to be had")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "blkdiscard"), []byte("#!/bin/sh\nexec fallocate --zero-range \"$2\" \"$3\" \"$4\" \"$5\" \"$6\"\n"), 0o700))
	}
	command := func(argv ...string) time.Duration {
		t.Helper()
		cmd := exec.Command("/bin/sh", append([]string{"-c", `"$@"`, "sh"}, argv...)...)
		cmd.Env = append(os.Environ(), "PATH="+path)
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil && bytes.Contains(out, []byte("not supported")) {
			t.Skipf("this file system cannot do it: %s", out)
		}
		require.NoError(t, err, "%q: %s", argv, out)
		return time.Since(began)
	}
	n := fmt.Sprint(size)
	quickest(rounds, map[string]func() time.Duration{
		"zeroout": func() time.Duration {
			fill(t, to, size)
			return command("blkdiscard", "--zeroout", "--offset", "0", "--length", n, dev) + command("sync", dev)
		},
		"erase": func() time.Duration {
			fill(t, to, size)
			return command(zeroSteps(dev, "", 0, size, 0, false)[0]...)
		},
	})
	left, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Empty(t, bytes.Trim(left, "\x00"), "erased")
	if _, err := exec.LookPath("qemu-img"); err != nil {
		fmt.Println("cost_of copy: qemu-img is not installed")
		return
	}
	steps := copySteps(copyPlan{CopyArgs: api.CopyArgs{Source: "vg/a", Destination: "vg/b", Format: formatRaw, ToFormat: formatRaw}}, size, size, "file")
	for _, argv := range steps {
		for i, word := range argv {
			argv[i] = strings.NewReplacer("/dev/vg/a", from, "/dev/vg/b", to).Replace(word)
			if large == 0 && word == "none" { // not every file system knows O_DIRECT
				argv[i] = "writeback"
			}
		}
	}
	cache := steps[0][5]
	quickest(rounds, map[string]func() time.Duration{
		"convert": func() time.Duration {
			return command("qemu-img", "convert", "-n", "-t", cache, "-T", cache, "-f", "raw", "-O", "raw", from, to)
		},
		"copy":     func() time.Duration { return command(steps[0]...) },
		"compared": func() time.Duration { return command(steps[0]...) + command(steps[1]...) },
	})
}

// fill makes a file of data.
func fill(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	piece := bytes.Repeat([]byte("content "), mebibyte/8)
	for at := int64(0); at < size; at += mebibyte {
		_, err := f.WriteAt(piece, at)
		require.NoError(t, err)
	}
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// quickest runs each some times, in turns, and prints the least time of each.
func quickest(rounds int, each map[string]func() time.Duration) {
	took := map[string]time.Duration{}
	for range rounds {
		for name, run := range each {
			if t := run(); took[name] == 0 || t < took[name] {
				took[name] = t
			}
		}
	}
	for name, least := range took {
		fmt.Printf("cost %s %.2f\n", name, float64(least.Microseconds())/1000)
	}
}
