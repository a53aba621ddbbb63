package cli

import (
	"encoding/json"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
)

func (p *program) guestCommand() *cli.Command {
	return &cli.Command{
		Name: "guest", Usage: "work on a guest", UsageText: "virtlvm guest migrate GUEST HOST",
		Description: description("Commands that go on by themselves: see `virtlvm command`.", "virtlvm guest migrate vm1 kvm-b"),
		Subcommands: []*cli.Command{{
			Name: "migrate", Usage: "migrate a running guest to another host",
			UsageText:   "virtlvm guest migrate GUEST HOST [--persistent [--undefine-source]] [--auto-converge] [--bandwidth MIB] [--uri URI] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
			Description: description("Runs `virsh migrate --live` outside of the daemon, as any other way to migrate does, and finds\nout where the guest is at the end, whatever became of virsh, of a connection or of a daemon.\nAsk the host where the guest runs, or name it with --host. Its libvirt reaches HOST by ssh\nas root, without being asked for a password.", "virtlvm guest migrate vm1 kvm-b --persistent --undefine-source"),
			Flags: append([]cli.Flag{
				&cli.BoolFlag{Name: "persistent", Usage: "define the guest on HOST as well"},
				&cli.BoolFlag{Name: "undefine-source", Usage: "and no longer where it was"},
				&cli.BoolFlag{Name: "auto-converge", Usage: "slow the guest down where it writes faster than its memory moves"},
				&cli.Int64Flag{Name: "bandwidth", Usage: "use at most so many `MIB` per second", DefaultText: "no limit"},
				&cli.StringFlag{Name: "uri", Usage: "libvirt's `URI` of HOST", DefaultText: "qemu+ssh://HOST/system"},
			}, runFlags()...),
			Action: func(c *cli.Context) error {
				if err := args(c, 2, 2); err != nil {
					return err
				}
				return p.run(c, api.KindGuestMigrate, api.MigrateArgs{
					Guest: c.Args().Get(0), To: c.Args().Get(1), URI: c.String("uri"),
					Persistent: c.Bool("persistent"), UndefineSource: c.Bool("undefine-source"),
					AutoConverge: c.Bool("auto-converge"), Bandwidth: c.Int64("bandwidth"),
				})
			},
		}},
		Action: func(c *cli.Context) error {
			return usageError("wrong usage; usage: %s", c.Command.UsageText)
		},
	}
}

// run asks for a command with these arguments.
func (p *program) run(c *cli.Context, kind string, arguments any) error {
	doc, err := json.Marshal(arguments)
	if err != nil {
		return err
	}
	return p.submit(c, kind, doc)
}
