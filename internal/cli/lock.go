package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

// patient is how long `lock transfer --wait` waits when --timeout is not given: longer
// than sanlock takes to free a dead host's leases by its defaults.
const patient = 10 * time.Minute

func (p *program) lockCommand() *cli.Command {
	return &cli.Command{
		Name: "lock", Usage: "show or move the lock of a volume", UsageText: "virtlvm lock show VG/LV | virtlvm lock transfer ... | virtlvm lock where VG/LV",
		Description: description("A volume's lock is LVM's own; any host can tell who has it.", "virtlvm lock show vg_san/vm1"),
		Subcommands: []*cli.Command{p.lockShowCommand(), p.lockTransferCommand(), p.lockWhereCommand()},
		Action: func(c *cli.Context) error {
			return usageError("wrong usage; usage: %s", c.Command.UsageText)
		},
	}
}

func (p *program) lockShowCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "tell who holds a volume", UsageText: "virtlvm lock show VG/LV",
		Description: description("Reads the volume's lease, wherever it is held, and asks the hosts that hold it whether it is\nactive and open there and for which guest. Exits with 7 when it is not known who holds it.",
			"virtlvm lock show vg_san/vm1"),
		Action: func(c *cli.Context) error {
			volume, err := volumeArg(c)
			if err != nil {
				return err
			}
			k, err := ask(c, quick, func(d *client.Client, ctx context.Context) (api.Lock, error) { return d.Lock(ctx, volume) })
			if err != nil {
				return err
			}
			if err := show(p, c, k, p.lock); err != nil {
				return err
			}
			if k.Known == api.KnownUnknown {
				return api.NewError(api.KindUnknown, fmt.Sprintf("it is not known who holds %s", k.Volume))
			}
			return nil
		},
	}
}

func (p *program) lock(k api.Lock) error {
	p.field("volume", k.Volume)
	p.field("uuid", k.UUID)
	p.field("lv_attr", k.Attr)
	p.field("known by", k.Known)
	if note := lockNote(k); note != "" {
		p.field("note", note)
	}
	p.printf("\n")
	if len(k.Hosts) == 0 {
		if k.Known == api.KnownUnknown {
			p.printf("no host is known to hold it\n")
		} else {
			p.printf("free: no host holds it\n")
		}
		return nil
	}
	rows := make([][]string, 0, len(k.Hosts))
	for _, h := range k.Hosts {
		name := h.Host
		if h.Self {
			name += " (this)"
		}
		id := ""
		if h.HostID > 0 {
			id = number(h.HostID)
		}
		rows = append(rows, []string{name, id, h.Mode, hostState(h.State, h.FreeIn), stamp(h.Since), h.Active, h.Open, h.Use, list(h.Guests)})
	}
	return p.table("HOST|ID|MODE|STATE|FOUND SINCE|ACTIVE|OPEN|USE|GUESTS", rows)
}

// maxVolumes is the most that one transfer names: its request stays small.
const maxVolumes = 500

func (p *program) lockTransferCommand() *cli.Command {
	return &cli.Command{
		Name: "transfer", Usage: "move the locks of idle volumes to a host", UsageText: "virtlvm lock transfer VG/LV... --to HOST [--wait] | virtlvm lock transfer --guest GUEST --to HOST [--wait]",
		Description: description("Releases each volume where it is held and takes it exclusively on HOST, for nobody: it stays\nso until a guest there starts with it, `virtlvm deactivate`, or somebody elsewhere needs it. If\nHOST cannot take it, the old holder takes it back. Refused while a guest uses it, while it is\nopen, and where virtlvm has not activated it. A dead holder is never forced: the message says\nwhen sanlock frees its lease, and --wait waits for that. --guest moves all that is held for a\nguest which does not run. Exits with the code of the first volume that could not be moved.",
			"virtlvm lock transfer vg_san/vm1 vg_san/vm1-data --to kvm-b"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "the `HOST` that takes them, by its name in sanlock"},
			&cli.StringFlag{Name: "guest", Usage: "move all that is held for the guest `NAME`"},
			&cli.BoolFlag{Name: "wait", Usage: "wait until the lease of a dead holder is free"},
		},
		Action: p.lockTransfer,
	}
}

func (p *program) lockTransfer(c *cli.Context) error {
	if err := args(c, 0, maxVolumes); err != nil {
		return err
	}
	req := api.TransferRequest{Volumes: c.Args().Slice(), Guest: c.String("guest"), To: c.String("to"), Wait: c.Bool("wait")}
	for _, volume := range req.Volumes {
		if err := isVolume(volume); err != nil {
			return err
		}
	}
	if req.To == "" || (len(req.Volumes) == 0) == (req.Guest == "") {
		return usageError("wrong usage; usage: %s", c.Command.UsageText)
	}
	limit := slow
	if req.Wait {
		limit = patient
	}
	result, err := ask(c, limit, func(d *client.Client, ctx context.Context) (api.TransferResult, error) { return d.Transfer(ctx, req) })
	if err != nil {
		return err
	}
	var failed *api.Error
	for _, t := range result.Volumes {
		if t.Error != nil && failed == nil {
			failed = t.Error
		}
	}
	if err := show(p, c, result, p.transfers); err != nil {
		return err
	}
	switch {
	case failed == nil:
		return nil
	case len(result.Volumes) == 1:
		return failed
	}
	n := 0
	for _, t := range result.Volumes {
		if t.Error != nil {
			n++
		}
	}
	return api.NewError(failed.Kind, fmt.Sprintf("%d of %d volumes could not be moved to %s", n, len(result.Volumes), result.To))
}

func (p *program) transfers(r api.TransferResult) error {
	if len(r.Volumes) == 1 && r.Volumes[0].Error != nil {
		return nil // the error says it all
	}
	rows := make([][]string, 0, len(r.Volumes))
	for _, t := range r.Volumes {
		what := "moved"
		switch {
		case t.Error != nil:
			what = t.Error.Message
		case !t.Moved:
			what = "is there already"
		}
		rows = append(rows, []string{t.Volume, t.From, r.To, what})
	}
	return p.table("VOLUME|FROM|TO|RESULT", rows)
}

func (p *program) lockWhereCommand() *cli.Command {
	return &cli.Command{
		Name: "where", Usage: "tell on which host to work on a volume", UsageText: "virtlvm lock where VG/LV [--op OPERATION] [--on HOST]",
		Description: description("Prints the host on which an operation on the volume should run, and why: the one named with\n--on, if it is up; else the one that holds the volume; else one whose guest uses it; else the\nfirst that is up in its volume group. A volume that several hosts share is only ever read.",
			"virtlvm --host $(virtlvm lock where vg_san/vm1 --json | jq -r .host) status"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "op", Usage: "`OPERATION`: read, write, resize, snapshot or delete", DefaultText: "write"},
			&cli.StringFlag{Name: "on", Usage: "this `HOST`, if it is up"},
		},
		Action: func(c *cli.Context) error {
			volume, err := volumeArg(c)
			if err != nil {
				return err
			}
			return look(p, c, func(d *client.Client, ctx context.Context) (api.Endpoint, error) {
				return d.Where(ctx, volume, c.String("op"), c.String("on"))
			}, func(e api.Endpoint) error {
				p.printf("%s (%s: %s)\n", cell(e.Host), cell(e.Reason), cell(e.Text))
				return nil
			})
		},
	}
}

// volumeArg is the one argument of a command, a volume.
func volumeArg(c *cli.Context) (string, error) {
	if err := args(c, 1, 1); err != nil {
		return "", err
	}
	return c.Args().First(), isVolume(c.Args().First())
}
