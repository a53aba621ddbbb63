package relay

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

func TestSSHCommandLine(t *testing.T) {
	const common = "-o BatchMode=yes -o ConnectTimeout=%s -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -o RemoteCommand=none -o LogLevel=INFO "
	for _, tt := range []struct {
		target  string
		connect time.Duration
		options []string
		want    string
	}{
		{"kvm-b", 5 * time.Second, nil, "-T " + strings.Replace(common, "%s", "5", 1) + "-- kvm-b virtlvm relay"},
		{"ssh://root@kvm-b:2222", 1200 * time.Millisecond, []string{"IdentitiesOnly=yes"}, "-T -o IdentitiesOnly=yes " + strings.Replace(common, "%s", "2", 1) + "-l root -p 2222 -- kvm-b virtlvm relay"},
		{"ssh://[fe80::1]", 0, nil, "-T " + strings.Replace(common, "%s", "1", 1) + "-- fe80::1 virtlvm relay"},
	} {
		target, err := api.ParseTarget(tt.target)
		require.NoError(t, err)
		cmd, err := SSH(target, tt.connect, tt.options, "virtlvm", "relay")
		require.NoError(t, err)
		assert.Equal(t, "ssh", cmd.Name)
		assert.Equal(t, tt.want, strings.Join(cmd.Args, " "))
	}
}

// Nothing that could be an option of ssh or a second command of the shell gets through,
// whatever made the target.
func TestSSHRefusesInjection(t *testing.T) {
	good := api.Target{Host: "kvm-b"}
	for _, target := range []api.Target{
		{},
		{Socket: "/s"},
		{Host: "-oProxyCommand=id"},
		{Host: "kvm-b\n-oProxyCommand=id"},
		{Host: "a b"},
		{Host: "$(id)"},
		{Host: "kvm-b", User: "-oProxyCommand=id"},
		{Host: "kvm-b", User: "root kvm-c"},
		{Host: "kvm-b", Port: -1},
		{Host: "kvm-b", Port: 70000},
		{Host: "kvm-b", Socket: "/s"},
	} {
		_, err := SSH(target, time.Second, nil, "virtlvm", "relay")
		require.Error(t, err, "%+v", target)
	}
	for _, word := range []string{"", "a b", "kvm-a;id", "kvm-a\n", "$(id)", "`id`", "a'b", `a"b`, "a|b", "a&b", "a>b", "~", "*"} {
		_, err := SSH(good, time.Second, nil, "virtlvm", "relay", "--peer", word)
		require.Error(t, err, "%q", word)
	}
}
