package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
)

func (p *program) locksCommand() *cli.Command {
	return &cli.Command{
		Name: "locks", Usage: "show who holds which volume in the whole cluster", UsageText: "virtlvm locks [VG] [--cluster | --stale]",
		Description: description("Lists every volume of the volume groups in scope, or of one, with each host that holds it:\none line for each, read from the leases on the shared storage at once. STATE is sanlock's\nview of that host: live, fail, dead or unknown. ACTIVE, OPEN, USE and GUESTS are known of this\nhost; with --cluster every host is asked for its own, and hosts that have a volume active\nwithout its lock show as well (MODE off). KNOWN says how it is known who holds the volume:\n`lease`; where that cannot be read, `hint` (the recorded host was asked) or `peers` (all were);\n`unknown` if a host did not answer. --stale lists recorded holders that a look has found wrong.",
			"virtlvm locks vg_san --cluster"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "cluster", Usage: "ask every host what it has of the volumes"},
			&cli.BoolFlag{Name: "stale", Usage: "list recorded holders that were wrong"},
		},
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 1); err != nil {
				return err
			}
			vg := c.Args().First()
			if c.Bool("stale") {
				if c.Bool("cluster") {
					return usageError("--cluster and --stale exclude each other")
				}
				return lookMany(p, c, quick, "stale hints", func(d *client.Client, ctx context.Context) ([]api.StaleHint, error) {
					return d.StaleHints(ctx, vg)
				}, p.stale)
			}
			return lookMany(p, c, slow, "volumes", func(d *client.Client, ctx context.Context) ([]api.Lock, error) {
				return d.Locks(ctx, vg, c.Bool("cluster"))
			}, p.locks)
		},
	}
}

func (p *program) locks(all []api.Lock) error {
	var rows [][]string
	for _, k := range all {
		note := lockNote(k)
		if len(k.Hosts) == 0 {
			host := ""
			if k.Known == api.KnownUnknown {
				host = "unknown"
			}
			rows = append(rows, []string{k.Volume, host, "", "", "", "", "", "", k.Known, note})
		}
		for _, h := range k.Hosts {
			rows = append(rows, []string{k.Volume, h.Host, h.Mode, hostState(h.State, h.FreeIn), h.Active, h.Open, h.Use, list(h.Guests), k.Known, note})
		}
	}
	return p.table("VOLUME|HOST|MODE|STATE|ACTIVE|OPEN|USE|GUESTS|KNOWN|NOTE", rows)
}

// lockNote is what is odd about a volume.
func lockNote(k api.Lock) string {
	var notes []string
	if k.Converting {
		notes = append(notes, "changing hands")
	}
	if k.Recorded != nil {
		was := "nobody"
		if k.Recorded.Host != "" {
			was = k.Recorded.Host + "(" + k.Recorded.Mode + ")"
		}
		notes = append(notes, fmt.Sprintf("last found: %s since %s", was, stamp(k.Recorded.At)))
	}
	for _, h := range k.Hosts {
		if h.Orphan {
			notes = append(notes, "orphaned lock on "+h.Host)
		}
	}
	if len(k.Silent) > 0 {
		notes = append(notes, "no answer from "+list(k.Silent))
	}
	if k.Problem != "" {
		notes = append(notes, k.Problem)
	}
	return strings.Join(notes, "; ")
}

func hostState(state string, freeIn int) string {
	if freeIn > 0 {
		return fmt.Sprintf("%s, free in %ds", state, freeIn)
	}
	return state
}

func (p *program) stale(hints []api.StaleHint) error {
	rows := make([][]string, 0, len(hints))
	for _, h := range hints {
		found := "nobody"
		switch {
		case h.Host != "":
			found = h.Host + "(" + h.Mode + ")"
		case h.Mode != "off":
			found = "several(" + h.Mode + ")"
		}
		rows = append(rows, []string{h.Volume, h.Was, found, stamp(h.At)})
	}
	return p.table("VOLUME|RECORDED|FOUND|AT", rows)
}

func (p *program) hostsCommand() *cli.Command {
	return &cli.Command{
		Name: "hosts", Usage: "list the hosts of the cluster", UsageText: "virtlvm hosts",
		Description: description("Lists the hosts of the lockspaces, and peers of the configuration. STATE is sanlock's: live,\nfail (it does not renew its leases, which become free in the time told), dead (also one that\nhas left), unknown; RENEWED is how long ago its lease was seen renewed. LATENCY and CLOCK, how\nfar its clock is ahead of this host's, come from its daemon, asked by the relay. EX and SH\ncount the volumes it holds, `?` where that cannot be told.",
			"virtlvm hosts"),
		Action: func(c *cli.Context) error {
			if err := args(c, 0, 0); err != nil {
				return err
			}
			return lookMany(p, c, slow, "hosts", (*client.Client).Hosts, p.hosts)
		},
	}
}

func (p *program) hosts(hosts []api.Host) error {
	rows := make([][]string, 0, len(hosts))
	for _, h := range hosts {
		name, id, age, latency, clock, version := h.Name, "", "", "", "", ""
		if h.Self {
			name += " (this)"
		}
		if h.HostID > 0 {
			id = number(h.HostID)
		}
		if h.Age >= 0 {
			age = fmt.Sprintf("%ds ago", h.Age)
		}
		if h.Daemon != nil {
			version = h.Daemon.Version
			if !h.Self {
				latency, clock = took(h.Daemon.Latency), ahead(h.Daemon.Clock)
			}
		}
		rows = append(rows, []string{name, id, list(h.VGs), hostState(h.State, h.FreeIn), age, latency, clock, version, known(h.Exclusive), known(h.Shared), h.Problem})
	}
	return p.table("HOST|ID|VGS|STATE|RENEWED|LATENCY|CLOCK|VERSION|EX|SH|PROBLEM", rows)
}

// ahead is a difference between clocks: "+3s", "-12ms", "same" below what can be told.
func ahead(d time.Duration) string {
	sign := "+"
	if d < 0 {
		sign, d = "-", -d
	}
	if d < time.Millisecond {
		return "same"
	}
	return sign + took(d)
}

func known(n int) string {
	if n < 0 {
		return "?"
	}
	return number(n)
}
