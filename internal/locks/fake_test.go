package locks

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// world is a cluster in which kvm-a is this host: what its lease area, sanlock and the
// other hosts say.
type world struct {
	mu      sync.Mutex
	vols    []model.Volume
	holders map[string][]model.Holder // by LV uuid
	leaseOK bool
	hosts   map[int]lease.Host
	hostErr error
	said    map[string]api.LocksAnswer // by host, kvm-a too; one that is not there is silent
	names   []string
	members []string // of a VG without lvmlockd; nil: it has leases
	fenced  []model.Fenced
	delay   time.Duration // of a peer's answer
	asked   map[string]int
	hints   map[model.VolumeID]model.LockHint
	writes  int
	events  []string
	now     time.Time
}

func newWorld(volumes, hosts int) *world {
	w := &world{
		holders: map[string][]model.Holder{}, leaseOK: true, hosts: map[int]lease.Host{}, said: map[string]api.LocksAnswer{},
		asked: map[string]int{}, hints: map[model.VolumeID]model.LockHint{}, now: time.Unix(1_750_000_000, 0),
	}
	for i := range volumes {
		id := fmt.Sprintf("lv%d", i)
		w.vols = append(w.vols, model.Volume{ID: model.VolumeID{VG: "vg-uuid", LV: id}, VG: "vg", LV: id, LockLV: id, LeaseOffset: int64(i+70) << 20, SegType: "linear"})
	}
	for i := range hosts {
		name := "kvm-" + string(rune('a'+i))
		if i > 25 {
			name = fmt.Sprintf("kvm-%d", i)
		}
		w.hosts[i+1] = lease.Host{ID: i + 1, Name: name, Gen: 1, State: model.HostLive, Self: i == 0}
		w.said[name] = api.LocksAnswer{HostID: i + 1, Started: true}
		if i > 0 {
			w.names = append(w.names, name)
		}
	}
	return w
}

func (w *world) locks(t testing.TB) *Locks {
	t.Helper()
	return New(Options{
		Engine: w, Leases: w, Peers: w, Hints: w, Attr: func(context.Context, string) (string, error) { return "-wi-a-----", nil },
		Log: slog.New(slog.DiscardHandler), Host: "kvm-a", Version: "1.2.3", Now: func() time.Time { return w.now },
		Monotonic: func() time.Duration { return time.Hour },
		After: func(time.Duration) <-chan time.Time {
			c := make(chan time.Time, 1)
			c <- time.Time{}
			return c
		},
	})
}

// held makes a host hold a volume, on disk and by its own word.
func (w *world) held(lv int, host int, mode model.LockMode) {
	h, v := w.hosts[host], w.vols[lv]
	w.holders[v.LockLV] = append(w.holders[v.LockLV], model.Holder{HostID: host, Host: h.Name, Mode: mode, Gen: 1, State: h.State, Self: h.Self})
	a := w.said[h.Name]
	a.Volumes = append(a.Volumes, api.LocalLock{UUID: v.ID.LV, Mode: string(mode), Active: true})
	w.said[h.Name] = a
}

func (w *world) ManagedVGs(context.Context, string) ([]string, error)      { return []string{"vg"}, nil }
func (w *world) Members(string) []string                                   { return w.members }
func (w *world) FencedHosts() []model.Fenced                               { return w.fenced }
func (w *world) KnownVGs() []string                                        { return []string{"vg"} }
func (w *world) Inventory(context.Context, string) ([]model.Volume, error) { return w.vols, nil }
func (w *world) Event(_, subject, text string)                             { w.events = append(w.events, subject+": "+text) }
func (w *world) Keep(context.Context, api.RetainRequest) error             { return nil }
func (w *world) Names(context.Context) ([]string, error)                   { return w.names, nil }
func (w *world) Hosts(context.Context, string) (map[int]lease.Host, error) {
	return maps.Clone(w.hosts), w.hostErr
}

func (w *world) GiveUp(context.Context, api.ReleaseRequest) (api.ReleaseAnswer, error) {
	return api.ReleaseAnswer{}, nil
}

func (w *world) VolumeNamed(_ context.Context, name string) (model.Volume, error) {
	for _, v := range w.vols {
		if v.Name() == name {
			return v, nil
		}
	}
	return model.Volume{}, api.NewError(api.KindNotFound, "there is no "+name)
}

func (w *world) LocksHere(context.Context, api.LocksQuery) (api.LocksAnswer, error) {
	return w.said["kvm-a"], nil
}

func (w *world) Record(ctx context.Context, _, _ string, _ []string, _ []model.Volume, do func(context.Context) (string, error)) (api.Command, error) {
	_, err := do(ctx)
	return api.Command{ID: 7}, err
}

func (w *world) Holders(_ context.Context, _ string, _ int64, lv string) ([]model.Holder, error) {
	if !w.leaseOK {
		return nil, api.NewError(api.KindLocking, "cannot read the lease")
	}
	return w.holders[lv], nil
}

func (w *world) HoldersAll(_ context.Context, _ string, offsets map[string]int64) (map[string][]model.Holder, error) {
	if !w.leaseOK {
		return nil, api.NewError(api.KindLocking, "cannot read the leases")
	}
	all := make(map[string][]model.Holder, len(offsets))
	for lv := range offsets {
		all[lv] = w.holders[lv]
	}
	return all, nil
}

func (w *world) Call(ctx context.Context, host, path string, _, out any) error {
	w.mu.Lock()
	w.asked[host]++
	answer, up := w.said[host]
	w.mu.Unlock()
	if w.delay > 0 {
		select {
		case <-time.After(w.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if !up {
		return api.NewError(api.KindUnreachable, host+" cannot be reached")
	}
	if path == api.RoutePeerLocks {
		*out.(*api.LocksAnswer) = answer
	}
	return nil
}

func (w *world) Each(ctx context.Context, names []string, fn func(context.Context, string) error) map[string]error {
	results := map[string]error{}
	turns := make(chan struct{}, 64)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			turns <- struct{}{}
			err := fn(ctx, name)
			<-turns
			mu.Lock()
			defer mu.Unlock()
			results[name] = err
		})
	}
	all.Wait()
	return results
}

func (w *world) LockHints(_ context.Context, vg string) ([]model.LockHint, error) {
	var all []model.LockHint
	for _, h := range w.hints {
		if vg == "" || h.Volume.VG == vg {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b model.LockHint) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (w *world) ChangeLockHints(_ context.Context, put []model.LockHint, gone []model.VolumeID) error {
	w.writes += len(put) + len(gone)
	for _, h := range put {
		w.hints[h.Volume] = h
	}
	for _, id := range gone {
		delete(w.hints, id)
	}
	return nil
}
