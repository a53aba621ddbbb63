package activation

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/model"
)

// slowLeases shows no holder until it was asked a number of times.
type slowLeases struct {
	Leases
	empty int
	asked int
}

func (l *slowLeases) Holders(context.Context, string, int64, string) ([]model.Holder, error) {
	l.asked++
	if l.asked <= l.empty {
		return nil, nil
	}
	return []model.Holder{{HostID: 2, Host: "kvm-b", Mode: model.ModeEX, State: model.HostLive}}, nil
}

// TestWinnerNamedWhileItTakesTheLease: two hosts start a guest at the same moment. The one
// that lost is refused before the winner's name is on the disk, and names it all the same.
func TestWinnerNamedWhileItTakesTheLease(t *testing.T) {
	now := make(chan time.Time)
	close(now)
	v := model.Volume{VG: "vg_san", LV: "vm1"}
	for name, c := range map[string]struct {
		empty int
		want  string
	}{
		"at once":       {0, "held exclusively by kvm-b"},
		"a moment late": {3, "held exclusively by kvm-b"},
		"never":         {1000, "was locked by another host a moment ago"},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Deps{
				Leases: &slowLeases{empty: c.empty}, Now: time.Now, Settings: func() Settings { return Settings{} },
				After: func(time.Duration) <-chan time.Time { return now },
			})
			require.ErrorContains(t, m.explainHeld(t.Context(), v), c.want)
		})
	}
}
