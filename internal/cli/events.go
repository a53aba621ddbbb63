package cli

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

func (p *program) eventsCommand() *cli.Command {
	return &cli.Command{
		Name: "events", Usage: "list what has happened to commands, or follow it", UsageText: "virtlvm events [--follow] [--after ID] [--limit N]",
		Description: description("Lists the changes of state of all commands in the journal, oldest first. With --follow it goes\non with what happens, until Ctrl-C; with --after it begins behind an event, so that nothing is\nmissed by who comes back. With --json each event is one line.", "virtlvm events --follow"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Usage: "go on with what happens from now on"},
			&cli.Int64Flag{Name: "after", Usage: "begin behind the event `ID`", Value: -1, DefaultText: "the newest"},
			limitFlag(),
		},
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			n, err := limit(c)
			if err != nil {
				return err
			}
			if c.Bool("follow") {
				return p.follow(c)
			}
			return lookMany(p, c, quick, "events", func(d *client.Client, ctx context.Context) ([]api.Event, error) {
				return d.Events(ctx, c.Int64("after"), n)
			}, p.events)
		},
	}
}

func (p *program) events(events []api.Event) error {
	rows := make([][]string, 0, len(events))
	for _, e := range events {
		rows = append(rows, eventRow(e))
	}
	return p.table("EVENT|TIME|COMMAND|KIND|TARGETS|FROM|TO|CAUSE", rows)
}

func eventRow(e api.Event) []string {
	from := e.From
	if e.From == e.To {
		from = "" // a remark
	}
	return []string{strconv.FormatInt(e.ID, 10), stamp(e.Time), strconv.FormatInt(e.Command, 10), e.Kind, list(e.Targets), from, e.To, e.Cause}
}

func (p *program) follow(c *cli.Context) error {
	conn, done, err := connect(c)
	if err != nil {
		return err
	}
	defer done()
	err = conn.Follow(c.Context, c.Int64("after"), func(e api.Event) error {
		if c.Bool("json") {
			data, err := json.Marshal(e)
			if err != nil {
				return err
			}
			p.printf("%s\n", data)
		} else {
			p.printf("%-8d %s  command %d  %s  %s  %s -> %s%s\n", e.ID, stamp(e.Time), e.Command, cell(e.Kind), cell(list(e.Targets)), cell(e.From), cell(e.To), after("  ", cell(e.Cause)))
		}
		return p.out.Flush()
	})
	if c.Err() != nil { // the user has had enough
		return nil
	}
	return err
}
