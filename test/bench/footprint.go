package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// sizesOfPrograms measures the programs as they are installed.
func (b *bench) sizesOfPrograms(context.Context) error {
	for _, p := range []struct {
		name, file string
		most       target
	}{{"hook", "hook/qemu", 8}, {"daemon", "virtlvmd", 0}, {"cli", "virtlvm", 0}} {
		info, err := os.Stat(b.program(p.file))
		if err != nil {
			return err
		}
		b.value(p.name+"_size_mib", float64(info.Size())/(1<<20), "MiB", p.most)
	}
	return nil
}

// startup starts the daemon some times; the last one stays.
func (b *bench) startup(ctx context.Context) error {
	var all samples
	for i := range b.plan.startups {
		d, err := b.start(ctx, b.a)
		if err != nil {
			return err
		}
		all = append(all, d.ready)
		if i < b.plan.startups-1 {
			if err := d.stop(); err != nil {
				return err
			}
			continue
		}
		b.times("daemon_startup", all, 0, 95)
		time.Sleep(time.Second) // idle
		mib, err := d.rss()
		if err != nil {
			return err
		}
		b.value("daemon_rss_idle_mib", mib, "MiB", 30)
	}
	return nil
}

// memory looks at the daemon again after many hook calls: those it has had, and as many
// of a guest without volumes as are missing.
func (b *bench) memory(ctx context.Context) error {
	g, err := b.guestOnFiles()
	if err != nil {
		return err
	}
	for over := b.plan.enough(b.plan.calls, 1); b.calls < b.plan.calls && !over(b.calls); {
		if _, err := b.startHook(ctx, b.a, g); err != nil {
			return err
		}
		if _, err := b.endHook(ctx, b.a, g); err != nil {
			return err
		}
	}
	mib, err := b.a.daemon.rss()
	if err != nil {
		return err
	}
	b.value(fmt.Sprintf("daemon_rss_after_%d_calls_mib", b.calls), mib, "MiB", 30)
	return nil
}

// syncs measures what the disk of the journal takes to make 4 KiB durable, in a file that
// has its size and in one that grows.
func (b *bench) syncs(ctx context.Context) error {
	const block, blocks = 4096, 256
	f, err := os.OpenFile(filepath.Join(b.disk, "sync"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, block*blocks))
	if err = errors.Join(err, f.Sync()); err != nil {
		return errors.Join(err, f.Close())
	}
	for _, kind := range []struct {
		name string
		from int64
		sync func(*os.File) error
	}{
		{"fsync_overwrite", 0, (*os.File).Sync},
		{"fdatasync_overwrite", 0, fdatasync},
		{"fsync_append", block * blocks, (*os.File).Sync},
		{"fdatasync_append", block * blocks * 2, fdatasync},
	} {
		var all samples
		over := b.plan.enough(min(b.plan.appends, blocks), 0.1)
		for i := 0; !over(i); i++ {
			if err := ctx.Err(); err != nil {
				return errors.Join(err, f.Close())
			}
			began := time.Now()
			_, err := f.WriteAt(make([]byte, block), kind.from+int64(i)*block)
			if err = errors.Join(err, kind.sync(f)); err != nil {
				return errors.Join(err, f.Close())
			}
			all = append(all, time.Since(began))
		}
		b.times(kind.name, all, 0, 99)
	}
	return f.Close()
}
