package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseBenchmarks(t *testing.T) {
	lines := []string{"goos: linux", "pkg: virtlvm/internal/locks"}
	for i := range 8 {
		lines = append(lines, fmt.Sprintf("BenchmarkShow/lease/%d-2 \t   12345\t  98765 ns/op\t    4567 B/op\t      89 allocs/op", i))
	}
	lines = append(lines, "BenchmarkShow/fan-out/200     \t 5\t 2.215e+08 ns/op\t 1 B/op\t 1 allocs/op")
	_, err := parseBenchmarks(strings.Join(lines, "\n"))
	require.ErrorContains(t, err, "9 benchmarks")
	lines = append(lines, "BenchmarkList/cluster-16 \t 1\t 1099000000 ns/op\t 20000000 B/op\t 3 allocs/op", "PASS")
	found, err := parseBenchmarks(strings.Join(lines, "\n"))
	require.NoError(t, err)
	assert.Equal(t, measured{0.098765, 4567}, found["Show/lease/7"])
	assert.Equal(t, measured{221.5, 1}, found["Show/fan-out/200"])
	assert.Equal(t, measured{1099, 2e7}, found["List/cluster"])
}
