package api

import (
	"encoding/json"
	"time"
)

// Routes of commands that go on by themselves, beside RouteCommands, which also takes POST
// CommandRequest -> 202 Command. {id} is the id of a row in the journal of the host that is
// asked.
const (
	RouteCommandPlan    = "/v1/commands/plan"         // POST CommandRequest -> CommandPlan: what it would do
	RouteCommandCancel  = "/v1/commands/{id}/cancel"  // POST CancelRequest -> Command
	RouteCommandResolve = "/v1/commands/{id}/resolve" // POST ResolveRequest -> Command
	// RouteEvents is GET ?after=ID&limit=N -> []Event, oldest first: those after the event ID,
	// or the newest. With ?follow=1 a stream of server-sent events (WHATWG HTML, 9.2) that goes
	// on; `id` is the event's, `data` an Event. Last-Event-ID works as ?after does.
	RouteEvents = "/v1/events"
)

// Command is a row of the journal: a step (one LVM command), or a command with an origin and
// an executor, of which each has a row.
type Command struct {
	ID       int64     `json:"id"`
	Kind     string    `json:"kind"`  // "activate", "deactivate", "query", ...
	State    string    `json:"state"` // see model.CommandState
	Argv     []string  `json:"argv"`
	Targets  []string  `json:"targets"` // "vg/lv", ..., or the name of a guest
	HookCall int64     `json:"hook_call,omitempty"`
	Cause    string    `json:"cause"` // why it was run: "hook prepare vm1", "reconcile", "operator uid 0"
	Created  time.Time `json:"created"`
	Finished time.Time `json:"finished,omitzero"`
	ExitCode int       `json:"exit_code"` // of the program; -1 when it did not run or did not end
	Stderr   string    `json:"stderr,omitempty"`
	Error    string    `json:"error,omitempty"`   // our reading of the failure; why it was not done
	Outcome  string    `json:"outcome,omitempty"` // what was observed afterwards
	PID      int       `json:"pid,omitempty"`

	// What follows is empty for a step.

	Side     string `json:"side,omitempty"`   // of this row: "local", "origin", "executor"
	Origin   string `json:"origin,omitempty"` // host that was asked
	Executor string `json:"executor,omitempty"`
	Sequence int64  `json:"sequence,omitempty"` // of the request at its origin
	// PeerState is what the executor has last said, in a row of the origin; PeerID its row.
	PeerState    string          `json:"peer_state,omitempty"`
	PeerID       int64           `json:"peer_id,omitempty"`
	Args         json.RawMessage `json:"args,omitempty"`
	Deadline     time.Time       `json:"deadline,omitzero"`
	OnDisconnect string          `json:"on_disconnect,omitempty"` // "continue", "cancel"
	Cancelled    string          `json:"cancelled,omitempty"`     // why it was asked to end
	Why          string          `json:"why,omitempty"`           // why it is in this state
	Changed      time.Time       `json:"changed,omitzero"`        // since when
	Attempts     int             `json:"attempts,omitempty"`      // to find out what became of it
	Next         time.Time       `json:"next,omitzero"`           // when that is tried again
	Progress     *Progress       `json:"progress,omitempty"`
	Answer       json.RawMessage `json:"answer,omitempty"`
	// Unacknowledged: the host at the other end does not know the answer yet.
	Unacknowledged bool `json:"unacknowledged,omitempty"`
	// History is what has happened to it, oldest first; in the answer to RouteCommand alone.
	History []Transition `json:"history,omitempty"`
}

// Progress is how far a command has come.
type Progress struct {
	Done  int64  `json:"done"`            // bytes
	Total int64  `json:"total,omitempty"` // bytes; 0: not known
	Speed int64  `json:"speed,omitempty"` // bytes per second; 0: not known
	Phase string `json:"phase,omitempty"` // what is done just now
	// Left is the time until it is done at this speed, in seconds; 0: not known.
	Left int64     `json:"left,omitempty"`
	At   time.Time `json:"at,omitzero"`
	// Moved is when it last moved on.
	Moved time.Time `json:"moved,omitzero"`
}

// Transition is one change of state; From and To are the same for a remark.
type Transition struct {
	Time  time.Time `json:"time"`
	From  string    `json:"from"`
	To    string    `json:"to"`
	Cause string    `json:"cause,omitempty"`
}

// Event is a transition of any command of the journal.
type Event struct {
	ID      int64     `json:"id"` // counts up
	Time    time.Time `json:"time"`
	Command int64     `json:"command"`
	Kind    string    `json:"kind"`
	Side    string    `json:"side"`
	Targets []string  `json:"targets"`
	From    string    `json:"from"`
	To      string    `json:"to"`
	Cause   string    `json:"cause,omitempty"`
}

// CommandFilter says which rows of the journal are listed; the zero value: the newest of all.
type CommandFilter struct {
	Limit  int
	Before int64     // only rows with a smaller id; 0: from the newest
	States []string  // only these; "open": all that have not ended
	Since  time.Time // only rows created since
}

