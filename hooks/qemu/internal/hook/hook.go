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
package hook

import (
	"context"
	"fmt"
	"io"
	"os"
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

// Env is what a run of the hook gets from outside.
type Env struct {
	Args   []string // without the program's name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Paths  Paths
	Parent int // pid of the process that ran the hook
	// Exit ends the process at once; used where something blocks past the deadline.
	Exit func(code int)
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
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Paths: Paths{
			Socket:     place("VIRTLVM_HOOK_SOCKET", api.SocketPath),
			Spool:      place("VIRTLVM_HOOK_SPOOL", api.SpoolDir),
			Settings:   place("VIRTLVM_HOOK_SETTINGS", api.HookSettingsPath),
			BreakGlass: place("VIRTLVM_HOOK_BREAK_GLASS", api.BreakGlassPath),
			Proc:       "/proc",
		},
		Parent: os.Getppid(),
		Exit:   os.Exit,
	}
}

// Run handles one call of the hook and returns its exit code: 0 allow, 1 refuse, 2 wrong
// usage (no arguments at all: libvirt always gives four). It returns within the deadline;
// where even that is held up, by a disk that does not answer, it ends the process.
// Cancelling ctx, as by a signal, is like the deadline passing.
func Run(ctx context.Context, env Env) int {
	call := api.HookCall{Stamp: stamp(env.Paths.Proc, env.Parent)}
	if len(env.Args) == 0 {
		fmt.Fprintln(env.Stderr, "usage: qemu GUEST OPERATION SUBOPERATION EXTRA <DOMAIN-XML; run by libvirt, see virtlvmd(8)")
		return exitUsage
	}
	call.Guest, call.Op, call.SubOp, call.Extra = fourArgs(env.Args)

	held := exitAllow
	if api.Verdicting(call.Op) {
		held = exitRefuse
	}
	// Until the settings are read the default deadline holds: they may be on a file
	// system that does not answer.
	w := newWatchdog(env.Exit, held)
	defer w.stop()
	began := time.Now()
	patience := deadline(env.Paths.Settings)
	w.reset(time.Until(began.Add(patience)))

	r := run{env: env, call: call, patience: patience, deadline: began.Add(patience)}
	return r.guarded(ctx, w).emit(env, held)
}

// run is one call with its deadline.
type run struct {
	env      Env
	call     api.HookCall
	patience time.Duration // from the start to the deadline
	deadline time.Time
}

// outcome is how the hook ends: its exit code and what it prints.
type outcome struct {
	code   int
	line   string // for standard error, at most one line
	stdout []byte
}

// guarded turns a defect of ours into the outcome that is safe for the operation.
func (r run) guarded(ctx context.Context, w *watchdog) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			o = outcome{code: w.expiry(), line: fmt.Sprintf("the hook failed at %s of %s (%v); please report this",
				label(r.call.Op), label(r.call.Guest), p)}
		}
	}()
	if !api.Verdicting(r.call.Op) {
		return r.tell(ctx)
	}
	if breakGlass(r.env.Paths.BreakGlass) {
		w.onExpiry(exitAllow)
		return r.bypass(ctx)
	}
	return r.ask(ctx)
}

// ask waits for the verdict on an operation that libvirt lets us refuse.
func (r run) ask(ctx context.Context) outcome {
	// A little is kept back to print the refusal in.
	ctx, cancel := context.WithDeadline(ctx, r.before(10, time.Second))
	defer cancel()
	in := readXML(ctx, r.env.Stdin)
	if in.err != nil {
		return r.refuse(in.err.Error())
	}
	r.call.XML, r.call.UUID = in.xml, domainUUID(in.xml)
	verdict, err := post(ctx, r.env.Paths.Socket, r.call)
	if err != nil {
		return r.refuse(r.explain(err))
	}
	if !verdict.Allow {
		if oneLine(verdict.Message) == "" {
			return r.refuse("virtlvmd refused without a reason; see 'journalctl -u virtlvmd'")
		}
		return outcome{code: exitRefuse, line: verdict.Message}
	}
	o := outcome{code: exitAllow}
	if r.call.Op == "migrate" || r.call.Op == "restore" {
		o.stdout = verdict.XML
	}
	return o
}

// tell reports what has happened already, or spools it. It always ends well.
func (r run) tell(ctx context.Context) outcome {
	// What is kept back is for the spool's disk.
	ctx, cancel := context.WithDeadline(ctx, r.before(2, 10*time.Second))
	defer cancel()
	in := readXML(ctx, r.env.Stdin)
	r.call.XML, r.call.UUID = in.xml, domainUUID(in.xml)
	if in.err != nil {
		// Half a document is worth its uuid only.
		r.call.XML = nil
	}
	_, err := post(ctx, r.env.Paths.Socket, r.call)
	if err == nil {
		return outcome{code: exitAllow}
	}
	if spoolErr := spool.Write(r.env.Paths.Spool, r.call); spoolErr != nil {
		return outcome{code: exitAllow, line: fmt.Sprintf(
			"%s of %s is lost: %s; and %v; virtlvmd will notice by looking",
			label(r.call.Op), label(r.call.Guest), cause(err), spoolErr)}
	}
	return outcome{code: exitAllow}
}

// bypass allows the operation while break-glass is on.
func (r run) bypass(ctx context.Context) outcome {
	ctx, cancel := context.WithDeadline(ctx, earlier(r.before(10, time.Second), time.Now().Add(breakGlassPatience)))
	defer cancel()
	in := readXML(ctx, r.env.Stdin)
	if in.err == nil {
		r.call.XML = in.xml
	}
	r.call.UUID = domainUUID(in.xml)
	r.call.Bypassed = true
	told := "virtlvmd was told"
	if _, err := post(ctx, r.env.Paths.Socket, r.call); err != nil {
		told = "virtlvmd could not be told: " + cause(err)
	}
	return outcome{code: exitAllow, line: fmt.Sprintf(
		"warning: %s of %s goes on UNPROTECTED because %s exists (%s)",
		label(r.call.Op), label(r.call.Guest), r.env.Paths.BreakGlass, told)}
}

// before is a time ahead of the deadline by a part of what is left, at most limit.
func (r run) before(part int, limit time.Duration) time.Time {
	return r.deadline.Add(-min(time.Until(r.deadline)/time.Duration(part), limit))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// fourArgs takes libvirt's four arguments; missing ones are "-", as libvirt writes them.
func fourArgs(args []string) (guest, op, subOp, extra string) {
	four := [4]string{"-", "-", "-", "-"}
	copy(four[:], args)
	return four[0], four[1], four[2], four[3]
}
