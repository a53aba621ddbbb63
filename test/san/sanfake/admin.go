package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"virtlvm/test/san"
)

var errUsage = errors.New("wrong usage")

// admin runs a command of sanfake's own.
func (a *app) admin(cmd string, args []string) error {
	switch cmd {
	case "init":
		return a.init(args)
	case "install":
		return install(args)
	case "vg", "lv", "locks", "fault":
		s, err := a.open()
		if err != nil {
			return err
		}
		switch cmd {
		case "vg":
			return addVG(s, args)
		case "lv":
			return addLV(s, args)
		case "fault":
			return a.fault(s, args)
		}
		return a.locks(s)
	}
	return a.onHost(cmd, args)
}

func (a *app) flags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet("sanfake "+name, flag.ContinueOnError)
	fs.SetOutput(a.err)
	return fs
}

func (a *app) init(args []string) error {
	fs := a.flags("init")
	lvm := fs.Int("lvm", san.LVM31, "behave as LVM 2.03.`N`: 16, 31 or 33")
	expiry := fs.Duration("expiry", 0, "silence after which a host is dead (default: sanlock's, 76s)")
	scale := fs.Float64("time-scale", 1, "how much faster than real time the SAN's clock runs")
	vg := fs.String("vg", "vg_san", "name of the sanlock VG to make; empty: none")
	if err := fs.Parse(args); err != nil || fs.NArg() < 2 {
		return errUsage
	}
	o := san.Options{Hosts: fs.Args()[1:], LVM: *lvm, Expiry: *expiry, TimeScale: *scale}
	if *vg != "" {
		o.VGs = []san.VGSpec{{Name: *vg}}
	}
	s, err := san.Create(fs.Arg(0), o)
	if err != nil {
		return err
	}
	return s.Close()
}

// install links the tools' names to the running program.
func install(args []string) error {
	if len(args) != 1 {
		return errUsage
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program: %w", err)
	}
	if err := os.MkdirAll(args[0], 0o755); err != nil {
		return fmt.Errorf("cannot make %s: %w", args[0], err)
	}
	for _, name := range append(san.Tools(), "sanfake") {
		link := filepath.Join(args[0], name)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot replace %s: %w", link, err)
		}
		if err := os.Symlink(self, link); err != nil {
			return fmt.Errorf("cannot link %s: %w", link, err)
		}
	}
	return nil
}

func addVG(s *san.SAN, args []string) error {
	switch len(args) {
	case 1:
		return s.AddVG(san.VGSpec{Name: args[0]})
	case 2:
		return s.AddVG(san.VGSpec{Name: args[0], LockType: args[1]})
	}
	return errUsage
}

func addLV(s *san.SAN, args []string) error {
	if len(args) < 1 || len(args) > 3 {
		return errUsage
	}
	vg, lv, ok := strings.Cut(args[0], "/")
	if !ok {
		return errUsage
	}
	spec := san.LVSpec{Name: lv}
	if len(args) > 1 {
		spec.Type = args[1]
	}
	if len(args) > 2 {
		mib, err := strconv.Atoi(args[2])
		if err != nil {
			return fmt.Errorf("size in MiB: %w", err)
		}
		spec.Size = int64(mib) << 20
	}
	_, err := s.AddLV(vg, spec)
	return err
}

// locks prints the lock table of a demonstration: one line per volume and holder.
func (a *app) locks(s *san.SAN) error {
	rows, err := s.Locks()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "VOLUME\tHOST\tMODE\tHOST STATE")
	for _, r := range rows {
		state := strings.ToLower(string(r.State))
		if r.Stale {
			state += ", lease no longer counts"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Volume, r.Host, r.Mode, state)
	}
	if len(rows) == 0 {
		fmt.Fprintln(w, "(no volume is locked)")
	}
	return w.Flush()
}

// onHost runs what happens to one host.
func (a *app) onHost(cmd string, args []string) error {
	h, err := a.host()
	if err != nil {
		return err
	}
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	vg, lv, _ := strings.Cut(arg(0), "/")
	pid, _ := strconv.Atoi(arg(1))
	switch cmd {
	case "open":
		if pid == 0 {
			return errUsage
		}
		return h.Open(vg, lv, pid)
	case "close":
		return h.CloseVolume(vg, lv, pid)
	case "crash":
		return h.Crash()
	case "reboot":
		return h.Reboot()
	case "lockstart":
		return h.LockStart(vg)
	case "lockstop":
		return h.LockStop(vg)
	case "lose":
		return h.LoseLockspace(vg)
	case "stall":
		return h.Stall()
	case "resume":
		return h.Resume()
	case "lockd-stop":
		return h.StopLvmlockd()
	case "lockd-start":
		return h.StartLvmlockd(false)
	case "lockd-adopt":
		return h.StartLvmlockd(true)
	case "sanlock-kill":
		return h.KillSanlock()
	}
	return fmt.Errorf("no command %q: %w", cmd, errUsage)
}

// fault arms, lists and clears faults.
func (a *app) fault(s *san.SAN, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "add":
		return a.addFault(s, args[1:])
	case "list":
		return a.listFaults(s, a.out)
	case "clear":
		var ids []int
		for _, arg := range args[1:] {
			id, err := strconv.Atoi(arg)
			if err != nil {
				return fmt.Errorf("no fault %q: %w", arg, errUsage)
			}
			ids = append(ids, id)
		}
		return s.ClearFaults(ids...)
	}
	_ = a.addFault(s, []string{"-h"})
	return errUsage
}

func (a *app) addFault(s *san.SAN, args []string) error {
	fs := a.flags(fmt.Sprintf("fault add [OPTIONS] KIND, one of %v", san.FaultKinds()))
	var f san.Fault
	fs.StringVar(&f.Host, "host", a.env("SAN_HOST"), "only on this host; empty: everywhere")
	fs.StringVar(&f.Tool, "tool", "", "only this tool")
	fs.StringVar(&f.Match, "match", "", "only with these words on the command line")
	fs.StringVar(&f.Volume, "volume", "", "only with this vg/lv")
	fs.IntVar(&f.Nth, "nth", 0, "only the `N`th matching call")
	fs.IntVar(&f.Times, "times", 0, "only `N` times")
	fs.DurationVar(&f.For, "for", 0, "hang: how long; 0: until cleared")
	fs.BoolVar(&f.After, "after", false, "hang: when the work is done")
	fs.BoolVar(&f.Stuck, "stuck", false, "hang: SIGTERM does not help")
	fs.IntVar(&f.ExitCode, "exit", 0, "exit: the code (default 5)")
	fs.StringVar(&f.Stderr, "stderr", "", "exit: what it prints")
	fs.StringVar(&f.Stdout, "stdout", "", "garbage, warnings: what it prints")
	if err := fs.Parse(args); err != nil || fs.NArg() != 1 {
		return errUsage
	}
	f.Kind = san.FaultKind(fs.Arg(0))
	id, err := s.AddFault(f)
	if err == nil {
		fmt.Fprintln(a.out, id)
	}
	return err
}

func (a *app) listFaults(s *san.SAN, out io.Writer) error {
	faults, err := s.Faults()
	if err != nil {
		return err
	}
	for _, f := range faults {
		fmt.Fprintf(out, "%d %s host=%q tool=%q match=%q volume=%q hit %d of %d\n", f.ID, f.Kind, f.Host, f.Tool, f.Match, f.Volume, f.Hit, f.Matched)
	}
	return nil
}
