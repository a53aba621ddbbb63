package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/test/fakevirt"
)

// steps of one side, as words.
func steps(s api.HandoffSide) string {
	var words []string
	for _, st := range s.Steps {
		words = append(words, st.Step)
	}
	return strings.Join(words, ", ")
}

// told waits until both sides of the newest migration of vm1, as told by h, have come to
// their end, and returns them.
func told(t *testing.T, c *Cluster, h *Host) api.Migration {
	t.Helper()
	var m api.Migration
	require.Eventually(t, func() bool {
		for _, host := range c.Hosts {
			if host.Daemon() != nil {
				host.Engine().Kick()
			}
		}
		answer, err := h.Engine().Handoff(ctx, "vm1")
		require.NoError(t, err)
		m = answer.Migrations[0]
		last := func(s api.HandoffSide) bool {
			return s.Problem != "" || len(s.Steps) > 0 && model.Step(s.Steps[len(s.Steps)-1].Step).Last()
		}
		return last(m.Source) && last(m.Destination)
	}, time.Minute, 20*time.Millisecond, "%+v", &m)
	return m
}

func TestHandoffIsToldStepByStep(t *testing.T) {
	c, a, b := two(t)
	_, err := a.Engine().Handoff(ctx, "vm1")
	require.Error(t, err)
	assert.Equal(t, api.KindNotFound, api.KindOf(err))
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s != fakevirt.StepPerforming {
			return nil
		}
		require.Eventually(t, func() bool {
			a.Engine().Kick()
			b.Engine().Kick()
			answer, err := a.Engine().Handoff(ctx, "vm1")
			require.NoError(t, err)
			m := answer.Migrations[0]
			return steps(m.Source) == "asked, lent, confirmed, moving" && steps(m.Destination) == "asked, taken, confirmed, moving" &&
				m.Source.State == api.HandoffUnderWay && m.Destination.State == api.HandoffUnderWay
		}, time.Minute, 20*time.Millisecond)
		return nil
	}}))
	ends(t, b, "ex")
	for _, h := range []*Host{a, b} {
		m := told(t, c, h)
		assert.Equal(t, "asked, lent, confirmed, moving, gone, released", steps(m.Source))
		assert.Equal(t, "asked, taken, confirmed, moving, switched, exclusive", steps(m.Destination))
		assert.Equal(t, "kvm-a", m.Source.Host)
		assert.Equal(t, "kvm-b", m.Destination.Host)
		assert.Equal(t, "released", m.Source.State)
		assert.Equal(t, "exclusive", m.Destination.State)
		assert.Equal(t, "vg_san/vm1", m.Source.Steps[1].Detail)
		for i, st := range m.Source.Steps[1:] {
			assert.False(t, st.At.Before(m.Source.Steps[i].At), "%v", m.Source.Steps)
		}
	}

	// It survives both daemons.
	before := told(t, c, a)
	for _, h := range []*Host{a, b} {
		h.StopDaemon()
		h.StartDaemon()
	}
	assert.Equal(t, before, told(t, c, a))

	// The way back is the current one; what went before is told until that has ended.
	require.NoError(t, fakevirt.Migrate(ctx, b.Virt, a.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
		if s == fakevirt.StepPerforming {
			answer, err := a.Engine().Handoff(ctx, UUID(1))
			require.NoError(t, err)
			require.Len(t, answer.Migrations, 2)
			assert.Equal(t, "kvm-b", answer.Migrations[0].Source.Host)
			assert.Equal(t, before.Attempt, answer.Migrations[1].Attempt)
		}
		return nil
	}}))
	m := told(t, c, b)
	assert.Equal(t, "released", m.Source.State)
	assert.Equal(t, "kvm-a", m.Destination.Host)
	answer, err := b.Engine().Handoff(ctx, "vm1")
	require.NoError(t, err)
	assert.Len(t, answer.Migrations, 1)
}

func TestHandoffThatFailsIsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		at                  fakevirt.Step
		source, destination string
	}{
		"aborted":            {fakevirt.StepPerforming, "asked, lent, confirmed, moving, taken back, exclusive", "asked, taken, confirmed, moving, failed, released"},
		"QEMU did not start": {fakevirt.StepStartHook, "asked, lent, confirmed, taken back, exclusive", "asked, taken, confirmed, failed, released"},
		"given up at once":   {fakevirt.StepMigrateHook, "asked, lent, taken back, exclusive", "asked, taken, failed, released"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a, b := two(t)
			require.Error(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
				if s != tt.at {
					return nil
				}
				if s == fakevirt.StepPerforming {
					require.Eventually(t, func() bool {
						a.Engine().Kick()
						b.Engine().Kick()
						answer, err := a.Engine().Handoff(ctx, "vm1")
						return err == nil && strings.HasSuffix(steps(answer.Migrations[0].Source), "moving") && strings.HasSuffix(steps(answer.Migrations[0].Destination), "moving")
					}, time.Minute, 20*time.Millisecond)
				}
				return fakevirt.ErrAborted
			}}))
			m := told(t, c, b)
			assert.Equal(t, tt.source, steps(m.Source))
			assert.Equal(t, tt.destination, steps(m.Destination))
		})
	}
}

func TestHandoffThatIsRefusedIsTold(t *testing.T) {
	c, a, b := two(t)
	require.Error(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{CopyStorageAll: true}))
	m := told(t, c, b)
	assert.Equal(t, "asked, refused", steps(m.Source))
	assert.Equal(t, "asked, refused", steps(m.Destination))
	assert.Contains(t, m.Destination.Steps[1].Detail, "would copy its volumes onto themselves")

	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Offline: true, Persistent: true}))
	m = told(t, c, a)
	assert.Equal(t, "asked, nothing lent", steps(m.Source))
	assert.Equal(t, "asked, nothing lent", steps(m.Destination))
}

// The other host cannot be asked: what this one knows is told all the same.
func TestHandoffToldWithoutTheOtherHost(t *testing.T) {
	c, a, b := two(t)
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
	told(t, c, a)
	b.StopDaemon()
	m := told(t, c, a)
	assert.Equal(t, "released", m.Source.State)
	assert.Equal(t, api.HandoffUnknown, m.Destination.State)
	assert.Contains(t, m.Destination.Problem, "cannot reach kvm-b: no answer")
	b.StartDaemon()
	assert.Equal(t, "exclusive", told(t, c, a).Destination.State)
}

// The daemon dies between the question and the answer, and at each later step: the story goes on.
func TestHandoffIsToldAcrossRestarts(t *testing.T) {
	for _, step := range fakevirt.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			c, a, b := two(t)
			err := fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{Step: func(s fakevirt.Step) error {
				if s == step {
					for _, h := range []*Host{a, b} {
						h.StopDaemon()
						h.StartDaemon()
					}
				}
				return nil
			}})
			require.NoError(t, err)
			m := told(t, c, a)
			assert.Equal(t, "released", m.Source.State)
			assert.Equal(t, "exclusive", m.Destination.State)
		})
	}
}

// Nobody is told another's migrations by asking under its own name.
func TestHandoffIsToldToItsOwnPeer(t *testing.T) {
	c, a, b := two(t)
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
	told(t, c, a)
	answer, err := a.Engine().HandoffSides(ctx, "kvm-b", api.HandoffQuery{UUID: UUID(1)})
	require.NoError(t, err)
	assert.Len(t, answer.Sides, 1)
	answer, err = a.Engine().HandoffSides(ctx, "kvm-c", api.HandoffQuery{UUID: UUID(1)})
	require.NoError(t, err)
	assert.Empty(t, answer.Sides)
}

// Every call between hosts is in the journal of both.
func TestCallsBetweenHostsAreJournalled(t *testing.T) {
	_, a, b := two(t)
	require.NoError(t, fakevirt.Migrate(ctx, a.Virt, b.Virt, "vm1", fakevirt.MigrateOptions{}))
	ends(t, a, "un")
	ends(t, b, "ex")
	assert.Contains(t, journalled(t, a, "peer request"), "lend "+UUID(1)+" COMPLETED, grant "+UUID(1)+" COMPLETED")
	assert.Equal(t, "kvm-a lend COMPLETED, kvm-a grant COMPLETED", journalled(t, b, "peer call"))
	require.Eventually(t, func() bool { return strings.Contains(journalled(t, b, "peer request"), "notice "+UUID(1)+" COMPLETED") }, patience, 10*time.Millisecond)
}

// journalled are the rows of a kind, oldest first.
func journalled(t *testing.T, h *Host, kind string) string {
	t.Helper()
	all, err := h.Store().Commands(ctx, api.CommandFilter{Limit: 1000})
	require.NoError(t, err)
	var words []string
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Kind == kind {
			words = append(words, strings.Join(all[i].Argv, " ")+" "+all[i].State)
		}
	}
	return strings.Join(words, ", ")
}
