package activation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
)

// job is one held volume, what its holds want together, and what there is.
type job struct {
	volume model.Volume // from the holds: ids, names, lock
	holds  []model.Hold
	want   model.LockMode
	have   model.Actual
}

// ensureVG brings the held volumes of one VG to what their holds want. What cannot be
// done now is reported and tried again at the next look.
func (m *Manager) ensureVG(ctx context.Context, vg string) {
	if !m.Settings().Scope(vg) {
		return // taken out of scope while guests ran: no longer ours to touch
	}
	leave, err := m.enterVG(ctx, vg)
	if err != nil {
		m.reportBlind(vg, err)
		return
	}
	defer leave()
	m.ensureLocked(context.WithoutCancel(ctx), vg)
}

// ensureLocked is ensureVG with the VG's turn taken.
func (m *Manager) ensureLocked(ctx context.Context, vg string) {
	m.mu.Lock()
	stuckErr := m.stuckError(vg, m.queue(vg))
	m.mu.Unlock()
	if stuckErr != nil {
		m.reportBlind(vg, stuckErr)
		return
	}
	now, err := m.lookAwaiting(ctx, vg)
	if err != nil {
		m.reportBlind(vg, err)
		return
	}
	jobs := m.jobs(vg, now)
	due := map[model.LockMode][]job{}
	for _, j := range jobs {
		if !j.done() && j.due() {
			due[j.want] = append(due[j.want], j)
		}
	}
	if err := now.usable(vg); err != nil {
		// Deactivating now would lose the device and keep the lease: wait.
		m.reportVG(vg, err)
		m.reportJobs(jobs, err)
		return
	}
	m.reportVG(vg, nil)
	told := map[model.Grant]bool{}
	m.settle(ctx, jobs, told)
	// The newest look is enough: nobody else changes the VG from here meanwhile. nil: what
	// there is now is not known.
	last := m.ensureOff(ctx, due[model.ModeOff], &now, told)
	last = m.ensureOn(ctx, model.ModeEX, due[model.ModeEX], last)
	last = m.ensureOn(ctx, model.ModeSH, due[model.ModeSH], last)
	if last == nil {
		if now, err = m.look(ctx); err != nil {
			m.reportVG(vg, err)
			return
		}
		last = &now
	}
	now = *last
	m.keepLook(vg, now)
	jobs = m.jobs(vg, now)
	m.settle(ctx, jobs, told)
	m.reportJobs(m.jobs(vg, now), nil)
}

// jobs groups the holds of a VG by volume.
func (m *Manager) jobs(vg string, now local) []job {
	m.mu.Lock()
	defer m.mu.Unlock()
	byVolume := map[model.VolumeID]*job{}
	for _, h := range m.holds {
		hvg, lv, _ := strings.Cut(h.Name, "/")
		if hvg != vg {
			continue
		}
		j := byVolume[h.Volume]
		if j == nil {
			j = &job{volume: model.Volume{ID: h.Volume, VG: hvg, LV: lv, LockLV: h.LockLV}, want: model.ModeOff}
			byVolume[h.Volume] = j
		}
		j.holds = append(j.holds, h)
		j.want = j.want.Max(h.Wanted())
	}
	all := make([]job, 0, len(byVolume))
	for _, j := range byVolume {
		j.have = now.ofVolume(j.volume)
		all = append(all, *j)
	}
	sort.Slice(all, func(a, b int) bool { return all[a].volume.Name() < all[b].volume.Name() })
	return all
}

// done: as wanted. An orphaned lock is never done.
func (j job) done() bool { return j.have.Is(j.want) }

// next is what is tried next to bring the volume to its wanted mode; "": nothing, as long as
// a start that takes its locks by itself is being decided.
func (j job) next() string {
	switch {
	case !j.due():
		return ""
	case j.want == model.ModeEX:
		return "lvchange -aey"
	case j.want == model.ModeSH:
		return "lvchange -asy"
	}
	return "lvchange -an"
}

// due: a start that is still being decided takes its locks by itself, and one that never
// became a QEMU gets none, nor does a hold for nobody.
func (j job) due() bool {
	if j.want == model.ModeOff {
		return true
	}
	for _, h := range j.holds {
		if h.Owner == model.OwnerRetained {
			continue // never taken again
		}
		if h.Phase != model.PhaseEnding && (h.Attempt.Seen || !model.IsGuest(h.Owner)) {
			return true
		}
	}
	return false
}

