package lease

import (
	"context"
	"maps"
	"slices"
	"time"

	"virtlvm/internal/model"
)

// Holders tells which hosts hold the lease of a volume, this one included: lvUUID is the
// volume whose lock it is (of a thin volume the pool), offset its LeaseOffset. No holder
// means that the lease is free: whatever cannot be read or understood, or is another
// volume's lease, is an error of kind locking.
//
// An exclusive owner comes first. A host that has a shared row of its own and is the
// owner too is in the middle of taking or converting the lock, which one look cannot
// tell apart: it is listed once, as shared and converting. An owner without a shared row of its own is
// listed as exclusive even while others still have shared rows.
//
// Left out are leftovers: of hosts that sanlock calls dead, and of generations older than
// the host's present one. A lease of a newer generation than the host table's is real:
// the table may be one renewal old. A holder that the table does not know is kept, with
// state unknown.
func (r *Reader) Holders(ctx context.Context, vg string, offset int64, lvUUID string) ([]model.Holder, error) {
	row, err := r.lease(ctx, vg, offset, lvUUID)
	if err != nil {
		return nil, about(err, "cannot read who holds volume %s of %s", lvUUID, vg)
	}
	named := candidates(row)
	if len(named) == 0 {
		return nil, nil
	}
	// The lease first and the hosts afterwards: a host that joins in between only gets a
	// generation that is newer.
	hosts, err := r.hosts(ctx, vg)
	if err != nil {
		return nil, about(err, "cannot read whether the holders of volume %s of %s live", lvUUID, vg)
	}
	return living(named, hosts), nil
}

// lease reads one lease and makes sure that it is the volume's.
func (r *Reader) lease(ctx context.Context, vg string, offset int64, lvUUID string) (leaseRow, error) {
	if offset <= 0 || lvUUID == "" {
		return leaseRow{}, unclear("it has no lease of its own")
	}
	out, err := r.dump(ctx, vg, offset, leaseSize)
	if err != nil {
		return leaseRow{}, err
	}
	rows, err := parseDump(out, lockspacePrefix+vg)
	if err != nil {
		return leaseRow{}, err
	}
	if len(rows) != 1 {
		return leaseRow{}, unclear("the disk has %d leases at offset %d", len(rows), offset)
	}
	if row := rows[0]; row.delta || row.offset != offset || row.resource != lvUUID {
		return leaseRow{}, unclear("the lease at offset %d is that of %q at %d", offset, row.resource, row.offset)
	}
	return rows[0], nil
}

// HoldersAll reads the leases of several volumes of a VG at once; offsets are their
// LeaseOffsets by the uuid of the volume whose lock it is. A volume whose lease was not
// found where it should be is not in the answer: unknown, not free. Leases that lie close
// together are read at once, with what lies between them.
func (r *Reader) HoldersAll(ctx context.Context, vg string, offsets map[string]int64) (map[string][]model.Holder, error) {
	rows, err := r.leases(ctx, vg, offsets)
	switch {
	case err != nil:
		return nil, err
	case len(rows) == 0:
		return map[string][]model.Holder{}, nil
	}
	return r.judged(ctx, vg, rows)
}

// Sharers is HoldersAll for locks that lvmlockd says this host has shared. A lease that names
// one shared holder alone names this host then, and where that is so of all of them sanlock is not
// asked which hosts live: the holder comes without its name.
func (r *Reader) Sharers(ctx context.Context, vg string, offsets map[string]int64) (map[string][]model.Holder, error) {
	rows, err := r.leases(ctx, vg, offsets)
	if err != nil {
		return nil, err
	}
	found := map[string][]model.Holder{}
	for _, row := range rows {
		named := candidates(row)
		if len(named) != 1 || named[0].Mode != model.ModeSH || named[0].Converting {
			return r.judged(ctx, vg, rows)
		}
		named[0].Self, named[0].State = true, model.HostLive
		found[row.resource] = named
	}
	return found, nil
}

