package cli

import (
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"virtlvm/internal/api"
	"virtlvm/internal/relay"
)

func (p *program) relayCommand() *cli.Command {
	return &cli.Command{
		Name: "relay", Usage: "join standard input and output with the daemon, for ssh", UsageText: "virtlvm relay [--peer NAME]",
		Description: description("What `virtlvm --host` and other daemons start here by ssh; not for people. With --peer the\ncaller is the daemon of the host NAME: as the forced command of that host's key in\nauthorized_keys it binds the key to the name. `virtlvm peer authorize` prints such a line.",
			`command="virtlvm relay --peer kvm-b",restrict ssh-ed25519 AAAA... virtlvm@kvm-b`),
		Flags: []cli.Flag{&cli.StringFlag{Name: "peer", Usage: "the daemon of the host `NAME` calls"}},
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			if terminal(os.Stdin) || terminal(os.Stdout) {
				return usageError("`virtlvm relay` speaks to programs, not to a terminal; it is started by ssh, see virtlvm(8)")
			}
			o := relay.Options{Socket: c.String("socket"), Peer: c.String("peer")}
			switch {
			case c.IsSet("peer"):
				if err := api.CheckHostName(o.Peer); err != nil {
					return usageError("--peer: %v", err)
				}
				if o.Socket == "" {
					o.Socket = api.PeerSocketPath
				}
			case o.Socket == "":
				o.Socket, o.ReadOnly = api.SocketPath, api.ReadOnlySocketPath
			}
			return relay.Run(c.Context, os.Stdin, os.Stdout, o)
		},
	}
}

func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
