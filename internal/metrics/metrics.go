// Package metrics counts things and writes them in Prometheus' text format
// (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).
package metrics

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Set is the counters of a program. Its methods may be called at the same time.
type Set struct {
	mu       sync.Mutex
	families []*family
}

// family is one metric with its label values.
type family struct {
	name, help, kind string // kind: "counter", "gauge", "histogram"
	labels           []string
	bounds           []float64          // of a histogram, in seconds, ascending
	series           map[string]*series // by label values as they are written
}

type series struct {
	value   float64  // of a histogram the sum
	buckets []uint64 // of each bound alone; one more for what is larger than all
}

// Counter counts events by label values.
type Counter struct {
	set *Set
	*family
}

// Durations is a histogram of durations by label values.
type Durations struct {
	set *Set
	*family
}

// Counter makes a counter; name ends with _total.
func (s *Set) Counter(name, help string, labels ...string) *Counter {
	return &Counter{s, s.add(&family{name: name, help: help, kind: "counter", labels: labels})}
}

// Durations makes a histogram with upper bounds; name ends with _seconds.
func (s *Set) Durations(name, help string, bounds []time.Duration, labels ...string) *Durations {
	f := &family{name: name, help: help, kind: "histogram", labels: labels}
	for _, b := range bounds {
		f.bounds = append(f.bounds, b.Seconds())
	}
	return &Durations{s, s.add(f)}
}

func (s *Set) add(f *family) *family {
	f.series = map[string]*series{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.families = append(s.families, f)
	return f
}

// Add counts n events with these label values, in the order of the labels.
func (c *Counter) Add(n int, values ...string) {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.of(values).value += float64(n)
}

// Observe takes a duration with these label values.
func (d *Durations) Observe(took time.Duration, values ...string) {
	d.set.mu.Lock()
	defer d.set.mu.Unlock()
	s := d.of(values)
	s.value += took.Seconds()
	i := 0
	for i < len(d.bounds) && took.Seconds() > d.bounds[i] {
		i++
	}
	s.buckets[i]++
}

func (f *family) of(values []string) *series {
	key := labelText(f.labels, values)
	s := f.series[key]
	if s == nil {
		s = &series{buckets: make([]uint64, len(f.bounds)+1)}
		f.series[key] = s
	}
	return s
}

// Gauge is a number that is read when the metrics are: an Add or Set of each scrape.
type Gauge struct{ *family }

// Scrape is the gauges of one Write.
type Scrape struct{ families []*family }

// Gauge makes a gauge; one without a value is not written.
func (s *Scrape) Gauge(name, help string, labels ...string) Gauge {
	f := &family{name: name, help: help, kind: "gauge", labels: labels, series: map[string]*series{}}
	s.families = append(s.families, f)
	return Gauge{f}
}

// Set sets the value for these label values.
func (g Gauge) Set(v float64, values ...string) { g.of(values).value = v }

// CounterOf is a counter that is kept elsewhere.
func (s *Scrape) CounterOf(name, help string, labels ...string) Gauge {
	g := s.Gauge(name, help, labels...)
	g.kind = "counter"
	return g
}

// Write writes all counters, and the gauges that gather sets.
func (s *Set) Write(w io.Writer, gather func(*Scrape)) error {
	var now Scrape
	gather(&now)
	var text strings.Builder
	s.mu.Lock()
	for _, f := range slices.Concat(s.families, now.families) {
		f.write(&text)
	}
	s.mu.Unlock()
	_, err := io.WriteString(w, text.String())
	return err
}

func (f *family) write(w *strings.Builder) {
	if len(f.series) == 0 {
		return
	}
	_, _ = fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
	for _, key := range slices.Sorted(maps.Keys(f.series)) {
		s := f.series[key]
		if f.kind != "histogram" {
			_, _ = fmt.Fprintf(w, "%s%s %s\n", f.name, braced(key), number(s.value))
			continue
		}
		var count uint64
		for i, n := range s.buckets {
			count += n
			le := "+Inf"
			if i < len(f.bounds) {
				le = number(f.bounds[i])
			}
			_, _ = fmt.Fprintf(w, "%s_bucket%s %d\n", f.name, braced(joined(key, `le="`+le+`"`)), count)
		}
		_, _ = fmt.Fprintf(w, "%s_sum%s %s\n%s_count%s %d\n", f.name, braced(key), number(s.value), f.name, braced(key), count)
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + "," + b
}

func braced(labels string) string {
	if labels == "" {
		return ""
	}
	return "{" + labels + "}"
}

func labelText(names, values []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	var all []string
	for i, name := range names {
		value := ""
		if i < len(values) {
			value = strings.ToValidUTF8(values[i], "?")
		}
		all = append(all, name+`="`+escape.Replace(value)+`"`)
	}
	return strings.Join(all, ",")
}
