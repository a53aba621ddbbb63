package store

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/model"
)

func stepOf(attempt, guest string, s model.Step, at int64) model.HandoffStep {
	return model.HandoffStep{
		Attempt: attempt, UUID: "uuid-" + guest, Guest: guest, Side: model.SideSource, Peer: "kvm-b", Step: s, Detail: "why", AtMillis: at,
	}
}

func TestHandoffSteps(t *testing.T) {
	s, _ := open(t)
	first := []model.HandoffStep{stepOf("t1", "vm1", model.StepAsked, 10), stepOf("t1", "vm1", model.StepRefused, 11)}
	require.NoError(t, s.ChangeHolds(ctx, HoldChange{Steps: first}))
	other := stepOf("t2", "vm2", model.StepAsked, 12)
	id, err := s.Begin(ctx, Intent{Kind: "peer request", Argv: []string{"lend"}}, HoldChange{Steps: []model.HandoffStep{other}})
	require.NoError(t, err)
	second := stepOf("t3", "vm1", model.StepAsked, 13)
	require.NoError(t, s.Finish(ctx, id, Result{State: model.StateCompleted}, HoldChange{Steps: []model.HandoffStep{second}}))

	for _, who := range []string{"vm1", "uuid-vm1"} {
		got, err := s.HandoffSteps(ctx, who, 10)
		require.NoError(t, err)
		assert.Equal(t, append(first, second), got, who)
	}
	got, err := s.HandoffSteps(ctx, "vm1", 2)
	require.NoError(t, err)
	assert.Equal(t, []model.HandoffStep{first[1], second}, got, "the newest")
	got, err = s.HandoffSteps(ctx, "", 3)
	require.NoError(t, err)
	assert.Equal(t, []model.HandoffStep{first[1], other, second}, got)
	got, err = s.HandoffSteps(ctx, "vm9", 2)
	require.NoError(t, err)
	assert.Empty(t, got)

	more, err := s.Prune(ctx, time.UnixMilli(11))
	require.NoError(t, err)
	assert.False(t, more)
	got, err = s.HandoffSteps(ctx, "vm1", 10)
	require.NoError(t, err)
	assert.Equal(t, []model.HandoffStep{first[1], second}, got)
}

// A copy before a migration is for a database that an older version has used.
func TestNewDatabaseIsNotCopied(t *testing.T) {
	s, _ := open(t)
	files, err := os.ReadDir(filepath.Dir(s.opts.Path))
	require.NoError(t, err)
	for _, f := range files {
		assert.NotContains(t, f.Name(), "schema")
	}
}
