package locks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// hints reads what is recorded of a VG; without a database nothing is.
func (l *Locks) hints(ctx context.Context, vgUUID string) map[model.VolumeID]model.LockHint {
	all, err := l.Hints.LockHints(ctx, vgUUID)
	if err != nil {
		l.Log.Debug("cannot read where volumes were", "err", err)
	}
	byVolume := make(map[model.VolumeID]model.LockHint, len(all))
	for _, h := range all {
		byVolume[h.Volume] = h
	}
	return byVolume
}

// correct records what a look has found, where something else is recorded, and tells
// since when it is so.
func (l *Locks) correct(ctx context.Context, all []sighting, hints map[model.VolumeID]model.LockHint) {
	now := l.Now()
	var put []model.LockHint
	for i := range all {
		s := &all[i]
		if s.Known == api.KnownUnknown || s.Converting || s.odd {
			continue
		}
		old, recorded := hints[s.volume.ID]
		found := model.LockHint{Volume: s.volume.ID, Name: s.Volume, Mode: model.ModeOff, Since: now.UnixMilli()}
		for _, h := range s.Hosts {
			mode := model.LockMode(h.Mode)
			if mode == model.ModeOff {
				continue
			}
			if found.Host = h.Host; found.Mode == model.ModeSH {
				found.Host = "" // several
			}
			found.Mode = mode
		}
		if recorded && old.Host == found.Host && old.Mode == found.Mode {
			found.Since, found.Was, found.WrongAt = old.Since, old.Was, old.WrongAt
		} else if recorded {
			found.Was, found.WrongAt = hintText(old), now.UnixMilli()
		}
		for j := range s.Hosts {
			if h := &s.Hosts[j]; h.Host == found.Host && h.Mode == string(found.Mode) {
				h.Since = time.UnixMilli(found.Since)
			}
		}
		if found != old && (recorded || found.Mode != model.ModeOff) {
			put = append(put, found)
		}
	}
	l.change(ctx, put, nil)
}

// record notes where a transfer has put a volume: the hint before was not wrong.
func (l *Locks) record(ctx context.Context, v model.Volume, host string) {
	h := l.hints(ctx, v.ID.VG)[v.ID]
	h.Volume, h.Name, h.Host, h.Mode, h.Since = v.ID, v.Name(), host, model.ModeEX, l.Now().UnixMilli()
	l.change(ctx, []model.LockHint{h}, nil)
}

// forget drops the hints of volumes that a whole VG no longer has.
func (l *Locks) forget(ctx context.Context, vols []model.Volume) {
	if len(vols) == 0 {
		return
	}
	there := make(map[model.VolumeID]bool, len(vols))
	for _, v := range vols {
		there[v.ID] = true
	}
	var gone []model.VolumeID
	for id := range l.hints(ctx, vols[0].ID.VG) {
		if !there[id] {
			gone = append(gone, id)
		}
	}
	l.change(ctx, nil, gone)
}

func (l *Locks) change(ctx context.Context, put []model.LockHint, gone []model.VolumeID) {
	if err := l.Hints.ChangeLockHints(context.WithoutCancel(ctx), put, gone); err != nil {
		l.Log.Debug("cannot record where volumes are", "err", err)
	}
}

// Stale lists the hints that a look has found wrong, the latest first; vg "" means all.
func (l *Locks) Stale(ctx context.Context, vg string) ([]api.StaleHint, error) {
	hints, err := l.Hints.LockHints(ctx, "")
	if err != nil {
		return nil, err
	}
	all := []api.StaleHint{}
	for _, h := range hints {
		if h.WrongAt != 0 && (vg == "" || strings.HasPrefix(h.Name, vg+"/")) {
			all = append(all, api.StaleHint{Volume: h.Name, Was: h.Was, Host: h.Host, Mode: string(h.Mode), At: time.UnixMilli(h.WrongAt)})
		}
	}
	slices.SortStableFunc(all, func(a, b api.StaleHint) int { return b.At.Compare(a.At) })
	return all, nil
}

// hintText is a hint in a few words: "kvm-a(ex)", "several(sh)", "nobody".
func hintText(h model.LockHint) string {
	switch {
	case h.Mode == model.ModeOff:
		return "nobody"
	case h.Host == "":
		return fmt.Sprintf("several(%s)", h.Mode)
	}
	return fmt.Sprintf("%s(%s)", h.Host, h.Mode)
}
