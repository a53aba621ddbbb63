package san

import (
	"strconv"
	"strings"
)

// Env is what the programs of sanfake need to run as this host.
func (h *Host) Env() []string {
	return []string{"SAN_DIR=" + h.san.dir, "SAN_HOST=" + h.name}
}

// Active reports whether the volume's device is there.
func (h *Host) Active(vg, lv string) bool {
	found := false
	_ = h.san.view(func(st *state) error {
		if hs := st.Hosts[h.name]; hs != nil {
			found = hs.Devs[dmName(vg, lv)] != nil
		}
		return nil
	})
	return found
}

// Device is a device-mapper device as /sys/block shows it.
type Device struct{ Name, UUID, Kernel string }

// Devices are this host's devices, as the files in SysDir have them.
func (h *Host) Devices() (all []Device, err error) {
	err = h.san.view(func(st *state) error {
		if hs := st.Hosts[h.name]; hs != nil {
			all = make([]Device, 0, len(hs.Devs))
			for name, d := range hs.Devs {
				all = append(all, Device{Name: name, UUID: d.UUID, Kernel: "dm-" + strconv.Itoa(d.Minor)})
			}
		}
		return nil
	})
	return all, err
}

// LockMode is what lvmlockd on this host holds of the volume: "ex", "sh", "un", or
// "orphan ex", "orphan sh" where a lvmlockd that is gone took it.
func (h *Host) LockMode(vg, lv string) string {
	mode := "un"
	_ = h.san.view(func(st *state) error {
		g, hs := st.VGs[vg], st.Hosts[h.name]
		if g == nil || hs == nil || g.find(lv) == nil {
			return nil
		}
		if l := hs.lockOf(vg, g.locker(g.find(lv)).UUID); l != nil {
			mode = l.Mode
			if l.Orphan {
				mode = "orphan " + mode
			}
		}
		return nil
	})
	return mode
}

// Held is what a host has of one volume.
type Held struct {
	Volume string // vg/lv
	Lock   string // as LockMode has it
	Active bool   // its device is there
	Leased bool   // its VG has leases
	Open   int    // by how many processes
}

// Held lists every volume of which this host has anything, by name.
func (h *Host) Held() ([]Held, error) {
	table, err := h.san.Table()
	held := table[h.name]
	for i := range held {
		vg, lv, _ := strings.Cut(held[i].Volume, "/")
		held[i].Open = h.san.opens(h.name, dmName(vg, lv))
	}
	return held, err
}

// Table is what every host has, by its name: of each volume that it has locked or active,
// Open left out. It is one look.
func (s *SAN) Table() (map[string][]Held, error) {
	table := map[string][]Held{}
	err := s.view(func(st *state) error {
		for _, vg := range st.vgsByName() {
			for _, lv := range vg.visible() {
				volume, device, lock := vg.Name+"/"+lv.Name, dmName(vg.Name, lv.Name), vg.locker(lv).UUID
				for _, hs := range st.Hosts {
					held := Held{Volume: volume, Lock: "un", Active: hs.Devs[device] != nil, Leased: vg.leased()}
					if l := hs.lockOf(vg.Name, lock); l != nil {
						held.Lock = l.Mode
						if l.Orphan {
							held.Lock = "orphan " + l.Mode
						}
					}
					if held.Lock != "un" || held.Active {
						table[hs.Name] = append(table[hs.Name], held)
					}
				}
			}
		}
		return nil
	})
	return table, err
}
