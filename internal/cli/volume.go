package cli

import (
	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
)

func (p *program) volumeCommand() *cli.Command {
	return &cli.Command{
		Name: "volume", Usage: "make, show and work on volumes", UsageText: "virtlvm volume COMMAND",
		Description: description("What takes long goes on by itself: see `virtlvm command`. See also `virtlvm volumes`, which\ntells what this host wants of each volume.", "virtlvm volume create vg_san/vm1 --size 20G"),
		Subcommands: append([]*cli.Command{
			p.volumeListCommand(),
			p.volumeShowCommand(),
			p.volumeCreateCommand(),
			p.volumeResizeCommand(),
			p.volumeCopyCommand(),
			p.volumeMoveCommand(),
		}, p.volumeEndCommands()...),
		Action: func(*cli.Context) error {
			return usageError("wrong usage; `virtlvm volume --help` lists the commands")
		},
	}
}

func (p *program) volumeCopyCommand() *cli.Command {
	return &cli.Command{
		Name: "copy", Usage: "copy a volume that no guest uses",
		UsageText:   "virtlvm volume copy VG/SRC VG/DST [--format raw|qcow2] [--to-format raw|qcow2] [--overwrite] [--shared] [--bandwidth MIB] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("Runs `qemu-img convert` and then `qemu-img compare` outside of the daemon. Both volumes are\nheld by the command meanwhile, so that no guest starts with them. DST is made, and removed\nagain if the copy fails; with --overwrite one that is there loses its content, and if it has\nanother format than SRC by their tags, and none is said, it keeps that format.", "virtlvm volume copy vg_san/vm1 vg_two/vm1-copy"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "format", Usage: "of the source: `raw` or qcow2; never guessed", DefaultText: "raw, which copies any volume as it is"},
			&cli.StringFlag{Name: "to-format", Usage: "of the copy: `raw` or qcow2", DefaultText: "that of the source"},
			&cli.BoolFlag{Name: "overwrite", Usage: "write over a destination that exists"},
			&cli.BoolFlag{Name: "shared", Usage: "other hosts read the source as well, as a template: do not take it exclusively"},
			&cli.Int64Flag{Name: "bandwidth", Usage: "use at most so many `MIB` per second", DefaultText: "no limit"},
		}, runFlags()...),
		Action: func(c *cli.Context) error {
			if err := args(c, 2, 2); err != nil {
				return err
			}
			for _, name := range c.Args().Slice() {
				if err := isVolume(name); err != nil {
					return err
				}
			}
			return p.run(c, api.KindVolumeCopy, api.CopyArgs{
				Source: c.Args().Get(0), Destination: c.Args().Get(1), Format: c.String("format"), ToFormat: c.String("to-format"),
				Overwrite: c.Bool("overwrite"), Shared: c.Bool("shared"), Bandwidth: c.Int64("bandwidth"),
			})
		},
	}
}
