//go:build e2e

package scenario

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// unclaimed is the volume group without lvmlockd, on the second LUN.
const unclaimed = "vg_old"

// unsafeClaims: a volume group without lvmlockd that both hosts see and are told to claim
// among themselves. A guest on it runs on one host, migrates, and after a power cut starts
// elsewhere only when the dead host is declared fenced.
func unsafeClaims(e *env) {
	v := e.claimable()
	e.define(disk("claims", v), e.a, e.b)
	e.start(e.a, "claims")
	e.counts(e.a, v)
	e.claimed(v, held{e.a.Name: cluster.ModeEX})
	e.refused(e.b, "claims", v.Full()+" is claimed exclusively by "+e.a.Name+" for guest claims")
	require.False(e, e.hasDevice(e.b, v))
	for _, h := range e.hosts {
		require.Equal(e, api.CheckPass, e.results(h)["lvm.claims"].State, h.Name)
	}

	r := e.whileMoving(e.a, e.b, "claims", func(undo func()) {
		e.claimed(v, held{e.a.Name: cluster.ModeSH, e.b.Name: cluster.ModeSH})
		undo()
	})
	require.Zero(e, r.Exit, r.Output())
	e.claimed(v, held{e.b.Name: cluster.ModeEX})
	e.counts(e.b, v)
	require.False(e, e.hasDevice(e.a, v))
	e.refused(e.a, "claims", v.Full()+" is claimed exclusively by "+e.b.Name)
	r = e.migrate(e.b, e.a, "claims")
	require.Zero(e, r.Exit, r.Output())
	e.claimed(v, held{e.a.Name: cluster.ModeEX})

	require.NoError(e, e.a.Kill())
	e.refused(e.b, "claims", e.a.Name+" is a member of "+unclaimed+" and does not say", "virtlvm host fenced "+e.a.Name)
	e.Logf("%s", e.must(e.b, "virtlvm host fenced "+e.a.Name))
	require.Equal(e, api.CheckWarn, e.results(e.b)["lvm.claims"].State)
	e.start(e.b, "claims")
	e.counts(e.b, v)

	// It is back with another boot, and asked.
	var err error
	e.meanwhile(func() { err = e.a.Boot(e.ctx) })
	require.NoError(e, err)
	require.NoError(e, e.a.StartLockspace(e.ctx))
	e.define(disk("claims", v), e.a)
	require.NoError(e, cluster.Eventually(e.ctx, 2*time.Minute, func() error {
		r, err := e.a.Virsh(e.ctx, "start", "claims")
		if err == nil && r.Exit == 0 {
			e.Fatalf("claims runs on both hosts")
		}
		if want := "is claimed exclusively by " + e.b.Name; err == nil && !strings.Contains(r.Stderr, want) {
			err = fmt.Errorf("not yet: %s", r.Output())
		}
		return err
	}))
	e.claimed(v, held{e.b.Name: cluster.ModeEX})
	e.destroy(e.b, "claims")
	e.claimed(v, held{})
}

// claimable makes the volume group with one bootable volume, and has both hosts claim it. In
// the end all is as it was.
func (e *env) claimable() cluster.Volume {
	e.Helper()
	require.NoError(e, e.c.RemoveSecond(e.ctx))
	section := fmt.Sprintf("[vg.%s]\\nunsafe_claims = true\\nmembers = [\"%s\", \"%s\"]\\n", unclaimed, e.a.Name, e.b.Name)
	e.Cleanup(func() {
		ctx := context.WithoutCancel(e.ctx)
		for _, h := range e.hosts {
			_, err := h.Run(ctx, "virsh destroy claims; virsh undefine claims; vgchange -an "+unclaimed+
				"; [ ! -e /root/virtlvm.toml ] || mv /root/virtlvm.toml /etc/virtlvm/; systemctl reload virtlvmd")
			require.NoError(e, err)
		}
		_, err := e.a.Run(ctx, "vgremove -qq -y "+unclaimed)
		require.NoError(e, err)
	})
	e.must(e.a, "vgcreate -qq -y --setautoactivation n "+unclaimed+" /dev/vdc && lvcreate -qq -y -an -Wn -Zn -L 32m -n claims "+unclaimed)
	v := cluster.Volume{Group: unclaimed, Name: "claims"}
	require.NoError(e, e.a.MakeBootable(e.ctx, v))
	for _, h := range e.hosts {
		e.must(h, "cp /etc/virtlvm/virtlvm.toml /root/ && printf '"+section+"' >>/etc/virtlvm/virtlvm.toml && virtlvm config check && systemctl reload virtlvmd")
	}
	return v
}

// claimed waits until both hosts tell who claims a volume, as the members say.
func (e *env) claimed(v cluster.Volume, want held) {
	e.Helper()
	for _, asked := range e.hosts {
		require.NoError(e, cluster.Eventually(e.ctx, 2*time.Minute, func() error {
			var l api.Lock
			if err := asked.Ask(e.ctx, &l, "lock", "show", v.Full()); err != nil {
				return err
			}
			told := held{}
			for _, h := range l.Hosts {
				told[h.Host] = h.Mode
			}
			if l.Known != api.KnownPeers || !maps.Equal(told, want) {
				return fmt.Errorf("lock show %s on %s: known by %s (%s), told %v, wanted %v", v.Full(), asked.Name, l.Known, l.Problem, told, want)
			}
			return nil
		}))
	}
}

func (e *env) hasDevice(h *cluster.Host, v cluster.Volume) bool {
	e.Helper()
	return e.must(h, "dmsetup info -c --noheadings -o name | grep -cx "+v.Group+"-"+v.Name+" || true") != "0"
}
