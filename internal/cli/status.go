package cli

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

func (p *program) statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "show this host at a glance", UsageText: "virtlvm status",
		Description: description("Shows the daemon, its database, the locks, every volume group, volumes that are not in\ntheir wanted mode (PENDING: since when, what is tried next and when, why the last try\nfailed) and problems. Exits with 9 when anything needs attention, so that it can serve as a\ncheck of a monitoring system. If break-glass is on, the first line says so.",
			"virtlvm status || mail -s 'virtlvm needs you' root"),
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			status, err := ask(c, quick, (*client.Client).Status)
			if err != nil {
				return err
			}
			if err := show(p, c, status, p.status); err != nil {
				return err
			}
			if needsAttention(status) {
				return problemsFound{}
			}
			return nil
		},
	}
}

// needsAttention decides the exit code. Until the first look is done nothing is known,
// and unknown is not good.
func needsAttention(s api.Status) bool {
	for _, vg := range s.VGs {
		if vg.Stuck != "" {
			return true
		}
	}
	return s.BreakGlass || !s.Ready || s.Database != "ok" || s.Lockd != "ok" ||
		len(s.Pending) > 0 || len(s.Problems) > 0 || s.Spool.Broken > 0
}

func (p *program) status(s api.Status) error {
	if s.BreakGlass {
		p.printf("BREAK GLASS IS ON: GUESTS START UNPROTECTED UNTIL %s IS REMOVED\n", api.BreakGlassPath)
	}
	p.field("host", s.Host)
	daemon := fmt.Sprintf("%s (%s), running since %s", s.Version.Version, s.Version.Commit, stamp(s.Started))
	if !s.Ready {
		daemon += ", still taking its first look"
	}
	p.field("daemon", daemon)
	p.field("database", s.Database)
	p.field("locks", s.Lockd)
	p.field("guests", fmt.Sprintf("%d running", s.Guests))
	holds := fmt.Sprintf("%d exclusive, %d shared, %d ending", s.Holds.Exclusive, s.Holds.Shared, s.Holds.Ending)
	if s.Holds.Retained > 0 {
		holds += fmt.Sprintf(" (%d retained)", s.Holds.Retained)
	}
	p.field("holds", holds)
	p.field("spool", fmt.Sprintf("%d waiting, %d broken", s.Spool.Waiting, s.Spool.Broken))

	if s.Commands != (api.CommandSummary{}) {
		p.field("commands", fmt.Sprintf("%d running, %d being found out, %d given up, %d not yet told to the other host", s.Commands.Running, s.Commands.Unresolved, s.Commands.Skipped, s.Commands.Unsent))
	}

	p.printf("\n")
	if err := p.groups(s.VGs); err != nil {
		return err
	}
	if len(s.Pending) > 0 {
		p.printf("\nPENDING\n")
		if err := p.pending(s.Pending); err != nil {
			return err
		}
	}
	if len(s.Problems) > 0 {
		p.printf("\nPROBLEMS\n")
		for _, problem := range s.Problems {
			p.printf("- %s\n", line(problem))
		}
	}
	if len(s.Events) > 0 {
		p.printf("\nNOTICED (done by others, not by virtlvm)\n")
		for _, e := range s.Events {
			p.printf("- %s %s\n", stamp(e.At), line(e.Text))
		}
	}
	return nil
}

func (p *program) groups(vgs []api.VG) error {
	if len(vgs) == 0 {
		p.printf("no volume groups\n")
		return nil
	}
	rows := make([][]string, 0, len(vgs))
	for _, vg := range vgs {
		rows = append(rows, []string{
			vg.Name, vg.LockType, yesNo(vg.InScope), vg.Lockspace, number(vg.Volumes), number(vg.Held), vg.Stuck,
		})
	}
	return p.table("VG|LOCK TYPE|IN SCOPE|LOCKSPACE|VOLUMES|HELD|STUCK", rows)
}

func (p *program) pending(pending []api.Unwanted) error {
	rows := make([][]string, 0, len(pending))
	for _, u := range pending {
		rows = append(rows, []string{u.Volume, u.Guest, u.Wanted, u.Actual, stamp(u.Since), next(u), stamp(u.Failed), u.Reason})
	}
	return p.table("VOLUME|GUEST|WANTED|ACTUAL|SINCE|NEXT|LAST TRY|REASON", rows)
}

// next is what is tried next for a volume, and when.
func next(u api.Unwanted) string {
	switch {
	case u.Next == "":
		return ""
	case u.NextTry.IsZero():
		return u.Next + " now"
	}
	return u.Next + " at " + u.NextTry.Local().Format(time.TimeOnly)
}
