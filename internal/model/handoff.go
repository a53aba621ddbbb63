package model

// HandoffSide is what this host is in a live migration.
type HandoffSide string

// Sides.
const (
	SideSource      HandoffSide = "source"
	SideDestination HandoffSide = "destination"
)

// Step is something that has happened in a live migration on one of its two hosts.
type Step string

// Steps, in their order where all goes well.
const (
	StepAsked     Step = "asked"     // the destination asks the source to lend; written on both
	StepLent      Step = "lent"      // source: the volumes are shared
	StepTaken     Step = "taken"     // destination: it has them too
	StepConfirmed Step = "confirmed" // the source has said at `prepare` that the grant is good; on both
	StepMoving    Step = "moving"    // memory moves; on both
	StepGone      Step = "gone"      // source: the guest's QEMU has gone
	StepReleased  Step = "released"  // source, or a destination that failed: the volumes are off; last
	StepSwitched  Step = "switched"  // destination: the guest is here and its migration has ended
	StepExclusive Step = "exclusive" // the volumes are this host's alone; last

	StepRefused     Step = "refused"      // nothing has been changed, or all of it undone; last
	StepNothingLent Step = "nothing lent" // no live migration: a definition was copied; last
	StepDenied      Step = "denied"       // the source has not confirmed the grant; last
	StepTakenBack   Step = "taken back"   // source: the migration has failed and the guest runs here
	StepFailed      Step = "failed"       // destination: the guest has not come, or not stayed
	StepLeftOver    Step = "left over"    // source: the guest runs there, and a paused one was left here
	StepIsolated    Step = "isolated"     // source: that one can write no more
	StepInterrupted Step = "interrupted"  // the daemon ended before anything was lent or taken; last
)

// Last reports whether nothing follows a step on the same host.
func (s Step) Last() bool {
	switch s {
	case StepReleased, StepExclusive, StepRefused, StepNothingLent, StepDenied, StepInterrupted:
		return true
	}
	return false
}

// HandoffStep is a step of one try of a migration, as the host that took it tells it.
type HandoffStep struct {
	Attempt  string // names the try, on both hosts alike
	UUID     string // of the guest
	Guest    string // its name here
	Side     HandoffSide
	Peer     string // the host at the other end
	Step     Step
	Detail   string
	AtMillis int64 // unix, by this host's clock
}
