package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

func (p *program) commandCommand() *cli.Command {
	return &cli.Command{
		Name: "command", Usage: "show one command of the journal, or steer it",
		UsageText:   "virtlvm command ID | virtlvm command watch | cancel | resolve ID | virtlvm command run KIND",
		Description: description("Shows everything that is known of one command: what it is about, its output, outcome and\nhistory.", "virtlvm command 42"),
		Subcommands: []*cli.Command{{
			Name: "watch", Usage: "follow a command until it ends", UsageText: "virtlvm command watch ID",
			Description: description("Shows how far the command has come, until it ends, with its outcome as the exit code. It\ngoes on without being watched: leave with Ctrl-C, and come back whenever you like.", "virtlvm command watch 42"),
			Action: func(c *cli.Context) error {
				id, err := commandID(c)
				if err != nil {
					return err
				}
				conn, done, err := connect(c)
				if err != nil {
					return err
				}
				defer done()
				return p.watch(c, conn, id)
			},
		}, {
			Name: "cancel", Usage: "ask a running command to end", UsageText: "virtlvm command cancel ID [--why TEXT]",
			Description: description("The command ends when its backend has: watch it. What was half done is undone or reported.", "virtlvm command cancel 42 --why 'wrong volume'"),
			Flags:       []cli.Flag{&cli.StringFlag{Name: "why", Usage: "`TEXT` for the journal"}},
			Action: func(c *cli.Context) error {
				return p.steer(c, func(d *client.Client, ctx context.Context, id int64) (api.Command, error) {
					return d.Cancel(ctx, id, api.CancelRequest{Why: c.String("why")})
				})
			},
		}, {
			Name: "resolve", Usage: "say how a command has ended whose outcome could not be found out", UsageText: "virtlvm command resolve ID --as completed|failed --why TEXT",
			Description: description("For a command in RECONCILE_SKIPPED, or one that is still being found out. Look at its\nvolumes and guests first: virtlvm takes your word for it, and does nothing else.", "virtlvm command resolve 42 --as failed --why 'the copy is not there'"),
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "as", Usage: "how it has ended: `completed` or failed"},
				&cli.StringFlag{Name: "why", Usage: "`TEXT` for the journal"},
			},
			Action: func(c *cli.Context) error {
				if c.String("as") == "" || c.String("why") == "" {
					return usageError("--as and --why are needed; usage: %s", c.Command.UsageText)
				}
				return p.steer(c, func(d *client.Client, ctx context.Context, id int64) (api.Command, error) {
					return d.Resolve(ctx, id, api.ResolveRequest{As: c.String("as"), Why: c.String("why")})
				})
			},
		}, {
			Name: "run", Usage: "run a command of some kind", UsageText: "virtlvm command run KIND [ARGUMENTS] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
			Description: description("For kinds that have no command of their own, and for programs. ARGUMENTS is a JSON object.\nWith --host the daemon of this host hands the command over, keeps its answer however long the\nother host cannot be reached, and finds out what became of it.", `virtlvm command run copy '{"source": "vg_san/a"}' --host kvm-b`),
			Flags:       runFlags(),
			Action: func(c *cli.Context) error {
				if err := args(c, 1, 2); err != nil {
					return err
				}
				words := json.RawMessage(`{}`)
				if text := c.Args().Get(1); text != "" {
					words = json.RawMessage(text)
				}
				if !json.Valid(words) {
					return usageError("the arguments are not JSON: %s", words)
				}
				return p.submit(c, c.Args().First(), words)
			},
		}},
		Action: func(c *cli.Context) error {
			id, err := commandID(c)
			if err != nil {
				return err
			}
			return look(p, c, func(d *client.Client, ctx context.Context) (api.Command, error) {
				return d.FreshCommand(ctx, id)
			}, p.command)
		},
	}
}

// commandID is the one argument of a command about a row of the journal.
func commandID(c *cli.Context) (int64, error) {
	if err := args(c, 1, 1); err != nil {
		return 0, err
	}
	id, err := strconv.ParseInt(c.Args().First(), 10, 64)
	if err != nil || id < 1 {
		return 0, usageError("%q is not the id of a command; see `virtlvm commands`", c.Args().First())
	}
	return id, nil
}

func (p *program) steer(c *cli.Context, call func(*client.Client, context.Context, int64) (api.Command, error)) error {
	id, err := commandID(c)
	if err != nil {
		return err
	}
	command, err := ask(c, quick, func(d *client.Client, ctx context.Context) (api.Command, error) { return call(d, ctx, id) })
	if err != nil {
		return err
	}
	return show(p, c, command, func(command api.Command) error {
		if command.Finished.IsZero() {
			p.printf("command %d is asked to end (%s); see how it does with `virtlvm command watch %d`\n", command.ID, command.State, command.ID)
			return nil
		}
		p.printf("command %d: %s%s\n", command.ID, command.State, after("; ", cell(result(command))))
		return nil
	})
}

