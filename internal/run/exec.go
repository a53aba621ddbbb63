package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultGrace is how long a program may take to end after SIGTERM before Run gives up
// waiting for it.
const DefaultGrace = 10 * time.Second

// ExecOptions configure NewExec. OutDir is required, the rest has defaults.
type ExecOptions struct {
	// Dirs is where programs are looked up, in order; default /usr/sbin, /usr/bin,
	// /sbin, /bin.
	Dirs []string
	// OutDir is an existing folder for the programs' output, on this host, only ours.
	OutDir string
	// Env is added to the minimal environment, as NAME=VALUE.
	Env []string
	// Grace replaces DefaultGrace when it is not 0.
	Grace time.Duration
	// Observe is told of every run when it ends or is given up. May be nil.
	Observe func(argv []string, d time.Duration, err error)
}

// Exec is the Runner that runs real programs. Each gets a session of its own, so that no
// signal meant for us reaches it, and files for its output, so that it outlives us: an
// LVM command whose output pipe is gone dies of SIGPIPE half-way.
type Exec struct {
	dirs    []string
	env     []string
	outDir  string
	grace   time.Duration
	observe func(argv []string, d time.Duration, err error)
	serial  atomic.Uint64
}

// NewExec makes an Exec. It touches nothing: a missing OutDir shows at the first Run.
func NewExec(opts ExecOptions) *Exec {
	standard := []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	dirs := append([]string(nil), opts.Dirs...)
	if len(dirs) == 0 {
		dirs = standard
	}
	e := &Exec{
		dirs:    dirs,
		outDir:  opts.OutDir,
		grace:   opts.Grace,
		observe: opts.Observe,
	}
	if e.grace == 0 {
		e.grace = DefaultGrace
	}
	e.env = append([]string{
		"LC_ALL=C",
		"LVM_SUPPRESS_FD_WARNINGS=1",
		"PATH=" + strings.Join(pathOf(dirs, standard), ":"),
		"HOME=/",
	}, opts.Env...)
	return e
}

// pathOf is what a program finds its helpers in (LVM runs thin_check and others): our
// own folders first, then the standard ones.
func pathOf(dirs, standard []string) []string {
	path := append([]string(nil), dirs...)
	for _, s := range standard {
		seen := false
		for _, d := range dirs {
			seen = seen || d == s
		}
		if !seen {
			path = append(path, s)
		}
	}
	return path
}

// Run implements Runner. Besides the Runner's errors it returns one of its own, with
// nothing run, when the output files cannot be made or there is no room for them, and
// one when the output is too large to be read back.
func (e *Exec) Run(ctx context.Context, cmd Cmd) (Result, error) {
	began := time.Now()
	res, err := e.run(ctx, cmd)
	res.Duration = time.Since(began)
	if e.observe != nil {
		e.observe(cmd.Argv(), res.Duration, err)
	}
	return res, err
}

func (e *Exec) run(ctx context.Context, cmd Cmd) (Result, error) {
	res := Result{ExitCode: -1}
	if cmd.Err != nil {
		return res, cmd.Err
	}
	if err := ctx.Err(); err != nil {
		return res, fmt.Errorf("cannot run %s: %w", cmd.Name, err)
	}
	path, err := e.lookup(cmd.Name)
	if err != nil {
		return res, &NotFoundError{Name: cmd.Name, Err: err}
	}
	out, err := newOutput(e.outDir, &e.serial)
	if err != nil {
		return res, fmt.Errorf("cannot run %s: no place for its output: %w", cmd.Name, err)
	}
	child := &exec.Cmd{
		Path:        path,
		Args:        cmd.Argv(),
		Env:         e.env,
		Dir:         "/",
		Stdout:      out.stdout,
		Stderr:      out.stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	closeInherited()
	if err := child.Start(); err != nil {
		discard(out)
		return res, &NotFoundError{Name: cmd.Name, Err: err}
	}
	// An unreaped process keeps its stat file, so the start time is missed only where /proc
	// cannot be read; it is 0 then.
	start, _ := ProcessStart(child.Process.Pid)
	p := Watch(child)
	if cmd.OnStart != nil {
		cmd.OnStart(p.PID, start)
	}
	return e.await(cmd, p, out)
}

// await waits for the end of p, or for the deadline and the grace after it.
func (e *Exec) await(cmd Cmd, p *Child, out *output) (Result, error) {
	timeout := cmd.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	if p.EndsWithin(timeout) {
		res, err := finish(cmd, p, out)
		discard(out)
		return res, err
	}
	termErr := p.Signal(unix.SIGTERM)
	if p.EndsWithin(e.grace) {
		// It may have finished its work on the way out, or not: unknown all the same.
		res, err := finish(cmd, p, out)
		discard(out)
		var exit *ExitError
		if errors.As(err, &exit) {
			err = nil
		}
		return res, also(&TimeoutError{Argv: cmd.Argv(), PID: p.PID, Done: p.Ended}, err)
	}
	res := Result{ExitCode: -1}
	var readErr error
	res.Stdout, res.Stderr, readErr = out.read()
	// Never SIGKILL: the program keeps its files until it ends, however long it takes.
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-p.Ended
		discard(out)
	}()
	return res, also(also(&TimeoutError{Argv: cmd.Argv(), PID: p.PID, Done: done}, termErr), readErr)
}

// finish turns an ended process into a Result.
func finish(cmd Cmd, p *Child, out *output) (Result, error) {
	res := Result{ExitCode: p.ExitCode()}
	var err error
	res.Stdout, res.Stderr, err = out.read()
	if err != nil {
		err = fmt.Errorf("cannot read the output of %s: %w", cmd.Name, err)
	}
	if res.ExitCode == 0 {
		return res, err
	}
	stderr := string(res.Stderr)
	if s := p.signal(); s != "" {
		stderr = strings.TrimRight(stderr, "\n") + "\nended by signal: " + s + "\n"
	}
	return res, also(&ExitError{Argv: cmd.Argv(), ExitCode: res.ExitCode, Stderr: stderr}, err)
}

// also adds a second error to the one that matters, on the same line.
func also(err, second error) error {
	if second == nil {
		return err
	}
	return fmt.Errorf("%w; %w", err, second)
}

// discard deletes the output files. One that cannot be deleted costs only room, and
// Sweep takes it later.
func discard(out *output) { _ = out.remove() }

// lookup finds a program by its plain name: a path is refused, so that what runs is
// always one of the host's own tools.
func (e *Exec) lookup(name string) (string, error) {
	if name == "" || filepath.Base(name) != name || name == "." || name == ".." {
		return "", fmt.Errorf("%q is not a program name", name)
	}
	for _, dir := range e.dirs {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("not installed in %s", strings.Join(e.dirs, ", "))
}

// closeInherited keeps every descriptor of ours out of the programs, also one that the
// daemon was itself started with: a socket that a stuck command holds open would
// outlive us. Old kernels (before 5.11) cannot; Go's own descriptors are safe anyway.
func closeInherited() {
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}
