package peer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEachIsBounded(t *testing.T) {
	cfg := settings(nil)
	cfg.Parallel = 3
	p := peersOf(t, cfg)
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("kvm-%d", i))
	}
	boom := errors.New("boom")
	var now, most, calls atomic.Int32
	results := p.Each(t.Context(), names, func(ctx context.Context, name string) error {
		calls.Add(1)
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		deadline, ok := ctx.Deadline()
		assert.True(t, ok)
		assert.Less(t, time.Until(deadline), cfg.CallTimeout+time.Millisecond)
		if name == "kvm-7" {
			return boom
		}
		return nil
	})
	assert.EqualValues(t, 20, calls.Load())
	assert.EqualValues(t, 3, most.Load())
	require.Len(t, results, 20)
	for name, err := range results {
		if name == "kvm-7" {
			require.ErrorIs(t, err, boom)
		} else {
			require.NoError(t, err)
		}
	}
}

// A host that hangs costs its own deadline and nobody else's.
func TestEachHasADeadlinePerHost(t *testing.T) {
	cfg := settings(nil)
	cfg.CallTimeout, cfg.Parallel = 50*time.Millisecond, 1
	results := peersOf(t, cfg).Each(t.Context(), []string{"hangs", "works"}, func(ctx context.Context, name string) error {
		if name == "hangs" {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	require.ErrorIs(t, results["hangs"], context.DeadlineExceeded)
	require.NoError(t, results["works"])
}

func TestEachEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := settings(nil)
	cfg.Parallel = 1
	var begun atomic.Int32
	results := peersOf(t, cfg).Each(ctx, []string{"a", "b", "c"}, func(ctx context.Context, _ string) error {
		begun.Add(1)
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	assert.EqualValues(t, 1, begun.Load())
	require.Len(t, results, 3)
	for _, err := range results {
		require.ErrorIs(t, err, context.Canceled)
	}
}
