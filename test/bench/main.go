// Command bench measures what virtlvm costs: the real hook, virtlvmd and virtlvm on the
// fake SAN without delays, side by side in one run with a plain bash hook that does the
// same to the same volumes. It prints lines
//
//	NAME VALUE UNIT [TARGET ok|MISSED]
//
// and ends with 0 unless it could not measure: on a busy machine times say little. Run by
// `make bench`, or with `go run ./test/bench [-short]`.
//
// "tools" is the time of the LVM tools that a hook runs: the same command lines, from
// virtlvmd's journal, are run again one by one right after each call, with nothing but a
// fork, the program and a wait. "overhead" is the time of the call without them. "beyond"
// is the time of the call without the one lvchange of all volumes that no hook can do
// without: there the looks that virtlvm takes before and after count as its own, and so do
// the bash hook's further lvchanges. The target of a fourth of the bash hook's is printed for
// both readings.
//
// "life" is all calls of a guest's start and of its stop. Of a migration "overhead" is all
// its hook calls, and the way to the exclusive locks on the destination after them, without
// the four lvchanges that it cannot do without; "own" is also without the time in which
// programs that only look ran, on one host or on both, and no lvchange.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// plan says how much is measured. On a slow machine a part ends when its time is over, with
// fewer rounds.
type plan struct {
	part      time.Duration // for the hooks of one guest; others have shares of it
	startups  int
	unmanaged int // rounds
	sizes     []int
	managed   int // rounds for each size
	calls     int // hook calls before the second look at the daemon's memory
	appends   int
	rows      int // of the large journal
	compare   int // rounds with an empty and a large journal

	migrations int // for each size
	mib        int // of the volume that is erased and copied
}

// limit bounds a run that hangs.
const limit = 10 * time.Minute

var (
	whole = plan{
		part: 16 * time.Second, startups: 10, unmanaged: 200, sizes: []int{1, 8, 32}, managed: 40,
		calls: 1000, appends: 500, rows: 1_000_000, compare: 60, migrations: 20, mib: 512,
	}
	quick = plan{
		part: time.Second, startups: 3, unmanaged: 25, sizes: []int{1, 8, 32}, managed: 5,
		calls: 200, appends: 60, rows: 50_000, compare: 8, migrations: 3, mib: 64,
	}
)

// enough says when n rounds, or a share of the time of a part, are over; never before
// two rounds.
func (p plan) enough(n int, share float64) func(done int) bool {
	end := time.Now().Add(time.Duration(float64(p.part) * share))
	return func(done int) bool { return done >= n || done >= 2 && time.Now().After(end) }
}

func main() {
	// The daemons die with the thread that has started them.
	runtime.LockOSThread()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	short := flags.Bool("short", false, "measure little, in less than 20 s")
	keep := flags.Bool("keep", false, "keep the folders with the daemons' logs")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	p := whole
	if *short {
		p = quick
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := measure(ctx, p, *keep, stdout)
	if err != nil && ctx.Err() != nil {
		err = errors.New("stopped")
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

// measure runs everything in folders of its own and takes them away again.
func measure(ctx context.Context, p plan, keep bool, out io.Writer) (err error) {
	began := time.Now()
	st, err := newStage(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.strike(keep)) }()
	built := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b := &bench{stage: st, plan: p, report: report{out: out}}
	b.note("%s", st.machine())
	for _, part := range []func(context.Context) error{
		b.sizesOfPrograms, b.startup, b.syncs, b.unmanagedGuests, b.managedGuests, b.lives, b.migrations, b.memory, b.createVolumes, b.appends, b.commandAppends, b.largeJournal, b.openCommands, b.lockQueries, b.moveTiers, b.volumeCosts,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	b.note("built in %.0f s, measured in %.0f s", built.Sub(began).Seconds(), time.Since(built).Seconds())
	return b.err
}

// bench is one run.
type bench struct {
	*stage
	plan plan
	report
	calls int // hook calls that the daemon of host a has had
	ran   int // programs of LVM that the last guest measured by rounds was started with
}

// target is what a value should not be above. Zero: none.
type target float64

// report prints values.
type report struct {
	out io.Writer
	err error // of the first line that could not be printed
}

func (r *report) print(format string, a ...any) {
	if _, err := fmt.Fprintf(r.out, format, a...); err != nil && r.err == nil {
		r.err = fmt.Errorf("cannot print the results: %w", err)
	}
}

// note prints a line that is no value.
func (r *report) note(format string, a ...any) { r.print("# "+format+"\n", a...) }

// value prints one value, and with a target whether it was met.
func (r *report) value(name string, value float64, unit string, most target) {
	line := fmt.Sprintf("%-42s %9.2f %-5s", name, value, unit)
	switch {
	case most == 0:
	case value <= float64(most):
		line += fmt.Sprintf("   <= %.4g ok", most)
	default:
		line += fmt.Sprintf("   <= %.4g MISSED", most)
	}
	r.print("%s\n", line)
}

// times prints the median of durations, and names it; p95 and p99 as asked.
func (r *report) times(name string, all samples, most target, percents ...int) {
	r.value(name+"_ms", all.percentile(50), "ms", most)
	for _, p := range percents {
		r.value(fmt.Sprintf("%s_p%d_ms", name, p), all.percentile(p), "ms", 0)
	}
}
