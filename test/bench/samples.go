package main

import (
	"os"
	"slices"
	"time"
)

// cost is what one thing took: on the clock, and of the processors. The second says more
// where others use the machine at the same time.
type cost struct{ wall, cpu time.Duration }

func (c cost) plus(o cost) cost  { return cost{c.wall + o.wall, c.cpu + o.cpu} }
func (c cost) minus(o cost) cost { return cost{c.wall - o.wall, c.cpu - o.cpu} }

// costOf a process that has ended, with those it has started and waited for.
func costOf(wall time.Duration, p *os.ProcessState) cost {
	return cost{wall, p.UserTime() + p.SystemTime()}
}

// costs of the same thing, round by round.
type costs []cost

// minus is round by round: what was measured in one round belongs together.
func (c costs) minus(o costs) costs {
	left := make(costs, 0, len(c))
	for i := range c {
		left = append(left, c[i].minus(o[i]))
	}
	return left
}

func (c costs) wall() samples {
	all := make(samples, 0, len(c))
	for _, one := range c {
		all = append(all, one.wall)
	}
	return all
}

func (c costs) cpu() samples {
	all := make(samples, 0, len(c))
	for _, one := range c {
		all = append(all, one.cpu)
	}
	return all
}

// samples are durations of the same thing.
type samples []time.Duration

// percentile is in milliseconds: the smallest sample that p percent are not above.
func (s samples) percentile(p int) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := (len(sorted)*p + 99) / 100
	return float64(sorted[max(rank, 1)-1]) / float64(time.Millisecond)
}

// mean is in milliseconds. The processors' time is counted in ticks: single values of it
// say little.
func (s samples) mean() float64 {
	var sum time.Duration
	for _, one := range s {
		sum += one
	}
	return float64(sum) / float64(max(len(s), 1)) / float64(time.Millisecond)
}

// ratio of the medians.
func (s samples) ratio(to samples) float64 { return s.percentile(50) / to.percentile(50) }
