package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/run"
)

func (p *program) checkCommand() *cli.Command {
	return &cli.Command{
		Name: "check", Usage: "check whether this host is set up right", UsageText: "virtlvm check [--cluster] [--quiet] [--fix [--yes]]",
		Description: description("Prints a line for each thing that must be right for guests to be safe and to migrate,\nwith what to do where it is not: PASS, WARN, FAIL, or SKIP where it does not apply or its\ncause is the FAIL of another line. /usr/share/doc/virtlvm/check.md explains every line.\nExits with 9 when there is a FAIL. Needs root or the group virtlvm; as root it works\nwithout virtlvmd, too.",
			"virtlvm check --cluster --quiet"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "cluster", Usage: "check all hosts, at the same time"},
			&cli.BoolFlag{Name: "quiet", Usage: "print only what is WARN or FAIL"},
			&cli.BoolFlag{Name: "fix", Usage: "repair what can be repaired safely, after a question for each command"},
			&cli.BoolFlag{Name: "yes", Usage: "with --fix: do not ask"},
		},
		Action: p.check,
	}
}

func (p *program) check(c *cli.Context) error {
	fix, yes := c.Bool("fix"), c.Bool("yes")
	switch {
	case yes && !fix:
		return usageError("--yes goes with --fix")
	case fix && c.Bool("cluster"):
		return usageError("--fix works on one host: run it there, or with --host")
	case fix && c.Bool("json"):
		return usageError("--fix prints no JSON: run `virtlvm check --json` after it")
	case fix && !yes && !terminal(os.Stdin):
		return usageError("--fix asks before each command, and there is no terminal; --yes runs them without a question")
	}
	if err := args(c, 0, 0); err != nil {
		return err
	}
	reports, err := p.reports(c)
	if err != nil {
		return err
	}
	if err := show(p, c, audible(reports, c.Bool("quiet")), p.checks); err != nil {
		return err
	}
	if fix {
		return p.repair(c, reports[0])
	}
	if failed(reports) {
		return problemsFound{}
	}
	return nil
}

// reports asks the daemon, or where it does not run looks without it.
func (p *program) reports(c *cli.Context) ([]api.CheckReport, error) {
	reports, err := ask(c, slow, func(d *client.Client, ctx context.Context) ([]api.CheckReport, error) {
		return d.Check(ctx, c.Bool("cluster"))
	})
	if err == nil && len(reports) == 0 {
		return nil, api.NewError(api.KindInternal, "virtlvmd answered without a report; compare `virtlvm version`")
	}
	if api.KindOf(err) != api.KindUnreachable || c.String("host") != "" || c.Bool("cluster") || c.Bool("fix") {
		return reports, err
	}
	alone, aloneErr := checkAlone(c.Context)
	if aloneErr != nil {
		return nil, api.NewError(api.KindUnreachable, fmt.Sprintf("%v; without it nothing can be checked, either: %v", err, aloneErr))
	}
	return alone, nil
}

// checkAlone runs `virtlvmd -check`: the program that lies beside this one, or is found as
// usual.
func checkAlone(ctx context.Context) ([]api.CheckReport, error) {
	dir, err := os.MkdirTemp("", "virtlvm-")
	if err != nil {
		return nil, fmt.Errorf("cannot make a folder for the output of virtlvmd: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // ours alone, and temporary
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/bin")
	if self, err := os.Executable(); err == nil {
		dirs = append([]string{filepath.Dir(self)}, dirs...)
	}
	res, err := run.NewExec(run.ExecOptions{Dirs: dirs, OutDir: dir}).Run(ctx, run.Cmd{Name: "virtlvmd", Args: []string{"-check"}, Timeout: slow})
	var exit *run.ExitError
	var missing *run.NotFoundError
	switch {
	case errors.As(err, &missing):
		return nil, errors.New("virtlvmd is not installed")
	case errors.As(err, &exit):
		return nil, errors.New(strings.TrimPrefix(strings.TrimSpace(exit.Stderr), "virtlvmd: "))
	case err != nil:
		return nil, err
	}
	var reports []api.CheckReport
	if err := json.Unmarshal(res.Stdout, &reports); err != nil || len(reports) == 0 {
		return nil, errors.New("virtlvmd -check printed no report; compare `virtlvm version` and `virtlvmd -version`")
	}
	return reports, nil
}

// audible leaves out what is right, where that is asked for.
func audible(reports []api.CheckReport, quiet bool) []api.CheckReport {
	if !quiet {
		return reports
	}
	out := make([]api.CheckReport, len(reports))
	for i, r := range reports {
		out[i] = r
		out[i].Results = []api.CheckResult{}
		for _, line := range r.Results {
			if line.State != api.CheckPass && line.State != api.CheckSkip {
				out[i].Results = append(out[i].Results, line)
			}
		}
	}
	return out
}

// failed reports whether anything is not right. A state that is not known is not.
func failed(reports []api.CheckReport) bool {
	for _, r := range reports {
		for _, line := range r.Results {
			switch line.State {
			case api.CheckPass, api.CheckWarn, api.CheckSkip:
			default:
				return true
			}
		}
	}
	return false
}

// checks prints reports, with the name of the host before each where there are several.
func (p *program) checks(reports []api.CheckReport) error {
	first := true
	for _, r := range reports {
		if len(reports) > 1 && len(r.Results) > 0 {
			if !first {
				p.printf("\n")
			}
			first = false
			p.printf("%s:\n", cell(r.Host))
		}
		for _, result := range r.Results {
			p.checkLine(result)
		}
	}
	return nil
}

// checkLine prints one check as virt-host-validate does, and what to do below it.
func (p *program) checkLine(r api.CheckResult) {
	p.printf("%8s: Checking %-54s: %s", line(r.Group), line(r.Title), line(r.State))
	if r.Detail != "" {
		p.printf(" (%s)", line(r.Detail))
	}
	p.printf("\n")
	if r.Fix != "" {
		p.printf("%8s  -> %s\n", "", line(r.Fix))
	}
}
