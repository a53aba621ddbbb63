package locks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// asking says which other hosts are asked for what no lease tells: devices and guests.
type asking int

const (
	askNobody  asking = iota
	askHolders        // the live ones
	askEverybody
)

// Show tells who holds one volume: one look at its lease, and a question to each live
// holder. A lock that is changing hands is looked at again for a moment.
func (l *Locks) Show(ctx context.Context, name string) (api.Lock, error) {
	v, err := l.Engine.VolumeNamed(ctx, name)
	if err != nil {
		return api.Lock{}, err
	}
	const tries, pause = 3, 300 * time.Millisecond
	for try := 1; ; try++ {
		one := l.look(ctx, v.VG, []model.Volume{v}, askHolders)[0]
		if (one.Converting || one.odd) && try < tries && l.pause(ctx, pause) == nil {
			continue
		}
		if one.Attr, err = l.Attr(ctx, v.Name()); err != nil {
			l.Log.Debug("cannot read lv_attr", "volume", v.Name(), "err", err)
		}
		return one.Lock, nil
	}
}

// List tells who holds each volume of a VG, or of all that are managed: one look at the
// used part of each lease area. cluster: every host is asked as well.
func (l *Locks) List(ctx context.Context, vg string, cluster bool) ([]api.Lock, error) {
	vgs, err := l.Engine.ManagedVGs(ctx, vg)
	if err != nil {
		return nil, err
	}
	ask := askNobody
	if cluster {
		ask = askEverybody
	}
	all := []api.Lock{}
	for _, name := range vgs {
		vols, err := l.Engine.Inventory(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, seen := range l.look(ctx, name, vols, ask) {
			all = append(all, seen.Lock)
		}
		l.forget(ctx, vols)
	}
	return all, nil
}

// sighting is a Lock with what its hint needs.
type sighting struct {
	api.Lock
	volume model.Volume
	odd    bool // a lease and its holder contradict each other
}

// look looks at some volumes of one VG, in their order, and corrects their hints.
func (l *Locks) look(ctx context.Context, vg string, vols []model.Volume, ask asking) []sighting {
	if len(vols) == 0 {
		return nil
	}
	var leases map[string][]model.Holder
	var leaseErr error
	claimed := l.Engine.Members(vg) != nil
	if !claimed {
		leases, leaseErr = l.leases(ctx, vg, vols)
	}
	hints := l.hints(ctx, vols[0].ID.VG)
	r := l.newRound(vg)
	r.self(ctx)
	switch ask {
	case askHolders:
		r.ask(ctx, liveNames(leases))
	case askEverybody:
		r.askAll(ctx)
	case askNobody:
	}
	if claimed {
		r.askAll(ctx)
	} else {
		r.fallBack(ctx, vols, leases, hints)
	}
	all := make([]sighting, len(vols))
	for i, v := range vols {
		s := sighting{volume: v, Lock: api.Lock{Volume: v.Name(), UUID: v.ID.LV, Hosts: []api.LockHost{}}}
		holders, known := leases[v.LockLV]
		switch {
		case known:
			r.byLease(&s, holders)
		case claimed:
			r.byClaims(&s)
		default:
			r.byWord(&s, hints[v.ID], leaseErr)
		}
		all[i] = s
	}
	l.correct(ctx, all, hints)
	return all
}

// leases reads the leases of some volumes, by LockLV; one that is not there is not known.
// The error says why some are not.
func (l *Locks) leases(ctx context.Context, vg string, vols []model.Volume) (map[string][]model.Holder, error) {
	if len(vols) == 1 {
		v := vols[0]
		holders, err := l.Leases.Holders(ctx, vg, v.LeaseOffset, v.LockLV)
		if err != nil {
			return nil, err
		}
		return map[string][]model.Holder{v.LockLV: holders}, nil
	}
	offsets := make(map[string]int64, len(vols))
	for _, v := range vols {
		offsets[v.LockLV] = v.LeaseOffset
	}
	return l.Leases.HoldersAll(ctx, vg, offsets)
}

func liveNames(leases map[string][]model.Holder) []string {
	var names []string
	for _, holders := range leases {
		for _, h := range holders {
			if h.State == model.HostLive && h.Host != "" && !h.Self {
				names = append(names, h.Host)
			}
		}
	}
	return names
}

// fallBack asks other hosts where a lease cannot be read: first those recorded, and all of
// them if a volume is then still in doubt.
func (r *round) fallBack(ctx context.Context, vols []model.Volume, leases map[string][]model.Holder, hints map[model.VolumeID]model.LockHint) {
	var doubtful []model.Volume
	var recorded []string
	for _, v := range vols {
		if _, known := leases[v.LockLV]; known {
			continue
		}
		doubtful = append(doubtful, v)
		if h := hints[v.ID]; h.Mode == model.ModeEX {
			recorded = append(recorded, h.Host)
		}
	}
	r.ask(ctx, recorded)
	for _, v := range doubtful {
		if r.exclusive(v) == "" {
			r.askAll(ctx)
			return
		}
	}
}

// exclusive names the host that says it holds a volume exclusively, "" if none does; this
// host by its name.
func (r *round) exclusive(v model.Volume) string {
	for name, s := range r.said {
		if s.err == nil && s.locks[v.LockLV].Mode == string(model.ModeEX) {
			if name == "" {
				return r.l.Host
			}
			return name
		}
	}
	return ""
}

// byLease fills in what a lease tells and adds what the hosts say.
func (r *round) byLease(s *sighting, holders []model.Holder) {
	s.Known = api.KnownLease
	s.Converting = converting(holders)
	seen := map[string]bool{}
	for _, h := range holders {
		name := h.Label()
		if h.Self {
			name = ""
		}
		seen[name] = true
		host := r.host(s.volume, name, h.Self)
		host.Holder = api.Holder{Host: h.Label(), HostID: h.HostID, Mode: string(h.Mode), State: string(h.State), FreeIn: h.FreeIn}
		s.Hosts = append(s.Hosts, host)
		answer, asked := r.said[name]
		switch {
		case !asked:
		case answer.err != nil:
			s.Silent = append(s.Silent, h.Label())
		case answer.locks[s.volume.LockLV].Mode != string(h.Mode) && !s.Converting:
			s.odd = true
			s.Problem = fmt.Sprintf("its lease names %s (%s), whose lvmlockd has it %s: it has just changed, or the lock is orphaned there", h.Label(), h.Mode, modeOf(answer.locks[s.volume.LockLV]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.said)) {
		answer := r.said[name]
		local := answer.locks[s.volume.ID.LV]
		if answer.err != nil || seen[name] {
			continue
		}
		if mode := answer.locks[s.volume.LockLV].Mode; mode != "" && mode != string(model.ModeOff) {
			s.odd = true
			s.Problem = fmt.Sprintf("%s says that it holds it (%s), which its lease does not say: it has just changed, or sanlock there has died", r.label(name), mode)
		} else if !local.Active {
			continue
		}
		host := r.host(s.volume, name, name == "")
		host.Holder = api.Holder{Host: r.label(name), HostID: answer.HostID, Mode: string(model.ModeOff), State: string(model.HostLive)}
		s.Hosts = append(s.Hosts, host)
	}
	s.order()
}

// byWord fills in what the hosts say, where the lease cannot be read.
func (r *round) byWord(s *sighting, hint model.LockHint, leaseErr error) {
	exclusive := r.addSaid(s)
	s.Problem = "its lease was not found where LVM says it is"
	if leaseErr != nil {
		s.Problem = leaseErr.Error()
	}
	switch {
	case len(exclusive) > 1:
		s.Known, s.Problem = api.KnownUnknown, fmt.Sprintf("%s say that they hold it exclusively, and its lease cannot be read", strings.Join(exclusive, " and "))
	case len(exclusive) == 1 && !r.everybody:
		s.Known = api.KnownHint
	case len(exclusive) == 1 || r.complete():
		s.Known = api.KnownPeers
	default:
		s.Known = api.KnownUnknown
	}
	if s.Known == api.KnownUnknown && hint.Since != 0 {
		s.Recorded = &api.RecordedHost{Host: hint.Host, Mode: string(hint.Mode), At: time.UnixMilli(hint.Since)}
	}
}

// byClaims fills in what the members of a VG without lvmlockd say. Nobody's claim is worth
// more than another's: all must have answered.
func (r *round) byClaims(s *sighting) {
	exclusive := r.addSaid(s)
	switch {
	case len(exclusive) > 1:
		s.Known, s.Problem = api.KnownUnknown, fmt.Sprintf("ALARM: %s all claim it exclusively: one of them was declared fenced and was not; stop the guest on all but one, and check its file systems", strings.Join(exclusive, " and "))
	case r.complete():
		s.Known = api.KnownPeers
	default:
		s.Known, s.Problem = api.KnownUnknown, "not every member of "+r.vg+" has answered"
	}
}

// addSaid adds what the hosts say, and lists those that have the volume exclusively.
func (r *round) addSaid(s *sighting) (exclusive []string) {
	for name, answer := range r.said {
		lock, local := answer.locks[s.volume.LockLV], answer.locks[s.volume.ID.LV]
		if answer.err != nil || modeOf(lock) == model.ModeOff && !local.Active {
			continue
		}
		host := r.host(s.volume, name, name == "")
		host.Holder = api.Holder{Host: r.label(name), HostID: answer.HostID, Mode: string(modeOf(lock)), State: string(model.HostLive)}
		s.Hosts = append(s.Hosts, host)
		if modeOf(lock) == model.ModeEX {
			exclusive = append(exclusive, host.Host)
		}
	}
	s.order()
	s.Silent = r.silent()
	slices.Sort(exclusive)
	return exclusive
}

// host is what a host says of a volume.
func (r *round) host(v model.Volume, name string, self bool) api.LockHost {
	h := api.LockHost{Self: self, Active: api.Unknown, Open: api.Unknown, Guests: []string{}}
	answer, asked := r.said[name]
	if !asked || answer.err != nil {
		return h
	}
	local := answer.locks[v.ID.LV]
	h.Active, h.Open, h.Use = yesNo(local.Active), yesNo(local.Open), local.Use
	h.Orphan = answer.locks[v.LockLV].Orphan
	h.Guests = append(h.Guests, local.Guests...)
	return h
}

// label is a host's name in an answer.
func (r *round) label(name string) string {
	if name == "" {
		return r.l.Host
	}
	return name
}

// order puts the holders before those that only have it active, and else goes by name.
func (s *sighting) order() {
	off := func(h api.LockHost) int {
		if h.Mode == string(model.ModeOff) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(s.Hosts, func(a, b api.LockHost) int {
		if d := off(a) - off(b); d != 0 {
			return d
		}
		return strings.Compare(a.Host, b.Host)
	})
}

// converting: an owner beside live shared holders is taking the lock exclusively at this
// moment, or failing to.
func converting(holders []model.Holder) bool {
	ex, sh := false, false
	for _, h := range holders {
		if h.Converting {
			return true
		}
		ex, sh = ex || h.Mode == model.ModeEX, sh || h.Mode == model.ModeSH
	}
	return ex && sh
}

func modeOf(l api.LocalLock) model.LockMode {
	if l.Mode == "" {
		return model.ModeOff // not listed
	}
	return model.LockMode(l.Mode)
}

func yesNo(b bool) string {
	if b {
		return api.Yes
	}
	return api.No
}
