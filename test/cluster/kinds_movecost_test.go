package cluster

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/command"
)

// TestMoveCost is for `make bench`: what a move costs that copies nothing, by the size of the
// volume. It prints "SIZE MILLISECONDS" of the median.
func TestMoveCost(t *testing.T) {
	rounds := 3
	if os.Getenv("VIRTLVM_BENCH") != "" {
		rounds = 15
	}
	r := newRig(t)
	for _, size := range []int64{rigSize, 10 << 30} {
		name := fmt.Sprint("size", size)
		r.volume("vg_san", name, size)
		var took []time.Duration
		for i := range 2 * rounds {
			to := []string{"kvm-a", "kvm-b"}[i%2]
			began := time.Now()
			v := r.mustAsk(r.a, api.KindVolumeMove, api.MoveArgs{Volume: "vg_san/" + name, ToHost: to}).end()
			took = append(took, time.Since(began))
			require.Equal(t, command.Done, v.Outcome, v.Reason)
		}
		slices.Sort(took)
		fmt.Printf("%d %.2f\n", size, float64(took[len(took)/2].Microseconds())/1000)
	}
	require.Less(t, r.written("vg_san/size10737418240"), int64(1<<20), "a move that copies nothing has written")
}

// written is what the file behind a volume takes on disk.
func (r *rig) written(name string) int64 {
	r.t.Helper()
	info, err := os.Stat(r.data(name))
	require.NoError(r.t, err)
	return blocks(info)
}

func blocks(info os.FileInfo) int64 {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return sys.Blocks * 512
	}
	return info.Size()
}
