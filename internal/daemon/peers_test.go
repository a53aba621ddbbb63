package daemon

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/config"
)

// host is kvm-a, in a lockspace with some live hosts and a configuration with others.
func host(t *testing.T, discover bool, live []string, listed ...string) *Daemon {
	t.Helper()
	d := &Daemon{host: "kvm-a", log: slog.New(slog.DiscardHandler)}
	cfg := config.Default()
	cfg.Peers.Discover = discover
	for _, name := range listed {
		cfg.Peers.Hosts[name] = "ssh://root@" + name
	}
	d.config.Store(cfg)
	d.live.names, d.live.at = live, time.Now()
	return d
}

func TestWhoIsAPeer(t *testing.T) {
	d := host(t, true, []string{"kvm-a", "kvm-b"}, "kvm-c")
	for name, ok := range map[string]bool{"kvm-b": true, "kvm-c": true, "kvm-x": false, "KVM-B": false, "kvm-b.": false, "": false} {
		err := d.peerAllowed(t.Context(), name)
		if ok {
			require.NoError(t, err, name)
			continue
		}
		require.Error(t, err, name)
		assert.Equal(t, api.KindForbidden, api.KindOf(err), name)
	}
	require.ErrorContains(t, d.peerAllowed(t.Context(), "kvm-a"), "kvm-a is this host's own name")
	assert.EqualError(t, d.peerAllowed(t.Context(), "kvm-x"), "kvm-x is no live host of a lockspace of kvm-a (kvm-a, kvm-b)")
}

// A daemon that has not looked yet knows no host: it waits, and neither refuses one nor goes on
// doing so when it has looked.
func TestWhoIsAPeerIsNotKnownYet(t *testing.T) {
	d := host(t, true, nil)
	d.live.at = time.Time{}
	d.engine = activation.New(activation.Deps{Now: time.Now})
	ctx, done := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer done()
	err := d.peerAllowed(ctx, "kvm-b")
	require.ErrorContains(t, err, "cannot tell whether kvm-b is a host of the cluster")
	assert.Equal(t, api.KindLocking, api.KindOf(err))
	require.Error(t, ctx.Err(), "it has waited")
	d.live.names, d.live.at = []string{"kvm-a", "kvm-b"}, time.Now()
	require.NoError(t, d.peerAllowed(t.Context(), "kvm-b"))
}

// A host of a lockspace that cannot be read is no stranger: it is not known.
func TestWhoIsAPeerIsKnownInPart(t *testing.T) {
	d := host(t, true, []string{"kvm-a", "kvm-b"})
	d.engine = activation.New(activation.Deps{Now: time.Now})
	d.live.more = api.NewError(api.KindLocking, "cannot read the hosts of volume group vg_two")
	require.NoError(t, d.peerAllowed(t.Context(), "kvm-b"))
	ctx, done := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer done()
	err := d.peerAllowed(ctx, "kvm-x")
	require.EqualError(t, err, "cannot tell whether kvm-x is a host of the cluster: cannot read the hosts of volume group vg_two")
	assert.Equal(t, api.KindLocking, api.KindOf(err))
	assert.Equal(t, []string{"kvm-b"}, d.otherHosts(t.Context()))
}

func TestOtherHosts(t *testing.T) {
	assert.ElementsMatch(t, []string{"kvm-b", "kvm-c"}, host(t, true, []string{"kvm-a", "kvm-b"}, "kvm-c").otherHosts(t.Context()))
	assert.ElementsMatch(t, []string{"kvm-c"}, host(t, false, []string{"kvm-a", "kvm-b"}, "kvm-c").otherHosts(t.Context()))
	assert.Empty(t, host(t, true, []string{"kvm-a"}).otherHosts(t.Context()))
}

func TestOurHostName(t *testing.T) {
	for name, tt := range map[string]struct{ conf, want string }{
		"set":       {"# our_host_name = kvm-z\nio_timeout = 10\n our_host_name=kvm-a \n", "kvm-a"},
		"spaced":    {"our_host_name = kvm-a\n", "kvm-a"},
		"commented": {"#our_host_name = kvm-a\n", ""},
		"not set":   {"io_timeout = 10\n", ""},
		"empty":     {"", ""},
	} {
		path := filepath.Join(t.TempDir(), "sanlock.conf")
		require.NoError(t, os.WriteFile(path, []byte(tt.conf), 0o600))
		assert.Equal(t, tt.want, ourHostName(path), name)
	}
	assert.Empty(t, ourHostName(filepath.Join(t.TempDir(), "none")))
}
