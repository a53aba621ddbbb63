package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

func (p *program) volumesCommand() *cli.Command {
	return &cli.Command{
		Name: "volumes", Usage: "list volumes and who holds them", UsageText: "virtlvm volumes [VG]",
		Description: description("Lists the volumes of all volume groups in scope, or of one. WANTED and ACTUAL are this\nhost's; HOLDERS comes from the lease on disk: each host with its mode, ex or sh,\nand, where it is silent, when sanlock frees its lease; `unknown` if the lease cannot be\nread, `-` if nobody holds the volume.",
			"virtlvm volumes vg_san"),
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 1); err != nil {
				return err
			}
			return lookMany(p, c, slow, "volumes", func(d *client.Client, ctx context.Context) ([]api.Volume, error) {
				return d.Volumes(ctx, c.Args().First())
			}, p.volumes)
		},
	}
}

func (p *program) volumes(volumes []api.Volume) error {
	rows := make([][]string, 0, len(volumes))
	for _, v := range volumes {
		rows = append(rows, []string{
			v.Name, v.Type, size(v.Size), v.Wanted, v.Actual, yesNo(v.Open), holders(v), list(v.Guests), v.Note,
		})
	}
	return p.table("VOLUME|TYPE|SIZE|WANTED|ACTUAL|OPEN|HOLDERS|GUESTS|NOTE", rows)
}

// holders tells who holds a volume. Not knowing is told apart from nobody.
func holders(v api.Volume) string {
	if len(v.Holders) == 0 && v.Known != "lease" {
		return "unknown"
	}
	texts := make([]string, 0, len(v.Holders))
	for _, h := range v.Holders {
		text := h.Host + "(" + h.Mode
		if h.State != "live" {
			text += "," + h.State
		}
		if h.FreeIn > 0 {
			text += fmt.Sprintf(",free in %ds", h.FreeIn)
		}
		texts = append(texts, text+")")
	}
	return list(texts)
}

func (p *program) guestsCommand() *cli.Command {
	return &cli.Command{
		Name: "guests", Usage: "list guests and their volumes on this host", UsageText: "virtlvm guests",
		Description: description("Lists the guests that run or hold volumes here, one line for each volume. CAN MIGRATE is\nwhat would be decided now, as far as the guest's volumes matter: yes, or no and why.", "virtlvm guests"),
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			return lookMany(p, c, quick, "guests", (*client.Client).Guests, p.guests)
		},
	}
}

func (p *program) guests(guests []api.Guest) error {
	var rows [][]string
	for _, g := range guests {
		pid := ""
		if g.PID > 0 {
			pid = number(g.PID)
		}
		disks := g.Volumes
		if len(disks) == 0 {
			disks = []api.GuestDisk{{}}
		}
		for _, d := range disks {
			rows = append(rows, []string{g.Name, g.State, pid, g.Job, d.Volume, d.Role, d.Phase, d.Wanted, d.Actual, g.Note, canMigrate(g)})
		}
	}
	return p.table("GUEST|STATE|PID|JOB|VOLUME|ROLE|PHASE|WANTED|ACTUAL|NOTE|CAN MIGRATE", rows)
}

// canMigrate is the answer with the reasons if it is no.
func canMigrate(g api.Guest) string {
	if g.CanMigrate {
		return "yes"
	}
	return "no: " + strings.Join(g.CannotMigrate, "; ")
}
