package store

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

var ctx = context.Background()

// open makes a store in a fresh folder whose clock the test turns.
func open(t *testing.T) (*Store, *time.Time) {
	t.Helper()
	now := time.UnixMilli(1_800_000_000_000)
	s := New(Options{Path: filepath.Join(t.TempDir(), "virtlvm.db"), Now: func() time.Time { return now }})
	require.NoError(t, s.Open(ctx))
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s, &now
}

func volume(name string) model.Volume {
	vg, lv := splitName(name)
	return model.Volume{ID: model.VolumeID{VG: "uuid-" + vg, LV: "uuid-" + lv}, VG: vg, LV: lv, LockLV: "uuid-" + lv}
}

func hold(owner, name string) model.Hold {
	v := volume(name)
	return model.Hold{
		Owner: owner, Guest: "vm1", Volume: v.ID, LockLV: v.LockLV, Name: name, Role: model.RoleWritable, Mode: model.ModeEX,
		Phase: model.PhaseHeld, BootID: "boot-1", Attempt: model.Attempt{LibvirtdPID: 7, LibvirtdStart: 99, AnsweredMillis: 5, Seen: true}, Since: 12, Grant: model.Grant{ID: "g", Peer: "kvm-b"},
	}
}

func TestHoldsRoundTrip(t *testing.T) {
	s, _ := open(t)
	a, b := hold("u1", "vg/a"), hold("u1", "vg/b")
	require.NoError(t, s.ChangeHolds(ctx, HoldChange{Put: []model.Hold{a, b}}))
	b.Phase = model.PhaseEnding
	require.NoError(t, s.ChangeHolds(ctx, HoldChange{Put: []model.Hold{b}, Delete: []model.Hold{a}}))
	all, err := s.Holds(ctx)
	require.NoError(t, err)
	assert.Equal(t, []model.Hold{b}, all)
	require.NoError(t, s.ReplaceHolds(ctx, []model.Hold{a}))
	all, err = s.Holds(ctx)
	require.NoError(t, err)
	assert.Equal(t, []model.Hold{a}, all)
}

func TestCommandFromIntentToResult(t *testing.T) {
	s, now := open(t)
	call, err := s.AddHookCall(ctx, api.HookCall{Guest: "vm1", Op: "prepare"})
	require.NoError(t, err)
	id, err := s.Begin(ctx, Intent{
		Kind: "activate", Argv: []string{"lvchange", "-aey", "vg/a"}, Targets: []model.Volume{volume("vg/a")}, HookCall: call, Cause: "hook prepare vm1", BootID: "boot-1",
	}, HoldChange{Put: []model.Hold{hold("u1", "vg/a")}})
	require.NoError(t, err)

	open, err := s.OpenCommands(ctx)
	require.NoError(t, err)
	require.Len(t, open, 1)
	assert.Equal(t, model.StateStarted, open[0].State)
	assert.Equal(t, "vg/a", open[0].Targets[0].Name())

	require.NoError(t, s.Running(ctx, id, 4711, 123))
	open, err = s.OpenCommands(ctx)
	require.NoError(t, err)
	assert.Equal(t, OpenCommand{
		ID: id, Kind: "activate", State: model.StateProcessing, Argv: []string{"lvchange", "-aey", "vg/a"}, BootID: "boot-1", PID: 4711, PIDStart: 123,
		Targets: []model.Volume{{ID: volume("vg/a").ID, VG: "vg", LV: "a"}},
	}, open[0])

	*now = now.Add(3 * time.Second)
	require.NoError(t, s.Finish(ctx, id, Result{State: model.StateCompleted, ExitCode: 0, Outcome: "vg/a ex"}, HoldChange{Delete: []model.Hold{hold("u1", "vg/a")}}))
	c, err := s.Command(ctx, id)
	require.NoError(t, err)
	assert.Equal(t, "COMPLETED", c.State)
	assert.Equal(t, []string{"vg/a"}, c.Targets)
	assert.Equal(t, call, c.HookCall)
	assert.Equal(t, 3*time.Second, c.Finished.Sub(c.Created))
	all, err := s.Holds(ctx)
	require.NoError(t, err)
	assert.Empty(t, all, "the result and what it means for the holds are one transaction")
	open, err = s.OpenCommands(ctx)
	require.NoError(t, err)
	assert.Empty(t, open)
}

func TestCommandStates(t *testing.T) {
	states := model.CommandStates()
	s, _ := open(t)
	for _, from := range states {
		for _, to := range states {
			err := s.write(ctx, func(tx *sql.Tx) error {
				res, err := tx.Exec(`INSERT INTO command (kind, state, argv, cause, boot_id, created_ms) VALUES ('x', ?, '[]', '', '', 1)`, from)
				require.NoError(t, err)
				id, err := res.LastInsertId()
				require.NoError(t, err)
				_, err = tx.Exec(`UPDATE command SET state = ? WHERE id = ?`, to, id)
				return err
			})
			assert.Equal(t, from.CanBecome(to) || from == to, err == nil, "%s -> %s: the database and the model disagree", from, to)
		}
	}
}

func TestNoSuchCommand(t *testing.T) {
	s, _ := open(t)
	_, err := s.Command(ctx, 42)
	assert.Equal(t, api.KindNotFound, api.KindOf(err))
}

