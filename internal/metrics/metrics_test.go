package metrics

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWrite(t *testing.T) {
	var s Set
	hooks := s.Durations("hook_seconds", "Hook calls.", []time.Duration{10 * time.Millisecond, time.Second}, "op", "verdict")
	errs := s.Counter("errors_total", "Errors.", "host")
	s.Counter("never_total", "Nothing yet.")
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { errs.Add(1, "kvm-b") })
	}
	all.Wait()
	errs.Add(2, "a\"b\\c\nd\xff")
	for _, d := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 500 * time.Millisecond, time.Minute} {
		hooks.Observe(d, "prepare", "allowed")
	}
	hooks.Observe(2*time.Second, "prepare", "refused")
	var b strings.Builder
	require.NoError(t, s.Write(&b, func(s *Scrape) {
		g := s.Gauge("holds", "Holds.", "mode")
		g.Set(2, "sh")
		g.Set(3, "ex")
		s.Gauge("up", "Up.").Set(1)
		s.Gauge("unknown", "Not known now.")
		s.CounterOf("passes_total", "Passes.", "outcome").Set(7, "ok")
	}))
	assert.Equal(t, `# HELP hook_seconds Hook calls.
# TYPE hook_seconds histogram
hook_seconds_bucket{op="prepare",verdict="allowed",le="0.01"} 2
hook_seconds_bucket{op="prepare",verdict="allowed",le="1"} 3
hook_seconds_bucket{op="prepare",verdict="allowed",le="+Inf"} 4
hook_seconds_sum{op="prepare",verdict="allowed"} 60.511
hook_seconds_count{op="prepare",verdict="allowed"} 4
hook_seconds_bucket{op="prepare",verdict="refused",le="0.01"} 0
hook_seconds_bucket{op="prepare",verdict="refused",le="1"} 0
hook_seconds_bucket{op="prepare",verdict="refused",le="+Inf"} 1
hook_seconds_sum{op="prepare",verdict="refused"} 2
hook_seconds_count{op="prepare",verdict="refused"} 1
# HELP errors_total Errors.
# TYPE errors_total counter
errors_total{host="a\"b\\c\nd?"} 2
errors_total{host="kvm-b"} 100
# HELP holds Holds.
# TYPE holds gauge
holds{mode="ex"} 3
holds{mode="sh"} 2
# HELP up Up.
# TYPE up gauge
up 1
# HELP passes_total Passes.
# TYPE passes_total counter
passes_total{outcome="ok"} 7
`, b.String())
	require.Error(t, s.Write(full{}, func(*Scrape) {}))
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("full") }
