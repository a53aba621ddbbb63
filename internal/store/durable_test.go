package store

import (
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// What SQLite answers to PRAGMA synchronous.
const (
	syncNormal = 1
	syncFull   = 2
)

// Each transaction commits in its own mode, whatever came before it, and whatever failed.
func TestModeOfACommit(t *testing.T) {
	s, _ := open(t)
	mode := func(when durability, end error) (mode int) {
		err := s.transact(ctx, when, func(tx *sql.Tx) error {
			require.NoError(t, tx.QueryRow(`PRAGMA synchronous`).Scan(&mode))
			return end
		})
		assert.Equal(t, end == nil, err == nil)
		return mode
	}
	for range 2 {
		assert.Equal(t, syncFull, mode(atOnce, nil))
		assert.Equal(t, syncNormal, mode(soon, nil))
		assert.Equal(t, syncNormal, mode(beforeVerdict, assert.AnError))
		assert.Equal(t, syncFull, mode(atOnce, assert.AnError))
		assert.Equal(t, syncNormal, mode(beforeVerdict, nil))
	}
}

// An intent is synced, and so is a verdict where something was done for it that is not
// yet; a call that changed nothing waits for no disk.
func TestWhatAVerdictWaitsFor(t *testing.T) {
	s, _ := open(t)
	call, err := s.AddHookCall(ctx, api.HookCall{Guest: "vm1", Op: "prepare"})
	require.NoError(t, err)
	assert.Equal(t, soon, s.verdict(), "nothing was changed")
	require.NoError(t, s.ChangeHolds(ctx, HoldChange{Put: []model.Hold{hold("u", "vg/a")}}))
	_, err = s.Begin(ctx, Intent{Kind: "peer request", Argv: []string{"lend"}, HookCall: call}, HoldChange{})
	require.NoError(t, err)
	assert.Equal(t, atOnce, s.verdict(), "a request is synced with what it leads to")
	id, err := s.Begin(ctx, Intent{Kind: "activate", Argv: []string{"lvchange"}, Targets: []model.Volume{volume("vg/a")}, HookCall: call}, HoldChange{})
	require.NoError(t, err)
	require.NoError(t, s.Running(ctx, id, 1, 2))
	assert.Equal(t, soon, s.verdict(), "an intent syncs all before it")
	require.NoError(t, s.Finish(ctx, id, Result{State: model.StateCompleted}, HoldChange{}))
	assert.Equal(t, atOnce, s.verdict(), "the result must be there first")
	require.NoError(t, s.FinishHookCall(ctx, call, HookVerdict{Verdict: VerdictAllowed}, nil, HoldChange{}))
	assert.Equal(t, soon, s.verdict())
	require.NoError(t, s.ChangeHolds(ctx, HoldChange{Put: []model.Hold{hold("u", "vg/a")}}))
	assert.Equal(t, atOnce, s.verdict(), "so must the holds")
	assert.Eventually(t, func() bool { return s.verdict() == soon }, 20*syncPause, time.Millisecond, "synced by itself")
}

// A store that is closed before its sync stays closed, and has everything.
func TestClosedBeforeTheSync(t *testing.T) {
	s, _ := open(t)
	_, err := s.AddHookCall(ctx, api.HookCall{Guest: "vm1", Op: "prepare"})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	time.Sleep(2 * syncPause)
	s.mu.Lock()
	assert.Nil(t, s.pools)
	s.mu.Unlock()
	calls, err := s.HookCalls(ctx, 10, "")
	require.NoError(t, err)
	assert.Len(t, calls, 1)
}

// Hook calls of many guests at once: no transaction is lost between the modes.
func TestManyWriters(t *testing.T) {
	s, _ := open(t)
	const guests, rounds = 8, 20
	var all sync.WaitGroup
	for range guests {
		all.Go(func() {
			for range rounds {
				call, err := s.AddHookCall(ctx, api.HookCall{Guest: "vm", Op: "prepare"})
				assert.NoError(t, err)
				id, err := s.Begin(ctx, Intent{Kind: "activate", Argv: []string{"x"}, HookCall: call}, HoldChange{})
				assert.NoError(t, err)
				assert.NoError(t, s.Finish(ctx, id, Result{State: model.StateCompleted}, HoldChange{}))
				assert.NoError(t, s.FinishHookCall(ctx, call, HookVerdict{Verdict: VerdictAllowed}, nil, HoldChange{}))
			}
		})
	}
	all.Wait()
	calls, err := s.HookCalls(ctx, 10*guests*rounds, "")
	require.NoError(t, err)
	assert.Len(t, calls, guests*rounds)
	for _, c := range calls {
		assert.Equal(t, VerdictAllowed, c.Verdict)
	}
	open, err := s.OpenCommands(ctx)
	require.NoError(t, err)
	assert.Empty(t, open)
}