// StateOpen is a state of a CommandFilter that stands for all that have not ended. The filter's
// parameters of RouteCommands: limit, before, state (may be repeated), since (RFC 3339).
const StateOpen = "open"

// CommandRequest asks for a command.
type CommandRequest struct {
	Kind string          `json:"kind"`
	Args json.RawMessage `json:"args"`
	// Executor is the host that shall run it; empty: where it can be done, as far as its kind
	// finds that out, else this one.
	Executor string `json:"executor,omitempty"`
	// Timeout in seconds; 0: what the kind thinks fit. It kills nothing: see virtlvmd(8).
	Timeout      int64  `json:"timeout,omitempty"`
	OnDisconnect string `json:"on_disconnect,omitempty"` // "continue" (default), "cancel"
}

// CancelRequest asks a running command to end.
type CancelRequest struct {
	Why string `json:"why,omitempty"`
}

// ResolveRequest is a person's word on how a command has ended.
type ResolveRequest struct {
	As  string `json:"as"` // "completed", "failed"
	Why string `json:"why"`
}

// CommandSummary counts the commands that have not ended, but for steps.
type CommandSummary struct {
	Running    int `json:"running"`    // asked for or under way
	Unresolved int `json:"unresolved"` // being found out
	Skipped    int `json:"skipped"`    // given up: need a person
	Unsent     int `json:"unsent"`     // ended, and the other host does not know it yet
}

// Routes between an origin and an executor, on the peer socket. The caller's name is that of
// its key.
const (
	RoutePeerCommand       = "/v1/peer/command"        // POST PeerCommand -> PeerReport; run it
	RoutePeerCommandPlan   = "/v1/peer/command/plan"   // POST PeerPlan -> CommandPlan; it is not run
	RoutePeerCommandAsk    = "/v1/peer/command/ask"    // POST PeerCommand -> PeerReport; how is it?
	RoutePeerCommandAck    = "/v1/peer/command/ack"    // POST PeerAck -> {}; the origin has the answer
	RoutePeerCommandNotice = "/v1/peer/command/notice" // POST PeerCommandNotice -> PeerCommandNoticeAnswer
)

// PeerPlan asks what a command would do.
type PeerPlan struct {
	Kind string          `json:"kind"`
	Args json.RawMessage `json:"args"`
}

// PeerCommand is a command as an origin tells it to an executor, in full each time. Sent
// twice, it is answered from the same row.
type PeerCommand struct {
	Sequence     int64           `json:"sequence"`
	Kind         string          `json:"kind"`
	Args         json.RawMessage `json:"args"`
	Cause        string          `json:"cause"`   // who asked
	Created      time.Time       `json:"created"` // by the origin's clock
	Timeout      int64           `json:"timeout"` // seconds from now; 0: what the kind thinks fit
	OnDisconnect string          `json:"on_disconnect"`
	// Cancelled is why it shall end; empty: it shall not.
	Cancelled string `json:"cancelled,omitempty"`
}

// PeerReport is an executor's row.
type PeerReport struct {
	ID       int64           `json:"id"`
	State    string          `json:"state"`
	Why      string          `json:"why,omitempty"`
	Plan     json.RawMessage `json:"plan,omitempty"`
	Targets  []PeerTarget    `json:"targets"`
	Backend  bool            `json:"backend,omitempty"` // it runs outside of the daemon
	Deadline int64           `json:"deadline"`          // seconds from now; below 0: passed
	Progress *Progress       `json:"progress,omitempty"`
	// Of a command that has ended.
	Final   bool            `json:"final"`
	Answer  json.RawMessage `json:"answer,omitempty"`
	Error   string          `json:"error,omitempty"`
	Outcome string          `json:"outcome,omitempty"`
}

// PeerTarget is a target; see model.Target.
type PeerTarget struct {
	VGUUID string `json:"vg_uuid"`
	LVUUID string `json:"lv_uuid"`
	Name   string `json:"name"`
	Shared bool   `json:"shared,omitempty"`
}

// PeerAck says that the origin has what the executor knows of a command.
type PeerAck struct {
	Sequence int64 `json:"sequence"`
	// Found, where the executor did not know: "completed" or "failed", as the origin or a
	// person has found out. Empty: the answer was taken.
	Found string `json:"found,omitempty"`
	Why   string `json:"why,omitempty"`
}

// PeerCommandNotice says that something has changed for these commands of the host that is
// told: ask. It is only ever a hint.
type PeerCommandNotice struct {
	Sequences []int64 `json:"sequences"`
}

// PeerCommandNoticeAnswer names those that the origin has no row of, or that have ended and are
// acknowledged: nobody waits for their answer any more. Ended are others that have ended for the
// origin, or that it finds out by itself this moment.
type PeerCommandNoticeAnswer struct {
	Gone  []int64 `json:"gone"`
	Ended []int64 `json:"ended"`
}
