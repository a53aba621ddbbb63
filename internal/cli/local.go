package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/config"
	"virtlvm/internal/version"
)

func (p *program) configCommand() *cli.Command {
	return &cli.Command{
		Name: "config", Usage: "check the configuration", UsageText: "virtlvm config check [FILE]",
		Description: description("See virtlvm.toml(5) for every key.", "virtlvm config check"),
		Subcommands: []*cli.Command{{
			Name: "check", Usage: "check a configuration file", UsageText: "virtlvm config check [FILE]",
			Description: description("Reads the file ("+config.DefaultPath+" unless another is named) as the daemon\nwould and prints every mistake with its line. The daemon is not asked. Exits with 9 when\nthere are mistakes.",
				"virtlvm config check && systemctl reload virtlvmd"),
			Action: p.configCheck,
		}},
		Action: func(c *cli.Context) error {
			return usageError("wrong usage; usage: %s", c.Command.UsageText)
		},
	}
}

// configReport is the JSON of `config check`.
type configReport struct {
	File     string          `json:"file"`
	Missing  bool            `json:"missing"` // there is no such file: all defaults
	Problems []configProblem `json:"problems"`
}

type configProblem struct {
	Line    int    `json:"line"`
	Message string `json:"message"`
}

func (p *program) configCheck(c *cli.Context) error {
	if err := argsHere(c, 0, 1); err != nil {
		return err
	}
	report := configReport{File: config.DefaultPath, Problems: []configProblem{}}
	if c.Args().Present() {
		report.File = c.Args().First()
	}
	_, err := os.Stat(report.File)
	report.Missing = errors.Is(err, fs.ErrNotExist)
	// The daemon takes a missing file for defaults; one that was named is a wrong name.
	if err != nil && (c.Args().Present() || !report.Missing) {
		return unreadable(err)
	}
	var refused *config.Error
	if _, err := config.Load(report.File); errors.As(err, &refused) {
		for _, problem := range refused.Problems {
			report.Problems = append(report.Problems, configProblem{problem.Line, problem.Message})
		}
	} else if err != nil {
		return unreadable(err)
	}
	if err := show(p, c, report, p.configReport); err != nil {
		return err
	}
	if len(report.Problems) > 0 {
		return problemsFound{}
	}
	return nil
}

func (p *program) configReport(r configReport) error {
	for _, problem := range r.Problems {
		p.printf("%s:%d: %s\n", line(r.File), problem.Line, line(problem.Message))
	}
	switch {
	case r.Missing:
		p.printf("%s: ok (no such file, so all defaults)\n", line(r.File))
	case len(r.Problems) == 0:
		p.printf("%s: ok\n", line(r.File))
	}
	return nil
}

// unreadable gives an error of the file system the kind that fits.
func unreadable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.NewError(api.KindNotFound, err.Error())
	case errors.Is(err, fs.ErrPermission):
		return api.NewError(api.KindForbidden, err.Error())
	}
	return err
}

// versions is the JSON of `version`.
type versions struct {
	Client api.Version  `json:"client"`
	Daemon *api.Version `json:"daemon"`          // null when it cannot be reached
	Error  string       `json:"error,omitempty"` // why not
}

func (p *program) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "show the versions of this program and of the daemon", UsageText: "virtlvm version",
		Description: description("The daemon's version is shown where it can be reached; it is no error if not.", "virtlvm version --json"),
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			v := versions{Client: api.Version{
				Version: version.Version, Commit: version.Commit,
				ProtocolMajor: api.ProtocolMajor, ProtocolMinor: api.ProtocolMinor,
			}}
			daemon, err := ask(c, quick, (*client.Client).Version)
			switch {
			case api.KindOf(err) == api.KindBadRequest:
				return err
			case err != nil:
				v.Error = err.Error()
			default:
				v.Daemon = &daemon
			}
			return show(p, c, v, p.versions)
		},
	}
}

func (p *program) versions(v versions) error {
	p.field("virtlvm", fmt.Sprintf("%s (%s), protocol %d.%d", v.Client.Version, v.Client.Commit, v.Client.ProtocolMajor, v.Client.ProtocolMinor))
	if v.Daemon == nil {
		p.field("virtlvmd", "not reached: "+v.Error)
		return nil
	}
	p.field("virtlvmd", fmt.Sprintf("%s (%s), protocol %d.%d, schema %d", v.Daemon.Version, v.Daemon.Commit, v.Daemon.ProtocolMajor, v.Daemon.ProtocolMinor, v.Daemon.Schema))
	return nil
}
