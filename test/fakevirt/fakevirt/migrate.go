package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"virtlvm/test/fakevirt"
)

// migrate is `virsh migrate`: options stand before or between the names.
func (c *cli) migrate(ctx context.Context, args []string) error {
	var o fakevirt.MigrateOptions
	flags := flag.NewFlagSet("migrate", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	for name, option := range map[string]*bool{
		"offline": &o.Offline, "suspend": &o.Suspend, "copy-storage-all": &o.CopyStorageAll, "persistent": &o.Persistent,
		"undefinesource": &o.UndefineSource, "postcopy": &o.PostCopy, "unsafe": &o.Unsafe, "p2p": &o.P2P, "tunnelled": &o.Tunnelled,
	} {
		flags.BoolVar(option, name, false, "")
	}
	// Every migration is live here, and nothing is shown of it.
	for _, name := range []string{"live", "verbose"} {
		flags.Bool(name, false, "")
	}
	flags.StringVar(&o.DName, "dname", "", "")
	var names []string
	for rest := args; ; {
		if err := flags.Parse(rest); err != nil {
			return fmt.Errorf("cannot migrate: %w", err)
		}
		if flags.NArg() == 0 {
			break
		}
		names, rest = append(names, flags.Arg(0)), flags.Args()[1:]
	}
	if len(names) != 2 {
		return errors.New("cannot migrate: a domain and a destination are needed")
	}
	dst, err := c.peer(names[1])
	if err != nil {
		return err
	}
	if c.step != "" {
		o.Step = func(s fakevirt.Step) error { return c.afterStep(ctx, s) }
	}
	return fakevirt.Migrate(ctx, c.host, dst, names[0], o)
}

// afterStep runs the program for the steps.
func (c *cli) afterStep(ctx context.Context, s fakevirt.Step) error {
	cmd := exec.CommandContext(ctx, c.step, string(s))
	cmd.Stdout = c.stdout
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return fakevirt.ErrAborted
	case errors.As(err, &exit) && exit.ExitCode() == 2:
		return fakevirt.ErrHostGone
	}
	return err
}

// peer is the host that a connection URI names.
func (c *cli) peer(uri string) (*fakevirt.Host, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, fmt.Errorf("cannot migrate: %w", err)
	}
	name := u.Hostname()
	if name == "" && u.Scheme == "qemu" {
		return c.host, nil // qemu:///system
	}
	if c.peers == "" || name == "" || name != filepath.Base(name) {
		return nil, fmt.Errorf("cannot migrate: no such host: %q", uri)
	}
	data, err := os.ReadFile(filepath.Join(c.peers, name))
	if err != nil {
		return nil, &fakevirt.Error{
			What: "failed to connect to the hypervisor",
			Why:  fmt.Sprintf("unable to connect to server at '%s:22': No route to host", name),
		}
	}
	env, hookEnv := environment(strings.Split(strings.TrimSpace(string(data)), "\n"))
	return newHost(options(env), env["FAKEVIRT_HOOK"], hookEnv)
}
