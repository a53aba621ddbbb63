package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
)

func planFlag() cli.Flag {
	return &cli.BoolFlag{Name: "plan", Usage: "tell what would be done with each volume, and do nothing"}
}

func (p *program) volumeMoveCommand() *cli.Command {
	return &cli.Command{
		Name: "move", Usage: "move a volume to another volume group, or its lock to another host",
		UsageText: "virtlvm volume move VG/LV --to-vg VG | --to-host HOST | --to-pool POOL [--name LV] [--format raw|qcow2] [--from-format raw|qcow2] [--bandwidth MIB] [--plan] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("Copies data only where it must, in one of three tiers, which --plan tells:\n\n"+
			"transfer     same volume group, other host (--to-host): only the lock moves\n"+
			"lightweight  the same volume under the name of another storage pool of libvirt (--to-pool):\n"+
			"             only the definitions of its guests change\n"+
			"full         another volume group: a new volume gets the content. Of a running guest libvirt\n"+
			"             copies the disk, then the guest goes on there; else qemu-img copies and compares\n\n"+
			"After a full move the definition of the guest names the new volume, and the old one is left, off\nand tagged virtlvm.superseded, and no guest starts from it: remove it yourself. Whatever fails\nbefore leaves all as it was. It is done where the volume is held, or a guest with it is defined,\nwhichever host is asked; --host names another.",
			"virtlvm volume move vg_san/vm1 --to-vg vg_two --plan"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "to-vg", Usage: "the volume group `VG` to move to"},
			&cli.StringFlag{Name: "to-host", Usage: "the `HOST` that gets the lock"},
			&cli.StringFlag{Name: "to-pool", Usage: "the storage pool `POOL` of libvirt to name the volume by"},
			&cli.StringFlag{Name: "name", Usage: "of the new volume, `LV`", DefaultText: "that of the old one"},
			&cli.StringFlag{Name: "format", Usage: "of the new volume: `raw` or qcow2, converted where it must be", DefaultText: "as it is"},
			&cli.StringFlag{Name: "from-format", Usage: "of the old volume: `raw` or qcow2, where no guest that has it as a disk says so", DefaultText: "raw"},
			&cli.Int64Flag{Name: "bandwidth", Usage: "use at most so many `MIB` per second", DefaultText: "no limit"},
			planFlag(),
		}, runFlags()...),
		Action: func(c *cli.Context) error {
			if err := args(c, 1, 1); err != nil {
				return err
			}
			if err := isVolume(c.Args().First()); err != nil {
				return err
			}
			if c.String("to-vg") == "" && c.String("to-host") == "" && c.String("to-pool") == "" {
				return usageError("one of --to-vg, --to-host and --to-pool is needed; usage: %s", c.Command.UsageText)
			}
			return p.run(c, api.KindVolumeMove, api.MoveArgs{
				Volume: c.Args().First(), ToVG: c.String("to-vg"), ToHost: c.String("to-host"), ToPool: c.String("to-pool"),
				Name: c.String("name"), Format: c.String("format"), FromFormat: c.String("from-format"), Bandwidth: c.Int64("bandwidth"),
			})
		},
	}
}

func (p *program) guestMoveCommand() *cli.Command {
	return &cli.Command{
		Name: "move", Usage: "move a guest's disks to another volume group, or the guest to another host",
		UsageText: "virtlvm guest move GUEST --to-vg VG [--disk DISK]... [--format raw|qcow2] | --to-host HOST [--bandwidth MIB] [--plan] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("With --to-vg the disks that are not there yet go to new volumes of the same names, all or none:\nnothing is decided before all of them are copied. See `virtlvm volume move`. With --to-host no data\nmoves: a guest that runs is migrated live, of one that is off the definition goes, with the locks\nthat some host keeps on its volumes. --plan tells it volume by volume. It is done where the guest\nruns or is defined, whichever host is asked.",
			"virtlvm guest move vm1 --to-vg vg_two --plan"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "to-vg", Usage: "the volume group `VG` to move to"},
			&cli.StringFlag{Name: "to-host", Usage: "the `HOST` to move to"},
			&cli.StringSliceFlag{Name: "disk", Usage: "only this `DISK`, such as vda or VG/LV; may be repeated", DefaultText: "all that the guest writes and that are elsewhere"},
			&cli.StringFlag{Name: "format", Usage: "of the new volumes: `raw` or qcow2, converted where they must be", DefaultText: "as they are"},
			&cli.Int64Flag{Name: "bandwidth", Usage: "use at most so many `MIB` per second for each disk", DefaultText: "no limit"},
			planFlag(),
		}, runFlags()...),
		Action: func(c *cli.Context) error {
			if err := args(c, 1, 1); err != nil {
				return err
			}
			if (c.String("to-vg") == "") == (c.String("to-host") == "") {
				return usageError("either --to-vg or --to-host is needed; usage: %s", c.Command.UsageText)
			}
			return p.run(c, api.KindGuestMove, api.GuestMoveArgs{
				Guest: c.Args().First(), ToVG: c.String("to-vg"), ToHost: c.String("to-host"), Disks: c.StringSlice("disk"),
				Format: c.String("format"), Bandwidth: c.Int64("bandwidth"),
			})
		},
	}
}

// preview tells what a command would do.
func (p *program) preview(c *cli.Context, kind string, arguments json.RawMessage) error {
	req := api.CommandRequest{Kind: kind, Args: arguments, OnDisconnect: c.String("on-disconnect")}
	conn, done, err := p.origin(c, &req)
	if err != nil {
		return err
	}
	defer done()
	plan, err := limited(c, slow, func(ctx context.Context) (api.CommandPlan, error) { return conn.Plan(ctx, req) })
	if err != nil {
		return err
	}
	return show(p, c, plan, p.plan)
}

func (p *program) plan(plan api.CommandPlan) error {
	p.field("done on", plan.Host)
	rows, total := [][]string{}, int64(0)
	for _, v := range plan.Volumes {
		total += v.Bytes
		rows = append(rows, []string{v.Volume, v.Guest, v.Disk, v.Tier, v.To, size(v.Bytes), v.Reason})
	}
	p.field("to copy", fmt.Sprintf("%s (%s bytes)", size(total), strconv.FormatInt(total, 10)))
	p.printf("\n")
	return p.table("VOLUME|GUEST|DISK|TIER|TO|COPY|REASON", rows)
}
