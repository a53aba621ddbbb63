package san

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/run"
)

func (l *lab) fault(f Fault) int {
	l.Helper()
	id, err := l.san.AddFault(f)
	require.NoError(l, err)
	return id
}

func TestExitFault(t *testing.T) {
	l := newLab(t, "lv1", "lv2")
	l.fault(Fault{Kind: FaultExit, Host: "kvm-a", Tool: "lvchange", Match: "-aey", Nth: 2, ExitCode: 7, Stderr: "  odd\n"})
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	l.ok(l.a, "lvchange -asy vg_san/lv1")
	l.ok(l.b, "lvchange -an vg_san/lv1")
	_, stderr, code := l.run(l.a, "lvchange -aey vg_san/lv1 vg_san/lv2")
	require.Equal(t, 7, code)
	require.Equal(t, "  odd\n", stderr)
	require.Equal(t, "sh/un un/un", l.lock("lv1")+" "+l.lock("lv2"), "nothing was done")
	l.ok(l.a, "lvchange -aey vg_san/lv1 vg_san/lv2")
	faults, err := l.san.Faults()
	require.NoError(t, err)
	require.Equal(t, []int{3, 1}, []int{faults[0].Matched, faults[0].Hit})
	_, err = l.san.AddFault(Fault{Kind: "nosuch"})
	require.ErrorContains(t, err, `no fault of kind "nosuch"`)
}

func TestExitFaultOfOneVolume(t *testing.T) {
	l := newLab(t, "m1", "m2", "m3")
	l.fault(Fault{Kind: FaultExit, Tool: "lvchange", Volume: "vg_san/m2", Times: 1, Stderr: "  Failed.\n"})
	l.fails(l.a, "lvchange -aey vg_san/m1 vg_san/m2 vg_san/m3", "Failed.")
	require.Equal(t, "ex/un un/un ex/un", l.lock("m1")+" "+l.lock("m2")+" "+l.lock("m3"))
	l.ok(l.a, "lvchange -aey vg_san/m2")
}

func TestGarbageAndWarnings(t *testing.T) {
	l := newLab(t, "lv1")
	id := l.fault(Fault{Kind: FaultGarbage, Tool: "lvs"})
	require.Contains(t, l.ok(l.a, "lvs --reportformat json"), "\x00\xff")
	require.NoError(t, l.san.ClearFaults(id))
	l.fault(Fault{Kind: FaultWarnings, Tool: "lvs"})
	out := l.ok(l.a, "lvs --reportformat json")
	require.True(t, strings.HasPrefix(out, "  WARNING: Device /dev/vdb not initialized"))
	require.Contains(t, out, `"lv_name":"lv1"`)
	require.NoError(t, l.san.ClearFaults())
	require.True(t, strings.HasPrefix(l.ok(l.a, "lvs --reportformat json"), "  {"))
}

func TestUnlockAndActivateFaults(t *testing.T) {
	l := newLab(t, "lv1")
	l.fault(Fault{Kind: FaultActivate, Host: "kvm-a", Volume: "vg_san/lv1", Times: 1})
	_, stderr, code := l.run(l.a, "lvchange -aey vg_san/lv1")
	require.Equal(t, 5, code)
	require.Contains(t, stderr, "device-mapper: create ioctl on vg_san-lv1 LVM-")
	require.False(t, l.a.Active("vg_san", "lv1"))
	require.Equal(t, "ex/un", l.lock("lv1"), "lock without device")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	l.fault(Fault{Kind: FaultUnlock, Host: "kvm-a", Times: 1, Match: "-an"})
	_, stderr, code = l.run(l.a, "lvchange -an vg_san/lv1")
	require.Equal(t, 0, code)
	require.Equal(t, "  Failed to unlock logical volume vg_san/lv1.\n", stderr)
	require.False(t, l.a.Active("vg_san", "lv1"))
	l.fails(l.b, "lvchange -aey vg_san/lv1", refused("lv1"))
	l.ok(l.a, "lvchange -an vg_san/lv1")
	l.ok(l.b, "lvchange -aey vg_san/lv1")
	// A device without its lock, and a lock without its device, by other hands.
	l.ok(l.b, "dmsetup remove vg_san-lv1")
	require.Equal(t, "un/ex", l.lock("lv1"))
	require.False(t, l.b.Active("vg_san", "lv1"))
}

