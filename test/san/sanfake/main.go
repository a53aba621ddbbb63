// Command sanfake is the fake SAN as programs. Called by the name of a tool, through a
// link that `sanfake install` makes, it stands in for that tool on the host $SAN_HOST of
// the SAN in $SAN_DIR; called by its own name it sets up and breaks that SAN.
//
// SAN_DELAY_SCALE multiplies the delays measured on real hosts; without it there are
// none.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"virtlvm/test/san"
)

func main() { os.Exit(run(os.Args, os.Getenv, os.Stdout, os.Stderr)) }

const usage = `usage: sanfake TOOL ARGS...              run a tool on $SAN_HOST
       sanfake init [OPTIONS] DIR HOST... make a SAN with the VG vg_san
       sanfake install BINDIR             link every tool's name to this program
       sanfake vg NAME [LOCKTYPE]         add a VG (sanlock, none, dlm)
       sanfake lv VG/LV [TYPE] [SIZE]     add an inactive volume
       sanfake locks                      who holds what, read from the leases
       sanfake open|close VG/LV PID       a process has a volume open (close: 0 for all)
       sanfake crash|reboot|lockstart|lockstop|lose|stall|resume|lockd-stop|lockd-start|lockd-adopt|sanlock-kill [VG]
       sanfake fault add|list|clear ...   see sanfake fault -h
`

// app is one run of the program.
type app struct {
	env      func(string) string
	out, err io.Writer
}

// run returns the exit code.
func run(argv []string, env func(string) string, stdout, stderr io.Writer) int {
	a := &app{env: env, out: stdout, err: stderr}
	name := filepath.Base(argv[0])
	if slices.Contains(san.Tools(), name) {
		return a.tool(argv)
	}
	if len(argv) < 2 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	if slices.Contains(san.Tools(), argv[1]) {
		return a.tool(argv[1:])
	}
	if err := a.admin(argv[1], argv[2:]); err != nil {
		fmt.Fprintf(stderr, "sanfake: %v\n", err)
		if errors.Is(err, errUsage) {
			fmt.Fprint(stderr, usage)
			return 2
		}
		return 1
	}
	return 0
}

// tool runs one of the tools; SIGTERM reaches it as it reaches the real one.
func (a *app) tool(argv []string) int {
	h, err := a.host()
	if err != nil {
		fmt.Fprintf(a.err, "sanfake: %v\n", err)
		return 70
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return h.Exec(ctx, argv, a.out, a.err)
}

func (a *app) open() (*san.SAN, error) {
	dir := a.env("SAN_DIR")
	if dir == "" {
		return nil, errors.New("SAN_DIR is not set")
	}
	s, err := san.Open(dir)
	if err != nil {
		return nil, err
	}
	s.CheckPids = true
	if text := a.env("SAN_DELAY_SCALE"); text != "" {
		if s.DelayScale, err = strconv.ParseFloat(text, 64); err != nil || s.DelayScale < 0 {
			return nil, fmt.Errorf("SAN_DELAY_SCALE is no number: %q", text)
		}
	}
	return s, nil
}

func (a *app) host() (*san.Host, error) {
	s, err := a.open()
	if err != nil {
		return nil, err
	}
	name := a.env("SAN_HOST")
	if name == "" {
		return nil, errors.New("SAN_HOST is not set")
	}
	return s.Host(name)
}
