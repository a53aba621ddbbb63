package store

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

func target(name string, shared bool) model.Target {
	v := volume(name)
	return model.Target{Volume: v.ID, Name: name, Shared: shared}
}

func entry(sequence int64, side model.Side, state model.CommandState, targets ...model.Target) Entry {
	return Entry{
		Side: side, State: state, Kind: "copy", Args: json.RawMessage(`{"a":1}`), Origin: "kvm-a", Sequence: sequence, Executor: "kvm-a",
		Cause: "operator uid 0", BootID: "boot-1", Planned: len(targets) > 0, Targets: targets, Backend: true, Acknowledged: side == model.SideLocal,
		Deadline: time.UnixMilli(1_800_000_060_000), OnDisconnect: model.DisconnectCancel, Why: "accepted",
	}
}

func add(t *testing.T, s *Store, e Entry) Entry {
	t.Helper()
	e, existed, err := s.AddEntry(ctx, e)
	require.NoError(t, err)
	require.False(t, existed)
	return e
}

func TestEntryRoundTrip(t *testing.T) {
	s, now := open(t)
	made := add(t, s, entry(1, model.SideLocal, model.StateStarted, target("vg/a", false), target("vg/b", true)))
	read, err := s.Entry(ctx, made.ID)
	require.NoError(t, err)
	assert.Equal(t, made, read)
	byKey, found, err := s.EntryOf(ctx, "kvm-a", 1)
	require.NoError(t, err)
	assert.True(t, found)
	assert.Equal(t, made, byKey)
	_, found, err = s.EntryOf(ctx, "kvm-b", 1)
	require.NoError(t, err)
	assert.False(t, found)

	*now = now.Add(time.Second)
	changed, err := s.Change(ctx, made.ID, func(e *Entry) error {
		e.Answer, e.Progress, e.Cancelled, e.Attempts = json.RawMessage(`{"x":2}`), model.Progress{Done: 1, Total: 2, At: now.UTC()}, "why not", 3
		e.PeerState, e.PeerID, e.Next, e.Outcome, e.Acknowledged = model.StateBackend, 9, now.Add(time.Hour), "nothing", false
		e.Remark("about to begin")
		return e.Become(model.StateBackend, "begun")
	})
	require.NoError(t, err)
	read, err = s.Entry(ctx, made.ID)
	require.NoError(t, err)
	assert.Equal(t, changed, read)
	assert.Equal(t, "begun", read.Why)
	assert.True(t, now.Equal(read.Changed))

	c, err := s.Command(ctx, made.ID)
	require.NoError(t, err)
	assert.Equal(t, []api.Transition{
		{Time: c.History[0].Time, From: "STARTED", To: "STARTED", Cause: "about to begin"},
		{Time: c.History[0].Time, From: "STARTED", To: "PROCESSING_IN_BACKEND", Cause: "begun"},
	}, c.History)
	assert.Equal(t, int64(1), c.Progress.Done)
	assert.True(t, c.Unacknowledged)
	_, err = s.Entry(ctx, 4711)
	assert.Equal(t, api.KindNotFound, api.KindOf(err))
}

// An LVM command is none of those that go on by themselves.
func TestStepsAreNoEntries(t *testing.T) {
	s, _ := open(t)
	id, err := s.Begin(ctx, Intent{Kind: "activate", Argv: []string{"x"}}, HoldChange{})
	require.NoError(t, err)
	_, err = s.Entry(ctx, id)
	assert.Equal(t, api.KindNotFound, api.KindOf(err))
	_, err = s.Change(ctx, id, func(*Entry) error { return nil })
	assert.Equal(t, api.KindNotFound, api.KindOf(err))
	e := add(t, s, entry(1, model.SideLocal, model.StateStarted))
	steps, err := s.OpenCommands(ctx)
	require.NoError(t, err)
	require.Len(t, steps, 1, "the engine finds out about its own steps alone")
	assert.Equal(t, id, steps[0].ID)
	tasks, err := s.Tasks(ctx)
	require.NoError(t, err)
	require.Len(t, tasks, 1)
	assert.Equal(t, e.ID, tasks[0].ID)
}