// HoldersKnown is HoldersAll that does not ask sanlock for the hosts where it has said before who
// the holders are, in the very generations that the leases name, and, not longer ago than age, that
// those which are not this host live. So it is right about who a holder is, and may be late about
// whether it lives.
func (r *Reader) HoldersKnown(ctx context.Context, vg string, offsets map[string]int64, age time.Duration) (map[string][]model.Holder, error) {
	rows, err := r.leases(ctx, vg, offsets)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	known := r.known[vg]
	r.mu.Unlock()
	found := map[string][]model.Holder{}
	for _, row := range rows {
		named := candidates(row)
		for _, h := range named {
			if !known.names(h, r.monotonic(), age) {
				return r.judged(ctx, vg, rows)
			}
		}
		found[row.resource] = living(named, known.hosts)
	}
	return found, nil
}

// leases reads the leases that are where offsets says.
func (r *Reader) leases(ctx context.Context, vg string, offsets map[string]int64) ([]leaseRow, error) {
	var rows []leaseRow
	for _, part := range together(offsets) {
		out, err := r.dump(ctx, vg, part.first, part.last-part.first+leaseSize)
		if err != nil {
			return nil, about(err, "cannot read the leases of %s", vg)
		}
		some, err := parseDump(out, lockspacePrefix+vg)
		if err != nil {
			return nil, about(err, "cannot read the leases of %s", vg)
		}
		for _, row := range some {
			if offset, wanted := offsets[row.resource]; wanted && !row.delta && row.offset == offset {
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

// judged are the holders of leases, after their hosts.
func (r *Reader) judged(ctx context.Context, vg string, rows []leaseRow) (map[string][]model.Holder, error) {
	hosts, err := r.hosts(ctx, vg)
	if err != nil {
		return nil, about(err, "cannot read whether the holders of volumes of %s live", vg)
	}
	found := map[string][]model.Holder{}
	for _, row := range rows {
		found[row.resource] = living(candidates(row), hosts)
	}
	return found, nil
}

// maxGap is how far apart two leases may lie to be read at once, in bytes: to read more of
// the disk takes longer than to start another sanlock.
const maxGap = 32 * leaseSize

// part of the disk from its first lease to its last one.
type part struct{ first, last int64 }

// together groups the offsets that are known into parts, in order.
func together(offsets map[string]int64) []part {
	var parts []part
	for _, offset := range slices.Sorted(maps.Values(offsets)) {
		n := len(parts)
		switch {
		case offset <= 0: // not known
		case n > 0 && offset-parts[n-1].last <= maxGap:
			parts[n-1].last = offset
		default:
			parts = append(parts, part{offset, offset})
		}
	}
	return parts
}

// twins reports whether another host that is not dead has the same name.
func twins(h Host, hosts map[int]Host) bool {
	for _, other := range hosts {
		if other.ID != h.ID && other.Name == h.Name && other.State != model.HostDead {
			return true
		}
	}
	return false
}

// candidates are the holders that a lease names.
func candidates(row leaseRow) []model.Holder {
	var named []model.Holder
	owner := sharedRow{host: row.owner, gen: row.gen}
	if row.timestamp != 0 && !slices.Contains(row.shared, owner) {
		named = append(named, model.Holder{HostID: row.owner, Gen: row.gen, Mode: model.ModeEX})
	}
	for _, s := range row.shared {
		named = append(named, model.Holder{HostID: s.host, Gen: s.gen, Mode: model.ModeSH, Converting: row.timestamp != 0 && s == owner})
	}
	return named
}

// living keeps the holders that are none of the leftovers that Holders speaks of.
func living(named []model.Holder, hosts map[int]Host) []model.Holder {
	var holders []model.Holder
	for _, h := range named {
		host, known := hosts[h.HostID]
		h.State, h.Host, h.Self = model.HostUnknown, host.Name, host.Self
		h.Twin = host.Name != "" && twins(host, hosts)
		switch {
		case known && h.Gen < host.Gen:
			continue
		case known && h.Gen == host.Gen:
			if host.State == model.HostDead {
				continue
			}
			h.State, h.FreeIn = host.State, host.FreeIn
		}
		holders = append(holders, h)
	}
	return holders
}
