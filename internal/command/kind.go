// Package command runs commands that outlive a connection, the daemon and the host that asked:
// it keeps their journal and state machine, hands them to other hosts, and finds out what
// became of them when nobody can say.
//
// Every command has an origin, the daemon that was asked, and an executor, the daemon that
// runs it; each has a row of its own, which is one and the same where both are this host. What
// a command does is a Kind. Nothing is guessed: a command whose outcome is not known is looked
// at until it is, or until a person decides.
package command

import (
	"context"
	"encoding/json"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// Kind is one sort of command, such as the migration of a guest. The framework writes a state
// before it calls a method and the result after; it may be killed between any two lines, so
// each method looks first and does only what is missing.
//
// Plan, Start, Look, Finish and Cancel are called on the executor, Investigate on the origin.
// For one command they are never called at the same time, but for Cancel, which may come
// at any time. A ctx that ends means that the daemon stops: return, whatever state things are in.
//
// Errors are *api.Error with the one line for an administrator, or wrap one.
type Kind interface {
	// Plan checks a request and names its exact targets. It changes nothing. An error refuses
	// the command: then there is no row of it.
	Plan(ctx context.Context, args json.RawMessage) (Plan, error)

	// Start begins the work: it prepares (locks, a volume to copy to) and starts the backend,
	// or does all of the work where the plan has no backend. Called once as a rule; again for
	// a command that had only been accepted when the daemon ended. After an error Look is
	// called as well: the error alone does not say that nothing has begun.
	Start(ctx context.Context, c Command) error

	// Look says where the work stands, from the backend itself (the unit's exit record, the
	// job of libvirt) and never from what this process remembers. It changes nothing. Called
	// every second or so while a backend runs, so it should be cheap.
	Look(ctx context.Context, c Command) (Sight, error)

	// Finish does what remains once the work has ended or is gone (verify, give back locks,
	// remove what is half made and ours) and judges. Called until the verdict is Done or
	// NotDone. An error, like NotYet, means: not known yet, call again later.
	//
	// s.Where is Ended or Gone. Gone is no failure: a migration that is gone may have
	// succeeded; what can be observed decides. For a kind without a backend Finish may do the
	// rest of the work.
	Finish(ctx context.Context, c Command, s Sight) (Verdict, error)

	// Cancel asks the backend to end and returns; Look sees it end. Also called when a
	// connection is lost or the daemon stops, under a deadline of a few seconds. Cancelling
	// what has ended is no error.
	Cancel(ctx context.Context, c Command) error

	// Investigate finds out on the origin what became of a command whose executor is dead or
	// does not know: by asking other hosts, the lease on disk, and so on. It looks and changes
	// nothing. c.Plan is empty if the executor never answered. An error: could not be
	// looked at, tried again later.
	Investigate(ctx context.Context, c Command) (Verdict, error)
}

// Tender is a Kind that has something to write down while its backend runs, such as how far
// it has come.
type Tender interface {
	// Tend is called after each Look that has found the backend running, and never at the same
	// time as another method, but for Cancel. It must be quick as a rule. An error is logged.
	Tend(ctx context.Context, c Command, s Sight) error
}

// Plan is a request that was checked.
type Plan struct {
	// Targets are what the command is about. A command is refused while another one that has
	// not ended has the same target, unless both only read it.
	Targets []Target
	// Record is what the kind has found out and will need later, such as the guest's uuid; it
	// is kept with the command as Command.Plan, also on the origin.
	Record json.RawMessage
	// Volumes is what it would do with each volume, for those who ask before.
	Volumes []api.PlannedVolume
	// Once: it says what was so before the command, and made after that it would be wrong.
	Once bool
	// Backend: the work goes on outside of the daemon once Start has returned, and survives
	// its end. Else Start does all of it.
	Backend bool
}

// Placer is a Kind that can tell where a request should run for which nobody has named a
// host. "": here. It changes nothing; what it says may be out of date a moment later, so
// that Plan on that host decides.
type Placer interface {
	Place(ctx context.Context, args json.RawMessage) (host string, err error)
}

// Target is a volume or a guest.
type Target = model.Target

// Command is a command as its Kind sees it.
type Command struct {
	// Key is unique for ever and on all hosts, also after a lost database: ORIGIN-SEQUENCE.
	// Name units, files and tags after it. Letters, digits, dots and dashes, at most 80.
	Key      string
	ID       int64 // of the row on this host, for messages
	Kind     string
	Args     json.RawMessage // as they were asked for
	Plan     json.RawMessage // Plan.Record
	Targets  []Target
	State    model.CommandState
	Origin   string // host names
	Executor string
	Cause    string // who asked, such as "operator uid 0"
	Created  time.Time
	Deadline time.Time
	// OnDisconnect says what becomes of it when the origin is lost.
	OnDisconnect model.Disconnect
	// Cancelled is why it was asked to end; "" if it was not.
	Cancelled string
	// Progress is the last one known.
	Progress model.Progress
}

// Where says where the work of a command stands.
type Where string

// Where the work stands.
const (
	Running Where = "running" // the backend works
	Ended   Where = "ended"   // it has ended and left its exit record
	Gone    Where = "gone"    // there is no backend and no record: never begun, or lost
	Unknown Where = "unknown" // cannot be told now, such as while libvirt restarts
)

// Sight is what Look has seen.
type Sight struct {
	Where    Where
	Progress model.Progress
	// Record is the exit record as the kind understands it; it is given to Finish.
	Record json.RawMessage
	// Reason is one line on why Where is Unknown, or how the backend ended.
	Reason string
	// Began is the error of Start where that is why Look was called; nil after a restart.
	Began error
}

// Outcome is how a command ended.
type Outcome string

// Outcomes.
const (
	Done    Outcome = "done"     // what was asked for is so
	NotDone Outcome = "not done" // it is not, and nothing half made is left or it is reported
	NotYet  Outcome = "not yet"  // not known; look again later
)

// Verdict is how a command ended, or that it cannot be told yet.
type Verdict struct {
	Outcome Outcome
	Answer  json.RawMessage // for the origin; may be nil
	// Reason is one line: why it was not done or cannot be told yet; for Done, what was
	// reached.
	Reason string
}

// DefaultTimeout is the deadline of a command that names none. A deadline kills nothing: the
// command becomes DANGLED_IN_BACKEND and is looked at until it ends.
const DefaultTimeout = 24 * time.Hour
