package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/model"
)

func (p *program) guestCommand() *cli.Command {
	return &cli.Command{
		Name: "guest", Usage: "work on a guest, or show how its live migration goes", UsageText: "virtlvm guest COMMAND",
		Description: description("See `virtlvm guests` for what runs here.", "virtlvm guest migrate vm1 kvm-b"),
		Subcommands: []*cli.Command{p.guestMigrateCommand(), p.guestMoveCommand(), p.guestAttachCommand(), p.guestDetachCommand(), {
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
		Action: func(*cli.Context) error {
			return usageError("wrong usage; `virtlvm guest --help` lists the commands")
		},
	}
}

func (p *program) guestMigrateCommand() *cli.Command {
	return &cli.Command{
		Name: "migrate", Usage: "migrate a guest to another host",
		UsageText:   "virtlvm guest migrate GUEST HOST [--persistent [--undefine-source]] [--auto-converge] [--bandwidth MIB] [--offline] [--uri URI] [--plan] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("Runs `virsh migrate --live` outside of the daemon, as any other way to migrate does, and finds\nout where the guest is at the end, whatever became of virsh, of a connection or of a daemon.\nIt is done where the guest runs, whichever host is asked. Its libvirt reaches HOST by ssh as\nroot, without being asked for a password. With --offline it is for a guest that is off: its\ndefinition goes to HOST (--persistent goes without saying), and the locks that some host keeps\non its volumes with it.", "virtlvm guest migrate vm1 kvm-b --persistent --undefine-source"),
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "persistent", Usage: "define the guest on HOST as well"},
			&cli.BoolFlag{Name: "undefine-source", Usage: "and no longer where it was"},
			&cli.BoolFlag{Name: "auto-converge", Usage: "slow the guest down where it writes faster than its memory moves"},
			&cli.Int64Flag{Name: "bandwidth", Usage: "use at most so many `MIB` per second", DefaultText: "no limit"},
			&cli.BoolFlag{Name: "offline", Usage: "of a guest that is off: its definition and its locks"},
			planFlag(),
			&cli.StringFlag{Name: "uri", Usage: "libvirt's `URI` of HOST", DefaultText: "qemu+ssh://HOST/system"},
		}, runFlags()...),
		Action: func(c *cli.Context) error {
			if err := args(c, 2, 2); err != nil {
				return err
			}
			return p.run(c, api.KindGuestMigrate, api.MigrateArgs{
				Guest: c.Args().Get(0), To: c.Args().Get(1), URI: c.String("uri"),
				Persistent: c.Bool("persistent"), UndefineSource: c.Bool("undefine-source"),
				AutoConverge: c.Bool("auto-converge"), Bandwidth: c.Int64("bandwidth"), Offline: c.Bool("offline"),
			})
		},
	}
}

// run asks for a command with these arguments, or with --plan what it would do.
func (p *program) run(c *cli.Context, kind string, arguments any) error {
	doc, err := json.Marshal(arguments)
	if err != nil {
		return err
	}
	if c.Bool("plan") {
		return p.preview(c, kind, doc)
	}
	return p.submit(c, kind, doc)
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
		rows = append(rows, row("", s.State, "virtlvmd did not run then, or looks for it still"))
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

func switched(s api.HandoffStep) bool { return s.Step == string(model.StepSwitched) }

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
	case destination == model.StepReleased && slices.ContainsFunc(m.Destination.Steps, switched):
		return "done, and the guest has ended since"
	case destination == model.StepReleased && source == model.StepReleased:
		return "over, the guest has ended on both hosts"
	case destination == model.StepReleased || destination == model.StepDenied:
		return "failed"
	}
	return "its end is not known here"
}
