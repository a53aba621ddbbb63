package cli

import (
	"strings"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
)

func (p *program) volumeSnapshotCommand() *cli.Command {
	return &cli.Command{
		Name: "snapshot", Usage: "copy a volume as it is at one moment, while its guest runs or not",
		UsageText:   "virtlvm volume snapshot VG/LV --to VG/NAME|FILE [--format raw|qcow2] [--to-format raw|qcow2] [--bandwidth MIB] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("A full copy, to a new volume or a new file (with its whole path) on the host that runs it. Of a\ndisk that a running guest writes libvirt makes it, as it is when the command begins; where the\nguest's agent answers, it freezes the file systems for that moment. Of a volume that nobody\nuses qemu-img makes it, and it is compared. If it fails, what was made is removed. A volume is\nmade by the host that holds its source, unless --host names one; a file on the host that is\nasked, which must be that of the guest.", "virtlvm volume snapshot vg_san/vm1 --to vg_san/vm1-monday"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "a volume `VG/NAME`, or the path of a file"},
			&cli.StringFlag{Name: "format", Usage: "of the volume: `raw` or qcow2; never guessed", DefaultText: "as its guest or its tag says, else raw"},
			&cli.StringFlag{Name: "to-format", Usage: "of the snapshot: `raw` or qcow2", DefaultText: "that of the volume"},
			&cli.Int64Flag{Name: "bandwidth", Usage: "use at most so many `MIB` per second, of a volume that nobody uses", DefaultText: "no limit"},
		}, runFlags()...),
		Action: func(c *cli.Context) error {
			if err := oneVolume(c); err != nil {
				return err
			}
			to := c.String("to")
			if to == "" {
				return usageError("--to is needed; usage: %s", c.Command.UsageText)
			}
			if !strings.HasPrefix(to, "/") {
				if err := isVolume(to); err != nil {
					return err
				}
			}
			return p.run(c, api.KindVolumeSnapshot, api.SnapshotArgs{
				Volume: c.Args().First(), To: to, Format: c.String("format"), ToFormat: c.String("to-format"), Bandwidth: c.Int64("bandwidth"),
			})
		},
	}
}
