//go:build e2e

package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/test/e2e/cluster"
)

// patience is how long a scenario waits for what comes by itself: within seconds, where nothing
// else runs beside the emulated hosts.
const patience = 90 * time.Second

// env is what one scenario works with. Its methods fail the test by themselves.
type env struct {
	*testing.T
	disks
	ctx   context.Context
	c     *cluster.Cluster
	a, b  *cluster.Host
	hosts []*cluster.Host // that take part
}

// define makes a guest known on hosts.
func (e *env) define(g cluster.Guest, hosts ...*cluster.Host) {
	e.Helper()
	defines := make([]func() error, 0, len(hosts))
	for _, h := range hosts {
		defines = append(defines, func() error { return h.Define(e.ctx, g) })
	}
	require.NoError(e, cluster.Together(defines...))
}

// start starts a guest that must start.
func (e *env) start(h *cluster.Host, guest string) {
	e.Helper()
	r, err := h.Virsh(e.ctx, "start", guest)
	require.NoError(e, err)
	require.Zero(e, r.Exit, "virsh start %s on %s: %s", guest, h.Name, r.Output())
	e.Logf("start %s on %s: %.1f s", guest, h.Name, r.Duration.Seconds())
}

// destroy ends a guest.
func (e *env) destroy(h *cluster.Host, guest string) {
	e.Helper()
	r, err := h.Virsh(e.ctx, "destroy", guest)
	require.NoError(e, err)
	require.Zero(e, r.Exit, "virsh destroy %s on %s: %s", guest, h.Name, r.Output())
	e.Logf("destroy %s on %s: %.1f s", guest, h.Name, r.Duration.Seconds())
}

// refused starts a guest that must not start, and checks what the administrator reads.
func (e *env) refused(h *cluster.Host, guest string, words ...string) cluster.Result {
	e.Helper()
	r, err := h.Virsh(e.ctx, "start", guest)
	require.NoError(e, err)
	require.NotZero(e, r.Exit, "%s started on %s", guest, h.Name)
	e.Logf("refused on %s after %.1f s: %s", h.Name, r.Duration.Seconds(), r.Output())
	for _, w := range words {
		require.Contains(e, r.Stderr, w)
	}
	running, err := h.Guests(e.ctx, true)
	require.NoError(e, err)
	require.NotContains(e, running, guest)
	return r
}

// holds waits until a host holds a volume in a mode, by its lvmlockd, by the lease on disk
// as the other host reads it, and with the device there.
func (e *env) holds(h *cluster.Host, v cluster.Volume, mode string) {
	e.Helper()
	require.NoError(e, cluster.Eventually(e.ctx, patience, func() error { return e.check(h, v, mode) }))
}

func (e *env) check(h *cluster.Host, v cluster.Volume, mode string) error {
	reader := h
	for _, other := range e.hosts {
		if other != h && other.Running() {
			reader = other
		}
	}
	var state cluster.State
	var lease cluster.Lease
	err := cluster.Together(
		func() (err error) { state, err = h.State(e.ctx); return err },
		func() (err error) { lease, err = reader.Lease(e.ctx, v); return err },
	)
	if err != nil {
		return err
	}
	byLease := cluster.ModeOff
	switch {
	case lease.EX == h.ID:
		byLease = cluster.ModeEX
	case slices.Contains(lease.SH, h.ID):
		byLease = cluster.ModeSH
	}
	if state.Mode(v) != mode || byLease != mode || state.Devices[v.Full()] != (mode != cluster.ModeOff) {
		return fmt.Errorf("%s on %s should be %s: lvmlockd says %s, the lease says %s, device there: %v",
			v.Full(), h.Name, mode, state.Mode(v), lease, state.Devices[v.Full()])
	}
	return nil
}

// released waits until volumes are off on the hosts that run.
func (e *env) released(volumes ...cluster.Volume) {
	e.Helper()
	for _, v := range volumes {
		require.NoError(e, cluster.Eventually(e.ctx, patience, func() error {
			for _, h := range e.hosts {
				if !h.Running() {
					continue
				}
				if err := e.check(h, v, cluster.ModeOff); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// counts proves that a guest with the boot sector runs: its counter grows.
func (e *env) counts(h *cluster.Host, v cluster.Volume) {
	e.Helper()
	var first uint32
	require.NoError(e, cluster.Eventually(e.ctx, patience, func() error {
		n, err := h.Counter(e.ctx, v)
		switch {
		case err != nil:
			return err
		case first == 0:
			first = n
		case n > first:
			return nil
		}
		return fmt.Errorf("the guest on %s does not write: its counter stays %d", h.Name, n)
	}))
}

// must runs a command on a host.
func (e *env) must(h *cluster.Host, command string) string {
	e.Helper()
	out, err := h.Must(e.ctx, command)
	require.NoError(e, err)
	return strings.TrimSpace(out)
}

// disk is a guest with one raw disk on a volume.
func disk(name string, v cluster.Volume) cluster.Guest {
	return cluster.Guest{Name: name, Disks: []cluster.Disk{{Source: v.Path()}}}
}
