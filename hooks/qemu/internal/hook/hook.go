// Package hook is what the libvirt hook does: tell virtlvmd, wait for the verdict, exit.
//
// libvirt waits for a hook without any limit and blocks commands on the guest meanwhile,
// so everything here is bounded by one deadline (api.HookSettings). What a failure means
// depends on the operation:
//
//   - prepare, start, started, migrate, restore and attach fail closed: no verdict in
//     time, no start. One line on standard error says what to do.
//   - all others (reconnect, stopped, release, ones not known yet) exit 0 whatever
//     happens: libvirt kills a running guest when `reconnect` fails. What virtlvmd could
//     not take is kept in the spool.
//
// Standard output is the domain XML for libvirt where it asks for one (migrate, restore)
// and virtlvmd changed it; otherwise nothing is ever written there.
//
// For tests and the demo the places can be moved by environment variables; see System.
// That opens no door in production: libvirt gives a hook only LC_ALL, PATH, HOME, USER,
// LOGNAME, TMPDIR, LD_PRELOAD and LD_LIBRARY_PATH (virCommandAddEnvPassCommon).
//
// libvirt runs the hook five times in the life of each guest, so what a call costs beyond
// the start of a Go program is kept small: plain system calls, no goroutine and no decoder
// where the answer comes at once. See decision 13.
package hook

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/spool"
)

// Exit codes.
const (
	exitAllow  = 0
	exitRefuse = 1
	exitUsage  = 2
)

// breakGlassPatience is how long a bypassed call tries to tell virtlvmd about itself.
const breakGlassPatience = 2 * time.Second

// unheeded is how long a call that can be refused does without a handler for signals, which
// costs a thread: until then a signal ends the process, and that is a refusal too.
const unheeded = 20 * time.Millisecond

// Env is what a run of the hook gets from outside.
type Env struct {
	Args   []string // without the program's name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Paths  Paths
	Parent int // pid of the process that ran the hook
	// Exit ends the process and does not return; used where something blocks.
	Exit func(code int)
	// Abort is Exit where even saying how it ends blocks.
	Abort func(code int)
	// Signals tells of signals that ask the process to end, from when it is called.
	Signals func(chan<- os.Signal)
}

// Paths are the places the hook uses.
type Paths struct {
	Socket     string // virtlvmd's socket
	Spool      string // directory for events that could not be told
	Settings   string // api.HookSettings as JSON; may be missing
	BreakGlass string // exists: allow everything
	Proc       string // the proc file system
}

// System is the environment of this process. The variables VIRTLVM_HOOK_SOCKET,
// VIRTLVM_HOOK_SPOOL, VIRTLVM_HOOK_SETTINGS and VIRTLVM_HOOK_BREAK_GLASS replace the
// places of package api.
func System() Env {
	place := func(variable, otherwise string) string {
		if v := os.Getenv(variable); v != "" {
			return v
		}
		return otherwise
	}
	return Env{
		Args:   os.Args[1:],
		Stdin:  fd(syscall.Stdin),
		Stdout: fd(syscall.Stdout),
		Stderr: fd(syscall.Stderr),
		Paths: Paths{
			Socket:     place("VIRTLVM_HOOK_SOCKET", api.SocketPath),
			Spool:      place("VIRTLVM_HOOK_SPOOL", api.SpoolDir),
			Settings:   place("VIRTLVM_HOOK_SETTINGS", api.HookSettingsPath),
			BreakGlass: place("VIRTLVM_HOOK_BREAK_GLASS", api.BreakGlassPath),
			Proc:       "/proc",
		},
		Parent: os.Getppid(),
		Exit:   os.Exit,
		Abort:  os.Exit,
		Signals: func(c chan<- os.Signal) {
			signal.Notify(c, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		},
	}
}

// Run handles one call of the hook and returns its exit code: 0 allow, 1 refuse, 2 wrong
// usage (no arguments at all: libvirt always gives four). It ends within the deadline: what
// blocks for too long is left behind, and the process ended. A signal is like the deadline
// passing.
func Run(env Env) int {
	if len(env.Args) == 0 {
		fmt.Fprintln(env.Stderr, "usage: qemu GUEST OPERATION SUBOPERATION EXTRA <DOMAIN-XML; run by libvirt, see virtlvmd(8)")
		return exitUsage
	}
	r := &run{env: env, held: exitAllow, call: api.HookCall{Stamp: stamp(env.Paths.Proc, env.Parent)}}
	r.call.Guest, r.call.Op, r.call.SubOp, r.call.Extra = fourArgs(env.Args)
	if api.Verdicting(r.call.Op) {
		r.held = exitRefuse
	}
	// Until the settings are read the default deadline holds: they may be on a file
	// system that does not answer.
	r.watchdog = newWatchdog(env.Abort, r.held)
	defer r.watchdog.stop()
	began := time.Now()
	r.patience = deadline(env.Paths.Settings)
	r.deadline = began.Add(r.patience)
	r.watchdog.reset(time.Until(r.deadline))

	defer r.stop()
	o, err := r.guarded(r.decide)
	if !r.ended.CompareAndSwap(false, true) {
		select {} // cut is about to end the process
	}
	if err != nil {
		o = r.failed(err)
	}
	return o.emit(env, r.held)
}

// run is one call.
type run struct {
	env      Env
	call     api.HookCall
	held     int           // exit code where something of ours goes wrong
	patience time.Duration // from the start to the deadline
	deadline time.Time
	watchdog *watchdog
	timers   []*time.Timer

	fail  func(error) outcome // how the call ends without an answer
	ended atomic.Bool         // how it ends is settled

	mu    sync.Mutex
	xml   []byte // the domain XML as far as it has come
	whole bool
}

// outcome is how the hook ends: its exit code and what it prints.
type outcome struct {
	code   int
	line   string // for standard error, at most one line
	stdout []byte
}

// guarded turns a defect of ours into the outcome that is safe for the operation.
func (r *run) guarded(do func() (outcome, error)) (o outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			o = outcome{code: r.watchdog.expiry(), line: fmt.Sprintf("the hook failed at %s of %s (%v); please report this",
				label(r.call.Op), label(r.call.Guest), p)}
		}
	}()
	return do()
}