// settle forgets the ending holds of volumes that are off, or that another hold needs. The
// other ends of migrations that have been told already hear nothing.
func (m *Manager) settle(ctx context.Context, jobs []job, told map[model.Grant]bool) {
	var change store.HoldChange
	m.mu.Lock()
	m.settleRetained(jobs, &change)
	for _, j := range jobs {
		if j.want == model.ModeOff && !j.done() {
			continue
		}
		for _, h := range j.holds {
			k := holdKey{h.Owner, h.Volume}
			if cur, ok := m.holds[k]; ok && h.Phase == model.PhaseEnding && cur.Phase == model.PhaseEnding {
				delete(m.holds, k)
				change.Delete = append(change.Delete, h)
			}
		}
	}
	m.mu.Unlock()
	m.persist(ctx, change)
	m.notifyEnded(change.Delete, told)
}

// ensureOff deactivates with one command, and knows that exit code 0 is no proof. It takes
// and returns the newest look, nil where there is none. Who waits for the volumes on the other
// end of a migration is told before the volumes are looked at: he reads the lease himself.
func (m *Manager) ensureOff(ctx context.Context, jobs []job, now *local, told map[model.Grant]bool) *local {
	vols := m.closed(ctx, m.ours(ctx, jobs))
	if len(vols) == 0 {
		return now
	}
	var waited []model.Hold
	for _, j := range jobs {
		waited = append(waited, j.holds...)
	}
	after, _ := m.bring(ctx, "deactivate", lvm.DeactivateCmd(names(vols)...), model.ModeOff, vols, now, func() { m.notifyEnded(waited, told) })
	return after
}

// bring runs one command that brings volumes to a mode, and notes for each that is not in
// it why. It takes and returns the newest look. untold are those that are not as wanted
// although LVM said nothing of them. ran, if not nil, is called when the command says that it is done.
func (m *Manager) bring(ctx context.Context, kind string, cmd run.Cmd, want model.LockMode, vols []model.Volume, now *local, ran func()) (after *local, untold []model.Volume) {
	e, err := m.begin(ctx, kind, cmd, vols, store.HoldChange{}, bestEffort)
	if err != nil {
		return now, nil
	}
	if ran != nil && e.err == nil {
		ran()
	}
	after, wrong, err := m.observe(ctx, e, want, vols)
	if err != nil {
		m.noteFailure(vols, err)
		return nil, nil
	}
	var said *lvm.Error
	_ = errors.As(e.err, &said) // else it said nothing of any
	for _, v := range wrong {
		m.noteFailure([]model.Volume{v}, m.explain(ctx, e, []model.Volume{v}, *after))
		if said != nil {
			if _, told := said.Of(v.Name()); told {
				continue
			}
		}
		untold = append(untold, v)
	}
	return after, untold
}

// closed keeps the volumes that nothing has open: lvchange would try for seconds, and
// fail.
func (m *Manager) closed(ctx context.Context, vols []model.Volume) []model.Volume {
	if len(vols) == 0 {
		return nil
	}
	open, err := m.LVM.OpenCounts(ctx)
	if err != nil {
		m.noteFailure(vols, fmt.Errorf("cannot tell whether it is open: %w", err))
		return nil
	}
	var all []model.Volume
	for _, v := range vols {
		if n := open[v.ID.DMUUID()]; n > 0 {
			m.noteFailure([]model.Volume{v}, fmt.Errorf("it is open on this host (%d times); deactivated when it is closed: 'lsof /dev/%s' tells who has it open", n, v.Name()))
			continue
		}
		all = append(all, v)
	}
	return all
}

// ours keeps the volumes whose device still carries the name we know: after a rename the
// old name may belong to somebody else's volume.
func (m *Manager) ours(ctx context.Context, jobs []job) []model.Volume {
	if len(jobs) == 0 {
		return nil
	}
	devices, err := m.LVM.Devices()
	if err != nil {
		m.Log.Error("cannot read devices", "err", err)
		return nil
	}
	var vols []model.Volume
	for _, j := range jobs {
		v := j.volume
		dev, active := devices[v.ID.DMUUID()]
		if active && dev.Name != lvm.MapperName(v.VG, v.LV) || !active {
			if v, err = m.renamed(ctx, v); err != nil {
				m.noteFailure([]model.Volume{j.volume}, err)
				continue
			}
		}
		vols = append(vols, v)
	}
	return vols
}

// renamed finds a volume's name now by its uuid and corrects its holds.
func (m *Manager) renamed(ctx context.Context, v model.Volume) (model.Volume, error) {
	inv, err := m.inventory(ctx, v.VG)
	if err != nil {
		return v, err
	}
	if inv != nil {
		for _, now := range inv.byName {
			if now.ID == v.ID {
				m.rename(ctx, v.ID, now.Name())
				return now, nil
			}
		}
	}
	return v, fmt.Errorf("volume %s (uuid %s) is no longer there", v.Name(), v.ID.LV)
}

