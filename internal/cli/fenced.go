package cli

import (
	"context"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

func (p *program) hostCommand() *cli.Command {
	return &cli.Command{
		Name: "host", Usage: "say something about another host", UsageText: "virtlvm host COMMAND",
		Subcommands: []*cli.Command{{
			Name: "fenced", Usage: "declare that a host is off", UsageText: "virtlvm host fenced NAME [--withdraw]",
			Description: description("Only for volume groups without lvmlockd (unsafe_claims in virtlvm.toml). There a member\nthat does not answer keeps all others from starting guests, since its own may still\nrun. This tells virtlvmd on this host, and on no other, that the silent host NAME is off,\nor cut off from the storage, for sure. If it is not, its guests and those that are started\nhere write to the same volumes. It holds until that host is heard of again, this one is\nbooted, or --withdraw. A host that answers is refused.", "virtlvm host fenced kvm-b"),
			Flags:       []cli.Flag{&cli.BoolFlag{Name: "withdraw", Usage: "it is not known any more that it is off"}},
			Action: func(c *cli.Context) error {
				if err := args(c, 1, 1); err != nil {
					return err
				}
				req := api.FencedRequest{Host: c.Args().First(), Withdraw: c.Bool("withdraw")}
				if err := api.CheckHostName(req.Host); err != nil {
					return usageError("%v", err)
				}
				command, err := ask(c, slow, func(d *client.Client, ctx context.Context) (api.Command, error) {
					return d.DeclareFenced(ctx, req)
				})
				if err != nil {
					return err
				}
				return show(p, c, command, func(command api.Command) error {
					p.printf("%s (command %d)\n", cell(result(command)), command.ID)
					return nil
				})
			},
		}},
	}
}
