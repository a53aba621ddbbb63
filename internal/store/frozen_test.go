package store

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// frozenAt is when everything in a frozen database happened.
var frozenAt = time.UnixMilli(1_750_000_000_000)

func frozen(schema int) string { return filepath.Join("testdata", fmt.Sprintf("schema-%d.db", schema)) }

// frozenHolds are the holds in every frozen database, with fields that schema 1 had.
func frozenHolds() []model.Hold {
	running := model.Hold{
		Owner: "8f0e6b0a-0000-4000-8000-000000000001", Guest: "vm1", Volume: model.VolumeID{VG: "vg-uuid", LV: "lv-uuid-1"},
		LockLV: "lv-uuid-1", Name: "vg_san/vm1", Role: model.RoleWritable, Mode: model.ModeEX, Phase: model.PhaseHeld, BootID: "boot-1",
		Attempt: model.Attempt{LibvirtdPID: 700, LibvirtdStart: 4200, AnsweredMillis: 91_000, Seen: true}, Since: frozenAt.UnixMilli(),
	}
	ending := running
	ending.Owner, ending.Guest, ending.Name = "8f0e6b0a-0000-4000-8000-000000000002", "vm2", "vg_san/base"
	ending.Volume.LV, ending.LockLV = "lv-uuid-2", "lv-uuid-2"
	ending.Role, ending.Mode, ending.Phase = model.RoleBacking, model.ModeSH, model.PhaseEnding
	return []model.Hold{running, ending}
}

// freeze writes what a host leaves behind: holds, a command that has ended, one that has
// not, and a hook call for each verdict an administrator asks about.
func freeze(t *testing.T, path string) {
	t.Helper()
	s := New(Options{Path: path, Now: func() time.Time { return frozenAt }})
	holds := frozenHolds()
	call, err := s.AddHookCall(ctx, api.HookCall{Guest: "vm1", UUID: holds[0].Owner, Op: "prepare", SubOp: "begin", Extra: "-"})
	require.NoError(t, err)
	intent := func(hold model.Hold, flag string) Intent {
		return Intent{
			Kind: "activate", Argv: []string{"lvchange", flag, hold.Name}, HookCall: call, Cause: "hook prepare " + hold.Guest, BootID: "boot-1",
			Targets: []model.Volume{{ID: hold.Volume, VG: "vg_san", LV: filepath.Base(hold.Name), LockLV: hold.LockLV}},
		}
	}
	done, err := s.Begin(ctx, intent(holds[0], "-aey"), HoldChange{Put: holds})
	require.NoError(t, err)
	require.NoError(t, s.Running(ctx, done, 4711, 9000))
	require.NoError(t, s.Finish(ctx, done, Result{State: model.StateCompleted, Outcome: "vg_san/vm1 ex"}, HoldChange{}))
	require.NoError(t, s.FinishHookCall(ctx, call, HookVerdict{Verdict: VerdictAllowed}, nil, HoldChange{}))
	refused, err := s.AddHookCall(ctx, api.HookCall{Guest: "vm3", Op: "prepare", SubOp: "begin", Extra: "-"})
	require.NoError(t, err)
	require.NoError(t, s.FinishHookCall(ctx, refused, HookVerdict{Verdict: VerdictRefused, Message: "held by kvm-b"}, nil, HoldChange{}))
	interrupted, err := s.Begin(ctx, intent(holds[1], "-an"), HoldChange{})
	require.NoError(t, err)
	require.NoError(t, s.Running(ctx, interrupted, 4712, 9001))
	require.NoError(t, s.Close())
}

// A host that skipped some versions brings its database along: each schema that was ever
// shipped is upgraded to the newest and loses nothing.
//
// `UPDATE=1 go test -run TestFrozenDatabases ./internal/store` freezes the newest schema
// where it is not frozen yet: at a release, since a frozen one is never changed.
func TestFrozenDatabases(t *testing.T) {
	newest := SchemaVersion()
	if _, err := os.Stat(frozen(newest)); os.IsNotExist(err) && os.Getenv("UPDATE") != "" {
		freeze(t, frozen(newest))
	}
	for schema := 1; schema <= newest; schema++ {
		t.Run(fmt.Sprintf("schema %d", schema), func(t *testing.T) {
			data, err := os.ReadFile(frozen(schema))
			if schema > 1 && os.IsNotExist(err) {
				t.Skip("never shipped, or not yet")
			}
			require.NoError(t, err)
			thawed(t, data, schema)
		})
	}
}

