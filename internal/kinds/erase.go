package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// volumeErase is volume.erase, and volume.delete: blkdiscard in a job fills the volume, which
// the command holds exclusively, with zeros; then it is given back, or removed. From before the
// first zero until after the last it carries a tag with the offset up to which it is zeroed, so
// that another command, on any host, goes on from there.
type volumeErase struct {
	Deps
	remove bool // it is volume.delete
	marks  *marks
}

// erasePlan is what Plan keeps.
type erasePlan struct {
	Volume   string         `json:"volume"` // "vg/lv"
	ID       model.VolumeID `json:"id"`
	Size     int64          `json:"size"` // bytes
	Zero     bool           `json:"zero"`
	Discard  bool           `json:"discard"`
	Throttle int64          `json:"throttle"` // MiB/s
	// Was: its content was not complete when this was asked for, and From bytes of it had been
	// zeroed.
	Was  bool  `json:"was"`
	From int64 `json:"from"`
}

// steps of the job; none: there is none.
func (p erasePlan) steps() [][]string {
	if !p.Zero {
		return nil
	}
	return zeroSteps(device(p.Volume), p.ID.DMUUID(), p.From, p.Size, p.Throttle, p.Discard)
}

// Plan implements command.Kind.
func (k volumeErase) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	p, err := k.arguments(args)
	if err != nil {
		return command.Plan{}, err
	}
	v, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil {
		return command.Plan{}, err
	}
	p.Volume, p.ID, p.Size = v.Name(), v.ID, v.Size
	p.Zero = p.Zero || !k.remove || k.ZeroFirst(v.VG)
	if p.Discard && !p.Zero {
		return command.Plan{}, badRequest("--discard is for what has been zeroed; say --zero as well")
	}
	p.From, p.Was = zeroedTo(v)
	if err := k.Engine.Expendable(ctx, v, k.remove); err != nil {
		return command.Plan{}, err
	}
	for _, h := range k.Engine.HoldsOf(v.ID) {
		if model.IsGuest(h.Owner) {
			return command.Plan{}, inUse("%s is used on this host (%s) by %s as a %s disk; stop that guest first", v.Name(), k.Host, h.Subject(), h.Role)
		}
	}
	if err := k.Engine.Free(ctx, activation.Work{}, v, model.RoleWritable); err != nil {
		return command.Plan{}, err
	}
	rec, err := record(p)
	return command.Plan{Targets: []command.Target{volumeTarget(v, false)}, Record: rec, Backend: len(p.steps()) > 0}, err
}

func (k volumeErase) arguments(args json.RawMessage) (erasePlan, error) {
	var a api.DeleteArgs
	var err error
	if k.remove {
		err = decode(args, &a)
	} else {
		var e api.EraseArgs
		err = decode(args, &e)
		a = api.DeleteArgs{Volume: e.Volume, Throttle: e.Throttle, Discard: e.Discard}
	}
	if err == nil && (a.Throttle < 0 || a.Throttle > 1<<20) {
		err = badRequest("a throttle of %d MiB/s makes no sense", a.Throttle)
	}
	return erasePlan{Volume: a.Volume, Zero: a.Zero, Throttle: a.Throttle, Discard: a.Discard}, err
}

// zeroedTo is how far an earlier command has come with a volume: that counts only where nobody
// else has been at its content since, or somebody has said that it is complete by taking the
// tag off.
func zeroedTo(v model.Volume) (from int64, incomplete bool) {
	var keys []string
	for _, tag := range v.Tags {
		if key, ok := strings.CutPrefix(tag, model.TagIncomplete); ok {
			keys = append(keys, key)
		}
	}
	if len(keys) != 1 {
		return 0, len(keys) > 0
	}
	for _, tag := range v.Tags {
		if text, ok := strings.CutPrefix(tag, model.TagErased+keys[0]+":"); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > from && n <= v.Size {
				from = n
			}
		}
	}
	return from, true
}

// mark says in the volume's tags how far the command has come, and that its content is not
// complete until then.
func (k volumeErase) mark(ctx context.Context, key string, v model.Volume, at int64) error {
	add := []string{model.TagIncomplete + key, fmt.Sprintf("%s%s:%d", model.TagErased, key, at)}
	return k.Engine.Retag(ctx, activation.Work{Key: key}, v, add, eraseTags(v, add...))
}

