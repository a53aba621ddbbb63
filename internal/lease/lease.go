// Package lease reads who holds the lock of a volume: on this host from lvmlockd, on
// all hosts from the leases that sanlock keeps on the shared storage. It never changes
// anything, and it never takes "could not be read" for "free".
//
// The formats are those of lvmlockctl (LVM 2.03.16 to 2.03.40) and sanlock 3.8.5 and
// 3.9.5: daemons/lvmlockd/lvmlockctl.c in LVM, direct.c, client_cmd.c and lockspace.c in
// sanlock.
package lease

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// Reader reads locks and leases. Safe for concurrent use.
type Reader struct {
	runner    run.Runner
	devRoot   string
	monotonic func() time.Duration

	// infoTurn holds one token while lvmlockctl runs: it binds one fixed socket name, and
	// two at the same time fail.
	infoTurn chan struct{}

	mu    sync.Mutex
	known map[string]knownHosts // by VG, as read last
}

// New makes a Reader. devRoot is "/dev" on a real host; monotonic is CLOCK_MONOTONIC,
// the clock in which sanlock counts.
func New(r run.Runner, devRoot string, monotonic func() time.Duration) *Reader {
	return &Reader{runner: r, devRoot: devRoot, monotonic: monotonic, infoTurn: make(chan struct{}, 1), known: map[string]knownHosts{}}
}

// lockspacePrefix comes before the VG's name in sanlock's name of its lockspace.
const lockspacePrefix = "lvm_"

// lockVolume is the device of the volume that holds the leases of a VG.
func (r *Reader) lockVolume(vg string) string {
	return filepath.Join(r.devRoot, "mapper", strings.ReplaceAll(vg, "-", "--")+lockSuffix)
}

// lockSuffix ends the device-mapper name of a volume that holds leases.
const lockSuffix = "-lvmlock"

// sanlock runs one sanlock command and returns what it printed.
func (r *Reader) sanlock(ctx context.Context, args ...string) (string, error) {
	res, err := r.runner.Run(ctx, run.Cmd{Name: "sanlock", Args: args})
	if err != nil {
		return "", asked("sanlock", res, err)
	}
	return string(res.Stdout), nil
}

// asked makes the error of a program that did not answer. sanlock and lvmlockctl give
// their reasons on stdout.
func asked(program string, res run.Result, err error) error {
	var late *run.TimeoutError
	if errors.As(err, &late) {
		return api.WrapError(api.KindStuck, fmt.Sprintf("%v: is the storage there?", err), err)
	}
	var exit *run.ExitError
	if !errors.As(err, &exit) {
		return api.WrapError(api.KindLocking, err.Error(), err)
	}
	said := firstLine(string(res.Stdout))
	if said == "" {
		said = firstLine(exit.Stderr)
	}
	if said == "" {
		said = "no answer: does its daemon run?"
	}
	return api.WrapError(api.KindLocking, fmt.Sprintf("%s failed with exit code %d: %s", program, exit.ExitCode, said), err)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

// unclear is the error of an answer that cannot be understood.
func unclear(format string, args ...any) error {
	return api.NewError(api.KindLocking, fmt.Sprintf(format, args...))
}

// about puts in front what was to be found out, and keeps the kind.
func about(err error, format string, args ...any) error {
	return api.WrapError(api.KindOf(err), fmt.Sprintf(format, args...)+": "+err.Error(), err)
}

// quoted is enough of a line to recognise it.
func quoted(line string) string {
	const limit = 120
	line = strings.ToValidUTF8(strings.TrimSpace(line), "?")
	if runes := []rune(line); len(runes) > limit {
		line = string(runes[:limit]) + "..."
	}
	return fmt.Sprintf("%q", line)
}
