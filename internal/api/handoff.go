package api

import "time"

// RouteHandoff tells how live migrations of a guest have gone.
const RouteHandoff = "/v1/handoff" // GET ?guest=NAME or UUID -> GuestHandoff

// RoutePeerHandoff asks another host for its side of them.
const RoutePeerHandoff = "/v1/peer/handoff" // POST HandoffQuery -> HandoffAnswer

// GuestHandoff answers RouteHandoff.
type GuestHandoff struct {
	Guest string `json:"guest"`
	UUID  string `json:"uuid"`
	// Migrations are the one under way, if there is one, and the last one that has ended
	// before it.
	Migrations []Migration `json:"migrations"`
}

// Migration is one try of a live migration.
type Migration struct {
	Attempt string `json:"attempt"` // names it on both hosts
	// Source and Destination are what each of the two hosts has seen.
	Source      HandoffSide `json:"source"`
	Destination HandoffSide `json:"destination"`
}

// States of one side of a migration.
const (
	HandoffUnderWay = "under way"
	HandoffUnseen   = "end not seen" // the daemon did not run then
	HandoffUnknown  = "unknown"      // see HandoffSide.Problem
)

// HandoffSide is what one host has seen of a migration.
type HandoffSide struct {
	Host string `json:"host"`
	// State is HandoffUnderWay, the last step, HandoffUnseen or HandoffUnknown.
	State string        `json:"state"`
	Steps []HandoffStep `json:"steps"`
	// Problem says why the host could not be asked.
	Problem string `json:"problem,omitempty"`
	// Ahead is how far that host's clock, which its times are of, is ahead of this host's, in
	// nanoseconds, to the second.
	Ahead time.Duration `json:"ahead,omitempty"`
}

// HandoffStep is something that happened in a migration.
type HandoffStep struct {
	Step   string    `json:"step"` // see model.Step
	At     time.Time `json:"at"`   // by the clock of the host it happened on
	Detail string    `json:"detail,omitempty"`
}

// HandoffQuery asks for what a host has seen of the migrations of a guest from or to the
// one that asks.
type HandoffQuery struct {
	UUID string `json:"uuid"`
}

// HandoffAnswer answers HandoffQuery.
type HandoffAnswer struct {
	Now   time.Time              `json:"now"`
	Sides map[string]HandoffSide `json:"sides"` // by attempt
}
