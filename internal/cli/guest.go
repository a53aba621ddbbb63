package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/model"
)

func (p *program) guestCommand() *cli.Command {
	return &cli.Command{
		Name: "guest", Usage: "show how the live migration of a guest goes", UsageText: "virtlvm guest handoff GUEST",
		Description: description("See `virtlvm guests` for what runs here.", "virtlvm guest handoff vm1"),
		Subcommands: []*cli.Command{{
			Name: "handoff", Usage: "show where a live migration stands, step by step", UsageText: "virtlvm guest handoff GUEST",
			Description: description("Shows the migration of the guest (its name or uuid) that is under way from or to this\nhost, and the last one that has ended: each step with its time, of the source and of the\ndestination, which is asked as well. Each host's times are by its own clock.", "virtlvm guest handoff vm1"),
			Action: func(c *cli.Context) error {
				if err := args(c, 1, 1); err != nil {
					return err
				}
				return look(p, c, func(d *client.Client, ctx context.Context) (api.GuestHandoff, error) {
					return d.Handoff(ctx, c.Args().First())
				}, p.handoff)
			},
		}},
		Action: func(c *cli.Context) error {
			return usageError("wrong usage; usage: %s", c.Command.UsageText)
		},
	}
}

func (p *program) handoff(h api.GuestHandoff) error {
	for i, m := range h.Migrations {
		if i > 0 {
			p.printf("\n")
		}
		p.printf("%s from %s to %s: %s\n", cell(h.Guest), cell(m.Source.Host), cell(m.Destination.Host), howItWent(m))
		rows := sideRows(model.SideSource, m.Source)
		rows = append(rows, sideRows(model.SideDestination, m.Destination)...)
		if err := p.table("SIDE|HOST|TIME|STEP|DETAIL", rows); err != nil {
			return err
		}
	}
	return nil
}

func sideRows(side model.HandoffSide, s api.HandoffSide) [][]string {
	row := func(when, step, detail string) []string { return []string{string(side), s.Host, when, step, detail} }
	var rows [][]string
	for _, t := range s.Steps {
		rows = append(rows, row(t.At.Local().Format("2006-01-02 15:04:05.000"), t.Step, t.Detail))
	}
	switch s.State {
	case api.HandoffUnknown:
		rows = append(rows, row("", s.State, s.Problem))
	case api.HandoffUnseen:
		rows = append(rows, row("", s.State, "virtlvmd did not run then"))
	}
	if s.Ahead.Abs() > time.Second {
		way := "ahead of"
		if s.Ahead < 0 {
			way = "behind"
		}
		rows = append(rows, row("", "", fmt.Sprintf("this host's clock is %s %s the other's", took(s.Ahead.Abs()), way)))
	}
	return rows
}

// howItWent is a migration in a few words. The destination knows best.
func howItWent(m api.Migration) string {
	source, destination := model.Step(m.Source.State), model.Step(m.Destination.State)
	switch {
	case m.Source.State == api.HandoffUnderWay || m.Destination.State == api.HandoffUnderWay:
		return "under way"
	case destination == model.StepExclusive:
		return "done"
	case source == model.StepExclusive:
		return "failed, the source has its volumes back"
	case source == model.StepRefused || destination == model.StepRefused:
		return "refused, nothing was changed"
	case source == model.StepNothingLent || destination == model.StepNothingLent:
		return "only the definition was copied"
	case destination == model.StepReleased || destination == model.StepDenied:
		return "failed"
	}
	return "its end is not known here"
}
