package cli

import (
	"context"
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/leaselost"
)

func (p *program) leaseLostCommand() *cli.Command {
	return &cli.Command{
		Name: "lease-lost", Usage: "end what this host does to a volume group whose leases are lost", UsageText: "virtlvm lease-lost VG [--yes]",
		Description: description(`For lvmlockctl_kill_command in lvm.conf(5); not for people. Kills the QEMUs of this host that
have a volume of the volume group open, and only those, and puts error tables under its
volumes. Uses neither the daemon nor LVM nor the storage. Exits with 0 only when it has seen
that all of that is done: then lvmlockctl drops the locks, and other hosts get the volumes.
Else the watchdog resets this host. As root; from a terminal only with --yes.`,
			`lvmlockctl_kill_command = "/usr/bin/virtlvm lease-lost"`),
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "yes", Usage: "also from a terminal: the guests are killed"}},
		Action: p.leaseLost,
	}
}

func (p *program) leaseLost(c *cli.Context) error {
	if err := argsHere(c, 1, 1); err != nil {
		return err
	}
	vg := c.Args().First()
	switch {
	case terminal(os.Stdin) && !c.Bool("yes"):
		return usageError("this kills all guests on %s here, whether its leases are lost or not; it is run by lvmlockctl. Add --yes if that is what you want", cell(vg))
	case os.Geteuid() != 0:
		return api.NewError(api.KindForbidden, "lease-lost must be run as root")
	}
	// Nobody may be reading what it prints.
	signal.Ignore(syscall.SIGPIPE)
	var told []string
	say := func(format string, args ...any) {
		told = append(told, fmt.Sprintf(format, args...))
		_, _ = fmt.Fprintf(c.App.ErrWriter, "virtlvm: "+format+"\n", args...)
	}
	dir, err := os.MkdirTemp("/run", "virtlvm-lease-lost-") // in memory
	if err != nil {
		return fmt.Errorf("cannot make a folder for the output of dmsetup: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := context.WithTimeout(c.Context, leaselost.Limit)
	defer cancel()
	if err = leaselost.New(dir, say).Stop(ctx, vg); err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
		told = append(told, err.Error())
	}
	toSyslog(vg, told)
	return err
}

// toSyslog notes what was done, if that can be had soon.
func toSyslog(vg string, told []string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		log, err := syslog.New(syslog.LOG_CRIT|syslog.LOG_DAEMON, "virtlvm")
		if err != nil {
			return
		}
		for _, text := range told {
			_, _ = fmt.Fprintf(log, "the leases of %s are lost: %s", vg, text)
		}
		_ = log.Close()
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
}
