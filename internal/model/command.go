package model

import (
	"slices"
	"time"
)

// CommandState is the state of a row in the journal.
type CommandState string

// States of a command. Origin is the daemon that asked, executor the one that runs it; for
// work of this host both are the same row. A step (one LVM command) knows only STARTED to
// INTERRUPTED.
const (
	StateCreated    CommandState = "CREATED"    // origin: asked for, no answer yet
	StateStarted    CommandState = "STARTED"    // executor: accepted, intent written, nothing has run yet
	StateProcessing CommandState = "PROCESSING" // executor: runs inside the daemon; a step: its program runs
	// StateBackend: it runs outside of the daemon, as a job of libvirt or a transient unit
	// of systemd. Written before the backend is begun.
	StateBackend CommandState = "PROCESSING_IN_BACKEND"

	StateCompleted   CommandState = "COMPLETED"   // done and verified
	StateFailed      CommandState = "FAILED"      // not done; what was done of it is undone or reported
	StateTimedOut    CommandState = "TIMED_OUT"   // no answer in time: unknown until observed
	StateInterrupted CommandState = "INTERRUPTED" // the daemon or the host went away while it ran: unknown
	// StateDangled: the daemon was restarted, or the deadline passed, while a backend ran.
	StateDangled CommandState = "DANGLED_IN_BACKEND"

	StateReconciling     CommandState = "RECONCILING"       // being found out
	StateReconciled      CommandState = "RECONCILED"        // found out: its error tells whether it was done
	StateReconcileFailed CommandState = "RECONCILE_FAILED"  // it could not be looked at; tried again
	StateReconcileRetry  CommandState = "RECONCILE_RETRY"   // looked at, not yet decided; looked at again
	StateReconcileSkip   CommandState = "RECONCILE_SKIPPED" // given up: needs a person
)

// transitions are all there are; the trigger of the journal says the same (sql/migrations).
var transitions = map[CommandState][]CommandState{
	StateCreated:         {StateCompleted, StateFailed, StateTimedOut, StateInterrupted},
	StateStarted:         {StateProcessing, StateBackend, StateFailed, StateInterrupted},
	StateProcessing:      {StateCompleted, StateFailed, StateTimedOut, StateInterrupted},
	StateBackend:         {StateCompleted, StateFailed, StateDangled},
	StateDangled:         {StateBackend, StateCompleted, StateFailed, StateInterrupted},
	StateTimedOut:        {StateCompleted, StateFailed, StateReconciling},
	StateInterrupted:     {StateCompleted, StateFailed, StateReconciling},
	StateReconciling:     {StateReconciled, StateReconcileFailed, StateReconcileRetry},
	StateReconcileFailed: {StateReconciling, StateReconcileSkip},
	StateReconcileRetry:  {StateReconciling, StateReconcileSkip},
	StateReconcileSkip:   {StateCompleted, StateFailed},
}

// CommandStates lists every state.
func CommandStates() []CommandState {
	return []CommandState{
		StateCreated, StateStarted, StateProcessing, StateBackend, StateCompleted, StateFailed, StateTimedOut, StateInterrupted,
		StateDangled, StateReconciling, StateReconciled, StateReconcileFailed, StateReconcileRetry, StateReconcileSkip,
	}
}

// CanBecome reports whether a command may go from s to next.
func (s CommandState) CanBecome(next CommandState) bool {
	return slices.Contains(transitions[s], next)
}

// Final reports whether the command has ended and it is known how.
func (s CommandState) Final() bool {
	return s == StateCompleted || s == StateFailed || s == StateReconciled
}

// Known reports whether s is a state at all.
func (s CommandState) Known() bool { return slices.Contains(CommandStates(), s) }

// Side is what a host has to do with a command in its journal.
type Side string

// Sides.
const (
	SideStep     Side = "step"     // one LVM command, run for a hook call, an operator or by itself
	SideLocal    Side = "local"    // asked for and run here
	SideOrigin   Side = "origin"   // asked for here, run elsewhere
	SideExecutor Side = "executor" // asked for elsewhere, run here
)

// Runs reports whether the command is carried out on this host.
func (s Side) Runs() bool { return s == SideLocal || s == SideExecutor }

// Target is what a command is about: a volume or a guest.
type Target struct {
	// Volume: uuids of VG and LV. A guest has its uuid in LV and none in VG.
	Volume VolumeID
	Name   string // "vg/lv", or the guest's name
	Shared bool   // it is only read: other commands may do so as well
}

// Progress is how far a command has come. The zero value: not known.
type Progress struct {
	Done  int64 `json:"done"`            // bytes
	Total int64 `json:"total,omitempty"` // bytes; 0: not known. May grow while it runs
	// Speed in bytes per second; 0: not known, then it is taken from two samples.
	Speed int64  `json:"speed,omitempty"`
	Phase string `json:"phase,omitempty"` // what is done just now, in a word or two, such as "comparing"
	// At is when this was seen, Moved when Done or Phase last changed: a copy that has
	// stalled shows in their distance.
	At    time.Time `json:"at,omitzero"`
	Moved time.Time `json:"moved,omitzero"`
}

// Disconnect is what becomes of a running command when its origin is lost or the daemon stops.
type Disconnect string

// What --on-disconnect may say.
const (
	DisconnectContinue Disconnect = "continue" // goes on; its answer is kept
	DisconnectCancel   Disconnect = "cancel"   // its backend is asked to end
)
