package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/peer"
	"virtlvm/internal/run"
)

// maxPeers is the most hosts that a lockspace of sanlock can have.
const maxPeers = 2000

// hostKeyDir is where the ssh server keeps its keys (sshd_config(5), HostKey).
const hostKeyDir = "/etc/ssh"

func (p *program) peerCommand() *cli.Command {
	return &cli.Command{
		Name: "peer", Usage: "let the daemons of other hosts in, and test the way to them", UsageText: "virtlvm peer authorize | virtlvm peer test [NAME...]",
		Description: description("For a live migration the daemons of both hosts speak with each other by ssh.", "virtlvm peer test"),
		Subcommands: []*cli.Command{{
			Name: "authorize", Usage: "print what the other hosts need to let this one in", UsageText: "virtlvm peer authorize",
			Description: description("Makes the key of this host's daemon where it is missing and prints the line for\nauthorized_keys and the lines for known_hosts of every other host. As root.",
				"virtlvm peer authorize"),
			Action: p.peerAuthorize,
		}, {
			Name: "test", Usage: "connect with the daemons of other hosts", UsageText: "virtlvm peer test [NAME...]",
			Description: description("Connects as the daemon does, with all known hosts or those named, and says what works or\nwhat is wrong and what to do. Exits with 9 when a host cannot be reached. As root.",
				"virtlvm peer test kvm-b"),
			Action: p.peerTest,
		}},
		Action: func(c *cli.Context) error {
			return usageError("wrong usage; usage: %s", c.Command.UsageText)
		},
	}
}

func (p *program) peerAuthorize(c *cli.Context) error {
	if err := argsHere(c, 0, 0); err != nil {
		return err
	}
	known, err := ask(c, quick, (*client.Client).Peers)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "virtlvm-")
	if err != nil {
		return fmt.Errorf("cannot make a folder for the output of ssh-keygen: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // ours alone, and temporary
	a, err := peer.Authorize(c.Context, run.NewExec(run.ExecOptions{OutDir: dir}), known.Host, known.SSHDir, hostKeyDir)
	if err != nil {
		return err
	}
	return show(p, c, a, func(a peer.Authorization) error {
		p.printf("# On every other host, into ~root/.ssh/authorized_keys:\n%s\n\n", a.AuthorizedKeys)
		p.printf("# On every other host, into %s/known_hosts (where it is reached by another name or\n# port than %s, write that first: ADDRESS or [ADDRESS]:PORT):\n", known.SSHDir, a.Host)
		for _, key := range a.KnownHosts {
			p.printf("%s\n", key)
		}
		if len(a.KnownHosts) == 0 {
			p.printf("# none: this host has no keys of an ssh server in %s; install openssh-server\n", hostKeyDir)
		}
		return nil
	})
}

// peerResult is one host in the JSON of `peer test`. Durations are in nanoseconds.
type peerResult struct {
	Name    string        `json:"name"`
	URL     string        `json:"url,omitempty"`
	OK      bool          `json:"ok"`
	Connect time.Duration `json:"connect"` // until the daemon there has told its version
	Latency time.Duration `json:"latency"` // of a question after that
	Version *api.Version  `json:"version"` // null when it is not known
	Error   string        `json:"error,omitempty"`
}

// peerReport is the JSON of `peer test`.
type peerReport struct {
	Host    string       `json:"host"`
	Peers   []peerResult `json:"peers"`
	Problem string       `json:"problem,omitempty"` // why not all hosts are known
}

func (p *program) peerTest(c *cli.Context) error {
	if err := argsHere(c, 0, maxPeers); err != nil {
		return err
	}
	known, err := ask(c, quick, (*client.Client).Peers)
	if err != nil {
		return err
	}
	names := c.Args().Slice()
	report := peerReport{Host: known.Host, Peers: []peerResult{}}
	if len(names) == 0 {
		report.Problem = known.Problem
	}
	urls := map[string]string{}
	for _, k := range known.Peers {
		urls[k.Name] = k.URL
		if c.NArg() == 0 {
			names = append(names, k.Name)
		}
	}
	for _, name := range names {
		if os.Geteuid() != 0 && strings.HasPrefix(urls[name], "ssh://") {
			return api.NewError(api.KindForbidden, "run this as root: the key of the daemon is root's")
		}
	}
	report.Peers = probe(c.Context, known, urls, names)
	if err := show(p, c, report, p.peerReport); err != nil {
		return err
	}
	bad := report.Problem != ""
	for _, r := range report.Peers {
		bad = bad || !r.OK
	}
	if bad {
		return problemsFound{}
	}
	return nil
}

// probe connects with each host as the daemon does.
func probe(ctx context.Context, known api.Peers, urls map[string]string, names []string) []peerResult {
	const parallel = 16
	peers := peer.New(peer.Options{
		Self: func() string { return known.Host },
		Config: func() peer.Config {
			return peer.Config{
				Hosts: urls, SSHDir: known.SSHDir, Parallel: parallel,
				ConnectTimeout: known.ConnectTimeout, CallTimeout: 3*known.ConnectTimeout + time.Second,
			}
		},
		Log: slog.New(slog.DiscardHandler),
	})
	defer peers.Close()
	reports := map[string]peer.Report{}
	var mu sync.Mutex
	failed := peers.Each(ctx, names, func(ctx context.Context, name string) error {
		r, err := peers.Probe(ctx, name)
		mu.Lock()
		defer mu.Unlock()
		reports[name] = r
		return err
	})
	results := make([]peerResult, len(names))
	for i, name := range names {
		r, err := reports[name], failed[name]
		results[i] = peerResult{Name: name, URL: urls[name], OK: err == nil, Connect: r.Connect, Latency: r.Latency}
		if r.Version != (api.Version{}) {
			results[i].Version = &r.Version
		}
		if err != nil {
			results[i].Error = err.Error()
		}
	}
	return results
}

func (p *program) peerReport(r peerReport) error {
	if r.Problem != "" {
		p.printf("not all hosts are known: %s\n", line(r.Problem))
	}
	if len(r.Peers) == 0 {
		p.printf("no peers\n")
		return nil
	}
	var rows [][]string
	for _, host := range r.Peers {
		result := host.Error
		if host.OK {
			result = fmt.Sprintf("ok: virtlvm %s, answers in %s, connected in %s", host.Version.Version, took(host.Latency), took(host.Connect))
		}
		rows = append(rows, []string{host.Name, host.URL, result})
	}
	return p.table("PEER|ADDRESS|RESULT", rows)
}