// Every transition that the model does not have is refused by both, and leaves no trace.
func TestIllegalTransitions(t *testing.T) {
	s, _ := open(t)
	n := int64(0)
	for _, from := range model.CommandStates() {
		for _, to := range model.CommandStates() {
			n++
			e := add(t, s, entry(n, model.SideLocal, from))
			_, err := s.Change(ctx, e.ID, func(e *Entry) error {
				e.Outcome = "changed"
				return e.Become(to, "because")
			})
			c, cerr := s.Command(ctx, e.ID)
			require.NoError(t, cerr)
			if from.CanBecome(to) {
				require.NoError(t, err, "%s -> %s", from, to)
				require.Len(t, c.History, 1)
				assert.Equal(t, []string{string(from), string(to), "because"}, []string{c.History[0].From, c.History[0].To, c.History[0].Cause})
				assert.Equal(t, to.Final(), !c.Finished.IsZero())
				continue
			}
			assert.Equal(t, api.KindBadRequest, api.KindOf(err), "%s -> %s", from, to)
			assert.Equal(t, string(from), c.State)
			assert.Empty(t, c.History)
			assert.Empty(t, c.Outcome, "all or nothing")
			// Behind the model's back the database refuses as well.
			err = s.write(ctx, func(tx *sql.Tx) error {
				_, err := tx.Exec(`UPDATE command SET state = ? WHERE id = ?`, to, e.ID)
				return err
			})
			assert.Equal(t, from == to, err == nil, "%s -> %s", from, to)
		}
	}
}

func TestChangeIsAllOrNothing(t *testing.T) {
	s, _ := open(t)
	e := add(t, s, entry(1, model.SideLocal, model.StateStarted))
	why := errors.New("no")
	_, err := s.Change(ctx, e.ID, func(e *Entry) error {
		require.NoError(t, e.Become(model.StateBackend, ""))
		return api.WrapError(api.KindBadRequest, "no", why)
	})
	require.ErrorIs(t, err, why)
	c, err := s.Command(ctx, e.ID)
	require.NoError(t, err)
	assert.Equal(t, "STARTED", c.State)
	assert.Empty(t, c.History)
}

func TestDuplicateRequests(t *testing.T) {
	s, _ := open(t)
	first := add(t, s, entry(1, model.SideExecutor, model.StateStarted, target("vg/a", false)))
	again, existed, err := s.AddEntry(ctx, entry(1, model.SideExecutor, model.StateStarted, target("vg/a", false)))
	require.NoError(t, err)
	assert.True(t, existed)
	assert.Equal(t, first, again)
	// Behind our back as well.
	err = s.write(ctx, func(tx *sql.Tx) error {
		_, err := s.insertEntry(ctx, tx, entry(1, model.SideExecutor, model.StateStarted))
		return err
	})
	assert.ErrorContains(t, err, "UNIQUE")
	last, err := s.LastSequence(ctx, "kvm-a")
	require.NoError(t, err)
	assert.Equal(t, int64(1), last)
	last, err = s.LastSequence(ctx, "kvm-b")
	require.NoError(t, err)
	assert.Zero(t, last)
}

func TestTargetsAreTaken(t *testing.T) {
	s, _ := open(t)
	reads := add(t, s, entry(1, model.SideLocal, model.StateStarted, target("vg/src", true), target("vg/dst", false)))
	for n, tt := range []struct {
		t     model.Target
		taken bool
	}{
		{target("vg/dst", false), true},
		{target("vg/dst", true), true},
		{target("vg/src", false), true},
		{target("vg/src", true), false},
		{target("vg/other", false), false},
	} {
		_, _, err := s.AddEntry(ctx, entry(int64(n+2), model.SideLocal, model.StateStarted, tt.t))
		assert.Equal(t, tt.taken, err != nil, "%v", tt.t)
		if tt.taken {
			assert.Equal(t, api.KindInUse, api.KindOf(err))
			assert.ErrorContains(t, err, fmt.Sprintf("%s belongs to command %d (copy, STARTED)", tt.t.Name, reads.ID))
		}
	}
	_, err := s.Change(ctx, reads.ID, func(e *Entry) error { return e.Become(model.StateFailed, "") })
	require.NoError(t, err)
	add(t, s, entry(99, model.SideLocal, model.StateStarted, target("vg/dst", false)))
}

func TestInterrupt(t *testing.T) {
	s, _ := open(t)
	want := map[model.CommandState]model.CommandState{
		model.StateProcessing: model.StateInterrupted, model.StateBackend: model.StateDangled, model.StateReconciling: model.StateReconcileRetry,
	}
	ids := map[model.CommandState]int64{}
	for i, state := range model.CommandStates() {
		ids[state] = add(t, s, entry(int64(i+1), model.SideLocal, state)).ID
	}
	step, err := s.Begin(ctx, Intent{Kind: "activate", Argv: []string{"x"}}, HoldChange{})
	require.NoError(t, err)
	require.NoError(t, s.Running(ctx, step, 1, 1))
	n, err := s.Interrupt(ctx, "virtlvmd was restarted")
	require.NoError(t, err)
	assert.Equal(t, int64(3), n)
	for state, id := range ids {
		c, err := s.Command(ctx, id)
		require.NoError(t, err)
		next, moves := want[state]
		if !moves {
			assert.Equal(t, string(state), c.State)
			continue
		}
		assert.Equal(t, string(next), c.State)
		require.Len(t, c.History, 1, "each is a row")
		assert.Equal(t, "virtlvmd was restarted", c.History[0].Cause)
	}
	c, err := s.Command(ctx, step)
	require.NoError(t, err)
	assert.Equal(t, "PROCESSING", c.State, "a step is the engine's")
}