func (m *Manager) rename(ctx context.Context, id model.VolumeID, name string) {
	var change store.HoldChange
	m.mu.Lock()
	for k, h := range m.holds {
		if h.Volume == id && h.Name != name {
			h.Name = name
			m.holds[k] = h
			change.Put = append(change.Put, h)
		}
	}
	m.mu.Unlock()
	m.persist(ctx, change)
}

// ensureOn takes the locks that running guests need and do not have, with one command: LVM
// goes on to the next volume where one is refused, and each refusal is an alarm. What LVM
// said nothing of is tried alone, so that a volume it chokes on keeps no other waiting. It
// takes and returns the newest look.
func (m *Manager) ensureOn(ctx context.Context, mode model.LockMode, jobs []job, now *local) *local {
	if len(jobs) > 0 && m.claimed(jobs[0].volume.VG) {
		return m.ensureClaims(ctx, jobs, now)
	}
	vols := m.ours(ctx, jobs)
	if mode == model.ModeEX {
		vols = m.convertible(ctx, vols, now)
	}
	if len(vols) == 0 {
		return now
	}
	now, untold := m.bring(ctx, "activate", lvm.ActivateCmd(mode, names(vols)...), mode, vols, now, nil)
	if len(vols) == 1 {
		return now
	}
	for _, v := range untold {
		now, _ = m.bring(ctx, "activate", lvm.ActivateCmd(mode, v.Name()), mode, []model.Volume{v}, now, nil)
	}
	return now
}

// convertible keeps the volumes whose lock can become exclusive now: a shared one only
// without another live shared holder. A convert that must fail disturbs the others' lease
// for a moment.
func (m *Manager) convertible(ctx context.Context, vols []model.Volume, now *local) []model.Volume {
	if now == nil && len(vols) > 0 {
		seen, err := m.look(ctx)
		if err != nil {
			m.noteFailure(vols, err)
			return nil
		}
		now = &seen
	}
	var can, shared []model.Volume
	for _, v := range vols {
		if now.ofVolume(v).Lock == model.ModeSH {
			shared = append(shared, v)
		} else {
			can = append(can, v)
		}
	}
	if len(shared) == 0 {
		return can
	}
	holders, err := m.sharersOf(ctx, shared, now.kept)
	if err != nil {
		m.noteFailure(shared, err)
		return can
	}
	for _, v := range shared {
		leased, ok := holders[v.LockLV]
		switch i := slices.IndexFunc(leased, func(h model.Holder) bool { return !h.Self }); {
		case !ok:
			m.noteFailure([]model.Volume{v}, errors.New("its lease is not where LVM says, or LVM does not list it any more"))
		case i >= 0:
			m.noteRival(v.ID, leased[i])
			m.noteFailure([]model.Volume{v}, errors.New("held "+m.holderText(leased[i])+"; taken exclusively when that ends"))
		default:
			can = append(can, v)
		}
	}
	sort.Slice(can, func(i, j int) bool { return can[i].Name() < can[j].Name() })
	return can
}

// sharersOf reads who else has volumes of a VG that are shared here, by the uuid of the
// volume whose lock it is. Where the leases lie LVM has said before, and each says whose it is:
// LVM is asked again only if one is not there. kept: that they are shared here is no new
// knowledge, so whoever a lease names must be known by id and generation.
func (m *Manager) sharersOf(ctx context.Context, vols []model.Volume, kept bool) (map[string][]model.Holder, error) {
	vg := vols[0].VG
	if offsets := m.leasesAt(vg, vols); len(offsets) == len(vols) {
		read := reader(m.Leases.Sharers)
		if kept {
			read = m.readKnown(rivalLives)
		}
		if holders, err := read(ctx, vg, offsets); err == nil && len(holders) == len(vols) {
			return holders, nil
		}
	}
	if _, err := m.inventory(ctx, vg); err != nil {
		return nil, err
	}
	holders, err := m.Leases.Sharers(ctx, vg, m.leasesAt(vg, vols))
	if err != nil {
		return nil, fmt.Errorf("cannot read its lease: %w", err)
	}
	return holders, nil
}

// leasesAt are the byte offsets of the leases of volumes as LVM has said last, by the uuid of
// the volume whose lock it is; those that it has not named are missing.
func (m *Manager) leasesAt(vg string, vols []model.Volume) map[string]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	offsets := map[string]int64{}
	for _, v := range vols {
		if at, known := m.leases[vg][v.LockLV]; known {
			offsets[v.LockLV] = at
		}
	}
	return offsets
}