// eraseTags are the tags of a volume that end with a complete content, without some.
func eraseTags(v model.Volume, but ...string) []string {
	var all []string
	for _, tag := range v.Tags {
		ours := strings.HasPrefix(tag, model.TagIncomplete) || strings.HasPrefix(tag, model.TagErased)
		for _, b := range but {
			ours = ours && tag != b
		}
		if ours {
			all = append(all, tag)
		}
	}
	return all
}

// atBy reports whether a command other than key says that the content of a volume is not complete.
func atBy(v model.Volume, key string) bool {
	return slices.ContainsFunc(v.Tags, func(tag string) bool {
		return strings.HasPrefix(tag, model.TagIncomplete) && tag != model.TagIncomplete+key
	})
}

// Start implements command.Kind.
func (k volumeErase) Start(ctx context.Context, c command.Command) error {
	var p erasePlan
	if err := recall(c, &p); err != nil {
		return err
	}
	steps := p.steps()
	if len(steps) == 0 {
		return nil // Finish removes it
	}
	v, err := k.Engine.Take(ctx, activation.Work{Key: c.Key}, p.Volume, model.RoleWritable)
	if err == nil {
		err = k.Engine.Expendable(ctx, v, k.remove)
	}
	if err != nil {
		return err
	}
	// What has changed since it was asked for: nobody has it now, and nobody gets it.
	if from, _ := zeroedTo(v); v.ID != p.ID || v.Size != p.Size || from < p.From && !v.HasTag(model.TagIncomplete+c.Key) {
		return inUse("%s is another volume, or has changed, since this was asked for", p.Volume)
	}
	if err := k.mark(ctx, c.Key, v, p.From); err != nil {
		return err
	}
	k.marks.written(c.Key, p.From, k.Now())
	return k.Jobs.Start(ctx, backend.Job{ID: c.Key, Description: "virtlvm: fill " + p.Volume + " with zeros", Steps: steps})
}

// Look implements command.Kind.
func (k volumeErase) Look(ctx context.Context, c command.Command) (command.Sight, error) {
	var p erasePlan
	if err := recall(c, &p); err != nil {
		return command.Sight{}, err
	}
	if len(p.steps()) == 0 {
		return command.Sight{Where: command.Ended}, nil
	}
	s, _ := lookAtJob(ctx, k.Jobs, c.Key)
	if s.Where == command.Running {
		s.Progress = model.Progress{Done: k.reached(c.Key, p), Total: p.Size, Phase: "zeroing"}
		if s.Progress.Done == p.Size && p.Discard {
			s.Progress.Phase = "discarding"
		}
	}
	return s, nil
}

// reached is how much of the volume is zeroed, as far as the job has said.
func (k volumeErase) reached(key string, p erasePlan) int64 {
	out, _, err := k.Jobs.Output(key)
	if err != nil {
		return p.From
	}
	return max(p.From, lastOffset(out, p.Size))
}

// Tend implements command.Tender: now and then the offset goes into the volume's tag.
func (k volumeErase) Tend(ctx context.Context, c command.Command, s command.Sight) error {
	if !k.marks.due(c.Key, s.Progress.Done, k.Now()) {
		return nil
	}
	var p erasePlan
	if err := recall(c, &p); err != nil {
		return err
	}
	v, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil {
		return err
	}
	if v.ID != p.ID || !v.HasTag(model.TagIncomplete+c.Key) {
		return nil // Finish tells
	}
	if err := k.mark(ctx, c.Key, v, s.Progress.Done); err != nil {
		return err
	}
	k.marks.written(c.Key, s.Progress.Done, k.Now())
	return nil
}

// Cancel implements command.Kind.
func (k volumeErase) Cancel(ctx context.Context, c command.Command) error {
	return k.Jobs.Stop(ctx, c.Key)
}

// markPause is the least time between two tags of an offset: each takes the lock of the whole
// volume group, on all hosts.
const markPause = 30 * time.Second

// marks remembers when an offset was written last. It is a courtesy: a daemon that knows
// nothing yet writes at once.
type marks struct {
	mu   sync.Mutex
	last map[string]lastMark // by the command's key
}

type lastMark struct {
	when time.Time
	at   int64
}

func newMarks() *marks { return &marks{last: map[string]lastMark{}} }

func (m *marks) due(key string, at int64, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, known := m.last[key]
	return !known || at > l.at && now.Sub(l.when) >= markPause
}

func (m *marks) written(key string, at int64, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last[key] = lastMark{now, at}
}

func (m *marks) forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, key)
}