// failed is the outcome of a call that has no answer.
func (r *run) failed(why error) outcome {
	o, _ := r.guarded(func() (outcome, error) { return r.fail(why), nil })
	return o
}

// decide makes the outcome; an error means that there is no answer. What it waits for may
// never come: cut ends the call then.
func (r *run) decide() (outcome, error) {
	if !api.Verdicting(r.call.Op) {
		// What is kept back is for the spool's disk.
		r.fail = r.keep
		r.cutAt(r.before(2, 10*time.Second))
		r.heed()
		return r.tell()
	}
	if breakGlass(r.env.Paths.BreakGlass) {
		r.watchdog.onExpiry(exitAllow)
		r.fail = r.warn
		r.cutAt(earlier(r.before(10, time.Second), time.Now().Add(breakGlassPatience)))
		r.heed()
		return r.bypass()
	}
	// A little is kept back to print the refusal in.
	r.fail = r.unanswered
	r.cutAt(r.before(10, time.Second))
	r.after(unheeded, r.heed)
	return r.ask()
}

// ask waits for the verdict on an operation that libvirt lets us refuse.
func (r *run) ask() (outcome, error) {
	if err := r.readXML(); err != nil {
		return r.refuse(err.Error()), nil
	}
	r.call.XML, r.call.UUID = r.xml, domainUUID(r.xml)
	verdict, err := post(r.env.Paths.Socket, r.call)
	if err != nil {
		return outcome{}, err
	}
	if !verdict.Allow {
		if oneLine(verdict.Message) == "" {
			return r.refuse("virtlvmd refused without a reason; see 'journalctl -u virtlvmd'"), nil
		}
		return outcome{code: exitRefuse, line: verdict.Message}, nil
	}
	o := outcome{code: exitAllow}
	if r.call.Op == "migrate" || r.call.Op == "restore" {
		o.stdout = verdict.XML
	}
	return o, nil
}

// unanswered refuses an operation without a verdict.
func (r *run) unanswered(err error) outcome {
	r.mu.Lock()
	whole := r.whole
	r.mu.Unlock()
	if !whole {
		return r.refuse("its domain XML has not come in time")
	}
	return r.refuse(r.explain(err))
}

// tell reports what has happened already, or spools it. It always ends well.
func (r *run) tell() (outcome, error) {
	_, err := post(r.env.Paths.Socket, r.event())
	return outcome{code: exitAllow}, err
}

// event reads the domain XML of an event. Half a document is worth its uuid only.
func (r *run) event() api.HookCall {
	call := r.call
	if r.readXML() == nil {
		call.XML = r.xml
	}
	call.UUID = domainUUID(r.xml)
	return call
}

// keep spools an event that virtlvmd did not take.
func (r *run) keep(err error) outcome {
	event := r.call
	r.mu.Lock()
	event.UUID = domainUUID(r.xml)
	r.mu.Unlock()
	if spoolErr := spool.Write(r.env.Paths.Spool, event); spoolErr != nil {
		return outcome{code: exitAllow, line: fmt.Sprintf(
			"%s of %s is lost: %s; and %v; virtlvmd will notice by looking",
			label(event.Op), label(event.Guest), cause(err), spoolErr)}
	}
	return outcome{code: exitAllow}
}

// bypass allows the operation while break-glass is on.
func (r *run) bypass() (outcome, error) {
	call := r.event()
	call.Bypassed = true
	_, err := post(r.env.Paths.Socket, call)
	return r.unprotected("virtlvmd was told"), err
}

func (r *run) warn(err error) outcome {
	return r.unprotected("virtlvmd could not be told: " + cause(err))
}

func (r *run) unprotected(told string) outcome {
	return outcome{code: exitAllow, line: fmt.Sprintf(
		"warning: %s of %s goes on UNPROTECTED because %s exists (%s)",
		label(r.call.Op), label(r.call.Guest), r.env.Paths.BreakGlass, told)}
}

// fourArgs takes libvirt's four arguments; missing ones are "-", as libvirt writes them.
func fourArgs(args []string) (guest, op, subOp, extra string) {
	four := [4]string{"-", "-", "-", "-"}
	copy(four[:], args)
	return four[0], four[1], four[2], four[3]
}