// Nothing that is not resolved, or that the other host does not know of, is ever forgotten.
func TestRetention(t *testing.T) {
	s, now := open(t)
	n := int64(0)
	kept := map[int64]bool{}
	for _, state := range model.CommandStates() {
		for _, acknowledged := range []bool{true, false} {
			n++
			e := entry(n, model.SideExecutor, state)
			e.Acknowledged = acknowledged
			e = add(t, s, e)
			if state.Final() { // as if it had ended just now
				require.NoError(t, s.write(ctx, func(tx *sql.Tx) error {
					_, err := tx.Exec(`UPDATE command SET finished_ms = ? WHERE id = ?`, now.UnixMilli(), e.ID)
					return err
				}))
			}
			kept[e.ID] = !state.Final() || !acknowledged
		}
	}
	prune := func(after time.Duration) map[int64]bool {
		_, err := s.Prune(ctx, now.Add(after))
		require.NoError(t, err)
		left := map[int64]bool{}
		for id := range kept {
			_, err := s.Entry(ctx, id)
			left[id] = err == nil
		}
		return left
	}
	for _, left := range prune(-time.Second) {
		assert.True(t, left, "it is not old enough")
	}
	assert.Equal(t, kept, prune(time.Hour))
}

// A command that took longer than rows are kept stays for as long after its end.
func TestLongCommandIsKept(t *testing.T) {
	s, now := open(t)
	e := add(t, s, entry(1, model.SideLocal, model.StateStarted))
	began := *now
	*now = now.Add(40 * 24 * time.Hour)
	_, err := s.Change(ctx, e.ID, func(e *Entry) error { return e.Become(model.StateFailed, "") })
	require.NoError(t, err)
	_, err = s.Prune(ctx, began.Add(10*24*time.Hour))
	require.NoError(t, err)
	_, err = s.Entry(ctx, e.ID)
	assert.NoError(t, err)
}

