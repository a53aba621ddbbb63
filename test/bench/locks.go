package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// lockQueries measures the lock manager alone, without the tools, in clusters that are made
// up: the benchmarks of internal/locks. A host that is asked answers after 50 ms.
func (b *bench) lockQueries(ctx context.Context) error {
	rounds := "1s"
	if b.plan.part < whole.part {
		rounds = "2x"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(Show|List)$", "-benchmem", "-benchtime", rounds, "virtlvm/internal/locks")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot measure the lock manager: %w: %s", err, out)
	}
	found, err := parseBenchmarks(string(out))
	if err != nil {
		return err
	}
	for _, by := range []string{"lease", "fan-out"} {
		for _, hosts := range []int{2, 20, 200, 2000} {
			most := target(0)
			if by == "fan-out" && hosts == 200 {
				most = 300
			}
			b.value(fmt.Sprintf("lock_show_%s_%d_hosts_ms", by, hosts), found[fmt.Sprintf("Show/%s/%d", by, hosts)].ms, "ms", most)
		}
	}
	b.value("locks_10000_volumes_lease_ms", found["List/lease"].ms, "ms", 2000)
	b.value("locks_10000_volumes_20_hosts_ms", found["List/cluster"].ms, "ms", 0)
	b.value("locks_bytes_per_volume", found["List/lease"].bytes/10_000, "B", 0)
	return nil
}

// measured is one operation of a benchmark.
type measured struct{ ms, bytes float64 }

// parseBenchmarks reads lines of `go test -bench -benchmem`, such as
//
//	BenchmarkShow/lease/2-8   	   12345	     98765 ns/op	    4567 B/op	      89 allocs/op
func parseBenchmarks(out string) (map[string]measured, error) {
	row := regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(\S+) ns/op\s+(\S+) B/op`)
	found := map[string]measured{}
	for line := range strings.Lines(out) {
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		ns, err1 := strconv.ParseFloat(m[2], 64)
		bytes, err2 := strconv.ParseFloat(m[3], 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("cannot understand a line of go test: %q", line)
		}
		found[m[1]] = measured{ns / 1e6, bytes}
	}
	if len(found) != 10 {
		return nil, fmt.Errorf("there are %d benchmarks of the lock manager in place of 10: %s", len(found), out)
	}
	return found, nil
}
