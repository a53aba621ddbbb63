package lease

import (
	"context"
	"errors"
	"strings"

	"virtlvm/internal/run"
)

// Daemon is what sanlock says of itself and of its lockspaces.
type Daemon struct {
	Running     bool
	HostName    string // our_host_name that it runs with
	UseWatchdog bool
	Version     string
	Monotonic   int64            // its clock, seconds of CLOCK_MONOTONIC
	Spaces      map[string]Space // those of LVM, by VG
}

// Space is a lockspace as this host's sanlock keeps it alive. Times are in seconds of
// CLOCK_MONOTONIC.
type Space struct {
	HostID      int
	IOTimeout   int // seconds; renewals come every 2 x
	AlignSize   int64
	LastOK      bool // the last renewal succeeded
	LastAttempt int64
	LastSuccess int64
	// Lost: sanlock has given the lockspace up, and ends who uses it.
	Lost bool
}

// Daemon asks sanlock with `sanlock client status -D` (print_state_daemon and
// print_state_lockspace in sanlock's cmd.c). That it does not run is an answer.
func (r *Reader) Daemon(ctx context.Context) (Daemon, error) {
	out, err := r.sanlock(ctx, "client", "status", "-D")
	var exit *run.ExitError
	if errors.As(err, &exit) {
		return Daemon{}, nil
	}
	if err != nil {
		return Daemon{}, about(err, "cannot ask sanlock how it is")
	}
	return parseDaemon(out)
}

// parseDaemon reads
//
//	daemon kvm-a
//	    our_host_name=kvm-a
//	    use_watchdog=1
//	s lvm_VG:HOST-ID:PATH:OFFSET
//	    renewal_last_result=1
//
// Keys that are not needed, clients and resources are skipped.
func parseDaemon(out string) (Daemon, error) {
	d := Daemon{Spaces: map[string]Space{}}
	vg := ""
	section := byte(0)
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if line[0] != ' ' {
			section, vg = f[0][0], ""
			switch {
			case f[0] == "daemon" && len(f) == 2:
				d.Running, d.HostName = true, f[1]
			case f[0] == "s" && len(f) > 1:
				name, rest, _ := strings.Cut(f[1], ":")
				var ours bool
				if vg, ours = strings.CutPrefix(name, lockspacePrefix); !ours {
					continue
				}
				text, _, _ := strings.Cut(rest, ":")
				id, err := number(text)
				if err != nil || id <= 0 {
					return Daemon{}, unclear("cannot understand a lockspace of sanlock: %s", quoted(line))
				}
				d.Spaces[vg] = Space{HostID: int(id), Lost: f[len(f)-1] == "REM"}
			}
			continue
		}
		key, value, _ := strings.Cut(f[0], "=")
		switch {
		case section == 'd':
			d.set(key, value)
		case section == 's' && vg != "":
			s := d.Spaces[vg]
			s.set(key, value)
			d.Spaces[vg] = s
		}
	}
	if !d.Running {
		return Daemon{}, unclear("cannot understand the answer of sanlock client status: %s", quoted(firstLine(out)))
	}
	return d, nil
}

func (d *Daemon) set(key, value string) {
	switch key {
	case "use_watchdog":
		d.UseWatchdog = value == "1"
	case "version_str":
		d.Version = value
	case "monotime":
		d.Monotonic, _ = number(value) // 0: not known
	}
}

func (s *Space) set(key, value string) {
	n, _ := number(value) // 0 for errors, which are negative
	switch key {
	case "renew_fail", "space_dead", "killing_pids":
		s.Lost = s.Lost || value != "0"
	case "renewal_last_result":
		s.LastOK = n == 1
	case "io_timeout":
		s.IOTimeout = int(n)
	case "align_size":
		s.AlignSize = n
	case "renewal_last_attempt":
		s.LastAttempt = n
	case "renewal_last_success":
		s.LastSuccess = n
	}
}

// Renewal is one renewal of a host's lease, and what went wrong until the next one.
type Renewal struct {
	At               int64 // seconds of CLOCK_MONOTONIC
	Read, Write      int   // milliseconds
	Timeouts, Errors int   // of tries before the next one
}

// Renewals lists the renewals that sanlock remembers, an hour of them by default, oldest
// first, with `sanlock client renewal` (print_state_renewal in sanlock's cmd.c).
func (r *Reader) Renewals(ctx context.Context, vg string) ([]Renewal, error) {
	out, err := r.sanlock(ctx, "client", "renewal", "-s", lockspacePrefix+vg)
	if err != nil {
		return nil, about(err, "cannot read how the lease of %s was renewed", vg)
	}
	var all []Renewal
	for line := range strings.Lines(out) {
		var n Renewal
		for _, word := range strings.Fields(line) {
			key, value, _ := strings.Cut(word, "=")
			v, err := number(value)
			if err != nil {
				return nil, unclear("cannot understand a renewal of sanlock: %s", quoted(line))
			}
			switch key {
			case "timestamp":
				n.At = v
			case "read_ms":
				n.Read = int(v)
			case "write_ms":
				n.Write = int(v)
			case "next_timeouts":
				n.Timeouts = int(v)
			case "next_errors":
				n.Errors = int(v)
			}
		}
		if n.At > 0 {
			all = append(all, n)
		}
	}
	return all, nil
}

// Lockspace is one that lvmlockd has joined.
type Lockspace struct {
	VG, Type string
	HostID   int
	// GlobalLock: the VG's lease area has LVM's global lock.
	GlobalLock bool
	// Killed: access to the leases was lost, and nothing is locked here any more.
	Killed bool
}

// Lockspaces lists the lockspaces with `lvmlockctl --info --dump` (print_lockspace in
// lvmlockd-core.c). down: lvmlockd does not run.
func (r *Reader) Lockspaces(ctx context.Context) (all []Lockspace, down bool, err error) {
	out, down, err := r.lvmlockctl(ctx, "--info", "--dump")
	if err != nil {
		return nil, down, about(err, "cannot read this host's lockspaces")
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "info=ls" {
			continue
		}
		var l Lockspace
		for _, word := range f {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "vg_name":
				l.VG = value
			case "lm_type":
				l.Type = value
			case "host_id":
				id, err := number(value)
				if err != nil {
					return nil, false, unclear("cannot understand a lockspace of lvmlockd: %s", quoted(line))
				}
				l.HostID = int(id)
			case "kill_vg":
				l.Killed = value != "0"
			case "sanlock_gl_enabled":
				l.GlobalLock = value == "1"
			}
		}
		if l.VG != "" && l.VG != noVG {
			all = append(all, l)
		}
	}
	return all, down, nil
}

// DiskHosts names the hosts that have a lease of their own on the disk of a VG, by host id,
// whether they live or not. It needs the device of the lease volume, not the lockspace.
func (r *Reader) DiskHosts(ctx context.Context, vg string) (map[int]string, error) {
	out, err := r.dump(ctx, vg, 0, leaseSize)
	if err != nil {
		return nil, about(err, "cannot read the hosts of %s from its disk", vg)
	}
	rows, err := parseDump(out, lockspacePrefix+vg)
	if err != nil {
		return nil, about(err, "cannot read the hosts of %s from its disk", vg)
	}
	names := map[int]string{}
	for _, row := range rows {
		if row.delta && row.timestamp != 0 {
			names[row.owner] = row.resource
		}
	}
	return names, nil
}