func after(mark, text string) string {
	if text == "" || text == "-" {
		return ""
	}
	return mark + text
}

func (p *program) command(c api.Command) error {
	p.field("id", strconv.FormatInt(c.ID, 10))
	p.field("kind", c.Kind)
	p.field("state", c.State)
	p.field("targets", strings.Join(c.Targets, " "))
	p.field("cause", c.Cause)
	if c.Side != "" {
		p.longCommand(c)
		return p.history(c)
	}
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
	return p.history(c)
}

// longCommand prints what only commands with an origin and an executor have.
func (p *program) longCommand(c api.Command) {
	p.field("why", c.Why)
	p.field("origin", fmt.Sprintf("%s, sequence %d", c.Origin, c.Sequence))
	executor := c.Executor
	if c.PeerState != "" {
		executor += fmt.Sprintf(", command %d there, last heard of as %s", c.PeerID, c.PeerState)
	}
	p.field("executor", executor)
	p.field("arguments", string(c.Args))
	p.field("created", stamp(c.Created))
	p.field("deadline", stamp(c.Deadline))
	p.field("finished", stamp(c.Finished))
	p.field("took", ran(c))
	p.field("progress", progress(c.Progress, time.Now()))
	if c.Attempts > 0 {
		p.field("attempts", number(c.Attempts)+after(", next ", stamp(c.Next)))
	}
	p.field("on loss", c.OnDisconnect)
	p.field("cancelled", c.Cancelled)
	p.field("error", c.Error)
	p.field("outcome", c.Outcome)
	p.field("answer", string(c.Answer))
	if !c.Finished.IsZero() && c.Unacknowledged {
		other := c.Origin
		if other != c.Executor && c.Side == "origin" {
			other = c.Executor
		}
		p.field("note", other+" does not know yet that it has ended")
	}
}

func (p *program) history(c api.Command) error {
	if len(c.History) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(c.History))
	for _, t := range c.History {
		state := t.To
		if t.From == t.To {
			state = ""
		}
		rows = append(rows, []string{stamp(t.Time), state, t.Cause})
	}
	p.printf("\nHISTORY\n")
	return p.table("TIME|STATE|CAUSE", rows)
}

// runFlags are the options of every command that goes on by itself.
func runFlags() []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "deadline", Usage: "expect it to end within `DURATION`; it is not stopped then, but looked after", DefaultText: "24h"},
		&cli.StringFlag{Name: "on-disconnect", Usage: "when the host that was asked is lost, or virtlvmd stops: `continue` or cancel", Value: "continue"},
		&cli.BoolFlag{Name: "detach", Usage: "do not watch it, print its id"},
	}
}

// submit asks for a command that goes on by itself, and watches it unless --detach is given.
//
// With --host the daemon of this host is its origin: it hands the command over and keeps its
// answer. Where no daemon runs here, or --host is more than a name, the other one is asked
// directly and is both origin and executor.
func (p *program) submit(c *cli.Context, kind string, arguments json.RawMessage) error {
	req := api.CommandRequest{Kind: kind, Args: arguments, OnDisconnect: c.String("on-disconnect")}
	if d := c.Duration("deadline"); c.IsSet("deadline") {
		if d < time.Second {
			return usageError("--deadline must be at least 1s")
		}
		req.Timeout = int64(d.Seconds())
	}
	conn, done, err := p.origin(c, &req)
	if err != nil {
		return err
	}
	defer done()
	command, err := limited(c, slow, func(ctx context.Context) (api.Command, error) { return conn.Run(ctx, req) })
	if err != nil {
		return err
	}
	if c.Bool("detach") {
		return show(p, c, command, func(command api.Command) error {
			p.printf("command %d\n", command.ID)
			return nil
		})
	}
	return p.watch(c, conn, command.ID)
}

// origin connects with the daemon that shall keep the command, and says in req who runs it.
func (p *program) origin(c *cli.Context, req *api.CommandRequest) (*client.Client, func(), error) {
	host, socket := c.String("host"), c.String("socket")
	if host == "" || api.CheckHostName(host) != nil {
		return connect(c)
	}
	here := client.New(client.Options{Socket: socket})
	if _, err := limited(c, quick, here.Version); err != nil {
		here.Close()
		if socket == "" && api.KindOf(err) == api.KindUnreachable {
			return connect(c)
		}
		return nil, nil, err
	}
	req.Executor = host // also where it is this one: nobody looks for another then
	return here, here.Close, nil
}
