package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"virtlvm/internal/run"
)

// Options are what New is given.
type Options struct {
	// Dir is the folder of the jobs' folders, on a disk that survives a reboot. It is
	// made where it is missing.
	Dir    string
	BootID string
	// Path are the folders that programs are looked for in; empty: the usual ones.
	Path []string
	// Env is added to the environment of jobs.
	Env   []string
	Units Units
	Now   func() time.Time
}

// Jobs starts jobs and finds out about them. It keeps nothing in memory: another one with
// the same options, in another process, finds the same. Safe for concurrent use for
// different jobs.
type Jobs struct{ o Options }

// New makes a Jobs; it touches nothing.
func New(o Options) *Jobs { return &Jobs{o} }

func (j *Jobs) folder(id string) (folder, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	return folder(filepath.Join(j.o.Dir, id)), nil
}

// Start starts a job, or finds that it has been started. It can be called again after a
// crash: the steps are never run twice. On an error the job may run all the same: look.
func (j *Jobs) Start(ctx context.Context, job Job) error {
	f, err := j.folder(job.ID)
	if err != nil {
		return err
	}
	found, err := j.find(job.Steps)
	if err != nil {
		return fmt.Errorf("cannot start job %s: %w", job.ID, err)
	}
	if err := os.MkdirAll(j.o.Dir, 0o700); err != nil {
		return fmt.Errorf("cannot start job %s: %w", job.ID, err)
	}
	if job.StopSignal == 0 {
		job.StopSignal = syscall.SIGTERM
	}
	r := record{BootID: j.o.BootID, Created: j.o.Now(), Steps: job.Steps, StopSignal: int(job.StopSignal)}
	if err := f.make(r, found); err != nil {
		return fmt.Errorf("cannot start job %s: %w", job.ID, err)
	}
	begun, err := f.begun()
	if err != nil || begun {
		return err
	}
	err = j.o.Units.Start(ctx, Unit{
		Name: UnitName(job.ID), Description: job.Description, Argv: []string{"/bin/sh", f.path("job.sh")},
		Env: j.env(), StopSignal: job.StopSignal,
	})
	if err != nil {
		return fmt.Errorf("cannot start job %s: %w", job.ID, err)
	}
	return nil
}

// path is where programs are looked for.
func (j *Jobs) path() []string {
	return append(append([]string(nil), j.o.Path...), "/usr/sbin", "/usr/bin", "/sbin", "/bin")
}

func (j *Jobs) env() []string {
	return append([]string{"LC_ALL=C", "HOME=/root", "PATH=" + strings.Join(j.path(), ":")}, j.o.Env...)
}

// find replaces the programs of steps by their paths: the shell must not take one for a
// word of its own, and one that is not installed is told before anything has begun.
func (j *Jobs) find(steps [][]string) ([][]string, error) {
	if err := checkSteps(steps); err != nil {
		return nil, err
	}
	found := make([][]string, 0, len(steps))
	for _, argv := range steps {
		at := slices.IndexFunc(j.path(), func(dir string) bool {
			info, err := os.Stat(filepath.Join(dir, argv[0]))
			return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
		})
		if at < 0 {
			return nil, &run.NotFoundError{Name: argv[0], Err: fmt.Errorf("not installed in %s", strings.Join(j.path(), ", "))}
		}
		found = append(found, append([]string{filepath.Join(j.path()[at], argv[0])}, argv[1:]...))
	}
	return found, nil
}

// Look tells how a job stands. An error means that this could not be told, never that it
// is gone.
func (j *Jobs) Look(ctx context.Context, id string) (Report, error) {
	f, err := j.folder(id)
	if err != nil {
		return Report{}, err
	}
	job, err := f.read()
	var r Report
	if errors.Is(err, fs.ErrNotExist) {
		r, err = j.lookAtUnit(ctx, id, Report{State: Gone, Why: Missing})
	} else if err == nil {
		r, err = j.look(ctx, id, f, job)
	}
	if err != nil {
		return Report{}, fmt.Errorf("cannot tell how job %s stands: %w", id, err)
	}
	r.Began, r.Step = job.Created, f.step()
	return r, nil
}

