package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// openRows is how many commands a daemon takes up again at its start.
const openRows = 10_000

// commandAppends measures the journal of a command that goes on by itself: accepted before it is
// answered, and ended, each durable.
func (b *bench) commandAppends(ctx context.Context) error {
	s := store.New(store.Options{Path: filepath.Join(b.disk, "commands.db")})
	if err := s.Open(ctx); err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	var all samples
	for i, over := 0, b.plan.enough(b.plan.appends, 0.3); !over(i); i++ {
		began := time.Now()
		e, _, err := s.AddEntry(ctx, openEntry(int64(i+1), model.StateBackend))
		if err != nil {
			return err
		}
		if _, err := s.Change(ctx, e.ID, func(e *store.Entry) error { return e.Become(model.StateCompleted, "copied") }); err != nil {
			return err
		}
		all = append(all, time.Since(began))
	}
	b.times("command_append", all, 0, 99)
	return nil
}

func openEntry(sequence int64, state model.CommandState) store.Entry {
	name := fmt.Sprintf("%s/lv%d", sharedVG, sequence)
	return store.Entry{
		Side: model.SideLocal, State: state, Kind: "copy", Args: json.RawMessage(`{"source":"` + name + `"}`), Planned: true, Backend: true,
		Targets: []model.Target{{Volume: model.VolumeID{VG: "Idzx8G-xXWv-hCZ3-vwmW-kunp-RlRX-HNZZGn", LV: fmt.Sprint("lv-", sequence)}, Name: name}},
		Origin:  "kvm-a", Executor: "kvm-a", Sequence: sequence, Cause: "operator uid 0", Acknowledged: true, Deadline: time.Now().Add(24 * time.Hour),
	}
}

// fillOpen makes a journal with commands that were running when the last daemon ended.
func fillOpen(ctx context.Context, path string, rows int) error {
	db, err := makeBare(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	count := fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) `, rows)
	now := time.Now().UnixMilli()
	for _, statement := range []string{
		count + fmt.Sprintf(`INSERT INTO command (id, kind, state, argv, cause, boot_id, created_ms, changed_ms, side, origin, sequence, executor, args, planned, backend, deadline_ms)
			SELECT i, 'copy', 'PROCESSING_IN_BACKEND', '[]', 'operator uid 0', 'boot', %[1]d, %[1]d, 'local', 'kvm-a', i, 'kvm-a', '{"source":"vg_san/lv1"}', 1, 1, %[2]d FROM n`, now, now+86_400_000),
		count + `INSERT INTO command_target (command, vg_uuid, lv_uuid, name) SELECT i, 'vg', printf('lv%d', i), printf('vg_san/lv%d', i) FROM n`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("cannot fill the journal: %w", err)
		}
	}
	if _, err := db.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		return err
	}
	return syncFile(path)
}

// openCommands measures the start of a daemon that has many commands to take up again, and a
// hook call while it does so.
func (b *bench) openCommands(ctx context.Context) error {
	if err := b.a.daemon.stop(); err != nil {
		return err
	}
	if err := b.newState(b.a); err != nil {
		return err
	}
	if err := fillOpen(ctx, b.a.journal(), openRows); err != nil {
		return err
	}
	d, err := b.start(ctx, b.a)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("open_%d_", openRows)
	b.value(name+"startup_ms", float64(d.ready)/float64(time.Millisecond), "ms", 2000)
	files, err := b.guestOnFiles()
	if err != nil {
		return err
	}
	var all costs
	for i, over := 0, b.plan.enough(b.plan.compare/2, 0.2); !over(i); i++ {
		took, err := b.startHook(ctx, b.a, files)
		if err != nil {
			return err
		}
		if _, err := b.endHook(ctx, b.a, files); err != nil {
			return err
		}
		all = append(all, took)
	}
	b.times(name+"unmanaged", all.wall(), 0, 95)
	return nil
}

// listThrough measures the daemon's answers about the large journal, without the start of a
// program.
func (b *bench) listThrough(ctx context.Context, name string) error {
	for what, f := range map[string]api.CommandFilter{
		"commands": {}, "failed": {States: []string{string(model.StateFailed)}}, "open": {States: []string{api.StateOpen}}, "since": {Since: time.Now().Add(-48 * time.Hour)},
	} {
		f.Limit = 100
		var all samples
		for i, over := 0, b.plan.enough(b.plan.compare, 0.1); !over(i); i++ {
			began := time.Now()
			if _, err := b.b.api.Commands(ctx, f); err != nil {
				return err
			}
			all = append(all, time.Since(began))
		}
		b.times(name+"answer_100_"+what, all, 20, 95)
	}
	return nil
}
