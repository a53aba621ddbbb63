// Command fakevirt is a fake libvirt on the command line: virsh and libvirtd in one, for
// the demo and tests. See package fakevirt.
//
//	fakevirt [FLAGS] define FILE | start NAME | destroy NAME | shutdown NAME | crash NAME
//	                 | suspend NAME | resume NAME | reconnect | list
//	                 | migrate [OPTIONS] NAME DESTINATION
//
// Every flag can be given as an environment variable, such as FAKEVIRT_DIR. Variables
// that start with VIRTLVM_HOOK_ are passed on to the hook.
//
// The options of migrate are virsh's; DESTINATION is qemu+ssh://HOST/system or another
// URI. What this host's environment is to this host the file HOST in the folder
// FAKEVIRT_PEERS is to the other: a line NAME=VALUE for each variable. The program
// FAKEVIRT_STEP, where there is one, is run after each step with its name; exit code 1
// aborts the migration there, 2 says that a host has lost its power.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"virtlvm/test/fakevirt"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "qemu" {
		os.Exit(fakevirt.QEMUMain(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is the whole command; it returns virsh's exit code.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	c := &cli{stdout: stdout}
	var env map[string]string
	env, c.hookEnv = environment(environ)
	c.step = env["FAKEVIRT_STEP"]
	o := options(env)
	hook := env["FAKEVIRT_HOOK"]
	flags := flag.NewFlagSet("fakevirt", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.Dir, "dir", o.Dir, "the host's folder (FAKEVIRT_DIR)")
	flags.StringVar(&o.Root, "root", o.Root, "in front of disk paths; default: the folder (FAKEVIRT_ROOT)")
	flags.StringVar(&o.RunDir, "run", o.RunDir, "status files; default: run/libvirt/qemu in the folder (FAKEVIRT_RUN)")
	flags.StringVar(&o.Name, "host", o.Name, "the host's name (FAKEVIRT_HOST)")
	flags.StringVar(&hook, "hook", hook, "the hook; none: not called (FAKEVIRT_HOOK)")
	flags.StringVar(&c.peers, "peers", env["FAKEVIRT_PEERS"], "folder of the other hosts' environments (FAKEVIRT_PEERS)")
	flags.BoolVar(&o.NoReasons, "no-reasons", o.NoReasons, "be libvirt before 10.5 (FAKEVIRT_NO_REASONS)")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var err error
	if c.host, err = newHost(o, hook, c.hookEnv); err != nil {
		_, _ = fmt.Fprintln(stderr, "error:", err)
		return 2
	}
	err = c.command(ctx, flags.Args())
	var virsh *fakevirt.Error
	switch {
	case errors.As(err, &virsh):
		_, _ = io.WriteString(stderr, virsh.Virsh()+"\n")
		return 1
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "error:", err)
		return 2
	}
	return 0
}

// environment sorts variables by name and picks those for the hook.
func environment(environ []string) (env map[string]string, hook []string) {
	env = map[string]string{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
		if strings.HasPrefix(name, "VIRTLVM_HOOK_") {
			hook = append(hook, e)
		}
	}
	return env, hook
}

func options(env map[string]string) fakevirt.Options {
	return fakevirt.Options{
		Dir: env["FAKEVIRT_DIR"], Root: env["FAKEVIRT_ROOT"], RunDir: env["FAKEVIRT_RUN"], Name: env["FAKEVIRT_HOST"],
		NoReasons: env["FAKEVIRT_NO_REASONS"] != "",
	}
}

func newHost(o fakevirt.Options, hook string, hookEnv []string) (*fakevirt.Host, error) {
	o.Launcher = fakevirt.Processes{}
	if hook != "" {
		o.Hook = fakevirt.ExecHook(hook, hookEnv...)
	}
	return fakevirt.New(o)
}

// cli is one command on its host.
type cli struct {
	host    *fakevirt.Host
	hookEnv []string
	peers   string // folder of the other hosts' environments
	step    string // program for the steps of a migration; empty: none
	stdout  io.Writer
}

// command carries out one command and prints what virsh would.
func (c *cli) command(ctx context.Context, args []string) error {
	host, stdout := c.host, c.stdout
	words := map[string]struct {
		do  func(context.Context, string) error
		say string
	}{
		"start":    {host.Start, "Domain '%s' started\n\n"},
		"destroy":  {host.Destroy, "Domain '%s' destroyed\n\n"},
		"shutdown": {host.Shutdown, "Domain '%s' is being shutdown\n\n"},
		"crash":    {host.Crash, "Domain '%s' crashed\n\n"},
		"suspend":  {host.Suspend, "Domain '%s' suspended\n\n"},
		"resume":   {host.Resume, "Domain '%s' resumed\n\n"},
	}
	switch {
	case len(args) > 0 && args[0] == "migrate":
		return c.migrate(ctx, args[1:])
	case len(args) == 1 && args[0] == "list":
		return list(host, stdout)
	case len(args) == 1 && args[0] == "reconnect":
		return host.Reconnect(ctx)
	case len(args) == 2 && args[0] == "define":
		xml, err := os.ReadFile(args[1])
		if err != nil {
			return &fakevirt.Error{Why: err.Error()}
		}
		name, err := host.Define(ctx, xml)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "Domain '%s' defined from %s\n\n", name, args[1])
		return err
	case len(args) == 2 && words[args[0]].do != nil:
		if err := words[args[0]].do(ctx, args[1]); err != nil {
			return err
		}
		_, err := fmt.Fprintf(stdout, words[args[0]].say, args[1])
		return err
	}
	return fmt.Errorf("unknown command %q; see -help", strings.Join(args, " "))
}

func list(host *fakevirt.Host, stdout io.Writer) error {
	guests, err := host.List()
	if err != nil {
		return err
	}
	width := len("Name")
	for _, g := range guests {
		width = max(width, len(g.Name))
	}
	_, err = fmt.Fprintf(stdout, " %-4s %-*s   State\n%s\n", "Id", width, "Name", strings.Repeat("-", width+19))
	for _, g := range guests {
		id := "-"
		if g.ID != 0 {
			id = fmt.Sprint(g.ID)
		}
		_, lineErr := fmt.Fprintf(stdout, " %-4s %-*s   %s\n", id, width, g.Name, g.State)
		err = errors.Join(err, lineErr)
	}
	_, lineErr := fmt.Fprintln(stdout)
	return errors.Join(err, lineErr)
}
