package cli

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/model"
)

func (p *program) volumeListCommand() *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list volumes and what they are", UsageText: "virtlvm volume list [VG]",
		Description: description("Lists the volumes of all volume groups in scope, or of one, as they are in the cluster. STATE\nis `template`, what is not complete or superseded, or `-`.", "virtlvm volume list vg_san"),
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 1); err != nil {
				return err
			}
			return lookMany(p, c, slow, "volumes", func(d *client.Client, ctx context.Context) ([]api.Volume, error) {
				return d.Volumes(ctx, c.Args().First())
			}, p.volumeList)
		},
	}
}

func (p *program) volumeList(volumes []api.Volume) error {
	rows := make([][]string, 0, len(volumes))
	for _, v := range volumes {
		rows = append(rows, []string{v.Name, size(v.Size), format(v), v.Backing, holders(v), volumeState(v)})
	}
	return p.table("VOLUME|SIZE|FORMAT|BACKING|HOLDERS|STATE", rows)
}

func (p *program) volumeShowCommand() *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "show one volume", UsageText: "virtlvm volume show VG/LV",
		Description: description("Shows what a volume is, which image it is above and which are above it, who holds it in the\ncluster, and what this host has of it.", "virtlvm volume show vg_san/vm1"),
		Action: func(c *cli.Context) error {
			if err := oneVolume(c); err != nil {
				return err
			}
			v, err := ask(c, slow, func(d *client.Client, ctx context.Context) (api.Volume, error) {
				return d.Volume(ctx, c.Args().First())
			})
			if err != nil {
				return err
			}
			return show(p, c, v, p.showVolume)
		},
	}
}

func (p *program) showVolume(v api.Volume) error {
	p.field("volume", v.Name)
	p.field("uuid", v.UUID)
	p.field("type", v.Type)
	p.field("size", size(v.Size)+" ("+strconv.FormatInt(v.Size, 10)+" bytes)")
	p.field("format", format(v))
	p.field("state", volumeState(v))
	p.field("backing", v.Backing)
	p.field("children", strings.Join(v.Children, " "))
	p.field("made by", tagged(v, model.TagCommand))
	p.field("tags", strings.Join(v.Tags, " "))
	p.field("holders", holders(v))
	p.field("wanted", v.Wanted)
	p.field("actual", v.Actual)
	p.field("open", yesNo(v.Open))
	p.field("guests", strings.Join(v.Guests, " "))
	p.field("note", v.Note)
	return nil
}

// format of what is on a volume, as far as a tag says.
func format(v api.Volume) string {
	if v.Format == "" {
		return "raw"
	}
	return v.Format
}

// tagged is what follows the prefix of a tag; "" where there is none.
func tagged(v api.Volume, prefix string) string {
	rest, _ := model.Volume{Tags: v.Tags}.HasTagOf(prefix)
	return rest
}

