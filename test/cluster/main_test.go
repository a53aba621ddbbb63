package cluster

import (
	"os"
	"runtime/debug"
	"testing"
	"time"
)

// patience is how long a condition is waited for where time is real: a machine with other
// work takes its time. What has a deadline of its own runs in a bubble of testing/synctest.
const patience = time.Minute

// TestMain lets memory grow: what a simulation allocates lives shortly, and to collect it
// early is a fifth of its time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
