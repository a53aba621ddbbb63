package model

// CommandState is the state of a row in the journal.
type CommandState string

// States of an executor's command. The origin's states come with commands between hosts.
const (
	StateStarted     CommandState = "STARTED"     // intent written, nothing has run yet
	StateProcessing  CommandState = "PROCESSING"  // its program runs
	StateCompleted   CommandState = "COMPLETED"   // done and verified
	StateFailed      CommandState = "FAILED"      // not done; what was done of it is undone or reported
	StateTimedOut    CommandState = "TIMED_OUT"   // no answer in time: unknown until observed
	StateInterrupted CommandState = "INTERRUPTED" // the daemon or the host went away while it ran
)

// CanBecome reports whether a command may go from s to next.
func (s CommandState) CanBecome(next CommandState) bool {
	switch s {
	case StateStarted:
		return next == StateProcessing || next == StateFailed || next == StateInterrupted
	case StateProcessing:
		return next == StateCompleted || next == StateFailed || next == StateTimedOut || next == StateInterrupted
	case StateTimedOut, StateInterrupted:
		return next == StateCompleted || next == StateFailed
	}
	return false
}

// Final reports whether the command has ended.
func (s CommandState) Final() bool { return s == StateCompleted || s == StateFailed }