// The file shrinks when many rows go, in steps: another write gets in between any two.
func TestFileShrinksInSteps(t *testing.T) {
	s, now := open(t)
	const rows = 20_000
	require.NoError(t, s.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
			INSERT INTO command (kind, state, argv, cause, boot_id, created_ms, finished_ms, stderr) SELECT 'x', 'COMPLETED', '[]', '', '', 1, 1, hex(randomblob(400)) FROM n`, rows)
		return err
	}))
	size := func() int64 {
		require.NoError(t, s.read(ctx, func(*sql.DB) error { return nil }))
		var pages int64
		require.NoError(t, s.read(ctx, func(db *sql.DB) error { return db.QueryRow(`PRAGMA page_count`).Scan(&pages) }))
		return pages
	}
	full := size()
	steps, last := 0, full
	for more := true; more; steps++ {
		var err error
		more, err = s.Prune(ctx, *now)
		require.NoError(t, err)
		require.Less(t, steps, 1000)
		_, err = s.AddHookCall(ctx, api.HookCall{Guest: "vm1", Op: "prepare"})
		require.NoError(t, err)
		assert.LessOrEqual(t, last-size(), int64(256), "a step is small")
		last = size()
	}
	assert.Less(t, last, full/2)
	assert.Greater(t, steps, rows/500)
}

// A file made before there was a way to shrink learns it when it is upgraded.
func TestOldFileLearnsToShrink(t *testing.T) {
	data, err := os.ReadFile(frozen(1))
	require.NoError(t, err)
	path := t.TempDir() + "/virtlvm.db"
	require.NoError(t, os.WriteFile(path, data, 0o600))
	s := New(Options{Path: path})
	require.NoError(t, s.Open(ctx))
	defer func() { assert.NoError(t, s.Close()) }()
	require.NoError(t, s.read(ctx, func(db *sql.DB) error {
		var mode int
		require.NoError(t, db.QueryRow(`PRAGMA auto_vacuum`).Scan(&mode))
		assert.Equal(t, 2, mode)
		rows, err := db.Query(`PRAGMA foreign_key_check`)
		require.NoError(t, err)
		defer func() { _ = rows.Close() }()
		assert.False(t, rows.Next(), "a row refers to nothing")
		var old int
		require.NoError(t, db.QueryRow(`SELECT count(*) FROM sqlite_schema WHERE instr(name, '_old') OR instr(sql, '_old')`).Scan(&old))
		assert.Zero(t, old)
		return rows.Err()
	}))
}

func TestListings(t *testing.T) {
	s, now := open(t)
	var ids []int64
	for i, state := range []model.CommandState{model.StateCompleted, model.StateFailed, model.StateBackend, model.StateReconcileSkip, model.StateCompleted} {
		ids = append(ids, add(t, s, entry(int64(i+1), model.SideLocal, state)).ID)
		*now = now.Add(time.Minute)
	}
	for name, tt := range map[string]struct {
		f    api.CommandFilter
		want []int
	}{
		"all":                 {api.CommandFilter{}, []int{4, 3, 2, 1, 0}},
		"newest":              {api.CommandFilter{Limit: 2}, []int{4, 3}},
		"before":              {api.CommandFilter{Before: ids[3]}, []int{2, 1, 0}},
		"one state":           {api.CommandFilter{States: []string{"failed"}}, []int{1}},
		"two states":          {api.CommandFilter{States: []string{"FAILED", "COMPLETED"}}, []int{4, 1, 0}},
		"open":                {api.CommandFilter{States: []string{"open"}}, []int{3, 2}},
		"open and another":    {api.CommandFilter{States: []string{"Open", "FAILED"}}, []int{3, 2, 1}},
		"since":               {api.CommandFilter{Since: now.Add(-2 * time.Minute)}, []int{4, 3}},
		"since, with a state": {api.CommandFilter{Since: now.Add(-2 * time.Minute), States: []string{"COMPLETED"}}, []int{4}},
		"since tomorrow":      {api.CommandFilter{Since: now.Add(time.Hour)}, nil},
	} {
		if tt.f.Limit == 0 {
			tt.f.Limit = 100
		}
		all, err := s.Commands(ctx, tt.f)
		require.NoError(t, err, name)
		var got []int
		for _, c := range all {
			for i, id := range ids {
				if id == c.ID {
					got = append(got, i)
				}
			}
		}
		assert.Equal(t, tt.want, got, name)
	}
	_, err := s.Commands(ctx, api.CommandFilter{Limit: 1, States: []string{"RUNNING"}})
	assert.Equal(t, api.KindBadRequest, api.KindOf(err))
	assert.ErrorContains(t, err, `"RUNNING" is not a state of a command; there are CREATED, STARTED, `)
}

func TestEvents(t *testing.T) {
	s, _ := open(t)
	none, err := s.Events(ctx, -1, 10)
	require.NoError(t, err)
	assert.Empty(t, none)
	e := add(t, s, entry(1, model.SideLocal, model.StateStarted, target("vg/a", false)))
	for _, next := range []model.CommandState{model.StateBackend, model.StateDangled, model.StateCompleted} {
		_, err := s.Change(ctx, e.ID, func(e *Entry) error { return e.Become(next, "because") })
		require.NoError(t, err)
	}
	id, err := s.Begin(ctx, Intent{Kind: "activate", Argv: []string{"x"}}, HoldChange{})
	require.NoError(t, err)
	require.NoError(t, s.Finish(ctx, id, Result{State: model.StateCompleted}, HoldChange{}))
	all, err := s.Events(ctx, 0, 100)
	require.NoError(t, err)
	require.Len(t, all, 5)
	var ways []string
	for i, e := range all {
		ways = append(ways, e.From+" "+e.To)
		if i > 0 {
			assert.Greater(t, e.ID, all[i-1].ID)
		}
	}
	assert.Equal(t, []string{
		"STARTED PROCESSING_IN_BACKEND", "PROCESSING_IN_BACKEND DANGLED_IN_BACKEND", "DANGLED_IN_BACKEND COMPLETED", "STARTED PROCESSING", "PROCESSING COMPLETED",
	}, ways, "of an LVM command as well")
	assert.Equal(t, api.Event{ID: all[0].ID, Time: all[0].Time, Command: e.ID, Kind: "copy", Side: "local", Targets: []string{"vg/a"}, From: "STARTED", To: "PROCESSING_IN_BACKEND", Cause: "because"}, all[0])
	newest, err := s.Events(ctx, -1, 2)
	require.NoError(t, err)
	assert.Equal(t, all[3:], newest)
	later, err := s.Events(ctx, all[1].ID, 2)
	require.NoError(t, err)
	assert.Equal(t, all[2:4], later)
}
