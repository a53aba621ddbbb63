package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

// limitFlag is shared by the commands that list the journal.
func limitFlag() cli.Flag {
	return &cli.IntFlag{Name: "limit", Usage: "show the newest `N`", Value: 20}
}

func limit(c *cli.Context) (int, error) {
	n := c.Int("limit")
	if n < 1 {
		return 0, usageError("--limit must be at least 1")
	}
	return n, nil
}

func (p *program) commandsCommand() *cli.Command {
	return &cli.Command{
		Name: "commands", Usage: "list the LVM commands that were run", UsageText: "virtlvm commands [--limit N]",
		Description: description("Lists the journal, newest first: what was run, why, and how it ended.", "virtlvm commands --limit 5"),
		Flags:       []cli.Flag{limitFlag()},
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			n, err := limit(c)
			if err != nil {
				return err
			}
			return lookMany(p, c, quick, "commands", func(d *client.Client, ctx context.Context) ([]api.Command, error) {
				return d.Commands(ctx, n, 0)
			}, p.commandList)
		},
	}
}

func (p *program) commandList(commands []api.Command) error {
	rows := make([][]string, 0, len(commands))
	for _, c := range commands {
		rows = append(rows, []string{
			strconv.FormatInt(c.ID, 10), stamp(c.Created), c.State, c.Kind, list(c.Targets), c.Cause, ran(c), exit(c), result(c),
		})
	}
	return p.table("ID|CREATED|STATE|KIND|TARGETS|CAUSE|TOOK|EXIT|RESULT", rows)
}

func ran(c api.Command) string {
	if c.Finished.IsZero() {
		return ""
	}
	return took(c.Finished.Sub(c.Created))
}

// exit is the program's exit code, "" where there was none.
func exit(c api.Command) string {
	if c.ExitCode < 0 || c.Finished.IsZero() {
		return ""
	}
	return number(c.ExitCode)
}

// result is what an administrator wants to know first: the failure, else the outcome.
func result(c api.Command) string {
	if c.Error != "" {
		return c.Error
	}
	return c.Outcome
}

func (p *program) commandCommand() *cli.Command {
	return &cli.Command{
		Name: "command", Usage: "show one command of the journal", UsageText: "virtlvm command ID",
		Description: description("Shows everything that is known of one command: its arguments, output and outcome.", "virtlvm command 42"),
		Action: func(c *cli.Context) error {
			if err := args(c, 1, 1); err != nil {
				return err
			}
			id, err := strconv.ParseInt(c.Args().First(), 10, 64)
			if err != nil || id < 1 {
				return usageError("%q is not the id of a command; see `virtlvm commands`", c.Args().First())
			}
			return look(p, c, func(d *client.Client, ctx context.Context) (api.Command, error) {
				return d.Command(ctx, id)
			}, p.command)
		},
	}
}

func (p *program) command(c api.Command) error {
	p.field("id", strconv.FormatInt(c.ID, 10))
	p.field("kind", c.Kind)
	p.field("state", c.State)
	p.field("targets", strings.Join(c.Targets, " "))
	p.field("cause", c.Cause)
	if c.HookCall > 0 {
		p.field("hook call", strconv.FormatInt(c.HookCall, 10))
	}
	p.field("argv", strings.Join(c.Argv, " "))
	p.field("created", stamp(c.Created))
	p.field("finished", stamp(c.Finished))
	p.field("took", ran(c))
	if c.PID > 0 {
		p.field("pid", number(c.PID))
	}
	p.field("exit code", exit(c))
	p.field("error", c.Error)
	p.field("outcome", c.Outcome)
	if stderr := strings.TrimRight(c.Stderr, "\n"); stderr != "" {
		p.printf("stderr:\n")
		for _, text := range strings.Split(stderr, "\n") {
			p.printf("  %s\n", line(text))
		}
	}
	return nil
}

func (p *program) hooksCommand() *cli.Command {
	return &cli.Command{
		Name: "hooks", Usage: "list the calls of the libvirt hook", UsageText: "virtlvm hooks [--limit N] [--guest NAME]",
		Description: description("Lists the hook calls that were received, newest first, with the verdict and how long\nlibvirt waited for it.", "virtlvm hooks --guest vm1"),
		Flags:       []cli.Flag{limitFlag(), &cli.StringFlag{Name: "guest", Usage: "only calls for the guest `NAME`"}},
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			n, err := limit(c)
			if err != nil {
				return err
			}
			return lookMany(p, c, quick, "hook calls", func(d *client.Client, ctx context.Context) ([]api.HookRecord, error) {
				return d.Hooks(ctx, n, c.String("guest"))
			}, p.hooks)
		},
	}
}

func (p *program) hooks(hooks []api.HookRecord) error {
	rows := make([][]string, 0, len(hooks))
	for _, h := range hooks {
		verdict := h.Verdict
		if h.Spooled {
			verdict += " (spooled)"
		}
		rows = append(rows, []string{
			strconv.FormatInt(h.ID, 10), stamp(h.Received), h.Guest, h.Op, h.SubOp, h.Extra, verdict, took(h.Duration), h.Message,
		})
	}
	return p.table("ID|RECEIVED|GUEST|OP|SUBOP|EXTRA|VERDICT|TOOK|MESSAGE", rows)
}