func (j *Jobs) look(ctx context.Context, id string, f folder, job record) (Report, error) {
	if r, found, err := recorded(f); found || err != nil {
		return r, err
	}
	if locked, err := f.locked(); err != nil || locked {
		return Report{State: Running}, err
	}
	gone := Report{State: Gone, Why: Lost}
	begun, err := f.begun()
	switch {
	case err != nil:
		return Report{}, err
	case !begun:
		gone.Why = NeverRan
	case job.BootID != j.o.BootID:
		gone.Why = Rebooted
	}
	r, err := j.lookAtUnit(ctx, id, gone)
	// It may have ended since: what it has written itself says more.
	if r, found, recErr := recorded(f); found || recErr != nil {
		return r, recErr
	}
	return r, err
}

func recorded(f folder) (Report, bool, error) {
	code, at, found, err := f.end()
	return Report{State: Exited, Code: code, Ended: at}, found, err
}

// lookAtUnit asks systemd of a job that has no exit record; gone is the answer where
// systemd does not know it.
func (j *Jobs) lookAtUnit(ctx context.Context, id string, gone Report) (Report, error) {
	u, err := j.o.Units.State(ctx, UnitName(id))
	switch {
	case err != nil:
		return Report{}, err
	case u.Running:
		return Report{State: Running}, nil
	case !u.Loaded:
		return gone, nil
	}
	return Report{State: Exited, Code: u.Code, Ended: u.Ended, Note: u.note(gone.Why != NeverRan)}, nil
}

// note says what systemd knows of a job that ended without a record of its own.
func (u UnitState) note(begun bool) string {
	switch {
	case !begun:
		return fmt.Sprintf("it could not begin (%s, exit code %d)", u.Result, u.Code)
	case u.Signal != 0:
		return fmt.Sprintf("killed by signal %s (%s)", u.Signal, u.Result)
	}
	return fmt.Sprintf("it left no exit record (%s, exit code %d)", u.Result, u.Code)
}

// Output is the end of what a job has written to standard output and error.
func (j *Jobs) Output(id string) (stdout, stderr string, err error) {
	f, err := j.folder(id)
	if err != nil {
		return "", "", err
	}
	if stdout, err = f.tail("out"); err != nil {
		return "", "", fmt.Errorf("cannot read the output of job %s: %w", id, err)
	}
	if stderr, err = f.tail("err"); err != nil {
		return "", "", fmt.Errorf("cannot read the output of job %s: %w", id, err)
	}
	return stdout, stderr, nil
}

// Stop asks a job to end. It does not wait: look.
func (j *Jobs) Stop(ctx context.Context, id string) error {
	if _, err := j.folder(id); err != nil {
		return err
	}
	if err := j.o.Units.Stop(ctx, UnitName(id)); err != nil {
		return fmt.Errorf("cannot stop job %s: %w", id, err)
	}
	return nil
}

// Revoke makes sure that a job that has not begun never will, though systemd may have been
// asked to start it. begun: it has, look again.
func (j *Jobs) Revoke(id string) (begun bool, err error) {
	f, err := j.folder(id)
	if err != nil {
		return false, err
	}
	err = os.Rename(f.path("ready"), f.path("revoked"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := f.read(); errors.Is(err, fs.ErrNotExist) {
			return false, nil // what the unit would run is not there
		}
		return f.begun()
	}
	if err != nil {
		return false, fmt.Errorf("cannot revoke job %s: %w", id, err)
	}
	return false, nil
}

// Collect removes what is left of a job that has ended, once its answer is in the
// journal. A job that runs is refused.
func (j *Jobs) Collect(ctx context.Context, id string) error {
	f, err := j.folder(id)
	if err != nil {
		return err
	}
	r, err := j.Look(ctx, id)
	if err != nil {
		return err
	}
	if r.State == Running {
		return fmt.Errorf("cannot remove job %s: it runs", id)
	}
	if err := j.o.Units.Forget(ctx, UnitName(id)); err != nil {
		return fmt.Errorf("cannot remove job %s: %w", id, err)
	}
	// job.json last: without it the job counts as one that never ran.
	for _, name := range []string{"ready", "revoked", "lock", "step", "out", "err", "end.new", "end", "job.sh"} {
		if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove job %s: %w", id, err)
		}
	}
	if err := os.RemoveAll(string(f)); err != nil {
		return fmt.Errorf("cannot remove job %s: %w", id, err)
	}
	return nil
}

// List names the jobs that have a folder.
func (j *Jobs) List() ([]string, error) {
	entries, err := os.ReadDir(j.o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the jobs: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && checkID(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
