package check

import (
	"time"

	"virtlvm/internal/lease"
)

// checkRenewal looks for trouble with the leases by which this host stays alive: they are
// renewed each 2 x io_timeout, and lost after 8 x.
func checkRenewal(f *Facts) Result {
	d := f.Sanlock.Value
	if f.Sanlock.Err != nil || !d.Running {
		return skip("sanlock does not run")
	}
	if len(d.Spaces) == 0 {
		return skip("no lockspace is started")
	}
	const fix = "check the storage and the paths to it ('multipath -ll', 'journalctl -u sanlock')"
	var found findings
	for _, l := range f.Lockspaces.Value {
		if l.Killed {
			found.fail("end the guests on it, then 'lvmlockctl --drop "+l.VG+"'", "access to the leases of %s was lost: nothing on it is locked here any more", l.VG)
		}
	}
	for _, vg := range sortedKeys(d.Spaces) {
		s := d.Spaces[vg]
		late := d.Monotonic - s.LastSuccess
		switch {
		case s.Lost:
			found.fail(fix, "sanlock has given up the lockspace of %s and ends what uses it", vg)
			continue
		case !s.LastOK:
			found.fail(fix, "the last renewal in %s failed; the last that did not is %s ago, and the lease is lost %s after it", vg, seconds(late), seconds(int64(8*s.IOTimeout)))
			continue
		}
		history := f.Renewals[vg]
		if history.Err != nil {
			found.warn("", "%s", history.Err)
			continue
		}
		trouble(&found, vg, s, history.Value, d.Monotonic, fix)
	}
	return found.result("")
}

// trouble judges the renewals of a lockspace that sanlock remembers.
func trouble(found *findings, vg string, s lease.Space, history []lease.Renewal, now int64, fix string) {
	bad, slow, last, slowest := 0, 0, int64(0), 0
	for _, r := range history {
		took := r.Read + r.Write
		switch {
		case r.Timeouts+r.Errors > 0:
			bad += r.Timeouts + r.Errors
			last = r.At
		case s.IOTimeout > 0 && took > s.IOTimeout*1000/2:
			slow++
			slowest = max(slowest, took)
		}
	}
	if bad > 0 {
		found.warn(fix, "%d renewals in %s failed lately, the last about %s ago", bad, vg, seconds(now-last))
	}
	if slow > 0 {
		found.warn(fix, "%d of the last %d renewals in %s were slow, up to %.1f s where %d s are the limit of each read and write", slow, len(history), vg, float64(slowest)/1000, s.IOTimeout)
	}
}

func seconds(n int64) string { return (time.Duration(max(n, 0)) * time.Second).String() }
