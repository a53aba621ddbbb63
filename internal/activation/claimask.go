package activation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// claimPatience bounds one member's answer, which may have to wait for a connection.
const claimPatience = 15 * time.Second

// A host waits so long for the intent of a member that comes after it to be withdrawn.
const (
	tiePatience = 10 * time.Second
	tiePause    = 200 * time.Millisecond
)

// mostAsked volumes are asked about at a time: a question between hosts is small.
const mostAsked = 500

// askMembers asks all other members of a VG at once; those that are fenced are left out
// where they do not answer. Any other silence is an error.
func (m *Manager) askMembers(ctx context.Context, vg string, lvs []string) (map[string][]api.Claim, error) {
	said, err := m.askAbout(ctx, vg, lvs[:min(len(lvs), mostAsked)])
	for rest := lvs; err == nil && len(rest) > mostAsked; {
		rest = rest[mostAsked:]
		var more map[string][]api.Claim
		more, err = m.askAbout(ctx, vg, rest[:min(len(rest), mostAsked)])
		for host, claims := range more {
			said[host] = append(said[host], claims...)
		}
	}
	return said, err
}

func (m *Manager) askAbout(ctx context.Context, vg string, lvs []string) (map[string][]api.Claim, error) {
	members := m.Settings().Claims[vg]
	if !slices.Contains(members, m.Host) || len(members) < 2 {
		return nil, api.NewError(api.KindLocking, fmt.Sprintf("this host (%s) is not among the members of %s in virtlvm.toml (%s)", m.Host, vg, strings.Join(members, ", ")))
	}
	q := api.ClaimsQuery{VG: vg, Members: members, BootID: m.BootID, LVs: lvs}
	var mu sync.Mutex
	var all sync.WaitGroup
	said, failed := map[string][]api.Claim{}, map[string]error{}
	for _, host := range members {
		if host == m.Host {
			continue
		}
		all.Go(func() {
			ctx := m.Branch(ctx, "asks "+host+" about "+vg)
			claims, counts, err := m.askMember(ctx, host, q)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				failed[host] = err
			case counts:
				said[host] = claims
			}
		})
	}
	all.Wait()
	for _, host := range members {
		if err := failed[host]; err != nil {
			return nil, err
		}
	}
	return said, nil
}

// askMember asks one; counts false: it is fenced, and silent.
func (m *Manager) askMember(ctx context.Context, host string, q api.ClaimsQuery) (claims []api.Claim, counts bool, err error) {
	short, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	var answer api.ClaimsAnswer
	err = m.call(short, host, api.RoutePeerClaims, q, &answer)
	if err == nil || answered(err) {
		if err := m.heardOf(ctx, host, answer.BootID); err != nil {
			return nil, false, err
		}
	}
	switch kind := api.KindOf(err); {
	case err == nil:
	case answered(err), kind != api.KindUnreachable && kind != api.KindUnknown:
		return nil, false, api.NewError(kind, fmt.Sprintf("%s is a member of %s and refuses: %v", host, q.VG, err))
	case m.isFenced(ctx, host):
		return nil, false, nil
	default:
		return nil, false, api.NewError(api.KindUnknown, fmt.Sprintf(
			"%s is a member of %s and does not say what it has of it (%v), so that nothing of it is activated here; bring that host back or, if it is surely off, run 'virtlvm host fenced %s' on %s", host, q.VG, err, host, m.Host))
	}
	if !sensible(answer) {
		return nil, false, api.NewError(api.KindUnknown, fmt.Sprintf("%s is a member of %s, and what it says it has of it makes no sense; compare `virtlvm version` on both hosts", host, q.VG))
	}
	m.noteBoot(host, answer.BootID)
	return answer.Claims, true, nil
}

// sensible: an answer that names its boot, and modes that there are. Nothing else is an
// answer: one that is empty would say that all is free.
func sensible(a api.ClaimsAnswer) bool {
	known := func(mode string) bool {
		switch model.LockMode(mode) {
		case model.ModeOff, model.ModeSH, model.ModeEX:
			return true
		}
		return false
	}
	return a.BootID != "" && !slices.ContainsFunc(a.Claims, func(c api.Claim) bool { return !known(c.Wanted) || !known(c.Claimed) })
}

// wish is a volume that this host wants to claim.
type wish struct {
	volume model.Volume
	mode   model.LockMode
}

// ask asks the other members whether this host, whose intents are published, may have
// volumes; refused says why not, by volume. Where two hosts want the same and neither has
// it, the one that comes first in the order of their names waits for the other to
// withdraw, patient, and the other is refused. An error is about all of them.
func (m *Manager) ask(ctx context.Context, vg string, wishes []wish, patient bool) (refused map[model.VolumeID]error, err error) {
	lvs := make([]string, 0, len(wishes))
	for _, w := range wishes {
		lvs = append(lvs, w.volume.ID.LV)
	}
	for deadline := m.Now().Add(tiePatience); ; {
		said, err := m.askMembers(ctx, vg, lvs)
		if err != nil {
			return nil, err
		}
		refused, waits := m.judgeClaims(wishes, said)
		if !patient || !waits || m.Now().After(deadline) {
			return refused, nil
		}
		if err := m.pause(ctx, tiePause); err != nil {
			return nil, err
		}
	}
}

// judgeClaims decides by what the others have said; waits: all that refuses are intents that
// will be withdrawn.
func (m *Manager) judgeClaims(wishes []wish, said map[string][]api.Claim) (refused map[model.VolumeID]error, waits bool) {
	refused = map[model.VolumeID]error{}
	waits = true
	for _, w := range wishes {
		for _, host := range sortedKeys(said) {
			for _, c := range said[host] {
				if c.LV != w.volume.ID.LV || compatible(w.mode, c) {
					continue
				}
				if refused[w.volume.ID] == nil {
					refused[w.volume.ID] = claimRefusal(w.volume, host, c)
				}
				waits = waits && intent(c) && m.Host < host
			}
		}
	}
	return refused, waits && len(refused) > 0
}

// intent: that host asks the others, too, and has nothing yet.
func intent(c api.Claim) bool { return c.Claimed == string(model.ModeOff) && !c.Active }

// compatible: both hosts share the volume, with what the other has of it claimed.
func compatible(mode model.LockMode, c api.Claim) bool {
	ex := string(model.ModeEX)
	return mode == model.ModeSH && c.Wanted != ex && c.Claimed != ex && (!c.Active || c.Claimed == string(model.ModeSH))
}

func claimRefusal(v model.Volume, host string, c api.Claim) error {
	by := ""
	if c.By != "" {
		by = " for " + c.By
	}
	switch {
	case c.Claimed == string(model.ModeOff) && c.Active && c.By == "":
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is active on %s, and virtlvm has not activated it there; whoever did can run 'lvchange -an %s' on %s", v.Name(), host, v.Name(), host))
	case intent(c):
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is about to be activated on %s%s; try again if that comes to nothing", v.Name(), host, by))
	case c.Claimed == string(model.ModeSH):
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is claimed shared by %s%s; stop what uses it there", v.Name(), host, by))
	}
	return api.NewError(api.KindHeld, fmt.Sprintf("%s is claimed exclusively by %s%s; stop the guest that uses it there, or migrate it", v.Name(), host, by))
}
