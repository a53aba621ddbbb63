package cli

import (
	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
)

func whereFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "live", Usage: "change the running guest", DefaultText: "if it runs"},
		&cli.BoolFlag{Name: "config", Usage: "change its definition", DefaultText: "if it does not run"},
	}
}

func (p *program) guestAttachCommand() *cli.Command {
	return &cli.Command{
		Name: "attach", Usage: "give a guest a volume as a disk",
		UsageText:   "virtlvm guest attach GUEST VG/LV [--target DISK] [--live] [--config] [--format raw|qcow2] [--read-only] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("The volume is taken for the guest on its host, then libvirt attaches it; undone as a whole if\nanything fails. `virsh attach-disk` calls no hook, and so finds only volumes that are active.\nDone where the guest runs, else where it is defined, unless --host names a host.", "virtlvm guest attach vm1 vg_san/data --live --config"),
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "target", Usage: "name of the disk in the guest, `DISK`", DefaultText: "the first of vda, vdb, ... that is free"},
			&cli.StringFlag{Name: "format", Usage: "of what is on the volume: `raw` or qcow2; never guessed", DefaultText: "as it is tagged, else raw"},
			&cli.BoolFlag{Name: "read-only", Usage: "share the volume, and do not write it"},
		}, whereFlags()...), runFlags()...),
		Action: func(c *cli.Context) error {
			if err := args(c, 2, 2); err != nil {
				return err
			}
			if err := isVolume(c.Args().Get(1)); err != nil {
				return err
			}
			return p.run(c, api.KindGuestAttach, api.AttachArgs{
				Guest: c.Args().Get(0), Volume: c.Args().Get(1), Target: c.String("target"), Live: c.Bool("live"), Config: c.Bool("config"),
				Format: c.String("format"), ReadOnly: c.Bool("read-only"),
			})
		},
	}
}

func (p *program) guestDetachCommand() *cli.Command {
	return &cli.Command{
		Name: "detach", Usage: "take a disk from a guest",
		UsageText:   "virtlvm guest detach GUEST VG/LV|DISK [--live] [--config] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("A running guest lets go of a disk when it likes: where it does not within a minute, nothing else\nis changed and the command fails. The lock follows when the disk is gone.", "virtlvm guest detach vm1 vdb --live --config"),
		Flags:       append(whereFlags(), runFlags()...),
		Action: func(c *cli.Context) error {
			if err := args(c, 2, 2); err != nil {
				return err
			}
			return p.run(c, api.KindGuestDetach, api.DetachArgs{Guest: c.Args().Get(0), Disk: c.Args().Get(1), Live: c.Bool("live"), Config: c.Bool("config")})
		},
	}
}
