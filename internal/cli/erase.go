package cli

import (
	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
)

// volumeEndCommands are those that keep what is on a volume, or make an end of it.
func (p *program) volumeEndCommands() []*cli.Command {
	zeroFlags := append([]cli.Flag{
		&cli.Int64Flag{Name: "throttle", Usage: "write at most so many `MIB` per second", DefaultText: "no limit"},
		&cli.BoolFlag{Name: "discard", Usage: "tell the storage afterwards that the blocks are not needed"},
	}, runFlags()...)
	return []*cli.Command{p.volumeSnapshotCommand(), {
		Name: "erase", Usage: "fill a volume that nobody uses with zeros",
		UsageText:   "virtlvm volume erase VG/LV [--throttle MIB] [--discard] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("Real zeros, by `blkdiscard --zeroout` in steps, outside of the daemon. The volume is held by the\ncommand meanwhile. What is done is noted in its tags, so that one that was cancelled or has\nfailed goes on from there when it is asked for again, on any host; until then no guest is\nstarted from it. A guest with a managed-save image keeps its volumes.", "virtlvm volume erase vg_san/vm1 --throttle 200"),
		Flags:       zeroFlags,
		Action: func(c *cli.Context) error {
			if err := oneVolume(c); err != nil {
				return err
			}
			return p.run(c, api.KindVolumeErase, api.EraseArgs{Volume: c.Args().First(), Throttle: c.Int64("throttle"), Discard: c.Bool("discard")})
		},
	}, {
		Name: "delete", Usage: "remove a volume that nobody uses",
		UsageText:   "virtlvm volume delete VG/LV [--zero] [--throttle MIB] [--discard] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("Not one that a guest uses or that a guest's definition names, on this host or another that is\nup, no template and no origin of a snapshot. With --zero, and where [volumes] zero_on_delete\nsays so, it is erased first, as by `virtlvm volume erase`; if that fails it is not removed.", "virtlvm volume delete vg_san/vm1 --zero"),
		Flags:       append([]cli.Flag{&cli.BoolFlag{Name: "zero", Usage: "fill it with zeros first"}}, zeroFlags...),
		Action: func(c *cli.Context) error {
			if err := oneVolume(c); err != nil {
				return err
			}
			return p.run(c, api.KindVolumeDelete, api.DeleteArgs{Volume: c.Args().First(), Zero: c.Bool("zero"), Throttle: c.Int64("throttle"), Discard: c.Bool("discard")})
		},
	}}
}
