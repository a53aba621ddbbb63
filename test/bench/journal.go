package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

func fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// rowsPerCall is how many commands a hook call is taken to run.
const rowsPerCall = 4

// appends measures how long the journal takes to note a command before and after it runs,
// each durable, beside inserts of one short row into a database that has nothing else.
func (b *bench) appends(ctx context.Context) error {
	path := filepath.Join(b.disk, "append.db")
	s := store.New(store.Options{Path: path})
	if err := s.Open(ctx); err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	bare, err := openBare(filepath.Join(b.disk, "bare.db"), "FULL")
	if err != nil {
		return err
	}
	defer func() { _ = bare.Close() }()
	if _, err := bare.ExecContext(ctx, `CREATE TABLE t (id INTEGER PRIMARY KEY, what TEXT) STRICT`); err != nil {
		return err
	}
	insert, err := bare.PrepareContext(ctx, `INSERT INTO t (what) VALUES (?)`)
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }()
	var journal, one samples
	for i, over := 0, b.plan.enough(b.plan.appends, 0.5); !over(i); i++ {
		began := time.Now()
		if err := note(ctx, s, i); err != nil {
			return err
		}
		journal = append(journal, time.Since(began))
		began = time.Now()
		if _, err := insert.ExecContext(ctx, "lvchange -aey vg_san/lv1"); err != nil {
			return err
		}
		one = append(one, time.Since(began))
	}
	b.times("journal_append", journal, 0, 99)
	b.times("sqlite_insert", one, 0, 99)
	b.value("journal_append_per_insert_ratio", journal.ratio(one)/2, "x", 0)
	return nil
}

// note writes a command as the engine does: the intent, then the result.
func note(ctx context.Context, s *store.Store, i int) error {
	v := model.Volume{ID: model.VolumeID{VG: "Idzx8G-xXWv-hCZ3-vwmW-kunp-RlRX-HNZZGn", LV: "OU72MS-umSn-eAyG-IT7R-SsIH-Jakx-pdSV3B"}, VG: sharedVG, LV: fmt.Sprint("lv", i)}
	id, err := s.Begin(ctx, store.Intent{
		Kind: "activate", Argv: []string{"lvchange", "-aey", v.Name()}, Targets: []model.Volume{v}, Cause: "hook prepare guest", BootID: "boot",
	}, store.HoldChange{})
	if err != nil {
		return err
	}
	return s.Finish(ctx, id, store.Result{State: model.StateCompleted, Outcome: v.Name() + " ex"}, store.HoldChange{})
}

