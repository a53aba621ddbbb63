// Package backend runs work outside of the daemon, in transient systemd units, so that it
// goes on while the daemon is restarted or has crashed, and its end can be found out
// afterwards.
//
// A job is a unit virtlvm-job-ID.service and a folder DIR/ID that outlives the unit:
//
//	job.json   what the job is, and under which boot it was made; written before all else
//	job.sh     what the unit runs: the steps, one after another
//	ready/     is removed by job.sh when it begins: a job never begins twice. Renamed to
//	           revoked/, it never begins at all
//	lock       locked (flock) by job.sh and all it has started, as long as one of them lives
//	step       number of the step that has begun last
//	out, err   the output of the steps: files, so that nobody's end ends the job
//	end        the exit record: exit code and time, written last
//
// So three things tell how a job stands, in this order: its exit record, its lock, systemd.
// A unit that systemd has forgotten is told from one that never was by the folder, and
// from one that a reboot has ended by the boot id.
package backend

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Job is work to be done once.
type Job struct {
	// ID names the job for ever: letters, digits, "." and "-", at most 80.
	ID          string
	Description string // of the unit
	// Steps are command lines, programs by their plain name; each begins when the one
	// before has exited with 0.
	Steps [][]string
	// StopSignal asks the running step to end; 0: SIGTERM. Nothing is ever killed.
	StopSignal syscall.Signal
}

// State says how a job stands.
type State string

// States of a job.
const (
	Running State = "running" // or about to run
	Exited  State = "exited"  // its end is known
	Gone    State = "gone"    // it is not there and has left no exit record: see Why
)

// Why says why a job is gone.
type Why string

// Reasons.
const (
	NeverRan Why = "never ran"              // nothing of it has been done
	Rebooted Why = "the host rebooted"      // it ran, and the host went down
	Lost     Why = "it left no trace"       // it ran, and was killed together with its record
	Missing  Why = "nothing is known of it" // neither folder nor unit: never made, or collected
)

// Report is what a look at a job finds.
type Report struct {
	State State
	Why   Why // with Gone
	// Code is the exit code of the last step that ran, 128+N where signal N ended it;
	// -1 where the job itself was killed. With Exited.
	Code int
	// Step is the step that has begun last, from 1; 0: none.
	Step  int
	Began time.Time // of the job
	Ended time.Time // zero where it is not known
	// Note is what systemd says of an end that has no record of its own.
	Note string
}

// OK reports whether every step has exited with 0.
func (r Report) OK() bool { return r.State == Exited && r.Code == 0 }

// String is for messages: "exit code 1", "ended by signal terminated", "running".
func (r Report) String() string {
	switch {
	case r.State == Running:
		return "running"
	case r.State == Gone:
		return string(r.Why)
	case r.Note != "":
		return r.Note
	case r.Code > 128:
		return "ended by signal " + syscall.Signal(r.Code-128).String()
	}
	return fmt.Sprintf("exit code %d", r.Code)
}

// Unit is what a service manager is asked to run.
type Unit struct {
	Name        string
	Description string
	Argv        []string // the program with its path
	Env         []string
	StopSignal  syscall.Signal
}

// UnitState is what a service manager knows of a unit.
type UnitState struct {
	Loaded  bool // it knows the unit
	Running bool // or starting, or stopping
	// Code and Signal are of the main process once it has ended: -1 and the signal where
	// one ended it.
	Code   int
	Signal syscall.Signal
	Ended  time.Time
	Result string // the service manager's word, such as "oom-kill"
}

// Units is the service manager of the host.
type Units interface {
	// Start starts a unit. A unit of that name that is there already is no error.
	Start(context.Context, Unit) error
	State(ctx context.Context, name string) (UnitState, error)
	// Stop asks a unit to stop and does not wait for it; no such unit is no error.
	Stop(ctx context.Context, name string) error
	// Forget drops what is known of a unit that has ended; no such unit is no error.
	Forget(ctx context.Context, name string) error
}

// UnitName is the name of a job's unit.
func UnitName(id string) string { return "virtlvm-job-" + id + ".service" }

// checkID keeps a job's id a plain name for files and units.
func checkID(id string) error {
	for i := range len(id) {
		c := id[i]
		plain := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !plain && (i == 0 || c != '-' && c != '.') {
			return fmt.Errorf("%q is not an id of a job", id)
		}
	}
	if id == "" || len(id) > 80 {
		return fmt.Errorf("%q is not an id of a job", id)
	}
	return nil
}

// checkSteps refuses what a shell script cannot hold.
func checkSteps(steps [][]string) error {
	if len(steps) == 0 {
		return fmt.Errorf("a job without a step")
	}
	for _, argv := range steps {
		if len(argv) == 0 || argv[0] == "" || strings.ContainsAny(argv[0], "/= \t\n'\"") {
			return fmt.Errorf("%q does not begin with the plain name of a program", argv)
		}
		for _, word := range argv {
			if strings.ContainsRune(word, 0) {
				return fmt.Errorf("%q has a zero byte", argv)
			}
		}
	}
	return nil
}
