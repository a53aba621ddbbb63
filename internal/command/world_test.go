package command

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// world is what the fake kind does its work in: it outlives daemons, as units of systemd and
// volumes on a SAN do.
type world struct {
	mu       sync.Mutex
	backends map[string]*backend // by key
	starts   map[string]int
	applied  map[string]bool // what was asked for is so
	// Knobs.
	inside   bool           // the kind has no backend
	once     bool           // and a plan that says what was there before
	blind    bool           // nothing can be told now
	mute     bool           // Cancel fails
	shy      int            // Finish says NotYet so often
	resumes  bool           // Finish does what is missing, as kinds without a backend may
	startErr error          // of Start
	hidden   map[string]any // keys that Plan refuses
}

// backend is a unit that runs by itself.
type backend struct {
	host    string
	running bool
	ok      bool // its exit record, once it has ended
	gone    bool // no record is left
	done    int64
}

const total = 1000

func newWorld() *world {
	return &world{backends: map[string]*backend{}, starts: map[string]int{}, applied: map[string]bool{}, hidden: map[string]any{}}
}

// finish lets every backend that runs end.
func (w *world) finish(ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, b := range w.backends {
		if b.running {
			b.running, b.ok, b.done = false, ok, total
			w.applied[key] = ok
		}
	}
}

// vanish removes the records of all backends of a host, or with "" of all: what ran has died.
func (w *world) vanish(host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.backends {
		if host == "" || b.host == host {
			b.running, b.gone = false, true
		}
	}
}

func (w *world) set(f func(w *world)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w)
}

func (w *world) running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, b := range w.backends {
		if b.running {
			n++
		}
	}
	return n
}

// fakeKind is a kind on one host.
type fakeKind struct {
	w *world
	d *daemon
}

type fakeArgs struct {
	Volume string `json:"volume"`
	Refuse string `json:"refuse,omitempty"`
	// Place is the host where it belongs, "?": that cannot be told, "": anywhere.
	Place string `json:"place,omitempty"`
}

// Place implements Placer.
func (k fakeKind) Place(_ context.Context, args json.RawMessage) (string, error) {
	var a fakeArgs
	if json.Unmarshal(args, &a) == nil && a.Place == "?" {
		return "", api.NewError(api.KindBadRequest, "say with --host where")
	}
	return a.Place, nil
}

func (k fakeKind) Plan(_ context.Context, args json.RawMessage) (Plan, error) {
	k.d.lives()
	var a fakeArgs
	if err := json.Unmarshal(args, &a); err != nil || a.Volume == "" {
		return Plan{}, api.NewError(api.KindBadRequest, "no volume")
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if _, hidden := k.w.hidden[a.Volume]; hidden || a.Refuse != "" {
		return Plan{}, api.NewError(api.KindUnsupported, "cannot copy "+a.Volume+": "+a.Refuse)
	}
	return Plan{
		Backend: !k.w.inside, Once: k.w.once, Record: json.RawMessage(`{"size":1000}`),
		Targets: []Target{{Volume: model.VolumeID{VG: "vg", LV: a.Volume}, Name: "vg/" + a.Volume}},
	}, nil
}

func (k fakeKind) Start(_ context.Context, c Command) error {
	k.d.lives()
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.w.startErr != nil {
		return k.w.startErr
	}
	k.w.starts[c.Key]++
	if k.w.backends[c.Key] == nil {
		k.w.backends[c.Key] = &backend{host: k.d.h.name, running: true}
	}
	if k.w.inside {
		k.w.backends[c.Key] = &backend{ok: true, done: total}
		k.w.applied[c.Key] = true
	}
	return nil
}

func (k fakeKind) Look(_ context.Context, c Command) (Sight, error) {
	k.d.lives()
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	b := k.w.backends[c.Key]
	switch {
	case k.w.blind:
		return Sight{Where: Unknown, Reason: "libvirt does not answer"}, nil
	case b == nil || b.gone:
		return Sight{Where: Gone}, nil
	case b.running:
		return Sight{Where: Running, Progress: model.Progress{Done: b.done, Total: total}}, nil
	}
	return Sight{Where: Ended, Record: json.RawMessage(`{"exit":0}`)}, nil
}

func (k fakeKind) Finish(_ context.Context, c Command, s Sight) (Verdict, error) {
	k.d.lives()
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.w.shy > 0 {
		k.w.shy--
		return Verdict{Outcome: NotYet, Reason: "paused on both hosts"}, nil
	}
	k.w.applied[c.Key] = k.w.applied[c.Key] || k.w.resumes && c.Cancelled == ""
	if k.w.applied[c.Key] {
		return Verdict{Outcome: Done, Reason: "copied", Answer: json.RawMessage(`{"bytes":1000}`)}, nil
	}
	if s.Began != nil {
		return Verdict{Outcome: NotDone}, nil
	}
	return Verdict{Outcome: NotDone, Reason: "not copied; the half-made destination is removed"}, nil
}

func (k fakeKind) Cancel(_ context.Context, c Command) error {
	k.d.lives()
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if k.w.mute {
		return api.NewError(api.KindUnreachable, "systemd does not answer")
	}
	if b := k.w.backends[c.Key]; b != nil && b.running {
		b.running = false
	}
	return nil
}

func (k fakeKind) Investigate(_ context.Context, c Command) (Verdict, error) {
	k.d.lives()
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	b := k.w.backends[c.Key]
	switch {
	case k.w.blind:
		return Verdict{}, api.NewError(api.KindUnreachable, "no host answers")
	case k.w.applied[c.Key]:
		return Verdict{Outcome: Done, Reason: "the destination is real"}, nil
	case b != nil && b.running:
		return Verdict{Outcome: NotYet, Reason: "it still moves"}, nil
	}
	return Verdict{Outcome: NotDone, Reason: "nothing was copied"}, nil
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