// openBare opens a database with the same settings as the journal's writer, but for the
// syncs. The driver comes with package store.
func openBare(path, synchronous string) (*sql.DB, error) {
	params := "_journal_mode=WAL&_busy_timeout=5000&_txlock=immediate&_synchronous=" + synchronous
	db, err := sql.Open("sqlite3", (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: params}).String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// makeBare makes an empty journal, to be filled quickly.
func makeBare(ctx context.Context, path string) (*sql.DB, error) {
	s := store.New(store.Options{Path: path})
	if err := errors.Join(s.Open(ctx), s.Close()); err != nil {
		return nil, err
	}
	return openBare(path, "OFF")
}

// fill makes a journal of many ended commands, the oldest of a month ago, with the hook
// calls they were run for.
func fill(ctx context.Context, path string, rows int) error {
	db, err := makeBare(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	const month = 29 * 24 * time.Hour
	first, step := time.Now().Add(-month).UnixMilli(), month.Milliseconds()/int64(rows)
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no-op after Commit
	count := fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) `, rows)
	for _, statement := range []string{
		count + fmt.Sprintf(`INSERT INTO hook_call (id, guest, uuid, op, sub_op, extra, boot_id, uptime_ms, libvirtd_pid, libvirtd_start, spooled, received_ms, finished_ms, verdict)
			SELECT i, printf('vm%%d', i %% 200), printf('11111111-2222-4333-8444-%%012d', i %% 200), 'prepare', 'begin', '-',
			'5f0c7b8e-3f0e-4a52-9c0b-2f6d1a7e9b41', i, 812, 4711, 0, %[2]d + i * %[3]d, %[2]d + i * %[3]d, 'allowed' FROM n WHERE i <= %[1]d`, max(rows/rowsPerCall, 1), first, step*rowsPerCall),
		count + fmt.Sprintf(`INSERT INTO command (id, kind, state, argv, hook_call, cause, boot_id, pid, pid_start, created_ms, finished_ms, exit_code, outcome)
			SELECT i, 'activate', 'COMPLETED', printf('["lvchange","-aey","vg_san/lv%%d"]', i %% 1000), max(i / %[1]d, 1), printf('hook prepare vm%%d', i %% 200),
			'5f0c7b8e-3f0e-4a52-9c0b-2f6d1a7e9b41', i, 4711, %[2]d + i * %[3]d, %[2]d + i * %[3]d + 900, 0, printf('vg_san/lv%%d ex', i %% 1000) FROM n`, rowsPerCall, first, step),
		count + `INSERT INTO command_target (command, vg_uuid, lv_uuid, name)
			SELECT i, 'Idzx8G-xXWv-hCZ3-vwmW-kunp-RlRX-HNZZGn', printf('OU72MS-umSn-eAyG-IT7R-SsIH-Jakx-%06d', i % 1000), printf('vg_san/lv%d', i % 1000) FROM n`,
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("cannot fill the journal: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("cannot fill the journal: %w", err)
	}
	if _, err := db.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		return err
	}
	return syncFile(path)
}

// syncFile lets what was filled reach the disk now, not while something is measured.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// largeJournal compares host a with an empty journal and host b with a large one, call by
// call.
func (b *bench) largeJournal(ctx context.Context) error {
	if err := b.a.daemon.stop(); err != nil {
		return err
	}
	if err := b.newState(b.a); err != nil {
		return err
	}
	began := time.Now()
	if err := fill(ctx, b.b.journal(), b.plan.rows); err != nil {
		return err
	}
	info, err := os.Stat(b.b.journal())
	if err != nil {
		return err
	}
	b.note("filled a journal of %d commands, %d hook calls, %d MiB in %.1f s", b.plan.rows, b.plan.rows/rowsPerCall, info.Size()>>20, time.Since(began).Seconds())
	if _, err := b.start(ctx, b.a); err != nil {
		return err
	}
	large, err := b.start(ctx, b.b)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("journal_%d_", b.plan.rows)
	b.value(name+"startup_ms", float64(large.ready)/float64(time.Millisecond), "ms", 0)
	files, err := b.guestOnFiles()
	if err != nil {
		return err
	}
	eight, err := b.guestOn(8)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		*guest
		rounds int
	}{{"unmanaged", files, 2 * b.plan.compare}, {"managed_8", eight, b.plan.compare}} {
		var empty, full costs
		over := b.plan.enough(c.rounds, 0.6)
		for i := 0; !over(i - 1); i++ {
			for h, into := range map[*host]*costs{b.a: &empty, b.b: &full} {
				took, err := b.startHook(ctx, h, c.guest)
				if err != nil {
					return err
				}
				if _, err := b.endHook(ctx, h, c.guest); err != nil {
					return err
				}
				if i > 0 { // the first warms up
					*into = append(*into, took)
				}
			}
		}
		b.times("journal_0_"+c.name, empty.wall(), 0, 95)
		b.times(name+c.name, full.wall(), 0, 95)
		b.value(name+c.name+"_ratio", full.wall().ratio(empty.wall()), "x", 1.2)
		b.value(name+c.name+"_cpu_ratio", full.cpu().mean()/empty.cpu().mean(), "x", 0)
	}
	if err := errors.Join(b.list(ctx, name), b.listThrough(ctx, name)); err != nil {
		return err
	}
	mib, err := large.rss()
	if err != nil {
		return err
	}
	b.value(name+"rss_mib", mib, "MiB", 30)
	return nil
}

// list measures the command line on the large journal.
func (b *bench) list(ctx context.Context, name string) error {
	for _, what := range []string{"commands", "hooks"} {
		var all samples
		for i, over := 0, b.plan.enough(b.plan.compare/4, 0.1); !over(i); i++ {
			cmd := exec.CommandContext(ctx, b.program("virtlvm"), what, "--limit", "100")
			cmd.Env = append(b.b.env, "VIRTLVM_SOCKET="+b.b.path("run/virtlvm.sock"))
			began := time.Now()
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("virtlvm %s: %w: %s", what, err, out)
			}
			all = append(all, time.Since(began))
		}
		b.times(name+"list_100_"+what, all, 0, 95)
	}
	return nil
}
