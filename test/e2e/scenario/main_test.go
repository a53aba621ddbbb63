//go:build e2e

package scenario

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"virtlvm/test/e2e/cluster"
)

// suite is what all scenarios share.
var suite struct {
	ctx     context.Context
	cluster *cluster.Cluster
	disks   disks
	debs    cluster.Debs
	logs    string
}

// disks are the volumes of the scenarios' guests. They are made once, since each costs
// some seconds, and are inactive between scenarios.
type disks struct {
	one, two       cluster.Volume // raw, with the counting boot sector
	base, mid, top cluster.Volume // a qcow2 chain
}

func (d disks) all() []cluster.Volume {
	return []cluster.Volume{d.one, d.two, d.base, d.mid, d.top}
}

// TestMain boots the cluster once, installs virtlvm and takes everything down at the end,
// also after an interrupt. Environment: E2E_IMAGE, a folder made by image/build.sh;
// E2E_PACKAGES, with old.deb and new.deb; E2E_DIR, the run folder, which the caller
// removes; E2E_LOGS, where evidence of failures goes; E2E_HOLD=1 keeps the cluster up
// after the scenarios until an interrupt.
func TestMain(m *testing.M) {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code, err := runSuite(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runSuite(ctx context.Context, m *testing.M) (code int, err error) {
	// A timeout of the testing package ends the process on the spot. Ours comes earlier
	// and leaves time for evidence.
	if d, ok := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); ok && d > 6*time.Minute {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d-3*time.Minute, errors.New("the suite's time is over"))
		defer cancel()
	}
	suite.ctx, suite.logs, suite.debs = ctx, os.Getenv("E2E_LOGS"), cluster.DebsIn(os.Getenv("E2E_PACKAGES"))
	begin := time.Now()
	say := func(format string, args ...any) {
		fmt.Printf("e2e %4.0fs  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	c, err := cluster.Start(ctx, cluster.Options{Image: os.Getenv("E2E_IMAGE"), Dir: os.Getenv("E2E_DIR"), Log: say})
	if err != nil {
		return 1, err
	}
	suite.cluster = c
	defer func() {
		if os.Getenv("E2E_HOLD") != "" && ctx.Err() == nil {
			say("holding; interrupt to end:\n  %s\n  %s", c.A.SSH(), c.B.SSH())
			<-ctx.Done()
		}
		err = errors.Join(err, c.Close())
	}()
	// Neither needs the other, and both mostly wait.
	err = cluster.Together(
		func() error { return makeDisks(ctx, c) },
		func() error { return c.Install(ctx, suite.debs.New) },
	)
	if err != nil {
		return 1, errors.Join(err, collect("setup"))
	}
	fmt.Printf("install log of %s:\n%s\n", c.A.Name, c.A.InstallLog)
	say("%s is shared by both hosts, virtlvm is installed, its hook is called", cluster.VG)
	code = m.Run()
	say("scenarios are done")
	if ctx.Err() == nil {
		// They can be removed only where nothing of them is left.
		err = c.RemoveVolumes(ctx, suite.disks.all()...)
	}
	return code, err
}

func makeDisks(ctx context.Context, c *cluster.Cluster) error {
	if err := c.MakeVG(ctx); err != nil {
		return err
	}
	v, err := c.CreateVolumes(ctx, 32, "vm1", "vm2", "base", "mid", "top")
	if err != nil {
		return err
	}
	suite.disks = disks{one: v[0], two: v[1], base: v[2], mid: v[3], top: v[4]}
	return cluster.Together(
		func() error { return c.A.MakeBootable(ctx, v[0], v[1]) },
		func() error { return c.B.MakeChain(ctx, v[2], v[3], v[4]) },
	)
}

// collect keeps evidence under a name. It works also when the suite was interrupted.
func collect(name string) error {
	if suite.logs == "" {
		return nil
	}
	return suite.cluster.Collect(context.WithoutCancel(suite.ctx), filepath.Join(suite.logs, name))
}
