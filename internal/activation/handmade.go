package activation

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// handmade tells what others do to our volumes from what our own commands do. What has
// changed between two looks, with no command of ours on that volume since before the first
// of them, somebody else has changed. At worst a change of somebody else is missed; nothing
// depends on it.
type handmade struct {
	turn sync.Mutex // one look at a time
	last *scene     // guarded by turn

	ownCommands
}

func newHandmade() *handmade {
	return &handmade{ownCommands: ownCommands{running: map[model.VolumeID]int{}, touched: map[model.VolumeID]int64{}}}
}

// ownCommands counts looks and commands in the order in which they begin and end.
type ownCommands struct {
	mu      sync.Mutex
	clock   int64
	running map[model.VolumeID]int
	touched map[model.VolumeID]int64
}

func (o *ownCommands) begin(vols []model.Volume) { o.count(vols, 1) }
func (o *ownCommands) end(vols []model.Volume)   { o.count(vols, -1) }

func (o *ownCommands) count(vols []model.Volume, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clock++
	for _, v := range vols {
		o.touched[v.ID] = o.clock
		if o.running[v.ID] += n; o.running[v.ID] == 0 {
			delete(o.running, v.ID)
		}
	}
}

func (o *ownCommands) tick() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clock++
	return o.clock
}

// own reports whether a command of ours has been at work on a volume since a moment.
func (o *ownCommands) own(id model.VolumeID, since int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.running[id] > 0 || o.touched[id] > since
}

// forget drops what no later look asks for.
func (o *ownCommands) forget(before int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, at := range o.touched {
		if at < before && o.running[id] == 0 {
			delete(o.touched, id)
		}
	}
}

// scene is one look at the volumes of our VGs that are active on this host.
type scene struct {
	at     int64 // before it was taken, see ownCommands.clock
	vgs    map[string]string
	active map[model.VolumeID]string // name by volume
	// modes are of this look, or of the last one that has read them, which is modesAt.
	modes   map[model.VolumeID]model.LockMode
	modesAt int64
}

// DevicesChanged looks whether somebody else has activated or deactivated a volume of
// ours, as the kernel's uevents suggest. It is cheap where nobody has.
func (m *Manager) DevicesChanged(ctx context.Context) { m.lookForHandmade(ctx, false) }

// lookForHandmade reports what others have done to our volumes since it last looked; it
// touches nothing. modes: also whether lock modes have changed.
func (m *Manager) lookForHandmade(ctx context.Context, modes bool) {
	m.handmade.turn.Lock()
	defer m.handmade.turn.Unlock()
	old := m.handmade.last
	if old == nil && !modes {
		return // the first full look makes the beginning
	}
	now, err := m.scene()
	if err != nil {
		m.Log.Debug("cannot look for changes of others", "err", err)
		return
	}
	on, off := m.changed(old, now)
	if modes || len(on)+len(off) > 0 {
		if err := m.addModes(ctx, now); err != nil {
			m.Log.Debug("cannot look for changes of others", "err", err)
			return
		}
	}
	m.handmade.last = now
	if old == nil {
		return
	}
	if now.modes == nil {
		now.modes, now.modesAt = old.modes, old.modesAt
	}
	m.reportHandmade(api.EventActivated, now, on)
	m.reportHandmade(api.EventDeactivated, old, off)
	m.reportModes(old, now)
	m.handmade.forget(now.modesAt)
	if len(on)+len(off) > 0 {
		m.Kick() // a guest may need one of them
	}
}

func (m *Manager) scene() (*scene, error) {
	s := &scene{at: m.handmade.tick(), vgs: map[string]string{}, active: map[model.VolumeID]string{}}
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	for _, vg := range known {
		if ours, err := m.managed(vg.Name, vg.LockType); ours && err == nil {
			s.vgs[vg.UUID] = vg.Name
		}
	}
	devices, err := m.LVM.Devices()
	if err != nil {
		return nil, err
	}
	for uuid, dev := range devices {
		id, ok := model.ParseDMUUID(uuid)
		vg, ours := s.vgs[id.VG]
		_, lv, named := lvm.SplitMapperName(dev.Name)
		if ok && ours && named && lvm.CheckName(vg+"/"+lv) == nil {
			s.active[id] = vg + "/" + lv
		}
	}
	return s, nil
}

func (m *Manager) addModes(ctx context.Context, s *scene) error {
	now, err := m.look(ctx)
	if err != nil {
		return err
	}
	s.modes, s.modesAt = map[model.VolumeID]model.LockMode{}, s.at
	for vgUUID, vg := range s.vgs {
		if now.claimed[vg] {
			continue // a claim is changed by virtlvm alone
		}
		for lv, mode := range now.locks.VGs[vg].Locks {
			s.modes[model.VolumeID{VG: vgUUID, LV: lv}] = mode
		}
	}
	return nil
}

// changed lists what others have activated and deactivated.
func (m *Manager) changed(old, now *scene) (on, off []model.VolumeID) {
	if old == nil {
		return nil, nil
	}
	differ := func(a, b *scene) (ids []model.VolumeID) {
		for id := range a.active {
			_, both := b.active[id]
			_, sameVGs := b.vgs[id.VG]
			if !both && sameVGs && !m.handmade.own(id, old.at) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	return differ(now, old), differ(old, now)
}

// reportHandmade makes one event for a VG: whole volume groups are activated by one
// command.
func (m *Manager) reportHandmade(kind string, s *scene, ids []model.VolumeID) {
	byVG := map[string][]string{}
	for _, id := range ids {
		text := s.active[id]
		if kind == api.EventActivated {
			text += " (lock " + string(modeOr(s.modes, id)) + ")"
		} else if who := m.neededBy(id); who != "" {
			text += " (needed by " + who + ")"
		}
		byVG[s.vgs[id.VG]] = append(byVG[s.vgs[id.VG]], text)
	}
	for _, vg := range sortedKeys(byVG) {
		names := byVG[vg]
		sort.Strings(names)
		subject, _, _ := strings.Cut(names[0], " ")
		if len(names) > 1 {
			subject = vg
		}
		m.Event(kind, subject, fmt.Sprintf("%s on this host, not by virtlvm: %s", kind, few(names)))
	}
}

func (m *Manager) reportModes(old, now *scene) {
	for id, name := range now.active {
		was, is := modeOr(old.modes, id), modeOr(now.modes, id)
		if _, both := old.active[id]; both && was != is && !m.handmade.own(id, old.modesAt) {
			m.Event(api.EventMode, name, fmt.Sprintf("the lock of %s on this host has gone from %s to %s, not by virtlvm", name, was, is))
		}
	}
}

func modeOr(modes map[model.VolumeID]model.LockMode, id model.VolumeID) model.LockMode {
	if mode, ok := modes[id]; ok {
		return mode
	}
	return model.ModeOff
}

// neededBy names the guests that need a volume here.
func (m *Manager) neededBy(id model.VolumeID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := map[string]bool{}
	for k, h := range m.holds {
		if k.volume == id && model.IsGuest(k.owner) && h.Phase != model.PhaseEnding {
			seen["guest "+show(h.Guest)] = true
		}
	}
	return strings.Join(sortedKeys(seen), ", ")
}

// few joins the first of many names.
func few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