func volumeState(v api.Volume) string {
	var all []string
	t := model.Volume{Tags: v.Tags}
	if key, ok := t.HasTagOf(model.TagIncomplete); ok {
		all = append(all, "incomplete (command "+key+")")
	}
	if t.HasTag(model.TagSuperseded) {
		all = append(all, "superseded")
	}
	if t.HasTag(model.TagShared) {
		text := "template"
		if n := len(v.Children); n > 0 {
			text += " below " + strconv.Itoa(n)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// oneVolume checks that the one argument is a volume.
func oneVolume(c *cli.Context) error {
	if err := args(c, 1, 1); err != nil {
		return err
	}
	return isVolume(c.Args().First())
}

func (p *program) volumeCreateCommand() *cli.Command {
	return &cli.Command{
		Name: "create", Usage: "make a volume, exclusive on this host",
		UsageText:   "virtlvm volume create VG/LV --size SIZE [--format raw|qcow2] [--backing VG/TEMPLATE [--backing-format raw|qcow2]] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("The volume is never activated by a boot, its beginning is wiped, and it stays exclusive on the\nhost that makes it (--host names another) until a guest anywhere needs it. A raw volume is\nrounded up to whole extents. A qcow2 image has --size for its guest, and the volume room for\nall of it. Whatever fails is undone. A template is a volume tagged virtlvm.shared.", "virtlvm volume create vg_san/vm1 --size 20G --host kvm-b"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "size", Usage: "what a guest sees: `SIZE` in bytes, or with k, M, G or T (of 1024)", DefaultText: "that of the template"},
			&cli.StringFlag{Name: "format", Usage: "`raw` or qcow2", DefaultText: "raw; qcow2 with --backing"},
			&cli.StringFlag{Name: "backing", Usage: "the template `VG/TEMPLATE` below a qcow2 image"},
			&cli.StringFlag{Name: "backing-format", Usage: "of the template: `raw` or qcow2; never guessed", DefaultText: "as it is tagged, else qcow2"},
		}, runFlags()...),
		Action: func(c *cli.Context) error {
			if err := oneVolume(c); err != nil {
				return err
			}
			a := api.CreateArgs{Volume: c.Args().First(), Format: c.String("format"), Backing: c.String("backing"), BackingFormat: c.String("backing-format")}
			if a.Backing != "" {
				if err := isVolume(a.Backing); err != nil {
					return err
				}
			}
			if text := c.String("size"); text != "" || a.Backing == "" {
				var err error
				if a.Size, err = parseSize(text); err != nil {
					return err
				}
			}
			return p.run(c, api.KindVolumeCreate, a)
		},
	}
}

func (p *program) volumeResizeCommand() *cli.Command {
	return &cli.Command{
		Name: "resize", Usage: "make a volume larger, also under a running guest, or smaller",
		UsageText:   "virtlvm volume resize VG/LV --size [+]SIZE [--shrink] [--format raw|qcow2] [--deadline DURATION] [--on-disconnect continue|cancel] [--detach]",
		Description: description("Runs on the host that holds the volume, found by itself unless --host names one. SIZE is what the\nguest sees, or with a plus how much is added; a running guest sees it at once. A guest's file\nsystems are its own business. A volume is made smaller only with --shrink, and only while its\nguest is off: what is beyond the new end is lost.", "virtlvm volume resize vg_san/vm1 --size +10G"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "size", Usage: "`SIZE` in bytes, or with k, M, G or T (of 1024); +SIZE adds"},
			&cli.BoolFlag{Name: "shrink", Usage: "allow a smaller size, and lose what is beyond it"},
			&cli.StringFlag{Name: "format", Usage: "of what is on it: `raw` or qcow2; never guessed", DefaultText: "as its running guest or its tag says, else raw"},
		}, runFlags()...),
		Action: func(c *cli.Context) error {
			if err := oneVolume(c); err != nil {
				return err
			}
			number, add := strings.CutPrefix(c.String("size"), "+")
			n, err := parseSize(number)
			if err != nil {
				return err
			}
			if err := p.toHolder(c, api.OpResize); err != nil {
				return err
			}
			return p.run(c, api.KindVolumeResize, api.ResizeArgs{
				Volume: c.Args().First(), Size: n, Add: add, Shrink: c.Bool("shrink"), Format: c.String("format"),
			})
		},
	}
}

// toHolder sends a command to the host on which the operation on its volume should run, unless
// the operator has named one.
func (p *program) toHolder(c *cli.Context, op string) error {
	if c.String("host") != "" {
		return nil
	}
	e, err := ask(c, slow, func(d *client.Client, ctx context.Context) (api.Endpoint, error) {
		return d.Where(ctx, c.Args().First(), op, "")
	})
	if err != nil || e.Self {
		return err
	}
	return c.Set("host", e.Host)
}

// parseSize reads a number of bytes: "20G", "1.5T", "4194304". Units are of 1024, as LVM's.
func parseSize(text string) (int64, error) {
	number, unit := strings.TrimSpace(text), float64(1)
	if n := len(number); n > 0 {
		if i := strings.IndexByte("BKMGTP", strings.ToUpper(number[n-1:])[0]); i >= 0 {
			number, unit = number[:n-1], math.Pow(1024, float64(i))
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	bytes := n * unit
	switch {
	case text == "":
		return 0, usageError("--size is needed, such as --size 20G")
	case err != nil, math.IsNaN(bytes), strings.ContainsAny(number, "xXpPeEiIn_"):
		return 0, usageError("%q is not a size; write it as 20G, 512M or a number of bytes", text)
	case bytes <= 0:
		return 0, usageError("a size of %s makes no sense", text)
	case bytes >= 1<<62:
		return 0, usageError("a size of %s is larger than any volume", text)
	case bytes != math.Trunc(bytes):
		return 0, usageError("a size of %s is no whole number of bytes", text)
	}
	return int64(bytes), nil
}