// An upgrade that was interrupted after any of its steps, or while it copied the database, is
// taken up again.
func TestInterruptedUpgrade(t *testing.T) {
	all, err := migrations()
	require.NoError(t, err)
	old, err := os.ReadFile(frozen(1))
	require.NoError(t, err)
	for _, last := range all[1 : len(all)-1] {
		t.Run(last.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "virtlvm.db")
			require.NoError(t, os.WriteFile(path, old, 0o600))
			db, err := sql.Open("sqlite3", dsn(path, writerParams))
			require.NoError(t, err)
			for _, m := range all[1:last.number] {
				require.NoError(t, apply(ctx, db, m))
			}
			require.NoError(t, db.Close())
			half, err := os.ReadFile(path)
			require.NoError(t, err)
			thawed(t, half, last.number)
		})
	}
}

// Where the copy of the old database cannot be made, as on a full disk, nothing is changed: starts are
// refused until it can, and the old version still finds its database.
func TestUpgradeOnAFullDisk(t *testing.T) {
	old, err := os.ReadFile(frozen(1))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "virtlvm.db")
	require.NoError(t, os.WriteFile(path, old, 0o600))
	blocked := path + ".schema-1"
	require.NoError(t, os.MkdirAll(filepath.Join(blocked, "x"), 0o700))
	now := frozenAt
	s := New(Options{Path: path, Now: func() time.Time { return now }, Notice: func(n string) { t.Errorf("taken for corrupt: %s", n) }})
	err = s.Open(ctx)
	require.Equal(t, api.KindDatabase, api.KindOf(err))
	require.ErrorContains(t, err, "cannot copy the journal of schema 1 before it is changed")
	var version int
	db, err := sql.Open("sqlite3", dsn(path, readerParams))
	require.NoError(t, err)
	require.NoError(t, db.QueryRow(`PRAGMA user_version`).Scan(&version))
	require.NoError(t, db.Close())
	assert.Equal(t, 1, version)

	require.NoError(t, os.RemoveAll(blocked))
	now = now.Add(reopenPause)
	holds, err := s.Holds(ctx)
	require.NoError(t, err)
	assert.Equal(t, frozenHolds(), holds)
	require.NoError(t, s.Close())
}

func thawed(t *testing.T, data []byte, schema int) {
	path := filepath.Join(t.TempDir(), "virtlvm.db")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	if schema < SchemaVersion() { // half of a copy, from a try before
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s.schema-%d", path, schema), data[:100], 0o600))
	}
	s := New(Options{Path: path, Notice: func(n string) { t.Errorf("taken for corrupt: %s", n) }})
	require.NoError(t, s.Open(ctx))
	defer func() { assert.NoError(t, s.Close()) }()

	var now int
	require.NoError(t, s.read(ctx, func(db *sql.DB) error { return db.QueryRow(`PRAGMA user_version`).Scan(&now) }))
	assert.Equal(t, SchemaVersion(), now)
	holds, err := s.Holds(ctx)
	require.NoError(t, err)
	assert.Equal(t, frozenHolds(), holds)

	commands, err := s.Commands(ctx, api.CommandFilter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, commands, 2)
	assert.Equal(t, string(model.StateCompleted), commands[1].State)
	assert.Equal(t, []string{"lvchange", "-aey", "vg_san/vm1"}, commands[1].Argv)
	assert.Equal(t, []string{"vg_san/vm1"}, commands[1].Targets)
	assert.True(t, frozenAt.Equal(commands[1].Created))
	open, err := s.OpenCommands(ctx)
	require.NoError(t, err)
	require.Len(t, open, 1, "the daemon looks after what the old version left unfinished")
	assert.Equal(t, 4712, open[0].PID)
	calls, err := s.HookCalls(ctx, 10, "")
	require.NoError(t, err)
	require.Len(t, calls, 2)
	assert.Equal(t, VerdictRefused, calls[0].Verdict)
	assert.Equal(t, "held by kvm-b", calls[0].Message)

	// The old version can have its database back.
	before, err := os.ReadFile(fmt.Sprintf("%s.schema-%d", path, schema))
	if schema == SchemaVersion() {
		assert.ErrorIs(t, err, os.ErrNotExist)
		return
	}
	require.NoError(t, err)
	assert.Equal(t, "SQLite format 3\x00", string(before[:16]))

	// And the new one goes on in it.
	require.NoError(t, s.ChangeHolds(ctx, HoldChange{Delete: holds}))
	left, err := s.Holds(ctx)
	require.NoError(t, err)
	assert.Empty(t, left)
}
