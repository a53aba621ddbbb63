package san

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDoubleStarts takes a volume on two hosts at the same moment, again and again, in one
// process with two handles on the folder: exactly one host gets it.
func TestDoubleStarts(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 50
	}
	l := newLab(t, "lv1")
	other, err := Open(l.san.Dir())
	require.NoError(t, err)
	b, err := other.Host("kvm-b")
	require.NoError(t, err)
	hosts := []*Host{l.a, b}
	take := func(h *Host, args string) int {
		return h.Exec(context.Background(), strings.Fields("lvchange "+args+" vg_san/lv1"), io.Discard, io.Discard)
	}
	won := [2]int{}
	for range rounds {
		var codes [2]int
		var wg sync.WaitGroup
		for i, h := range hosts {
			wg.Add(1)
			go func() {
				defer wg.Done()
				codes[i] = take(h, "-aey")
			}()
		}
		wg.Wait()
		require.ElementsMatch(t, []int{0, 5}, codes[:])
		winner := 0
		if codes[1] == 0 {
			winner = 1
		}
		won[winner]++
		require.True(t, hosts[winner].Active("vg_san", "lv1"))
		require.False(t, hosts[1-winner].Active("vg_san", "lv1"))
		require.Equal(t, 0, take(hosts[winner], "-an"))
	}
	t.Logf("kvm-a won %d, kvm-b %d", won[0], won[1])
}

// TestManyAtOnce keeps many goroutines on many hosts busy and looks at the leases all the
// while: EX is never beside another holder.
func TestManyAtOnce(t *testing.T) {
	hosts := []string{"h1", "h2", "h3"}
	s := New(t, Options{Hosts: hosts, VGs: []VGSpec{{Name: "vg"}}})
	for _, lv := range []string{"a", "b"} {
		_, err := s.AddLV("vg", LVSpec{Name: lv})
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	for i, name := range hosts {
		h, err := s.Host(name)
		require.NoError(t, err)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range 60 {
				how := []string{"-aey", "-asy", "-an"}[(n*7+i)%3]
				_ = h.Exec(context.Background(), strings.Fields("lvchange "+how+" vg/a vg/b"), io.Discard, io.Discard)
				rows, err := s.Locks()
				if err != nil {
					t.Error(err)
					return
				}
				holders, exclusive := map[string]int{}, map[string]bool{}
				for _, r := range rows {
					holders[r.Volume]++
					exclusive[r.Volume] = exclusive[r.Volume] || r.Mode == "ex"
				}
				for v, n := range holders {
					if exclusive[v] && n > 1 {
						t.Errorf("%s: EX beside others: %+v", v, rows)
					}
				}
			}
		}()
	}
	wg.Wait()
}

func BenchmarkLvchange(b *testing.B) {
	s := New(b, Options{Hosts: []string{"a", "b"}, VGs: []VGSpec{{Name: "vg"}}})
	for _, lv := range strings.Fields("a b c d e f g h i j") {
		_, err := s.AddLV("vg", LVSpec{Name: lv})
		require.NoError(b, err)
	}
	h, err := s.Host("a")
	require.NoError(b, err)
	for b.Loop() {
		h.Exec(context.Background(), []string{"lvchange", "-aey", "vg/a"}, io.Discard, io.Discard)
		h.Exec(context.Background(), []string{"lvchange", "-an", "vg/a"}, io.Discard, io.Discard)
	}
}
