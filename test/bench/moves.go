package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// moveTiers measures what a move costs in its two ends: the lock alone, on simulated hosts, which
// must not depend on the size of the volume; and the copy of 10 GiB that are sparse, by the
// program that a full move runs, where it is installed.
func (b *bench) moveTiers(ctx context.Context) error {
	const large = 10 << 30
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^TestMoveCost$", "-v", "virtlvm/test/cluster")
	cmd.Env = append(os.Environ(), "VIRTLVM_BENCH=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot measure a move: %w: %s", err, out)
	}
	took := map[int64]float64{}
	for line := range strings.Lines(string(out)) {
		var size int64
		var ms float64
		if n, _ := fmt.Sscan(line, &size, &ms); n == 2 {
			took[size] = ms
		}
	}
	if len(took) != 2 || took[large] == 0 {
		return fmt.Errorf("cannot understand what a move costs: %s", out)
	}
	for size, ms := range took {
		if size != large {
			b.value("move_transfer_8MiB_ms", ms, "ms", 0)
			b.value("move_transfer_10GiB_ms", took[large], "ms", 0)
			b.value("move_transfer_10GiB_per_8MiB_ratio", took[large]/ms, "x", 1.5)
		}
	}
	if _, err := exec.LookPath("qemu-img"); err != nil {
		b.note("move_full_10GiB_sparse_ms: qemu-img is not installed")
		return nil
	}
	return b.fullMove(ctx, large)
}

// fullMove is `qemu-img convert` and `compare` on files without data.
func (b *bench) fullMove(ctx context.Context, size int64) error {
	dir, err := os.MkdirTemp("", "virtlvm-bench-move")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, path := range []string{from, to} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(path, size); err != nil {
			return err
		}
	}
	began := time.Now()
	for _, argv := range [][]string{
		{"convert", "-n", "-f", "raw", "-O", "raw", from, to},
		{"compare", "-f", "raw", "-F", "raw", from, to},
	} {
		if out, err := exec.CommandContext(ctx, "qemu-img", argv...).CombinedOutput(); err != nil {
			return fmt.Errorf("qemu-img %s: %w: %s", argv[0], err, out)
		}
	}
	b.value("move_full_10GiB_sparse_ms", float64(time.Since(began).Milliseconds()), "ms", 0)
	return nil
}

// volumeCosts measures the jobs of an erasure and of a copy beside the programs that they run, on
// files or, for root, a loop device. At least nine tenths of their speed is wanted.
func (b *bench) volumeCosts(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^TestCost$", "-v", "virtlvm/internal/kinds")
	cmd.Env = append(os.Environ(), fmt.Sprint("VIRTLVM_BENCH_MIB=", b.plan.mib))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot measure an erasure and a copy: %w: %s", err, out)
	}
	took, notes := costsIn(string(out))
	for _, note := range notes {
		b.note("%s", note)
	}
	const most = 1 / 0.9
	for _, each := range []struct {
		name, alone string
		most        target
	}{{"erase", "zeroout", most}, {"copy", "convert", most}, {"compared", "convert", 0}} {
		ours, theirs := took[each.name], took[each.alone]
		if ours == 0 || theirs == 0 {
			b.note("%s_per_%s_ratio: SKIP", each.name, each.alone)
			continue
		}
		b.value(fmt.Sprintf("%s_%dMiB_ms", each.name, b.plan.mib), ours, "ms", 0)
		b.value(each.name+"_per_"+each.alone+"_ratio", ours/theirs, "x", each.most)
	}
	return nil
}

// costsIn reads what TestCost prints: milliseconds by name, and what it could not do.
func costsIn(out string) (took map[string]float64, notes []string) {
	took = map[string]float64{}
	for line := range strings.Lines(out) {
		var name string
		var ms float64
		if n, _ := fmt.Sscanf(line, "cost %s %g", &name, &ms); n == 2 {
			took[name] = ms
		} else if strings.HasPrefix(line, "cost_of ") || strings.Contains(line, "SKIP") || strings.Contains(line, "cost_test.go:") {
			notes = append(notes, strings.TrimSpace(line))
		}
	}
	return took, notes
}
