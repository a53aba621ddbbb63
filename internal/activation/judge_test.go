package activation

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/guests"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// bare is a host of which nothing is asked but what it has.
type bare struct {
	Journal
	Leases
	LVM
	locks map[string]model.LockMode
}

func (b bare) ChangeHolds(context.Context, store.HoldChange) error { return nil }
func (b bare) Devices() (map[string]lvm.Device, error)             { return nil, nil }
func (b bare) Local(context.Context) (lease.Local, error) {
	return lease.Local{LockdRunning: true, VGs: map[string]lease.LocalVG{"vg": {Name: "vg", Started: true, Locks: b.locks}}}, nil
}

func bareManager(h model.Hold, b bare) *Manager {
	m := &Manager{
		Deps: Deps{
			Journal: b, Leases: b, LVM: b, Now: time.Now, Uptime: func() time.Duration { return time.Hour }, Settings: func() Settings { return Settings{} },
		},
		holds: map[holdKey]model.Hold{{h.Owner, h.Volume}: h}, calls: map[string]uint64{}, pen: make(chan struct{}, 1),
	}
	m.pen <- struct{}{}
	return m
}

// A look at the guests from before a call of libvirt for one says nothing of it: it may have
// been started in between.
func TestLookBeforeACallDoesNotCount(t *testing.T) {
	h := model.Hold{Owner: "guest", Volume: model.VolumeID{LV: "lv"}, Name: "vg/lv", Mode: model.ModeEX, Phase: model.PhaseHeld, Attempt: model.Attempt{Seen: true, AnsweredMillis: 1}}
	m := bareManager(h, bare{})
	phase := func() model.Phase { return m.holds[holdKey{h.Owner, h.Volume}].Phase }
	nobody := sight{guests.Snapshot{}, map[string]uint64{}}
	m.called("guest")
	m.judgeBy(t.Context(), nobody, "")
	assert.Equal(t, model.PhaseHeld, phase())
	nobody.calls["guest"] = 1
	m.judgeBy(t.Context(), nobody, "")
	assert.Equal(t, model.PhaseEnding, phase())
}

// What came with a migration is not lent on before it is exclusive here.
func TestIncomingIsNotLent(t *testing.T) {
	h := model.Hold{Owner: "guest", Volume: model.VolumeID{LV: "lv"}, LockLV: "lv", Name: "vg/lv", Mode: model.ModeEX, Phase: model.PhaseIncoming}
	for _, locks := range []map[string]model.LockMode{{"lv": model.ModeSH}, {"lv": model.ModeEX}} {
		_, waiting, err := bareManager(h, bare{locks: locks}).notAsWanted(t.Context(), "guest")
		require.NoError(t, err)
		assert.Equal(t, "vg/lv", waiting)
	}
}