func TestHookCalls(t *testing.T) {
	s, now := open(t)
	id, err := s.AddHookCall(ctx, api.HookCall{Guest: "vm\x001\xff", UUID: "u", Op: "prepare", SubOp: "begin", Extra: "-"})
	require.NoError(t, err)
	*now = now.Add(40 * time.Millisecond)
	require.NoError(t, s.FinishHookCall(ctx, id, HookVerdict{Verdict: VerdictRefused, Message: "no"}, []Query{{
		Intent: Intent{Kind: "query", Argv: []string{"lvs"}, HookCall: id, Cause: "hook"}, Result: Result{State: model.StateCompleted}, Started: *now, Duration: time.Second,
	}}, HoldChange{}))
	calls, err := s.HookCalls(ctx, 10, "")
	require.NoError(t, err)
	require.Len(t, calls, 1)
	assert.Equal(t, "vm�1�", calls[0].Guest)
	assert.Equal(t, 40*time.Millisecond, calls[0].Duration)
	assert.Equal(t, VerdictRefused, calls[0].Verdict)
	commands, err := s.Commands(ctx, api.CommandFilter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, commands, 1)
	assert.Equal(t, time.Second, commands[0].Finished.Sub(commands[0].Created))

	_, err = s.AddHookCall(ctx, api.HookCall{Guest: "vm2", Op: "start"})
	require.NoError(t, err)
	require.NoError(t, s.InterruptHookCalls(ctx))
	calls, err = s.HookCalls(ctx, 10, "vm2")
	require.NoError(t, err)
	require.Len(t, calls, 1)
	assert.Equal(t, VerdictInterrupted, calls[0].Verdict)
}

func TestPruneKeepsWhatHasNotEnded(t *testing.T) {
	s, now := open(t)
	ended, err := s.Begin(ctx, Intent{Kind: "activate", Argv: []string{"x"}}, HoldChange{})
	require.NoError(t, err)
	require.NoError(t, s.Finish(ctx, ended, Result{State: model.StateFailed}, HoldChange{}))
	open, err := s.Begin(ctx, Intent{Kind: "activate", Argv: []string{"x"}}, HoldChange{})
	require.NoError(t, err)
	more, err := s.Prune(ctx, now.Add(time.Hour))
	require.NoError(t, err)
	assert.False(t, more)
	_, err = s.Command(ctx, ended)
	assert.Error(t, err)
	_, err = s.Command(ctx, open)
	assert.NoError(t, err)
}

func TestCorruptDatabaseIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "virtlvm.db")
	require.NoError(t, os.WriteFile(path, []byte("this is no database, but long enough to be read as one ............................................................."), 0o600))
	var notice string
	s := New(Options{Path: path, Notice: func(n string) { notice = n }})
	require.NoError(t, s.Open(ctx))
	defer func() { _ = s.Close() }()
	assert.Contains(t, notice, "set aside as "+path+".corrupt-")
	aside, err := filepath.Glob(path + ".corrupt-*")
	require.NoError(t, err)
	assert.Len(t, aside, 1, "nothing is thrown away")
	require.NoError(t, s.Health(ctx))
}

func TestNewerSchemaStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "virtlvm.db")
	s := New(Options{Path: path})
	require.NoError(t, s.write(ctx, func(tx *sql.Tx) error { _, err := tx.Exec(`PRAGMA user_version = 9999`); return err }))
	require.NoError(t, s.Close())
	err := New(Options{Path: path}).Open(ctx)
	var newer *NewerSchemaError
	require.ErrorAs(t, err, &newer)
	assert.Equal(t, 9999, newer.Have)
	assert.ErrorContains(t, err, "install that version again, or move the file away")
}

func TestUnwritableIsAnErrorAndHealsByItself(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	now := time.Unix(1, 0)
	s := New(Options{Path: filepath.Join(dir, "virtlvm.db"), Now: func() time.Time { return now }})
	err := s.ChangeHolds(ctx, HoldChange{Put: []model.Hold{hold("u", "vg/a")}})
	require.Equal(t, api.KindDatabase, api.KindOf(err))
	require.NoError(t, os.Mkdir(dir, 0o700))
	now = now.Add(reopenPause)
	require.NoError(t, s.ChangeHolds(ctx, HoldChange{Put: []model.Hold{hold("u", "vg/a")}}))
	require.NoError(t, s.Close())
}

func TestLockedDatabaseIsAnError(t *testing.T) {
	s, _ := open(t)
	other, err := sql.Open("sqlite3", "file:"+s.opts.Path+"?_txlock=exclusive&_busy_timeout=10")
	require.NoError(t, err)
	defer func() { _ = other.Close() }()
	tx, err := other.BeginTx(ctx, nil)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	assert.Equal(t, api.KindDatabase, api.KindOf(s.ChangeHolds(short, HoldChange{})))
	require.NoError(t, tx.Rollback())
	assert.NoError(t, s.ChangeHolds(ctx, HoldChange{}))
}

func TestPathsWithOddCharacters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b?c#d%20e")
	require.NoError(t, os.Mkdir(dir, 0o700))
	s := New(Options{Path: filepath.Join(dir, "virtlvm.db")})
	require.NoError(t, s.Health(ctx))
	_, err := s.Holds(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	assert.FileExists(t, filepath.Join(dir, "virtlvm.db"))
}
