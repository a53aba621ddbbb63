package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
)

// What metrics tell is what has happened.
func TestSummary(t *testing.T) {
	_, a, b := two(t) // vm1 runs on A
	s := a.Engine().Summary()
	assert.True(t, s.Ready)
	assert.Equal(t, 1, s.Holds.Exclusive)
	assert.Equal(t, 1, s.Changes[activation.Change{Kind: "activate", Cause: "hook", State: "COMPLETED"}])
	require.Error(t, b.Virt.Start(ctx, "vm1"))
	assert.Equal(t, 1, b.Engine().Summary().Changes[activation.Change{Kind: "activate", Cause: "hook", State: "FAILED"}])
	require.NoError(t, a.Virt.Destroy(ctx, "vm1"))
	require.Eventually(t, func() bool {
		a.Engine().Kick()
		s = a.Engine().Summary()
		return s.Holds.Exclusive+s.Holds.Ending == 0 && s.Passes["ok"] > 0
	}, patience, 20*time.Millisecond)
	assert.Empty(t, s.Pending)
	assert.Zero(t, s.Problems)
}