func TestRunner(t *testing.T) {
	l := newLab(t, "lv1")
	r := l.a.Runner()
	ctx := context.Background()
	var pid int
	res, err := r.Run(ctx, run.Cmd{Name: "lvs", Args: []string{"--noheadings", "-o", "lv_name", "vg_san"}, OnStart: func(p int, _ uint64) { pid = p }})
	require.NoError(t, err)
	require.Equal(t, "  lv1\n", string(res.Stdout))
	require.Greater(t, pid, firstPID)

	_, err = r.Run(ctx, run.Cmd{Name: "lvchange", Args: []string{"-aey", "vg_san/nosuch"}})
	var exit *run.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 5, exit.ExitCode)
	require.Equal(t, []string{"lvchange", "-aey", "vg_san/nosuch"}, exit.Argv)
	require.Contains(t, exit.Stderr, "Failed to find logical volume")

	l.fault(Fault{Kind: FaultMissing, Tool: "lvs"})
	_, err = r.Run(ctx, run.Cmd{Name: "lvs"})
	var missing *run.NotFoundError
	require.ErrorAs(t, err, &missing)
	require.ErrorIs(t, err, exec.ErrNotFound)
	require.NoError(t, l.san.ClearFaults())

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = r.Run(cancelled, run.Cmd{Name: "lvs"})
	require.ErrorIs(t, err, context.Canceled)
}

func TestRunnerTimeout(t *testing.T) {
	l := newLab(t, "lv1")
	r := l.a.Runner()
	take := run.Cmd{Name: "lvchange", Args: []string{"-aey", "vg_san/lv1"}, Timeout: 10 * time.Millisecond}
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	// SIGTERM ends it, nothing was done.
	l.fault(Fault{Kind: FaultHang, Tool: "lvchange"})
	_, err := r.Run(context.Background(), take)
	var late *run.TimeoutError
	require.ErrorAs(t, err, &late)
	require.Eventually(t, func() bool { return closed(late.Done) }, 5*time.Second, time.Millisecond)
	require.Equal(t, "un/un", l.lock("lv1"))
	// Stuck: it goes on when it can, long after it was given up.
	require.NoError(t, l.san.ClearFaults())
	id := l.fault(Fault{Kind: FaultHang, Tool: "lvchange", Stuck: true})
	res, err := r.Run(context.Background(), take)
	require.ErrorAs(t, err, &late)
	require.Equal(t, -1, res.ExitCode)
	require.False(t, closed(late.Done))
	require.Equal(t, "un/un", l.lock("lv1"))
	require.NoError(t, l.san.ClearFaults(id))
	<-late.Done
	require.Equal(t, "ex/un", l.lock("lv1"))
	// All done, no answer.
	l.fault(Fault{Kind: FaultHang, Tool: "lvchange", After: true, For: time.Hour})
	take.Args[0] = "-an"
	_, err = r.Run(context.Background(), take)
	require.True(t, errors.As(err, &late))
	require.Equal(t, "un/un", l.lock("lv1"))
}

func TestHostDiesUnderACommand(t *testing.T) {
	l := newLab(t, "lv1")
	id := l.fault(Fault{Kind: FaultHang, Tool: "lvchange", Stuck: true})
	done := make(chan int)
	go func() {
		_, _, code := l.run(l.a, "lvchange -aey vg_san/lv1")
		done <- code
	}()
	require.Eventually(t, func() bool {
		f, err := l.san.Faults()
		return err == nil && f[0].Hit == 1
	}, 5*time.Second, time.Millisecond)
	require.NoError(t, l.a.Reboot())
	require.NoError(t, l.a.LockStart("vg_san"))
	require.NoError(t, l.san.ClearFaults(id))
	require.Equal(t, 255, <-done)
	require.Equal(t, "un/un", l.lock("lv1"), "a command does not outlive its host")
}

func TestDelays(t *testing.T) {
	l := newLab(t, "lv1")
	l.san.DelayScale = 0.01
	took := func(h *Host, line string) time.Duration {
		began := time.Now()
		l.run(h, line)
		return time.Since(began)
	}
	require.GreaterOrEqual(t, took(l.a, "lvchange -aey vg_san/lv1"), 24*time.Millisecond)
	require.GreaterOrEqual(t, took(l.b, "lvchange -asy vg_san/lv1"), 60*time.Millisecond, "lvmlockd tries SH again")
	require.NoError(t, l.a.Open("vg_san", "lv1", 1))
	require.GreaterOrEqual(t, took(l.a, "lvchange -an vg_san/lv1"), 59*time.Millisecond)
}

// A holder that lets go while lvmlockd tries again: SH is given.
func TestSharedRetry(t *testing.T) {
	l := newLab(t, "lv1")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	l.san.DelayScale = 0.2
	done := make(chan string)
	go func() {
		_, stderr, _ := l.run(l.b, "lvchange -asy vg_san/lv1")
		done <- stderr
	}()
	time.Sleep(210 * time.Millisecond)
	require.NoError(t, l.san.update(func(st *state) error {
		c := &call{san: l.san}
		vg := st.VGs["vg_san"]
		c.unlockLV(st, st.Hosts["kvm-a"], vg, vg.find("lv1"))
		return nil
	}))
	require.Empty(t, <-done)
	require.Equal(t, "un/sh", l.lock("lv1"))
}
