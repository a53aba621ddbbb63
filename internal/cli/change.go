package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/model"
)

func (p *program) activateCommand() *cli.Command {
	return &cli.Command{
		Name: "activate", Usage: "activate a volume on this host", UsageText: "virtlvm activate VG/LV [--shared]",
		Description: description("Takes the volume's lock exclusively, so that it can be used here and by no guest\nelsewhere, until `virtlvm deactivate` or until the host goes down. With --shared other\nhosts may share it.", "virtlvm activate vg_san/template --shared"),
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "shared", Usage: "share the volume with other hosts"}},
		Action: func(c *cli.Context) error {
			mode := model.ModeEX
			if c.Bool("shared") {
				mode = model.ModeSH
			}
			return p.change(c, string(mode), (*client.Client).Activate)
		},
	}
}

func (p *program) deactivateCommand() *cli.Command {
	return &cli.Command{
		Name: "deactivate", Usage: "end an activation of an operator", UsageText: "virtlvm deactivate VG/LV",
		Description: description("Deactivates the volume and drops its lock. Refused while it is open or a guest here\nneeds it.", "virtlvm deactivate vg_san/template"),
		Action: func(c *cli.Context) error {
			return p.change(c, "", (*client.Client).Deactivate)
		},
	}
}

type changeCall func(*client.Client, context.Context, api.VolumeRequest) (api.Command, error)

func (p *program) change(c *cli.Context, mode string, call changeCall) error {
	volume, err := volumeArg(c)
	if err != nil {
		return err
	}
	command, err := ask(c, slow, func(d *client.Client, ctx context.Context) (api.Command, error) {
		return call(d, ctx, api.VolumeRequest{Volume: volume, Mode: mode})
	})
	if err != nil {
		return err
	}
	err = verdict(command)
	if err != nil && !c.Bool("json") {
		return err
	}
	return errors.Join(show(p, c, command, func(command api.Command) error {
		p.printf("%s (command %d)\n", cell(result(command)), command.ID)
		return nil
	}), err)
}

// isVolume is nil for a name of the form VG/LV.
func isVolume(volume string) error {
	if vg, lv, ok := strings.Cut(volume, "/"); !ok || vg == "" || lv == "" || strings.Contains(lv, "/") {
		return usageError("%q is not a volume; write it as VG/LV, such as vg_san/vm1", volume)
	}
	return nil
}

// verdict is the error of a command that did not end well.
func verdict(c api.Command) error {
	switch model.CommandState(c.State) {
	case model.StateCompleted, model.StateReconciled:
		if c.Error == "" {
			return nil
		}
		fallthrough
	case model.StateFailed:
		return api.NewError(api.KindInternal, fmt.Sprintf("command %d failed: %s", c.ID, result(c)))
	}
	return api.NewError(api.KindUnknown, fmt.Sprintf("command %d has not ended (%s), its outcome is not known; look with `virtlvm command %d`", c.ID, c.State, c.ID))
}
