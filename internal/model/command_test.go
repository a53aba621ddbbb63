package model

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// reach is everything that a command in state s can become, in any number of steps.
func reach(s CommandState) map[CommandState]bool {
	seen := map[CommandState]bool{}
	unexplored := []CommandState{s}
	for len(unexplored) > 0 {
		now := unexplored[0]
		unexplored = unexplored[1:]
		for _, next := range CommandStates() {
			if now.CanBecome(next) && !seen[next] {
				seen[next] = true
				unexplored = append(unexplored, next)
			}
		}
	}
	return seen
}

func TestEveryCommandCanEnd(t *testing.T) {
	begun := map[CommandState]bool{StateCreated: true, StateStarted: true}
	for _, from := range []CommandState{StateCreated, StateStarted} {
		for s := range reach(from) {
			begun[s] = true
		}
	}
	for _, s := range CommandStates() {
		assert.True(t, s.Known())
		assert.True(t, begun[s], "nothing leads to %s", s)
		ends := false
		for next := range reach(s) {
			ends = ends || next.Final()
		}
		assert.Equal(t, !s.Final(), ends, "%s", s)
		assert.Equal(t, !s.Final(), len(reach(s)) > 0, "%s: what is final stays", s)
		assert.False(t, s.CanBecome(s), "%s", s)
	}
	assert.False(t, CommandState("DONE").Known())
	assert.False(t, CommandState("").CanBecome(StateStarted))
}

// What the two sides of a command may do, as the design has it.
func TestWaysOfACommand(t *testing.T) {
	for name, way := range map[string][]CommandState{
		"origin":                        {StateCreated, StateCompleted},
		"origin, no answer":             {StateCreated, StateTimedOut, StateReconciling, StateReconciled},
		"origin, executor dead":         {StateCreated, StateInterrupted, StateReconciling, StateReconcileRetry, StateReconciling, StateReconcileFailed, StateReconcileSkip, StateCompleted},
		"inside the daemon":             {StateStarted, StateProcessing, StateCompleted},
		"inside, too late":              {StateStarted, StateProcessing, StateTimedOut, StateFailed},
		"inside, restarted":             {StateStarted, StateProcessing, StateInterrupted, StateCompleted},
		"backend":                       {StateStarted, StateBackend, StateCompleted},
		"backend, restarted, adopted":   {StateStarted, StateBackend, StateDangled, StateBackend, StateFailed},
		"backend, restarted, gone":      {StateStarted, StateBackend, StateDangled, StateCompleted},
		"backend, gone, cannot be told": {StateStarted, StateBackend, StateDangled, StateInterrupted, StateReconciling},
	} {
		for i := 1; i < len(way); i++ {
			assert.True(t, way[i-1].CanBecome(way[i]), "%s: %s -> %s", name, way[i-1], way[i])
		}
	}
	for _, bad := range [][2]CommandState{
		{StateCompleted, StateFailed},
		{StateFailed, StateCompleted},
		{StateReconciled, StateFailed},
		{StateCreated, StateProcessing},
		{StateStarted, StateCompleted},
		{StateBackend, StateInterrupted},
		{StateProcessing, StateReconciled},
		{StateReconcileSkip, StateReconciling},
		{StateTimedOut, StateReconciled},
		{StateDangled, StateReconciling},
	} {
		assert.False(t, bad[0].CanBecome(bad[1]), "%s -> %s", bad[0], bad[1])
	}
}
