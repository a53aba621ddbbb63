package activation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// A change that somebody has made of the same holds since is not undone by one that is older
// and written later.
func TestHoldsAreWrittenAsTheyAre(t *testing.T) {
	hold := func(lv string, claim model.LockMode) model.Hold {
		return model.Hold{Owner: "guest", Volume: model.VolumeID{LV: lv}, Claim: claim}
	}
	m := &Manager{holds: map[holdKey]model.Hold{}, pen: make(chan struct{}, 1)}
	m.pen <- struct{}{}
	for _, h := range []model.Hold{hold("weakened", model.ModeSH), hold("taken again", model.ModeEX)} {
		m.holds[holdKey{h.Owner, h.Volume}] = h
	}
	old := store.HoldChange{
		Put:    []model.Hold{hold("weakened", model.ModeEX), hold("ended", model.ModeEX)},
		Delete: []model.Hold{hold("taken again", model.ModeSH)},
		Steps:  []model.HandoffStep{{}},
	}
	var wrote store.HoldChange
	require.NoError(t, m.writing(old, func(c store.HoldChange) error {
		assert.Empty(t, m.pen, "others wait")
		wrote = c
		return nil
	}))
	assert.Equal(t, store.HoldChange{
		Put:    []model.Hold{hold("weakened", model.ModeSH), hold("taken again", model.ModeEX)},
		Delete: []model.Hold{hold("ended", model.ModeEX)},
		Steps:  old.Steps,
	}, wrote)
	assert.Len(t, m.pen, 1)
}

// A guest that is lent to one host is not lent to another, and none of its volumes is: not one
// that was plugged in since.
func TestLentToOneHostOnly(t *testing.T) {
	held := model.Hold{Owner: "guest", Guest: "vm1", Volume: model.VolumeID{LV: "held"}, Name: "vg/held", Mode: model.ModeEX, Phase: model.PhaseHeld}
	lent := model.Hold{Owner: "guest", Guest: "vm1", Volume: model.VolumeID{LV: "lent"}, Name: "vg/lent", Mode: model.ModeEX, Phase: model.PhaseLent, Grant: model.Grant{Peer: "kvm-b"}}
	for range 50 { // in each order
		m := &Manager{Deps: Deps{Now: time.Now}, holds: map[holdKey]model.Hold{}}
		for _, h := range []model.Hold{held, lent} {
			m.holds[holdKey{h.Owner, h.Volume}] = h
		}
		require.ErrorContains(t, m.lendAll(t.Context(), "guest", model.Grant{Peer: "kvm-c"}, nil), "guest vm1 is being migrated to kvm-b already")
		require.Equal(t, held, m.holds[holdKey{held.Owner, held.Volume}])
	}
}
