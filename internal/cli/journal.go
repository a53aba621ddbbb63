package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/model"
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
		Name: "commands", Usage: "list the journal of commands", UsageText: "virtlvm commands [--limit N] [--state STATE] [--since TIME]",
		Description: description("Lists the journal, newest first: what was run, why, and how it ended. With --state only\ncommands in that state, such as RECONCILE_SKIPPED; `open` stands for all that have not\nended. With --since only what is not older, as a duration or a time.",
			"virtlvm commands --state open --since 2h"),
		Flags: []cli.Flag{
			limitFlag(),
			&cli.StringSliceFlag{Name: "state", Usage: "only commands in `STATE`, or open; may be repeated"},
			&cli.StringFlag{Name: "since", Usage: "only commands since `TIME`: a duration such as 90m, a date, or a date and time"},
		},
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			f, err := filter(c, time.Now())
			if err != nil {
				return err
			}
			return lookMany(p, c, quick, "commands", func(d *client.Client, ctx context.Context) ([]api.Command, error) {
				return d.Commands(ctx, f)
			}, p.commandList)
		},
	}
}

func filter(c *cli.Context, now time.Time) (api.CommandFilter, error) {
	n, err := limit(c)
	if err != nil {
		return api.CommandFilter{}, err
	}
	f := api.CommandFilter{Limit: n}
	for _, state := range c.StringSlice("state") {
		if !strings.EqualFold(state, api.StateOpen) && !model.CommandState(strings.ToUpper(state)).Known() {
			return f, usageError("%q is not a state of a command; see virtlvm(8), or say %q", state, api.StateOpen)
		}
		f.States = append(f.States, state)
	}
	if text := c.String("since"); text != "" {
		if f.Since, err = sinceTime(text, now); err != nil {
			return f, err
		}
	}
	return f, nil
}

// sinceTime reads "90m", "2026-01-02", "2026-01-02 15:04" and what journalctl shows.
func sinceTime(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usageError("--since %q is neither a duration such as 90m nor a time such as \"2026-01-02 15:04\"", text)
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

// result is what an administrator wants to know first: the failure, the outcome, or of a
// command that goes on how far it has come.
func result(c api.Command) string {
	switch {
	case c.Error != "":
		return c.Error
	case c.Outcome != "":
		return c.Outcome
	case c.Side == "" || !c.Finished.IsZero():
		return ""
	}
	parts := []string{c.Why}
	if c.Side == string(model.SideOrigin) && c.PeerState != "" {
		parts = []string{fmt.Sprintf("%s on %s", c.PeerState, c.Executor)}
	}
	if text := progress(c.Progress, time.Now()); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
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
