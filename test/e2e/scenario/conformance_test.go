//go:build e2e

package scenario

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
	"virtlvm/test/san/conformance"
)

// conform runs the list of LVM commands by which the fake SAN is judged, on the real
// hosts, and compares with the same expectations.
func conform(e *env) {
	var skip []string
	// Reports and messages that are given as LVM 2.03.31 prints them.
	if e.must(e.a, "dpkg --compare-versions \"$(dpkg-query -f '${Version}' -W lvm2)\" ge 2.03.31 || echo old") == "old" {
		skip = append(skip, "lvm31")
	}
	transcript, err := conformance.Run(e.ctx, shell{e.c}, conformance.Options{Skip: skip})
	require.NoError(e, err)
	require.NotEmpty(e, transcript)
	e.Logf("%d commands compared", len(transcript))
	if diff := transcript.Diff(); diff != "" {
		e.Errorf("the real hosts do something else:\n%s", diff)
	}
}

// shell runs the list's commands over ssh.
type shell struct{ c *cluster.Cluster }

func (s shell) Run(ctx context.Context, host, commandLine string) (stdout, stderr string, exit int, err error) {
	for _, h := range []*cluster.Host{s.c.A, s.c.B} {
		if h.Name == host {
			r, err := h.Run(ctx, "export LC_ALL=C LVM_SUPPRESS_FD_WARNINGS=1; "+commandLine)
			return r.Stdout, r.Stderr, r.Exit, err
		}
	}
	return "", "", 0, fmt.Errorf("no host %s", host)
}
