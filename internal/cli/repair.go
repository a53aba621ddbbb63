package cli

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

// repair runs what the checks of a host offer, and shows what has become of it.
func (p *program) repair(c *cli.Context, before api.CheckReport) error {
	p.printf("\n")
	wanted, bad := map[string]bool{}, 0
	for _, result := range before.Results {
		for _, r := range result.Repairs {
			wanted[result.ID] = true
			p.printf("repair: %s\n", line(strings.Join(r.Argv, " ")))
			if !c.Bool("yes") && !p.confirm(os.Stdin) {
				p.printf("  left alone\n")
				continue
			}
			if err := p.out.Flush(); err != nil {
				return err
			}
			done, err := ask(c, slow, func(d *client.Client, ctx context.Context) (api.Command, error) { return d.Repair(ctx, r.ID) })
			if err != nil {
				bad++
				p.printf("  failed: %s\n", line(err.Error()))
				continue
			}
			p.printf("  done (command %d)\n", done.ID)
		}
	}
	if len(wanted) == 0 {
		p.printf("nothing here can be repaired by --fix\n")
		if failed([]api.CheckReport{before}) {
			return problemsFound{}
		}
		return nil
	}
	after, err := p.reports(c)
	if err != nil {
		return err
	}
	p.printf("\nafter:\n")
	for _, result := range after[0].Results {
		if wanted[result.ID] {
			p.checkLine(result)
		}
	}
	if bad > 0 || failed(after) {
		return problemsFound{}
	}
	return nil
}

// confirm asks whether to go on; anything but a yes is a no.
func (p *program) confirm(in io.Reader) bool {
	p.printf("  run it? [y/N] ")
	if err := p.out.Flush(); err != nil {
		return false
	}
	// Byte by byte: what follows answers the next question.
	answer, err := bufio.NewReaderSize(oneByte{in}, 16).ReadString('\n')
	if err != nil {
		return false
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}

type oneByte struct{ in io.Reader }

func (o oneByte) Read(b []byte) (int, error) { return o.in.Read(b[:min(1, len(b))]) }
