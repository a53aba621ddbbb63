package cluster

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Modes of an LV lock, as lvmlockctl writes them; ModeOff stands for no lock.
const (
	ModeEX  = "ex"
	ModeSH  = "sh"
	ModeOff = "off"
)

// Lockctl is what `lvmlockctl --info` says on one host.
type Lockctl struct {
	Lockspaces map[string]bool   // names, such as "lvm_vg_san"
	LVs        map[string]string // LV uuid -> ModeEX or ModeSH
}

// parseLockctl reads lines such as
//
//	LS sanlock lvm_vg_san
//	LK LV ex OU72MS-umSn-eAyG-IT7R-SsIH-Jakx-pdSV3B
//
// The mode "un" is a lock that lvmlockd knows but does not hold.
func parseLockctl(out string) Lockctl {
	l := Lockctl{Lockspaces: map[string]bool{}, LVs: map[string]string{}}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 3 && f[0] == "LS":
			l.Lockspaces[f[2]] = true
		case len(f) >= 4 && f[0] == "LK" && f[1] == "LV" && f[2] != "un":
			l.LVs[f[3]] = f[2]
		}
	}
	return l
}

// Lease is who holds a volume by its lease on disk, by sanlock host ids.
type Lease struct {
	EX int   // 0: nobody
	SH []int // in the order of the disk
}

// String is "ex 1", "sh 1 2" or "free".
func (l Lease) String() string {
	var words []string
	if l.EX != 0 {
		words = append(words, "ex", strconv.Itoa(l.EX))
	}
	if len(l.SH) > 0 {
		words = append(words, "sh")
	}
	for _, id := range l.SH {
		words = append(words, strconv.Itoa(id))
	}
	if len(words) == 0 {
		return "free"
	}
	return strings.Join(words, " ")
}

// parseLease reads `sanlock direct dump` of one lease: after the heading a row
//
//	70254592 lvm_vg_san OU72MS-... 0000000122 0001 0001 1
//
// of offset, lockspace, resource, timestamp, owner, generation and version, then a row
// "HOST GENERATION SH" for each shared holder. Timestamp zero: nobody holds it exclusively.
func parseLease(out, uuid string) (Lease, error) {
	var l Lease
	found := false
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 7 && f[2] == uuid:
			found = true
			if strings.Trim(f[3], "0") == "" {
				continue
			}
			id, err := strconv.Atoi(f[4])
			if err != nil {
				return Lease{}, fmt.Errorf("cannot read the lease row %q: %w", line, err)
			}
			l.EX = id
		case len(f) == 3 && f[2] == "SH":
			id, err := strconv.Atoi(f[0])
			if err != nil {
				return Lease{}, fmt.Errorf("cannot read the lease row %q: %w", line, err)
			}
			l.SH = append(l.SH, id)
		}
	}
	if !found {
		return Lease{}, fmt.Errorf("no lease of %s in %q", uuid, out)
	}
	return l, nil
}

// Lease reads a volume's lease from the disk as this host sees it.
func (h *Host) Lease(ctx context.Context, v Volume) (Lease, error) {
	out, err := h.Must(ctx, fmt.Sprintf("sanlock direct dump /dev/mapper/%s-lvmlock:%d:1048576", v.group(), v.Offset))
	if err != nil {
		return Lease{}, err
	}
	return parseLease(out, v.UUID)
}

// State is what one host has of the volumes of the shared volume groups.
type State struct {
	Lockctl
	Devices map[string]bool // "vg/lv" of the active LVs
}

// State asks lvmlockd and the device mapper on the host.
func (h *Host) State(ctx context.Context) (State, error) {
	out, err := h.Must(ctx, "lvmlockctl --info && echo DEVICES && dmsetup info -c --noheadings -o name")
	if err != nil {
		return State{}, err
	}
	locks, devices, _ := strings.Cut(out, "DEVICES\n")
	return State{Lockctl: parseLockctl(locks), Devices: parseDevices(devices)}, nil
}

// Mode is the lock that the host's lvmlockd holds on a volume.
func (s State) Mode(v Volume) string {
	if mode, ok := s.LVs[v.UUID]; ok {
		return mode
	}
	return ModeOff
}

// parseDevices reads device-mapper names, such as "vg_san-lv--with--dash".
func parseDevices(out string) map[string]bool {
	devices := map[string]bool{}
	for _, name := range strings.Fields(out) {
		for _, vg := range []string{VG, Second} { // neither has a dash
			if lv, ok := strings.CutPrefix(name, vg+"-"); ok && lv != "lvmlock" {
				devices[vg+"/"+strings.ReplaceAll(lv, "--", "-")] = true
			}
		}
	}
	return devices
}
