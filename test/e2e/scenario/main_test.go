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

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// suite is the cluster that all scenarios share, one after the other.
var suite struct {
	ctx     context.Context
	cluster *cluster.Cluster
	logs    string
}

// TestMain boots the cluster once, installs virtlvm and takes everything down at the end,
// also after an interrupt. Environment: E2E_IMAGE, a folder made by image/build.sh;
// E2E_TREE, made by `make install DESTDIR=`; E2E_DIR, the run folder, which the caller
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
	if d, ok := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); ok && d > 4*time.Minute {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d-3*time.Minute, errors.New("the suite's time is over"))
		defer cancel()
	}
	suite.ctx, suite.logs = ctx, os.Getenv("E2E_LOGS")
	begin := time.Now()
	say := func(format string, args ...any) {
		fmt.Printf("e2e %4.0fs  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	c, err := cluster.Start(ctx, cluster.Options{Image: os.Getenv("E2E_IMAGE"), Dir: os.Getenv("E2E_DIR"), Log: say})
	if err != nil {
		return 1, err
	}
	defer func() {
		if os.Getenv("E2E_HOLD") != "" && ctx.Err() == nil {
			say("holding; interrupt to end:\n  %s\n  %s", c.A.SSH(), c.B.SSH())
			<-ctx.Done()
		}
		err = errors.Join(err, c.Close())
	}()
	suite.cluster = c
	fail := func(err error) (int, error) { return 1, errors.Join(err, collect("setup")) }
	if err := c.MakeVG(ctx); err != nil {
		return fail(err)
	}
	say("%s is shared by both hosts", cluster.VG)
	if err := c.Install(ctx, os.Getenv("E2E_TREE")); err != nil {
		return fail(err)
	}
	say("virtlvm is installed and its hook is called")
	code = m.Run()
	say("scenarios are done")
	return code, nil
}

// collect keeps evidence under a name. It works also when the suite was interrupted.
func collect(name string) error {
	if suite.logs == "" {
		return nil
	}
	return suite.cluster.Collect(context.WithoutCancel(suite.ctx), filepath.Join(suite.logs, name))
}

// run runs scenarios in their order, each as a subtest.
func run(t *testing.T, scenarios []scenario) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			if err := suite.ctx.Err(); err != nil {
				t.Fatal(context.Cause(suite.ctx))
			}
			ctx, cancel := context.WithTimeout(suite.ctx, 6*time.Minute)
			t.Cleanup(cancel)
			c := suite.cluster
			t.Cleanup(func() { tidy(t, c) })
			s.run(&env{T: t, ctx: ctx, c: c, a: c.A, b: c.B})
		})
	}
}

type scenario struct {
	name string
	run  func(e *env)
}

// tidy ends a scenario: evidence if it failed, then both hosts must be clean. What a
// failed scenario left is taken away for the next one.
func tidy(t *testing.T, c *cluster.Cluster) {
	if t.Failed() {
		if err := collect(t.Name()); err != nil {
			t.Log("not all evidence could be kept:", err)
		}
	}
	if suite.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(suite.ctx, 3*time.Minute)
	defer cancel()
	require.NoError(t, c.Both(func(h *cluster.Host) error {
		if !h.Running() {
			if err := h.Boot(ctx); err != nil {
				return err
			}
			if err := h.StartLockspace(ctx); err != nil {
				return err
			}
		}
		return h.Scrub(ctx)
	}))
	err := c.Both(func(h *cluster.Host) error {
		return cluster.Eventually(ctx, 45*time.Second, func() error {
			left, err := h.Residue(ctx)
			if err == nil && left != "" {
				err = fmt.Errorf("left on %s: %s", h.Name, left)
			}
			return err
		})
	})
	if err != nil && !t.Failed() {
		t.Error(err)
		if err := collect(t.Name()); err != nil {
			t.Log("not all evidence could be kept:", err)
		}
	}
	if err != nil {
		if err := c.Both(func(h *cluster.Host) error { return h.ReleaseAll(ctx) }); err != nil {
			t.Log(err)
		}
	}
	if err := c.RemoveVolumes(ctx, made[t.Name()]...); err != nil {
		t.Error(err)
	}
	delete(made, t.Name())
}

// made are the volumes that a scenario has made, by its test's name.
var made = map[string][]cluster.Volume{}

func removeLater(t *testing.T, v ...cluster.Volume) { made[t.Name()] = append(made[t.Name()], v...) }
