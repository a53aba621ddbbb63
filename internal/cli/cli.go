// Package cli is the operator's command line, virtlvm(8): it asks the daemon and prints
// tables or JSON. No state and no decisions of its own.
package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/version"
)

// How long a command waits for the daemon when --timeout is not given. A change may have
// to wait for a lease of sanlock, which can take a minute; a list of volumes reads a lease
// from disk for each.
const (
	quick = 30 * time.Second
	slow  = 3 * time.Minute
)

// Main runs one command line (args[0] is the program) and returns its exit code, one of
// api.Exit*.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	p := &program{out: bufio.NewWriter(stdout), width: widthOf(stdout), pause: time.Second}
	app := p.app(stderr)
	err := app.RunContext(ctx, append([]string{"virtlvm"}, reorder(app, args[1:])...))
	if flushErr := p.out.Flush(); flushErr != nil && err == nil {
		err = fmt.Errorf("cannot write the output: %w", flushErr)
	}
	return exitCode(err, stderr)
}

// exitCode reports err on one line, where it says anything, and maps it to a code.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return api.ExitOK
	}
	var found problemsFound
	if errors.As(err, &found) {
		return api.ExitProblems
	}
	// Nothing is left to tell when even stderr cannot be written.
	_, _ = fmt.Fprintf(stderr, "virtlvm: %s\n", line(err.Error()))
	return api.KindOf(err).ExitCode()
}

// problemsFound ends a command that has done its work and printed problems.
type problemsFound struct{}

func (problemsFound) Error() string { return "problems found" }

// program is one run of the command line.
type program struct {
	out   *bufio.Writer
	width int           // of the terminal that out is; 0: it is none
	pause time.Duration // between two looks at a command that is watched
}

// app describes the command line.
func (p *program) app(stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:        "virtlvm",
		Usage:       "guests' LVM volumes are exclusive to the host where the guest runs",
		UsageText:   "virtlvm [--json] [--host HOST] [--socket PATH] [--timeout DURATION] COMMAND [ARGUMENTS]",
		Description: description("Shows and steers virtlvmd on this host, or with --host on another. Options may stand before\nor after the arguments. See virtlvm(8) for the exit codes.", "virtlvm status"),
		Version:     version.Version,
		Writer:      p.out,
		ErrWriter:   stderr,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print the daemon's answer as JSON"},
			&cli.StringFlag{Name: "host", Usage: "ask the daemon of another `HOST`, by ssh: a name, USER@NAME or ssh://USER@NAME:PORT", EnvVars: []string{hostVariable}, DefaultText: "this one"},
			&cli.StringFlag{Name: "socket", Usage: "ask the daemon behind the socket `PATH`", EnvVars: []string{"VIRTLVM_SOCKET"}, DefaultText: api.SocketPath},
			&cli.DurationFlag{Name: "timeout", Usage: "wait at most `DURATION` for an answer", DefaultText: "30s; 3m for check and where many leases are read or a lock is taken; 10m for lock transfer --wait"},
		},
		Commands:        p.commands(),
		HideHelpCommand: true,
		Action:          p.noCommand,
		OnUsageError:    onUsageError,
		// Errors are printed and turned into exit codes in one place, by Main.
		ExitErrHandler: func(*cli.Context, error) {},
	}
	for _, c := range app.Commands {
		quiet(c)
	}
	return app
}

// quiet takes from a command what urfave/cli adds by itself: a subcommand named help,
// which would shadow an argument of that name, and the help text after a wrong flag.
func quiet(c *cli.Command) {
	c.HideHelpCommand = true
	c.OnUsageError = onUsageError
	for _, sub := range c.Subcommands {
		quiet(sub)
	}
}

func (p *program) commands() []*cli.Command {
	return []*cli.Command{
		p.statusCommand(),
		p.checkCommand(),
		p.volumesCommand(),
		p.guestsCommand(),
		p.guestCommand(),
		p.volumeCommand(),
		p.locksCommand(),
		p.lockCommand(),
		p.hostsCommand(),
		p.hostCommand(),
		p.commandsCommand(),
		p.commandCommand(),
		p.eventsCommand(),
		p.hooksCommand(),
		p.activateCommand(),
		p.deactivateCommand(),
		p.leaseLostCommand(),
		p.peerCommand(),
		p.relayCommand(),
		p.configCommand(),
		p.versionCommand(),
	}
}

func (p *program) noCommand(c *cli.Context) error {
	name := c.Args().First()
	if name == "" || name == "help" {
		return p.help(c)
	}
	message := fmt.Sprintf("there is no command %q.", name)
	// The suggestion comes as a whole sentence.
	if near := cli.SuggestCommand(c.App.Commands, name); near != "" {
		message += " " + near
	}
	return usageError("%s See `virtlvm --help`", message)
}

// help answers `virtlvm help [COMMAND]`, and a bare `virtlvm`, which is wrong usage.
func (p *program) help(c *cli.Context) error {
	if name := c.Args().Get(1); name != "" {
		if c.App.Command(name) == nil {
			return usageError("there is no command %q; see `virtlvm --help`", name)
		}
		return cli.ShowCommandHelp(c, name)
	}
	if err := cli.ShowAppHelp(c); err != nil {
		return err
	}
	if c.Args().Present() {
		return nil
	}
	return usageError("no command given")
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	return usageError("%v; see `%s --help`", err, c.Command.HelpName)
}

func usageError(format string, args ...any) error {
	return api.NewError(api.KindBadRequest, fmt.Sprintf(format, args...))
}

// args checks the number of arguments of a command.
func args(c *cli.Context, low, high int) error {
	if n := c.NArg(); n < low || n > high {
		return usageError("wrong number of arguments; usage: %s", c.Command.UsageText)
	}
	return nil
}

// description is the text of a command's help with an example.
func description(text, example string) string {
	return text + ExampleMark + example
}

// call is a request to the daemon, such as the method (*client.Client).Status.
type call[T any] func(*client.Client, context.Context) (T, error)

// ask makes one call. limit applies where --timeout is not given.
func ask[T any](c *cli.Context, limit time.Duration, f call[T]) (T, error) {
	return limited(c, limit, func(ctx context.Context) (T, error) {
		conn, done, err := connect(c)
		if err != nil {
			var none T
			return none, err
		}
		defer done()
		return f(conn, ctx)
	})
}

// limited makes one call within --timeout, or within limit where that is not given.
func limited[T any](c *cli.Context, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	if d := c.Duration("timeout"); c.IsSet("timeout") {
		if d <= 0 {
			var none T
			return none, usageError("--timeout must be more than 0s")
		}
		limit = d
	}
	ctx, cancel := context.WithTimeout(c.Context, limit)
	defer cancel()
	return f(ctx)
}

// look makes a call that changes nothing and prints the answer.
func look[T any](p *program, c *cli.Context, f call[T], table func(T) error) error {
	answer, err := ask(c, quick, f)
	if err != nil {
		return err
	}
	return show(p, c, answer, table)
}

// lookMany is look for a list: an empty one is [] in JSON, not null, and "no WHAT" else.
func lookMany[T any](p *program, c *cli.Context, limit time.Duration, what string, f call[[]T], table func([]T) error) error {
	items, err := ask(c, limit, f)
	if err != nil {
		return err
	}
	if len(items) > 0 {
		return show(p, c, items, table)
	}
	return show(p, c, []T{}, func([]T) error {
		p.printf("no %s\n", what)
		return nil
	})
}
