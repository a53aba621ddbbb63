package lease

import (
	"context"
	"fmt"
	"strings"
)

// leaseSize is the distance between two leases, and enough of the disk to read one.
// With 4096-byte sectors sanlock rounds it up by itself.
const leaseSize = 1 << 20

// leaseRow is a lease in `sanlock direct dump`, with its shared holders.
type leaseRow struct {
	offset    int64
	resource  string // LV uuid, "VGLK", "GLLK", "#unused"; of a delta lease the host's name
	timestamp int64  // 0: no exclusive owner
	owner     int    // host id of the owner, or of the last one
	gen       int64
	delta     bool // a host's own lease: says that the host lives
	shared    []sharedRow
}

// sharedRow is a shared holder of a lease.
type sharedRow struct {
	host int
	gen  int64
}

// dump reads leases from the disk; it needs neither lvmlockd nor sanlock's daemon.
func (r *Reader) dump(ctx context.Context, vg string, offset, size int64) (string, error) {
	return r.sanlock(ctx, "direct", "dump", fmt.Sprintf("%s:%d:%d", r.lockVolume(vg), offset, size))
}

// parseDump reads the rows of a dump (direct_dump in sanlock's direct.c):
//
//	  offset   lockspace   resource  timestamp  own  gen lver
//	71303168  lvm_vg_san    LV-UUID 0000000000 0002 0001 1
//	                                           0002 0001 SH
//
// A disk that cannot be read gives no row and exit code 0, and a partial row may be
// garbage: what is not understood, or belongs to another lockspace, is an error.
func parseDump(out, lockspace string) ([]leaseRow, error) {
	var rows []leaseRow
	header := false
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "offset" && !header:
			header = true
		case header && len(f) == 3 && f[2] == "SH" && len(rows) > 0 && !rows[len(rows)-1].delta:
			var host, gen int64
			if err := numbers(f, map[int]*int64{0: &host, 1: &gen}); err != nil || host <= 0 {
				return nil, unclear("cannot understand a shared holder: %s", quoted(line))
			}
			last := &rows[len(rows)-1]
			last.shared = append(last.shared, sharedRow{host: int(host), gen: gen})
		case header && (len(f) == 6 || len(f) == 7):
			row, err := parseRow(f)
			if err != nil {
				return nil, unclear("cannot understand a lease: %s", quoted(line))
			}
			if f[1] != lockspace {
				return nil, unclear("a lease belongs to %q, not to %q", f[1], lockspace)
			}
			rows = append(rows, row)
		default:
			return nil, unclear("cannot understand the dump of a lease: %s", quoted(line))
		}
	}
	if !header {
		return nil, unclear("the dump of a lease is empty")
	}
	return rows, nil
}

// parseRow reads a row with six fields (a delta lease) or seven.
func parseRow(f []string) (leaseRow, error) {
	row := leaseRow{resource: f[2], delta: len(f) == 6}
	var owner, version int64
	into := map[int]*int64{0: &row.offset, 3: &row.timestamp, 4: &owner, 5: &row.gen}
	if !row.delta {
		into[6] = &version
	}
	if err := numbers(f, into); err != nil {
		return leaseRow{}, err
	}
	row.owner = int(owner)
	if row.timestamp != 0 && row.owner == 0 {
		return leaseRow{}, fmt.Errorf("an owner without a host id")
	}
	return row, nil
}
