// Package conformance keeps the fake SAN honest: one list of commands (steps.txt) that is
// run on the fake by its own test and on real hosts by the end-to-end tests, with the same
// comparison.
//
// It expects two hosts named kvm-a and kvm-b, or as Options.Hosts says, with sanlock host
// ids 1 and 2 and those names as our_host_name, and a sanlock VG vg_san with its lockspace
// started on both and 200 MiB free. It makes volumes named conf1, conf2, ... and removes
// them; other volumes are left alone and do not show in the result.
package conformance

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed steps.txt
var stepsText string

// Shell runs one command line on a host, as root, with LC_ALL=C and
// LVM_SUPPRESS_FD_WARNINGS=1 set and nothing on stdin. err means that it could not be run
// at all; an exit code is none.
type Shell interface {
	Run(ctx context.Context, host, commandLine string) (stdout, stderr string, exit int, err error)
}

// Opener is a Shell that opens devices in its own way. For others a background process on
// the host does it, by commands for a POSIX shell.
type Opener interface {
	Open(ctx context.Context, host, volume string) error
	Close(ctx context.Context, host, volume string) error
}

// Options for Run.
type Options struct {
	// Hosts are the real names of kvm-a and kvm-b; empty: those.
	Hosts [2]string
	// Skip leaves out sections that need a feature: "thin", "snapshot", "lvm31".
	Skip []string
	// Log is told of each step before it runs; may be nil.
	Log func(line string)
}

// Outcome is what a command left, normalized.
type Outcome struct {
	Exit           int
	Stdout, Stderr []string // lines
}

// Result is one compared step.
type Result struct {
	Line      int // in steps.txt
	Host, Cmd string
	Want, Got Outcome
}

// OK reports whether the step did what is expected.
func (r Result) OK() bool { return r.Want.String() == r.Got.String() }

// String is the outcome in the form of steps.txt.
func (o Outcome) String() string {
	var b strings.Builder
	if o.Exit != 0 {
		fmt.Fprintf(&b, "exit %d\n", o.Exit)
	}
	for _, l := range o.Stdout {
		fmt.Fprintf(&b, "1|%s\n", l)
	}
	for _, l := range o.Stderr {
		fmt.Fprintf(&b, "2|%s\n", l)
	}
	return b.String()
}

// Transcript is the result of all compared steps, in order.
type Transcript []Result

// Diff shows the steps that did something else; empty: all as expected.
func (t Transcript) Diff() string {
	var b strings.Builder
	for _, r := range t {
		if !r.OK() {
			fmt.Fprintf(&b, "steps.txt:%d: %s$ %s\n--- expected\n%s+++ got\n%s\n", r.Line, r.Host, r.Cmd, r.Want, r.Got)
		}
	}
	return b.String()
}

// String is the transcript in the form of steps.txt.
func (t Transcript) String() string {
	var b strings.Builder
	for _, r := range t {
		fmt.Fprintf(&b, "%s$ %s\n%s\n", r.Host, r.Cmd, r.Got)
	}
	return b.String()
}

// Run runs the list. It removes what is left of an earlier run first, and of this one at
// its end, also on an error.
func Run(ctx context.Context, sh Shell, o Options) (t Transcript, err error) {
	steps, err := parseSteps(stepsText)
	if err != nil {
		return nil, err
	}
	r := &runner{sh: sh, opt: o, norm: newNormalizer()}
	for i, def := range []string{"kvm-a", "kvm-b"} {
		if o.Hosts[i] == "" {
			r.opt.Hosts[i] = def
		}
	}
	if err := r.clean(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if cleanErr := r.clean(context.WithoutCancel(ctx)); err == nil {
			err = cleanErr
		}
	}()
	for _, s := range steps {
		if slices.ContainsFunc(s.needs, func(f string) bool { return slices.Contains(o.Skip, f) }) {
			continue
		}
		if err := r.step(ctx, s); err != nil {
			return r.done, fmt.Errorf("steps.txt:%d: %w", s.line, err)
		}
	}
	return r.done, nil
}
